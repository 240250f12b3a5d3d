#include "weights.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "blocks.h"

namespace glimpse {
namespace {

bool find_float_type(std::string_view name, WeightType& type) {
  if (name == "F32") type = WeightType::f32;
  if (name == "F16") type = WeightType::f16;
  if (name == "BF16") type = WeightType::bf16;
  return name == "F32" || name == "F16" || name == "BF16";
}

std::int64_t stored_row(const StoredMatrix& stored, std::int64_t output) {
  return stored.row_order ? stored.row_order[output] : output;
}

template <class T>
void pack_floats(const StoredMatrix& stored, std::uint8_t* panels) {
  const std::int64_t n = stored.num_outputs, k = stored.num_inputs;
  T* const to = reinterpret_cast<T*>(panels);
  std::fill_n(to, (n + kPanel - 1) / kPanel * kPanel * k, T{0});
  for (std::int64_t output = 0; output < n; ++output) {
    const std::uint8_t* const row = stored.rows + stored_row(stored, output) * k * sizeof(T);
    T* const lane = to + output / kPanel * kPanel * k + output % kPanel;
    for (std::int64_t i = 0; i < k; ++i) {
      std::memcpy(lane + i * kPanel, row + i * sizeof(T), sizeof(T));
    }
  }
}

// Exact: what is stored in half precision came from there.
std::uint16_t float_to_half(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const std::uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude >= 0x7f800000) {
    return static_cast<std::uint16_t>(sign | 0x7c00 | (magnitude > 0x7f800000) << 9);
  }
  if (magnitude < 0x38800000) {
    float absolute;
    std::memcpy(&absolute, &magnitude, sizeof absolute);
    return static_cast<std::uint16_t>(sign | static_cast<std::uint32_t>(absolute * 0x1p24f));
  }
  return static_cast<std::uint16_t>(sign | (magnitude - 0x38000000) >> 13);
}

void put_scale(WeightType type, std::uint8_t* at, int lane, float value) {
  if (has_half_scales(type)) {
    const std::uint16_t half = float_to_half(value);
    std::memcpy(at + 2 * lane, &half, sizeof half);
  } else {
    std::memcpy(at + 4 * lane, &value, sizeof value);
  }
}

// Puts one output's block into its lane of a packed block.
void put_block(WeightType type, std::uint8_t* block, int lane, const std::int8_t* values,
               float scale, float minimum) {
  const int scale_bytes = kPanel * (has_half_scales(type) ? 2 : 4);
  put_scale(type, block, lane, scale);
  if (has_stored_minima(type)) put_scale(type, block + scale_bytes, lane, minimum);
  std::uint8_t* const to = block + scale_bytes * (has_stored_minima(type) ? 2 : 1);
  for (int i = 0; i < block_size(type); ++i) {
    if (!is_nibbles(type)) {
      to[16 * (i / 2) + 2 * lane + i % 2] = static_cast<std::uint8_t>(values[i]);
    } else {
      const int step = i % 16 / 4, shift = i < 16 ? 0 : 4;
      to[32 * step + 4 * lane + i % 4] |= static_cast<std::uint8_t>(values[i] << shift);
    }
  }
}

void pack_blocks(const StoredMatrix& stored, const BlockFormat& format, std::uint8_t* panels) {
  const WeightType type = format.packed;
  const std::int64_t k = stored.num_inputs;
  const int size = block_size(type);
  std::vector<std::int8_t> values(format.num_inputs);
  std::vector<float> scales(format.num_inputs / size), minima(scales.size());
  const std::size_t row_bytes = k / format.num_inputs * format.num_bytes;
  for (std::int64_t output = 0; output < stored.num_outputs; ++output) {
    const std::uint8_t* from = stored.rows + stored_row(stored, output) * row_bytes;
    std::uint8_t* to = panels + output / kPanel * panel_bytes(type, k);
    for (std::int64_t i = 0; i < k; i += format.num_inputs, from += format.num_bytes) {
      format.decode(from, {values.data(), scales.data(), minima.data()});
      for (std::size_t b = 0; b < scales.size(); ++b, to += block_bytes(type)) {
        put_block(type, to, static_cast<int>(output % kPanel), values.data() + b * size, scales[b],
                  minima[b]);
      }
    }
  }
}

}  // namespace

bool is_packable(std::string_view type) {
  WeightType unused;
  return find_float_type(type, unused) || find_block_format(type) != nullptr;
}

PackedMatrix::PackedMatrix(const StoredMatrix& stored, std::vector<float> bias)
    : num_outputs_(stored.num_outputs), num_inputs_(stored.num_inputs), bias_(std::move(bias)) {
  const BlockFormat* const format = find_block_format(stored.type);
  if (format != nullptr) {
    type_ = format->packed;
    if (stored.num_inputs % format->num_inputs != 0) {
      throw std::invalid_argument(std::to_string(stored.num_inputs) + " inputs in " +
                                  std::string(stored.type) + ": must be a multiple of " +
                                  std::to_string(format->num_inputs));
    }
  } else if (!find_float_type(stored.type, type_)) {
    throw std::invalid_argument("weights of type '" + std::string(stored.type) +
                                "' cannot be packed");
  }
  if (!bias_.empty() && static_cast<std::int64_t>(bias_.size()) != num_outputs_) {
    throw std::invalid_argument("a bias of " + std::to_string(bias_.size()) + " for " +
                                std::to_string(num_outputs_) + " outputs");
  }
  const std::size_t bytes = view().num_panels() * panel_bytes(type_, num_inputs_);
  panels_ = Buffer<std::uint8_t>(bytes);
  if (format != nullptr) {
    std::fill_n(panels_.data(), bytes, std::uint8_t{0});
    pack_blocks(stored, *format, panels_.data());
  } else if (type_ == WeightType::f32) {
    pack_floats<std::uint32_t>(stored, panels_.data());
  } else {
    pack_floats<std::uint16_t>(stored, panels_.data());
  }
}

}  // namespace glimpse
