// Attention's two products over keys and values that are floats, or halves widened on the way.
// Included by attention.cpp alone.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/attention.h"
#include "kernels/attention_tiles.h"
#include "simd.h"

namespace glimpse::GLIMPSE_ISA {

GLIMPSE_INLINE f32x8 load_as_f32(const float* from) { return f32x8::load(from); }
GLIMPSE_INLINE f32x8 load_as_f32(const std::uint16_t* from) { return f32x8::load_f16(from); }

template <class T>
class FloatProducts {
 public:
  // packed: [group][head_dim][queries of the group].
  static void pack(const float* const* queries, int num_queries, int head_dim, float scale,
                   float* packed) {
    const Groups groups(num_queries);
    for (int group = 0; group < groups.count; ++group) {
      const int begin = groups.begin(group), size = groups.size(group);
      float* to = packed + static_cast<std::int64_t>(begin) * head_dim;
      for (int i = 0; i < size; ++i)
        for (int d = 0; d < head_dim; ++d) to[d * size + i] = queries[begin + i][d] * scale;
    }
  }

  // scores [num_queries][kSplit] of the keys of a split.
  static void score(const QueryTile& tile, std::int64_t first_key, int num_keys, float* scores) {
    const int stride = key_stride(tile.head_dim);
    const T* keys = reinterpret_cast<const T*>(tile.kv.keys) + first_key * stride;
    const Groups groups(tile.num_queries);
    for (int key = 0; key < num_keys; key += kPair) {
      const int num_blocks = num_keys - key > kKeyBlock ? 2 : 1;
      for (int group = 0; group < groups.count; ++group) {
        const int begin = groups.begin(group);
        score_pair(keys + key * stride, tile.head_dim, num_blocks, groups.size(group),
                   tile.packed + begin * tile.head_dim, scores + begin * kSplit + key);
      }
    }
  }

  // out [num_queries][value_stride]: sums of the values of a split, weighted.
  static void average(const QueryTile& tile, std::int64_t first_key, int num_keys,
                      const float* weights, float* out) {
    const int stride = value_stride(tile.head_dim);
    const T* values = reinterpret_cast<const T*>(tile.kv.values) + first_key * stride;
    const Groups groups(tile.num_queries);
    std::fill(out, out + tile.num_queries * stride, 0.0f);
    for (int key = 0; key < num_keys; key += kChunk)
      for (int group = 0; group < groups.count; ++group) {
        const int begin = groups.begin(group);
        add_values(values + key * stride, stride, std::min(kChunk, num_keys - key),
                   groups.size(group), weights + begin * kSplit + key, out + begin * stride);
      }
  }

 private:
  static constexpr int kPair = 2 * kKeyBlock;  // keys scored between two looks at the queries
  static constexpr int kChunk = 128;           // keys whose values stay in the nearest cache
  static_assert(kSplit % kPair == 0 && kSplit % kChunk == 0);

  // Few queries leave registers for two more vectors, without which sums would wait for each other.
  static constexpr int vectors_for(int num_queries) { return num_queries <= 3 ? 4 : 2; }

  // A group of queries against one or two blocks of keys.
  static void score_pair(const T* keys, int head_dim, int num_blocks, int num_queries,
                         const float* q, float* scores) {
    const int size = key_stride(head_dim) * kKeyBlock;
    with_constant(num_queries, [&](auto constant) {
      constexpr int Q = constant;
      constexpr int kBlocks = vectors_for(Q) * kLanes / kKeyBlock;
      int block = 0;
      for (; block + kBlocks <= num_blocks; block += kBlocks)
        score_tile<Q, vectors_for(Q)>(keys + block * size, head_dim, q, scores + block * kKeyBlock);
      for (; block < num_blocks; ++block)
        score_tile<Q, 2>(keys + block * size, head_dim, q, scores + block * kKeyBlock);
    });
  }

  // Q queries against V / 2 blocks of keys: q [head_dim][Q], scores [Q][kSplit].
  template <int Q, int V>
  static void score_tile(const T* keys, int head_dim, const float* q, float* scores) {
    constexpr int kPerBlock = kKeyBlock / kLanes;
    const int size = key_stride(head_dim) * kKeyBlock;
    f32x8 sums[Q][V];
    for_all<Q, V>([&](int i, int v) { sums[i][v] = f32x8::zero(); });
    for (int d = 0; d < head_dim; ++d) {
      for (int block = 0; block < V / kPerBlock; ++block)
        prefetch_ahead(keys + block * size + d * kKeyBlock);
      outer_product(
          sums, [&](int i) { return f32x8::set1(q[d * Q + i]); },
          [&](int v) {
            return load_as_f32(keys + v / kPerBlock * size + d * kKeyBlock +
                               v % kPerBlock * kLanes);
          });
    }
    for_all<Q, V>([&](int i, int v) { sums[i][v].store(scores + i * kSplit + v * kLanes); });
  }

  static void add_values(const T* values, int stride, int num_keys, int num_queries,
                         const float* weights, float* out) {
    with_constant(num_queries, [&](auto constant) {
      constexpr int Q = constant;
      constexpr int kWide = vectors_for(Q) * kLanes;
      int d = 0;
      for (; d + kWide <= stride; d += kWide)
        value_tile<Q, vectors_for(Q)>(values + d, stride, num_keys, weights, out + d);
      for (; d < stride; d += 2 * kLanes)
        value_tile<Q, 2>(values + d, stride, num_keys, weights, out + d);
    });
  }

  // Adds weighted values to V vectors of Q sums, `stride` apart: weights [Q][kSplit].
  template <int Q, int V>
  static void value_tile(const T* values, int stride, int num_keys, const float* weights,
                         float* out) {
    constexpr int kLine = 64 / sizeof(T);
    f32x8 sums[Q][V];
    for_all<Q, V>([&](int i, int v) { sums[i][v] = f32x8::load(out + i * stride + v * kLanes); });
    for (int key = 0; key < num_keys; ++key) {
      for (int d = 0; d < V * kLanes; d += kLine) prefetch_ahead(values + key * stride + d);
      outer_product(
          sums, [&](int i) { return f32x8::set1(weights[i * kSplit + key]); },
          [&](int v) { return load_as_f32(values + key * stride + v * kLanes); });
    }
    for_all<Q, V>([&](int i, int v) { sums[i][v].store(out + i * stride + v * kLanes); });
  }
};

}  // namespace glimpse::GLIMPSE_ISA
