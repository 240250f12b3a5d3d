// How products are cut into tiles of rows, and where their outputs go. For kernel files only.
#pragma once

#include "kernels/matrix.h"
#include "simd.h"

namespace glimpse::GLIMPSE_ISA {

constexpr std::int64_t kMaxTile = 5;  // rows whose sums fit into the registers

// Rows of the next tile, so that tiles are of about equal size.
GLIMPSE_INLINE std::int64_t tile_size(std::int64_t num_rows) {
  const std::int64_t num_tiles = (num_rows + kMaxTile - 1) / kMaxTile;
  return (num_rows + num_tiles - 1) / num_tiles;
}

GLIMPSE_INLINE f32x8 load_some(const float* from, std::int64_t count) {
  if (count >= kLanes) return f32x8::load(from);
  float some[kLanes] = {};
  for (std::int64_t i = 0; i < count; ++i) some[i] = from[i];
  return f32x8::load(some);
}

GLIMPSE_INLINE void store_some(f32x8 x, float* to, std::int64_t count) {
  if (count >= kLanes) return x.store(to);
  for (std::int64_t i = 0; i < count; ++i) to[i] = x[static_cast<int>(i)];
}

// The outputs of one panel for R rows from `row` on.
template <int R>
GLIMPSE_INLINE void store_tile(const Matrix& matrix, std::int64_t panel, const f32x8 (&total)[R],
                               std::int64_t row, Output out) {
  const std::int64_t first = panel * kPanel, count = matrix.num_outputs - first;
  const f32x8 bias = matrix.bias ? load_some(matrix.bias + first, count) : f32x8::zero();
  for (int r = 0; r < R; ++r) {
    float* const at = out.data + (row + r) * out.stride + first;
    f32x8 value = total[r] + bias;
    if (out.is_added) value = load_some(at, count) + value;
    store_some(value, at, count);
  }
}

}  // namespace glimpse::GLIMPSE_ISA
