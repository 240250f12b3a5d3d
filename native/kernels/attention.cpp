#include "kernels/attention.h"

#include <algorithm>
#include <limits>
#include <type_traits>

#include "kernels/attention_tiles.h"
#include "simd.h"

namespace glimpse::GLIMPSE_ISA {
namespace {

constexpr float kHidden = -std::numeric_limits<float>::infinity();
constexpr int kPair = 2 * kKeyBlock;   // keys scored between two looks at the queries
constexpr int kChunk = 128;            // keys whose values stay in the nearest cache
static_assert(kSplit % kPair == 0 && kSplit % kChunk == 0);

// 2^x for x <= 0, with a relative error below 2e-7: 1 at 0, and 0 below -127, where the exponent
// alone is -127 and cancels that of 1.
GLIMPSE_INLINE f32x8 exp2(f32x8 x) {
  const f32x8 shift = f32x8::set1(0x1.8p23f), least = f32x8::set1(-127.0f);
  const f32x8 bounded = max(x, least);
  const f32x8 shifted = bounded + shift;  // its low bits are the nearest integer
  const f32x8 r = bounded - (shifted - shift);
  f32x8 p = f32x8::set1(0x1.5bba12p-10f);
  p = fma(p, r, f32x8::set1(0x1.3cea88p-7f));
  p = fma(p, r, f32x8::set1(0x1.c6b752p-5f));
  p = fma(p, r, f32x8::set1(0x1.ebf9bcp-3f));
  p = fma(p, r, f32x8::set1(0x1.62e42ap-1f));
  p = fma(p, r, f32x8::set1(1.0f));
  return {(Floats)((Ints)p.v + ((Ints)shifted.v << 23))};
}

float exp2(float x) { return exp2(f32x8::set1(x))[0]; }

void pack(const float* const* queries, int num_queries, int head_dim, float* packed) {
  constexpr float kLog2E = 0x1.715476p0f;
  const float scale = kLog2E / __builtin_sqrtf(static_cast<float>(head_dim));
  const Groups groups(num_queries);
  for (int group = 0; group < groups.count; ++group) {
    const int begin = groups.begin(group), size = groups.size(group);
    float* to = packed + static_cast<std::int64_t>(begin) * head_dim;
    for (int i = 0; i < size; ++i)
      for (int d = 0; d < head_dim; ++d) to[d * size + i] = queries[begin + i][d] * scale;
  }
}

// Scores of a group of queries against one or two blocks of keys.
template <class T>
void score_pair(const T* keys, int head_dim, int num_blocks, int num_queries, const float* q,
                float* scores) {
  with_constant(num_queries, [&](auto constant) {
    constexpr int Q = constant;
    constexpr int kBlocks = vectors_for(Q) * kLanes / kKeyBlock;
    int block = 0;
    for (; block + kBlocks <= num_blocks; block += kBlocks)
      score_tile<T, Q, vectors_for(Q)>(keys + block * head_dim * kKeyBlock, head_dim, q,
                                       scores + block * kKeyBlock);
    for (; block < num_blocks; ++block)
      score_tile<T, Q, 2>(keys + block * head_dim * kKeyBlock, head_dim, q,
                          scores + block * kKeyBlock);
  });
}

template <class T>
void score(const QueryTile& tile, std::int64_t first_key, int num_keys, float* scores) {
  const T* keys = reinterpret_cast<const T*>(tile.kv.keys) + first_key * tile.head_dim;
  const Groups groups(tile.num_queries);
  for (int key = 0; key < num_keys; key += kPair) {
    const int num_blocks = num_keys - key > kKeyBlock ? 2 : 1;
    for (int group = 0; group < groups.count; ++group) {
      const int begin = groups.begin(group);
      score_pair(keys + key * tile.head_dim, tile.head_dim, num_blocks, groups.size(group),
                 tile.packed + begin * tile.head_dim, scores + begin * kSplit + key);
    }
  }
}

// Scales x [num_queries][kSplit] by a factor per key.
void scale_keys(const float* factors, int num_queries, int num_keys, const float* x, float* out) {
  for (int key = 0; key < num_keys; key += kLanes) {
    alignas(32) float factor[kLanes] = {};
    std::copy(factors + key, factors + std::min(num_keys, key + kLanes), factor);
    for (int i = 0; i < num_queries; ++i)
      (f32x8::load(x + i * kSplit + key) * f32x8::load(factor)).store(out + i * kSplit + key);
  }
}

// Scores of one query, `seen` of which count, become weights; zeros from there to `end`.
void weigh(float* scores, int seen, int end, float& largest, float& total) {
  const int last = static_cast<int>(round_up(seen, kKeyBlock));
  std::fill(scores + seen, scores + last, kHidden);
  f32x8 most[2] = {f32x8::set1(kHidden), f32x8::set1(kHidden)};
  for (int key = 0; key < last; key += kKeyBlock)
    for (int v = 0; v < 2; ++v) most[v] = max(most[v], f32x8::load(scores + key + v * kLanes));
  largest = max(max(most[0], most[1]));
  const f32x8 shift = f32x8::set1(largest);
  f32x8 sums[2] = {f32x8::zero(), f32x8::zero()};
  for (int key = 0; key < last; key += kKeyBlock)
    for (int v = 0; v < 2; ++v) {
      const f32x8 weight = exp2(f32x8::load(scores + key + v * kLanes) - shift);
      sums[v] = sums[v] + weight;
      weight.store(scores + key + v * kLanes);
    }
  total = sum(sums[0] + sums[1]);
  std::fill(scores + last, scores + end, 0.0f);
}

template <class T>
void add_values(const T* values, int stride, int num_keys, int num_queries, const float* weights,
                float* out) {
  with_constant(num_queries, [&](auto constant) {
    constexpr int Q = constant;
    constexpr int kWide = vectors_for(Q) * kLanes;
    int d = 0;
    for (; d + kWide <= stride; d += kWide)
      value_tile<T, Q, vectors_for(Q)>(values + d, stride, num_keys, weights, out + d);
    for (; d < stride; d += 2 * kLanes)
      value_tile<T, Q, 2>(values + d, stride, num_keys, weights, out + d);
  });
}

template <class T>
void average(const QueryTile& tile, std::int64_t first_key, int num_keys, const float* weights,
             float* out) {
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

template <class T>
void attend_typed(const QueryTile& tile, std::int64_t split, float* weights, const Softmax& part) {
  constexpr bool is_scaled = sizeof(T) == 1;
  const int n = tile.num_queries;
  const std::int64_t first = split * kSplit;
  const int num_keys =
      static_cast<int>(std::min<std::int64_t>(kSplit, tile.visible[n - 1] - first));
  const int end = static_cast<int>(round_up(num_keys, kKeyBlock));
  score<T>(tile, first, num_keys, weights);
  if constexpr (is_scaled)
    scale_keys(tile.kv.key_scales + first, n, num_keys, weights, weights);
  for (int i = 0; i < n; ++i) {
    const std::int64_t seen = std::clamp<std::int64_t>(tile.visible[i] - first, 0, num_keys);
    weigh(weights + i * kSplit, static_cast<int>(seen), end, part.largest[i], part.total[i]);
  }
  if (part.values == nullptr) return;
  alignas(32) float scaled[is_scaled ? kTileQueries * kSplit : 1];
  if constexpr (is_scaled)
    scale_keys(tile.kv.value_scales + first, n, num_keys, weights, scaled);
  average<T>(tile, first, num_keys, is_scaled ? scaled : weights, part.values);
}

void attend_split(const QueryTile& tile, std::int64_t split, float* weights, const Softmax& part) {
  const auto attend = tile.type == KVType::f32   ? attend_typed<float>
                      : tile.type == KVType::f16 ? attend_typed<std::uint16_t>
                                                 : attend_typed<std::int8_t>;
  attend(tile, split, weights, part);
}

void clear(const Softmax& all, int num_queries, int head_dim) {
  std::fill(all.largest, all.largest + num_queries, kHidden);
  std::fill(all.total, all.total + num_queries, 0.0f);
  if (all.values != nullptr)
    std::fill(all.values, all.values + num_queries * value_stride(head_dim), 0.0f);
}

void fold(const QueryTile& tile, std::int64_t split, const Softmax& part, const Softmax& all) {
  const int stride = value_stride(tile.head_dim);
  for (int i = 0; i < tile.num_queries; ++i) {
    if (tile.visible[i] <= split * kSplit) continue;
    const float largest = std::max(all.largest[i], part.largest[i]);
    const float before = exp2(all.largest[i] - largest);
    const float now = exp2(part.largest[i] - largest);
    all.largest[i] = largest;
    all.total[i] = all.total[i] * before + part.total[i] * now;
    if (all.values == nullptr) continue;
    float* sums = all.values + i * stride;
    const float* added = part.values + i * stride;
    for (int d = 0; d < stride; d += kLanes)
      fma(f32x8::load(added + d), f32x8::set1(now), f32x8::load(sums + d) * f32x8::set1(before))
          .store(sums + d);
  }
}

void finish(float total, const float* values, int head_dim, float* out) {
  const float inverse = 1.0f / total;
  for (int d = 0; d < head_dim; ++d) out[d] = values[d] * inverse;
}

float share(float part_largest, float all_largest, float all_total) {
  return exp2(part_largest - all_largest) / all_total;
}

void sum_weights(const float* weights, const float* shares, int num_queries, int num_keys,
                 bool adds, float* out) {
  for (int key = 0; key < num_keys; key += kKeyBlock) {
    f32x8 sums[2];
    for (int v = 0; v < 2; ++v)
      sums[v] = adds ? f32x8::load(out + key + v * kLanes) : f32x8::zero();
    for (int i = 0; i < num_queries; ++i)
      for (int v = 0; v < 2; ++v)
        sums[v] = fma(f32x8::load(weights + i * kSplit + key + v * kLanes),
                      f32x8::set1(shares[i]), sums[v]);
    for (int v = 0; v < 2; ++v) sums[v].store(out + key + v * kLanes);
  }
}

}  // namespace

const AttentionKernels& attention_kernels() {
  static constexpr AttentionKernels kernels{pack,   attend_split, clear,      fold,
                                            finish, share,        sum_weights};
  return kernels;
}

}  // namespace glimpse::GLIMPSE_ISA
