// Attention's two products over keys and values that are integers, with integer sums: exact, and
// twice as many per instruction as of floats. Queries and weights are rounded to 16 bits.
// Included by attention.cpp alone.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/attention.h"
#include "kernels/attention_tiles.h"
#include "kernels/scale.h"
#include "simd.h"

namespace glimpse::GLIMPSE_ISA {

template <class T>
class IntegerProducts {
 public:
  // packed: [group][key_stride / 2][queries of the group][2] shorts, then a scale per query. No
  // query is longer than about kLongest as a vector, so no dot product is near 2^31.
  static void pack(const float* const* queries, int num_queries, int head_dim, float scale,
                   float* packed) {
    const int stride = key_stride(head_dim);
    const Groups groups(num_queries);
    for (int group = 0; group < groups.count; ++group) {
      const int begin = groups.begin(group), size = groups.size(group);
      std::int16_t* to = shorts(packed) + begin * stride;
      for (int i = 0; i < size; ++i) {
        alignas(32) std::int16_t rounded[kMaxHeadDim];
        scales(packed, num_queries, stride)[begin + i] =
            scale * round_query(queries[begin + i], head_dim, rounded);
        for (int d = 0; d < stride; d += 2)
          std::copy_n(rounded + d, 2, to + (d / 2 * size + i) * 2);
      }
    }
  }

  // scores [num_queries][kSplit] of the keys of a split.
  static void score(const QueryTile& tile, std::int64_t first_key, int num_keys, float* scores) {
    const int stride = key_stride(tile.head_dim);
    const T* keys = reinterpret_cast<const T*>(tile.kv.keys) + first_key * stride;
    const std::int16_t* q = shorts(tile.packed);
    const float* query_scales = scales(tile.packed, tile.num_queries, stride);
    const Groups groups(tile.num_queries);
    for (int key = 0; key < num_keys; key += kKeyBlock)
      for (int group = 0; group < groups.count; ++group) {
        const int begin = groups.begin(group);
        with_constant(groups.size(group), [&](auto constant) {
          score_tile<constant>(keys + key * stride, tile.kv.key_scales + first_key + key, stride,
                               q + begin * stride, query_scales + begin,
                               scores + begin * kSplit + key);
        });
      }
  }

  // out [num_queries][value_stride]: sums of the values of a split, weighted.
  static void average(const QueryTile& tile, std::int64_t first_key, int num_keys,
                      const float* weights, float* out) {
    const int stride = value_stride(tile.head_dim);
    const T* values = reinterpret_cast<const T*>(tile.kv.values) + first_key * stride;
    alignas(32) std::int16_t rounded[kTileQueries * kSplit];
    float weight_scales[kTileQueries];
    for (int i = 0; i < tile.num_queries; ++i)
      weight_scales[i] = round_weights(weights + i * kSplit, tile.kv.value_scales + first_key,
                                       num_keys, rounded + i * kSplit);
    const Groups groups(tile.num_queries);
    std::fill(out, out + tile.num_queries * stride, 0.0f);
    for (int key = 0; key < num_keys; key += kChunk)
      for (int group = 0; group < groups.count; ++group) {
        const int begin = groups.begin(group);
        with_constant(groups.size(group), [&](auto constant) {
          for (int d = 0; d < stride; d += kKeyBlock)
            value_tile<constant>(values + key * stride + 2 * d, stride,
                                 std::min(kChunk, num_keys - key), rounded + begin * kSplit + key,
                                 weight_scales + begin, out + begin * stride + d);
        });
      }
  }

 private:
  static constexpr int kChunk = 32;  // keys summed as integers; few, so that reading never pauses
  static_assert(kSplit % kChunk == 0);

  static std::int16_t* shorts(float* packed) { return reinterpret_cast<std::int16_t*>(packed); }
  static const std::int16_t* shorts(const float* packed) {
    return reinterpret_cast<const std::int16_t*>(packed);
  }
  template <class F>
  static F* scales(F* packed, int num_queries, int stride) {
    return packed + num_queries * stride / 2;
  }

  // A query as shorts, zeros beyond its end. Returns their scale.
  static float round_query(const float* query, int head_dim, std::int16_t* rounded) {
    alignas(32) float padded[kMaxHeadDim] = {};
    std::copy_n(query, head_dim, padded);
    f32x8 squares = f32x8::zero();
    for (int d = 0; d < head_dim; d += kLanes)
      squares = fma(f32x8::load(padded + d), f32x8::load(padded + d), squares);
    const Scale s = scale_to(std::sqrt(sum(squares)), kLongest);
    for (int d = 0; d < head_dim; d += kLanes)
      store_i16(round_to_int(f32x8::load(padded + d) * f32x8::set1(s.inverse)), rounded + d);
    return s.scale;
  }

  // Q queries against a block of keys: q [stride / 2][Q][2], scores [Q][kSplit].
  template <int Q>
  static void score_tile(const T* keys, const float* key_scales, int stride, const std::int16_t* q,
                         const float* query_scales, float* scores) {
    WideInts sums[Q][kWideVectors];
    for_all<Q, kWideVectors>([&](int i, int v) { sums[i][v] = WideInts::zero(); });
    for (int d = 0; d < stride; d += 2) {
      prefetch_ahead(keys + d * kKeyBlock);
      outer_product(
          sums, [&](int i) { return WideShorts::set1(q + d * Q + 2 * i); },
          [&](int v) { return WideShorts::load(keys + d * kKeyBlock + v * kWideShorts); });
    }
    for_all<Q, 2>([&](int i, int v) {
      const f32x8 scale = f32x8::load(key_scales + v * kLanes) * f32x8::set1(query_scales[i]);
      (to_float(eight_of(sums[i], v)) * scale).store(scores + i * kSplit + v * kLanes);
    });
  }

  // Weights times the scales of their values, rounded: they add up to kShare, so that no sum of
  // values, which are below 2^15, reaches 2^31. Zeros beyond the last key. Returns their scale.
  static float round_weights(const float* weights, const float* value_scales, int num_keys,
                             std::int16_t* rounded) {
    constexpr float kShare = 32767.0f;
    alignas(32) float scaled[kSplit];
    const int whole = num_keys / kLanes * kLanes;
    f32x8 sums = f32x8::zero();
    const auto scale = [&](int key, f32x8 value_scale) {
      const f32x8 x = f32x8::load(weights + key) * value_scale;
      x.store(scaled + key);
      sums = sums + x;
    };
    for (int key = 0; key < whole; key += kLanes) scale(key, f32x8::load(value_scales + key));
    if (whole < num_keys) {
      alignas(32) float last[kLanes] = {};
      std::copy(value_scales + whole, value_scales + num_keys, last);
      scale(whole, f32x8::load(last));
    }
    const Scale s = scale_to(sum(sums), kShare);
    for (int key = 0; key < num_keys; key += kLanes)
      store_i16(round_to_int(f32x8::load(scaled + key) * f32x8::set1(s.inverse)), rounded + key);
    return s.scale;
  }

  // Adds to sixteen of Q sums each, `stride` apart: values [num_keys / 2][stride][2], weights
  // [Q][kSplit].
  template <int Q>
  static void value_tile(const T* values, int stride, int num_keys, const std::int16_t* weights,
                         const float* weight_scales, float* out) {
    WideInts sums[Q][kWideVectors];
    for_all<Q, kWideVectors>([&](int i, int v) { sums[i][v] = WideInts::zero(); });
    for (int key = 0; key < num_keys; key += 2) {
      prefetch_ahead(values + key * stride);
      outer_product(
          sums, [&](int i) { return WideShorts::set1(weights + i * kSplit + key); },
          [&](int v) { return WideShorts::load(values + key * stride + v * kWideShorts); });
    }
    for_all<Q, 2>([&](int i, int v) {
      float* to = out + i * stride + v * kLanes;
      fma(to_float(eight_of(sums[i], v)), f32x8::set1(weight_scales[i]), f32x8::load(to)).store(to);
    });
  }
};

}  // namespace glimpse::GLIMPSE_ISA
