#include "kernels/kv.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "kernels/scale.h"
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

template <class T>
void convert(const float* from, T* to, int n, float inverse_scale) {
  for (int i = 0; i < n; ++i) to[i] = static_cast<T>(std::lrintf(from[i] * inverse_scale));
}

// Where a position's elements lie.
template <class T>
class Layout {
 public:
  static constexpr bool is_paired = std::is_signed_v<T> && std::is_integral_v<T>;

  Layout(const KVHead& kv, int head_dim)
      : keys_(reinterpret_cast<T*>(kv.keys)),
        values_(reinterpret_cast<T*>(kv.values)),
        key_stride_(key_stride(head_dim)),
        value_stride_(value_stride(head_dim)) {}

  T* key(std::int64_t position) const {
    return keys_ + position / kKeyBlock * kKeyBlock * key_stride_ +
           position % kKeyBlock * (is_paired ? 2 : 1);
  }
  T* value(std::int64_t position) const {
    return is_paired ? values_ + position / 2 * 2 * value_stride_ + position % 2
                     : values_ + position * value_stride_;
  }
  static int key_offset(int d) {
    return is_paired ? d / 2 * 2 * kKeyBlock + d % 2 : d * kKeyBlock;
  }
  static int value_offset(int d) { return is_paired ? 2 * d : d; }

 private:
  T *keys_, *values_;
  int key_stride_, value_stride_;
};

// Stores `width` elements: those of x, then zeros.
template <class T, class Offset>
void write_row(const float* x, int head_dim, float inverse_scale, T* to, int width,
               Offset&& offset) {
  alignas(32) float piece[kMaxPiece];
  alignas(32) T converted[kMaxPiece];
  for (int d = 0; d < width; d += kMaxPiece) {
    const int n = std::min(kMaxPiece, width - d), given = std::clamp(head_dim - d, 0, n);
    std::fill(std::copy(x + d, x + d + given, piece), piece + kMaxPiece, 0.0f);
    convert(piece, converted, kMaxPiece, inverse_scale);
    for (int i = 0; i < n; ++i) to[offset(d + i)] = converted[i];
  }
}

// Keys are scaled by their length where a dot product of larger ones could overflow.
Scale key_scale(const float* k, int head_dim, std::int16_t) {
  return scale_to(length(k, head_dim), kLongest);
}
Scale key_scale(const float* k, int head_dim, std::int8_t) {
  return scale_to(largest(k, head_dim), 127.0f);
}

template <class T>
void write_rows(const KVHead& to, std::int64_t position, int num_rows, const float* k,
                const float* v, std::int64_t stride, int head_dim) {
  const Layout<T> layout(to, head_dim);
  for (int row = 0; row < num_rows; ++row, ++position, k += stride, v += stride) {
    Scale key{}, value{};
    if constexpr (layout.is_paired) {
      key = key_scale(k, head_dim, T{});
      value = scale_to(largest(v, head_dim), std::numeric_limits<T>::max());
      to.key_scales[position] = key.scale;
      to.value_scales[position] = value.scale;
    }
    write_row(k, head_dim, key.inverse, layout.key(position), key_stride(head_dim),
              layout.key_offset);
    write_row(v, head_dim, value.inverse, layout.value(position), value_stride(head_dim),
              layout.value_offset);
  }
}

// Calls f with an element of the type.
template <class F>
void with_element(KVType type, F&& f) {
  switch (type) {
    case KVType::f32: return f(float{});
    case KVType::f16: return f(std::uint16_t{});
    case KVType::i16: return f(std::int16_t{});
    case KVType::i8: return f(std::int8_t{});
  }
}

void write(KVType type, const KVHead& to, std::int64_t position, int num_rows, const float* k,
           const float* v, std::int64_t stride, int head_dim) {
  with_element(type, [&](auto element) {
    write_rows<decltype(element)>(to, position, num_rows, k, v, stride, head_dim);
  });
}

// A key touches a cache line for every other or every fourth of its elements: asking for the next
// few keys early is what makes the copy fast.
constexpr int kMovesAhead = 4;

template <class T>
void prefetch(const Layout<T>& from, const Layout<T>& to, Move move, int head_dim) {
  constexpr int kStep = std::max<int>(1, 64 / (sizeof(T) * kKeyBlock));
  const T* key = from.key(move.from);
  T* target = to.key(move.to);
  for (int d = 0; d < head_dim; d += kStep) {
    __builtin_prefetch(key + d * kKeyBlock);
    __builtin_prefetch(target + d * kKeyBlock, 1);
  }
  __builtin_prefetch(from.value(move.from));
  __builtin_prefetch(to.value(move.to), 1);
}

template <class T>
void copy_moves(const KVHead& to, const KVHead& from, const Move* moves, int num_moves,
                int head_dim) {
  const Layout<T> source(from, head_dim), goal(to, head_dim);
  const int keys = key_stride(head_dim), values = value_stride(head_dim);
  for (int i = 0; i < num_moves; ++i) {
    if (i + kMovesAhead < num_moves) prefetch(source, goal, moves[i + kMovesAhead], head_dim);
    const Move move = moves[i];
    const T *key = source.key(move.from), *value = source.value(move.from);
    T *key_to = goal.key(move.to), *value_to = goal.value(move.to);
    for (int d = 0; d < keys; ++d) key_to[goal.key_offset(d)] = key[source.key_offset(d)];
    for (int d = 0; d < values; ++d) value_to[goal.value_offset(d)] = value[source.value_offset(d)];
    if constexpr (source.is_paired) {
      to.key_scales[move.to] = from.key_scales[move.from];
      to.value_scales[move.to] = from.value_scales[move.from];
    }
  }
}

void copy(KVType type, const KVHead& to, const KVHead& from, const Move* moves, int num_moves,
          int head_dim) {
  with_element(type, [&](auto element) {
    copy_moves<decltype(element)>(to, from, moves, num_moves, head_dim);
  });
}

}  // namespace

const KVKernels& kv_kernels() {
  static constexpr KVKernels kernels{write, copy};
  return kernels;
}

}  // namespace glimpse::GLIMPSE_ISA
