// Panels of any type as floats [num_inputs][8 outputs]. For kernel files only.
#pragma once

#include "kernels/matrix.h"
#include "simd.h"

namespace glimpse::GLIMPSE_ISA {

template <WeightType T>
GLIMPSE_INLINE f32x8 load_scales(const std::uint8_t* from) {
  if constexpr (has_half_scales(T)) {
    return f32x8::load_f16(reinterpret_cast<const std::uint16_t*>(from));
  } else {
    return f32x8::load(reinterpret_cast<const float*>(from));
  }
}

// Weights of float type for input `input`.
template <WeightType T>
GLIMPSE_INLINE f32x8 load_weights(const std::uint8_t* panel, std::int64_t input) {
  const std::int64_t at = input * kPanel;
  if constexpr (T == WeightType::f32) {
    return f32x8::load(reinterpret_cast<const float*>(panel) + at);
  }
  const auto* halves = reinterpret_cast<const std::uint16_t*>(panel);
  return T == WeightType::f16 ? f32x8::load_f16(halves + at) : f32x8::load_bf16(halves + at);
}

// Eight bytes' worth of a block: `from` holds, per output, four bytes or two pairs of halves.
GLIMPSE_INLINE Ints load_words(const std::uint8_t* from) {
  Ints words;
  std::memcpy(&words, from, sizeof words);
  return words;
}

template <bool HasMinima>
GLIMPSE_INLINE void store_weights(Ints values, f32x8 scales, f32x8 minima, float* to) {
  f32x8 weights = scales * to_float(i32x8{values});
  if (HasMinima) weights = weights + minima;
  weights.store(to);
}

template <WeightType T>
void unpack_nibbles(const std::uint8_t* panel, std::int64_t num_inputs, float* to) {
  constexpr int kScaleBytes = kPanel * (has_half_scales(T) ? 2 : 4);
  constexpr int kHeader = kScaleBytes * (has_stored_minima(T) ? 2 : 1);
  constexpr int kOffset = T == WeightType::q4_0 ? 8 : 0;
  for (std::int64_t k = 0; k < num_inputs; k += kBlock, panel += block_bytes(T)) {
    const f32x8 scales = load_scales<T>(panel);
    const f32x8 minima = has_stored_minima(T) ? load_scales<T>(panel + kScaleBytes) : scales;
    for (int i = 0; i < kBlock / 2; ++i) {
      const Ints words = load_words(panel + kHeader + 32 * (i / 4)) >> (8 * (i % 4));
      const Ints low = (words & 15) - kOffset, high = (words >> 4 & 15) - kOffset;
      store_weights<has_stored_minima(T)>(low, scales, minima, to + (k + i) * kPanel);
      store_weights<has_stored_minima(T)>(high, scales, minima, to + (k + 16 + i) * kPanel);
    }
  }
}

template <WeightType T>
void unpack_bytes(const std::uint8_t* panel, std::int64_t num_inputs, float* to) {
  constexpr int kScaleBytes = kPanel * (has_half_scales(T) ? 2 : 4);
  constexpr int kHeader = kScaleBytes * (has_stored_minima(T) ? 2 : 1);
  for (std::int64_t k = 0; k < num_inputs; k += block_size(T), panel += block_bytes(T)) {
    const f32x8 scales = load_scales<T>(panel);
    const f32x8 minima = has_stored_minima(T) ? load_scales<T>(panel + kScaleBytes) : scales;
    for (int i = 0; i < block_size(T); ++i) {
      Ints values;
      for (int n = 0; n < kPanel; ++n) {
        values[n] = static_cast<std::int8_t>(panel[kHeader + 16 * (i / 2) + 2 * n + i % 2]);
      }
      store_weights<has_stored_minima(T)>(values, scales, minima, to + (k + i) * kPanel);
    }
  }
}

template <WeightType T>
void unpack_floats(const std::uint8_t* panel, std::int64_t num_inputs, float* to) {
  for (std::int64_t k = 0; k < num_inputs; ++k) load_weights<T>(panel, k).store(to + k * kPanel);
}

template <WeightType T>
void unpack_as(const std::uint8_t* panel, std::int64_t num_inputs, float* to) {
  if constexpr (is_float(T)) {
    unpack_floats<T>(panel, num_inputs, to);
  } else if constexpr (is_nibbles(T)) {
    unpack_nibbles<T>(panel, num_inputs, to);
  } else {
    unpack_bytes<T>(panel, num_inputs, to);
  }
}

}  // namespace glimpse::GLIMPSE_ISA
