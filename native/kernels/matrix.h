// A weight matrix as kernels read it: panels of eight output rows, interleaved so that a vector lane
// is an output. The values are those of the file; only their order in memory is not.
#pragma once

#include <cstddef>
#include <cstdint>

namespace glimpse {

constexpr int kPanel = 8;  // outputs in a panel; the last one is filled up with zeros
constexpr int kBlock = 32;  // inputs that share a scale of the activations

// What a panel holds, for each block of inputs in turn:
//   floats    [input][8 outputs]
//   q4_*      [8 scales][8 minima, where stored][4 steps][8 outputs][4 bytes]: input 4 * step + i in
//             the low half of byte i, input 16 + 4 * step + i in the high half; values 0..15
//   others    [8 scales][8 minima, where stored][block / 2 steps][8 outputs][2 inputs], signed bytes
// A weight is scale * value + minimum.
enum class WeightType {
  f32,
  f16,
  bf16,
  q4_0,    // half scales; the minimum is -8 scales
  q4_1,    // half scales and minima
  q4_s32,  // float scales and minima
  q8_0,    // half scales, no minima
  q8_s32,  // blocks of 32, float scales and minima
  q8_s16,  // blocks of 16, float scales, no minima
  q8_m16,  // blocks of 16, float scales and minima
};
constexpr int kNumWeightTypes = 10;

constexpr bool is_float(WeightType type) { return type <= WeightType::bf16; }
constexpr bool is_nibbles(WeightType type) {
  return type >= WeightType::q4_0 && type <= WeightType::q4_s32;
}
constexpr bool has_half_scales(WeightType type) {
  return type == WeightType::q4_0 || type == WeightType::q4_1 || type == WeightType::q8_0;
}
constexpr bool has_stored_minima(WeightType type) {
  return type == WeightType::q4_1 || type == WeightType::q4_s32 || type == WeightType::q8_s32 ||
         type == WeightType::q8_m16;
}
constexpr int block_size(WeightType type) {
  return type == WeightType::q8_s16 || type == WeightType::q8_m16 ? 16 : 32;
}
// Bytes that one block of a quantised panel takes.
constexpr std::size_t block_bytes(WeightType type) {
  const int scale_bytes = kPanel * (has_half_scales(type) ? 2 : 4);
  return scale_bytes * (has_stored_minima(type) ? 2 : 1) +
         kPanel * block_size(type) / (is_nibbles(type) ? 2 : 1);
}
constexpr std::size_t panel_bytes(WeightType type, std::int64_t num_inputs) {
  if (is_float(type)) return num_inputs * kPanel * (type == WeightType::f32 ? 4 : 2);
  return num_inputs / block_size(type) * block_bytes(type);
}

struct Matrix {
  WeightType type;
  std::int64_t num_outputs;
  std::int64_t num_inputs;
  const std::uint8_t* panels;
  const float* bias;  // [num_outputs] or null

  std::int64_t num_panels() const { return (num_outputs + kPanel - 1) / kPanel; }
  const std::uint8_t* panel(std::int64_t i) const {
    return panels + i * panel_bytes(type, num_inputs);
  }
};

// Where results go: row r, output n at [r * stride + n]; added to what is there, or put in its place.
struct Output {
  float* data;
  std::int64_t stride;
  bool is_added;
};

}  // namespace glimpse
