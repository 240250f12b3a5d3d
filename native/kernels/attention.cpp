#include "kernels/attention.h"

#include <algorithm>
#include <limits>

#include "kernels/attention_floats.h"
#include "kernels/attention_integers.h"
#include "simd.h"

namespace glimpse::GLIMPSE_ISA {
namespace {

constexpr float kHidden = -std::numeric_limits<float>::infinity();

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

template <class F>
void with_products(KVType type, F&& f) {
  switch (type) {
    case KVType::f32: return f(FloatProducts<float>{});
    case KVType::f16: return f(FloatProducts<std::uint16_t>{});
    case KVType::i16: return f(IntegerProducts<std::int16_t>{});
    case KVType::i8: return f(IntegerProducts<std::int8_t>{});
  }
}

void pack(KVType type, const float* const* queries, int num_queries, int head_dim,
          float* packed) {
  constexpr float kLog2E = 0x1.715476p0f;
  const float scale = kLog2E / __builtin_sqrtf(static_cast<float>(head_dim));
  with_products(type, [&](auto products) {
    products.pack(queries, num_queries, head_dim, scale, packed);
  });
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

void attend_split(const QueryTile& tile, std::int64_t split, float* weights, const Softmax& part) {
  const int n = tile.num_queries;
  const std::int64_t first = split * kSplit;
  const int num_keys =
      static_cast<int>(std::min<std::int64_t>(kSplit, tile.visible[n - 1] - first));
  const int end = static_cast<int>(round_up(num_keys, kKeyBlock));
  with_products(tile.type, [&](auto products) {
    products.score(tile, first, num_keys, weights);
    for (int i = 0; i < n; ++i) {
      const std::int64_t seen = std::clamp<std::int64_t>(tile.visible[i] - first, 0, num_keys);
      weigh(weights + i * kSplit, static_cast<int>(seen), end, part.largest[i], part.total[i]);
    }
    if (part.values != nullptr) products.average(tile, first, num_keys, weights, part.values);
  });
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
                 float* out) {
  for (int key = 0; key < num_keys; key += kKeyBlock) {
    f32x8 sums[2];
    for (int v = 0; v < 2; ++v) sums[v] = f32x8::load(out + key + v * kLanes);
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
