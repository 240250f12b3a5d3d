#include "kernels/floats.h"

#include "kernels/store.h"
#include "kernels/unpack.h"
#include "simd.h"

namespace glimpse::GLIMPSE_ISA {
namespace {

constexpr std::int64_t kRun = 128;         // inputs that are summed apart: less rounding
constexpr std::int64_t kRowsInCache = 40;  // rows of floats that stay near while panels pass by
constexpr std::int64_t kFewRows = 10;      // up to so many rows weights are converted in registers
constexpr int kPair = 2;                   // panels side by side

void unpack(const Matrix& matrix, std::int64_t panel, float* to) {
  const std::uint8_t* const from = matrix.panel(panel);
  const std::int64_t k = matrix.num_inputs;
  switch (matrix.type) {
    case WeightType::f32: return unpack_as<WeightType::f32>(from, k, to);
    case WeightType::f16: return unpack_as<WeightType::f16>(from, k, to);
    case WeightType::bf16: return unpack_as<WeightType::bf16>(from, k, to);
    case WeightType::q4_0: return unpack_as<WeightType::q4_0>(from, k, to);
    case WeightType::q4_1: return unpack_as<WeightType::q4_1>(from, k, to);
    case WeightType::q4_s32: return unpack_as<WeightType::q4_s32>(from, k, to);
    case WeightType::q8_0: return unpack_as<WeightType::q8_0>(from, k, to);
    case WeightType::q8_s32: return unpack_as<WeightType::q8_s32>(from, k, to);
    case WeightType::q8_s16: return unpack_as<WeightType::q8_s16>(from, k, to);
    case WeightType::q8_m16: return unpack_as<WeightType::q8_m16>(from, k, to);
  }
}

// Where the weights of up to two panels are read.
struct Pair {
  const Matrix& matrix;
  std::int64_t first;
  const std::uint8_t* at[kPair];
};

// P panels for the R rows from `row` on.
template <WeightType T, int P, int R>
void multiply_tile(const Pair& pair, const FloatRows& rows, std::int64_t row, Output out) {
  const std::int64_t k = rows.num_inputs;
  const float* const x = rows.data + row * k;
  f32x8 total[P][R];
  for (int p = 0; p < P; ++p)
    for (int r = 0; r < R; ++r) total[p][r] = f32x8::zero();
  for (std::int64_t start = 0; start < k; start += kRun) {
    const std::int64_t end = start + kRun < k ? start + kRun : k;
    f32x8 run[P][R];
    for (int p = 0; p < P; ++p)
      for (int r = 0; r < R; ++r) run[p][r] = f32x8::zero();
    for (std::int64_t i = start; i < end; ++i) {
      f32x8 weights[P];
      for (int p = 0; p < P; ++p) weights[p] = load_weights<T>(pair.at[p], i);
      for (int r = 0; r < R; ++r) {
        const f32x8 input = f32x8::set1(x[r * k + i]);
        for (int p = 0; p < P; ++p) run[p][r] = fma(weights[p], input, run[p][r]);
      }
    }
    for (int p = 0; p < P; ++p)
      for (int r = 0; r < R; ++r) total[p][r] = total[p][r] + run[p][r];
  }
  for (int p = 0; p < P; ++p) store_tile<R>(pair.matrix, pair.first + p, total[p], row, out);
}

template <WeightType T, int P>
void multiply_pair(const Pair& pair, const FloatRows& rows, std::int64_t row, std::int64_t end,
                   Output out) {
  while (row < end) {
    const std::int64_t size = tile_size(end - row);
    switch (size) {
      case 5: multiply_tile<T, P, 5>(pair, rows, row, out); break;
      case 4: multiply_tile<T, P, 4>(pair, rows, row, out); break;
      case 3: multiply_tile<T, P, 3>(pair, rows, row, out); break;
      case 2: multiply_tile<T, P, 2>(pair, rows, row, out); break;
      default: multiply_tile<T, P, 1>(pair, rows, row, out); break;
    }
    row += size;
  }
}

template <WeightType T>
void multiply_in_place(const Matrix& matrix, std::int64_t first, std::int64_t last,
                       const FloatRows& rows, Output out) {
  for (; first < last; first += kPair) {
    if (first + 1 < last) {
      const Pair pair{matrix, first, {matrix.panel(first), matrix.panel(first + 1)}};
      multiply_pair<T, 2>(pair, rows, 0, rows.num_rows, out);
    } else {
      const Pair pair{matrix, first, {matrix.panel(first), nullptr}};
      multiply_pair<T, 1>(pair, rows, 0, rows.num_rows, out);
    }
  }
}

void multiply_unpacked(const Matrix& matrix, std::int64_t first, std::int64_t last,
                       const FloatRows& rows, float* scratch, Output out) {
  for (; first < last; first += kPair) {
    Pair pair{matrix, first, {}};
    const std::int64_t count = first + 1 < last ? 2 : 1;
    for (std::int64_t p = 0; p < count; ++p) {
      float* const room = scratch + p * matrix.num_inputs * kPanel;
      unpack(matrix, first + p, room);
      pair.at[p] = reinterpret_cast<const std::uint8_t*>(room);
    }
    for (std::int64_t row = 0; row < rows.num_rows; row += kRowsInCache) {
      const std::int64_t end =
          row + kRowsInCache < rows.num_rows ? row + kRowsInCache : rows.num_rows;
      if (count == 2) {
        multiply_pair<WeightType::f32, 2>(pair, rows, row, end, out);
      } else {
        multiply_pair<WeightType::f32, 1>(pair, rows, row, end, out);
      }
    }
  }
}

void multiply(const Matrix& matrix, std::int64_t first, std::int64_t last, const FloatRows& rows,
              float* scratch, Output out) {
  if (rows.num_rows <= kFewRows) {
    switch (matrix.type) {
      case WeightType::f32:
        return multiply_in_place<WeightType::f32>(matrix, first, last, rows, out);
      case WeightType::f16:
        return multiply_in_place<WeightType::f16>(matrix, first, last, rows, out);
      case WeightType::bf16:
        return multiply_in_place<WeightType::bf16>(matrix, first, last, rows, out);
      default: break;
    }
  }
  multiply_unpacked(matrix, first, last, rows, scratch, out);
}

}  // namespace

const FloatKernels& float_kernels() {
  static const FloatKernels table{unpack, multiply};
  return table;
}

}  // namespace glimpse::GLIMPSE_ISA
