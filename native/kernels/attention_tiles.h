// The two innermost loops of attention: a few queries by a few vectors, all sums in registers.
// Included by attention.cpp alone.
#pragma once

#include <cstdint>

#include "kernels/attention.h"
#include "simd.h"

namespace glimpse::GLIMPSE_ISA {

GLIMPSE_INLINE f32x8 load_as_f32(const float* from) { return f32x8::load(from); }
GLIMPSE_INLINE f32x8 load_as_f32(const std::uint16_t* from) { return f32x8::load_f16(from); }
GLIMPSE_INLINE f32x8 load_as_f32(const std::int8_t* from) { return f32x8::load_i8(from); }

constexpr int kGroup = 6;  // most queries in registers: with two vectors each, 12 sums

// How n queries are cut into groups of nearly the same size.
struct Groups {
  int num_queries, count;

  explicit Groups(int n) : num_queries(n), count((n + kGroup - 1) / kGroup) {}
  int begin(int group) const { return num_queries * group / count; }
  int size(int group) const { return begin(group + 1) - begin(group); }
};

// sums[i][v] += x(i) * y(v), keeping in registers whichever there are fewer of.
template <int Q, int V, class X, class Y>
GLIMPSE_INLINE void outer_product(f32x8 (&sums)[Q][V], X&& x, Y&& y) {
  constexpr int kFewer = Q < V ? Q : V, kMore = Q < V ? V : Q;
  f32x8 kept[kFewer];
#pragma GCC unroll 8
  for (int i = 0; i < kFewer; ++i) {
    if constexpr (Q < V) kept[i] = x(i);
    else kept[i] = y(i);
  }
#pragma GCC unroll 8
  for (int j = 0; j < kMore; ++j) {
    if constexpr (Q < V) {
      const f32x8 one = y(j);
#pragma GCC unroll 8
      for (int i = 0; i < Q; ++i) sums[i][j] = fma(kept[i], one, sums[i][j]);
    } else {
      const f32x8 one = x(j);
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) sums[j][v] = fma(one, kept[v], sums[j][v]);
    }
  }
}

template <int Q, int V, class F>
GLIMPSE_INLINE void for_all(F&& f) {
#pragma GCC unroll 8
  for (int i = 0; i < Q; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) f(i, v);
}

// Scores of Q queries against V / 2 blocks of keys: q [head_dim][Q], scores [Q][kSplit].
template <class T, int Q, int V>
void score_tile(const T* keys, int head_dim, const float* q, float* scores) {
  constexpr int kPerBlock = kKeyBlock / kLanes;
  f32x8 sums[Q][V];
  for_all<Q, V>([&](int i, int v) { sums[i][v] = f32x8::zero(); });
  for (int d = 0; d < head_dim; ++d)
    outer_product(
        sums, [&](int i) { return f32x8::set1(q[d * Q + i]); },
        [&](int v) {
          return load_as_f32(keys + (v / kPerBlock * head_dim + d) * kKeyBlock +
                             v % kPerBlock * kLanes);
        });
  for_all<Q, V>([&](int i, int v) { sums[i][v].store(scores + i * kSplit + v * kLanes); });
}

// Adds weighted values to V vectors of Q sums, `stride` apart: weights [Q][kSplit].
template <class T, int Q, int V>
void value_tile(const T* values, int stride, int num_keys, const float* weights, float* out) {
  f32x8 sums[Q][V];
  for_all<Q, V>([&](int i, int v) { sums[i][v] = f32x8::load(out + i * stride + v * kLanes); });
  for (int key = 0; key < num_keys; ++key)
    outer_product(
        sums, [&](int i) { return f32x8::set1(weights[i * kSplit + key]); },
        [&](int v) { return load_as_f32(values + key * stride + v * kLanes); });
  for_all<Q, V>([&](int i, int v) { sums[i][v].store(out + i * stride + v * kLanes); });
}

// Few queries leave registers for two more vectors, without which sums would wait for each other.
constexpr int vectors_for(int num_queries) { return num_queries <= 3 ? 4 : 2; }

// Calls f(std::integral_constant<int, n>) for n from 1 to kGroup.
template <class F>
GLIMPSE_INLINE void with_constant(int n, F&& f) {
  switch (n) {
    case 1: return f(std::integral_constant<int, 1>{});
    case 2: return f(std::integral_constant<int, 2>{});
    case 3: return f(std::integral_constant<int, 3>{});
    case 4: return f(std::integral_constant<int, 4>{});
    case 5: return f(std::integral_constant<int, 5>{});
    default: return f(std::integral_constant<int, 6>{});
  }
}

}  // namespace glimpse::GLIMPSE_ISA
