#include "kernels/kv.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "simd.h"

namespace glimpse::GLIMPSE_ISA {
namespace {

constexpr int kMaxPiece = 64;  // elements converted at a time

// Conversions of n floats, a multiple of 8.
void convert(const float* from, float* to, int n, float) { std::copy(from, from + n, to); }

void convert(const float* from, std::uint16_t* to, int n, float) {
  const f32x8 limit = f32x8::set1(65504.0f);
  for (int i = 0; i < n; i += kLanes)
    store_f16(min(max(f32x8::load(from + i), f32x8::zero() - limit), limit), to + i);
}

void convert(const float* from, std::int8_t* to, int n, float inverse_scale) {
  for (int i = 0; i < n; ++i)
    to[i] = static_cast<std::int8_t>(std::lrintf(from[i] * inverse_scale));
}

// Scale of one position's elements: the largest becomes 127. Returns it, and its inverse.
struct Scale {
  float scale, inverse;
};

Scale scale_of(const float* x, int n) {
  float largest = 0.0f;
  for (int i = 0; i < n; ++i) largest = std::max(largest, std::fabs(x[i]));
  // A vector too small to have an inverse scale is stored as zeros.
  return largest < 1e-30f ? Scale{0.0f, 0.0f} : Scale{largest / 127.0f, 127.0f / largest};
}

// Stores `width` elements: those of x, then zeros.
template <class T>
void write_row(const float* x, int head_dim, float inverse_scale, T* to, int width, int stride) {
  alignas(32) float piece[kMaxPiece];
  alignas(32) T converted[kMaxPiece];
  for (int d = 0; d < width; d += kMaxPiece) {
    const int n = std::min(kMaxPiece, width - d), given = std::clamp(head_dim - d, 0, n);
    std::fill(std::copy(x + d, x + d + given, piece), piece + kMaxPiece, 0.0f);
    convert(piece, converted, kMaxPiece, inverse_scale);
    for (int i = 0; i < n; ++i) to[(d + i) * stride] = converted[i];
  }
}

template <class T>
T* key_at(const KVHead& kv, std::int64_t position, int head_dim) {
  return reinterpret_cast<T*>(kv.keys) + position / kKeyBlock * head_dim * kKeyBlock +
         position % kKeyBlock;
}

template <class T>
T* value_at(const KVHead& kv, std::int64_t position, int head_dim) {
  return reinterpret_cast<T*>(kv.values) + position * value_stride(head_dim);
}

template <class T>
void write_rows(const KVHead& to, std::int64_t position, int num_rows, const float* k,
                const float* v, std::int64_t stride, int head_dim) {
  constexpr bool is_scaled = sizeof(T) == 1;
  for (int row = 0; row < num_rows; ++row, ++position, k += stride, v += stride) {
    Scale key{}, value{};
    if constexpr (is_scaled) {
      key = scale_of(k, head_dim), value = scale_of(v, head_dim);
      to.key_scales[position] = key.scale;
      to.value_scales[position] = value.scale;
    }
    write_row(k, head_dim, key.inverse, key_at<T>(to, position, head_dim), head_dim, kKeyBlock);
    write_row(v, head_dim, value.inverse, value_at<T>(to, position, head_dim),
              value_stride(head_dim), 1);
  }
}

void write(KVType type, const KVHead& to, std::int64_t position, int num_rows, const float* k,
           const float* v, std::int64_t stride, int head_dim) {
  const auto rows = type == KVType::f32   ? write_rows<float>
                    : type == KVType::f16 ? write_rows<std::uint16_t>
                                          : write_rows<std::int8_t>;
  rows(to, position, num_rows, k, v, stride, head_dim);
}

// A key touches a cache line for every other or every fourth of its elements: asking for the next
// few keys early is what makes the copy fast.
constexpr int kAhead = 4;

template <class T>
void prefetch(const KVHead& from, const KVHead& to, Move move, int head_dim) {
  constexpr int kStep = std::max<int>(1, 64 / (sizeof(T) * kKeyBlock));
  const T* key = key_at<T>(from, move.from, head_dim);
  T* target = key_at<T>(to, move.to, head_dim);
  for (int d = 0; d < head_dim; d += kStep) {
    __builtin_prefetch(key + d * kKeyBlock);
    __builtin_prefetch(target + d * kKeyBlock, 1);
  }
  __builtin_prefetch(value_at<T>(from, move.from, head_dim));
  __builtin_prefetch(value_at<T>(to, move.to, head_dim), 1);
}

template <class T>
void copy_moves(const KVHead& to, const KVHead& from, const Move* moves, int num_moves,
                int head_dim) {
  for (int i = 0; i < num_moves; ++i) {
    if (i + kAhead < num_moves) prefetch<T>(from, to, moves[i + kAhead], head_dim);
    const Move move = moves[i];
    const T* key = key_at<T>(from, move.from, head_dim);
    T* target = key_at<T>(to, move.to, head_dim);
    for (int d = 0; d < head_dim; ++d) target[d * kKeyBlock] = key[d * kKeyBlock];
    std::memcpy(value_at<T>(to, move.to, head_dim), value_at<T>(from, move.from, head_dim),
                value_stride(head_dim) * sizeof(T));
    if constexpr (sizeof(T) == 1) {
      to.key_scales[move.to] = from.key_scales[move.from];
      to.value_scales[move.to] = from.value_scales[move.from];
    }
  }
}

void copy(KVType type, const KVHead& to, const KVHead& from, const Move* moves, int num_moves,
          int head_dim) {
  const auto all = type == KVType::f32   ? copy_moves<float>
                   : type == KVType::f16 ? copy_moves<std::uint16_t>
                                         : copy_moves<std::int8_t>;
  all(to, from, moves, num_moves, head_dim);
}

}  // namespace

const KVKernels& kv_kernels() {
  static constexpr KVKernels kernels{write, copy};
  return kernels;
}

}  // namespace glimpse::GLIMPSE_ISA
