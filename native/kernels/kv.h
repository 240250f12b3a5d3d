// Memory layout of keys and values, and the kernels that write and move single positions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "isa.h"

namespace glimpse {

enum class KVType { f32, f16, i16, i8 };

// Kept as integers with a scale per position: a scale shared by a block would change when rows are
// taken back.
constexpr bool is_scaled(KVType type) { return type == KVType::i16 || type == KVType::i8; }

// Keys lie in blocks of so many positions, transposed inside the block: with keys in the vector
// lanes a dot product has one order of summation, however many rows ask for it. Integers lie in
// pairs besides, of elements in keys and of positions in values: an instruction multiplies two and
// adds the products.
constexpr int kKeyBlock = 16;

constexpr std::int64_t round_up(std::int64_t n, std::int64_t unit) {
  return (n + unit - 1) / unit * unit;
}

// Elements of one position's keys and values; what is beyond head_dim stays zero.
constexpr int key_stride(int head_dim) { return static_cast<int>(round_up(head_dim, 2)); }
constexpr int value_stride(int head_dim) { return static_cast<int>(round_up(head_dim, 16)); }

constexpr std::size_t element_size(KVType type) {
  return type == KVType::f32 ? 4 : type == KVType::i8 ? 1 : 2;
}

// The KV of one layer and KV head.
struct KVHead {
  std::byte* keys;      // [block][key_stride][kKeyBlock], or [block][key_stride / 2][kKeyBlock][2]
  std::byte* values;    // [position][value_stride], or [position / 2][value_stride][2]
  float* key_scales;    // [position], of integers alone
  float* value_scales;
};

// The longest a key or query of 16-bit integers is as a vector, so that a dot product of two, and any
// part of it, fits into 32 bits. Some room is left for rounding.
constexpr float kLongest = 32700.0f;

// A position to be copied, and where to.
struct Move {
  std::int32_t from, to;
};

struct KVKernels {
  // Stores k and v [num_rows][..][head_dim], rows `stride` floats apart, from `position` on. Halves
  // saturate: an infinity would turn the zero weight of a hidden position into NaN.
  void (*write)(KVType, const KVHead& to, std::int64_t position, int num_rows, const float* k,
                const float* v, std::int64_t stride, int head_dim);
  void (*copy)(KVType, const KVHead& to, const KVHead& from, const Move* moves, int num_moves,
               int head_dim);
};

GLIMPSE_KERNEL_TABLE(KVKernels, kv_kernels)

}  // namespace glimpse
