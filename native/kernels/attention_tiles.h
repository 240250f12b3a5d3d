// How queries are cut into tiles whose sums stay in registers. Included by the attention kernels
// alone.
#pragma once

#include <cstdint>
#include <type_traits>

#include "simd.h"

namespace glimpse::GLIMPSE_ISA {

// Most queries in registers, with sixteen sums each.
constexpr int kGroup = GLIMPSE_SIMD_VNNI ? 12 : 6;

// The processor stops reading ahead where a page ends, and between the passes over keys and over
// values: what is read this many bytes on is asked for early.
constexpr int kBytesAhead = 4096;

GLIMPSE_INLINE void prefetch_ahead(const void* from) {
  __builtin_prefetch(static_cast<const char*>(from) + kBytesAhead);
}

// How n queries are cut into groups of nearly the same size.
struct Groups {
  int num_queries, count;

  explicit Groups(int n) : num_queries(n), count((n + kGroup - 1) / kGroup) {}
  int begin(int group) const { return num_queries * group / count; }
  int size(int group) const { return begin(group + 1) - begin(group); }
};

// Calls f(std::integral_constant<int, n>) for n from 1 to kGroup.
template <int N = kGroup, class F>
GLIMPSE_INLINE void with_constant(int n, F&& f) {
  if constexpr (N > 1) {
    if (n < N) return with_constant<N - 1>(n, f);
  }
  f(std::integral_constant<int, N>{});
}

template <int Q, int V, class F>
GLIMPSE_INLINE void for_all(F&& f) {
#pragma GCC unroll 12
  for (int i = 0; i < Q; ++i)
#pragma GCC unroll 12
    for (int v = 0; v < V; ++v) f(i, v);
}

GLIMPSE_INLINE f32x8 add_product(f32x8 x, f32x8 y, f32x8 sum) { return fma(x, y, sum); }
GLIMPSE_INLINE WideInts add_product(WideShorts x, WideShorts y, WideInts sum) {
  return dot(x, y, sum);
}

// sums[i][v] += x(i) * y(v), keeping in registers whichever there are fewer of.
template <class Sum, int Q, int V, class X, class Y>
GLIMPSE_INLINE void outer_product(Sum (&sums)[Q][V], X&& x, Y&& y) {
  constexpr int kFewer = Q < V ? Q : V, kMore = Q < V ? V : Q;
  decltype(x(0)) kept[kFewer];
#pragma GCC unroll 12
  for (int i = 0; i < kFewer; ++i) {
    if constexpr (Q < V) kept[i] = x(i);
    else kept[i] = y(i);
  }
#pragma GCC unroll 12
  for (int j = 0; j < kMore; ++j) {
    if constexpr (Q < V) {
      const auto one = y(j);
#pragma GCC unroll 12
      for (int i = 0; i < Q; ++i) sums[i][j] = add_product(kept[i], one, sums[i][j]);
    } else {
      const auto one = x(j);
#pragma GCC unroll 12
      for (int v = 0; v < V; ++v) sums[j][v] = add_product(one, kept[v], sums[j][v]);
    }
  }
}

}  // namespace glimpse::GLIMPSE_ISA
