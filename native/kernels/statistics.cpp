#include "kernels/statistics.h"

#include <algorithm>

#include "kernels/attention.h"
#include "kernels/kv.h"
#include "simd.h"

namespace glimpse::GLIMPSE_ISA {
namespace {

void keep(const float* weights, int num_queries, int num_keys, std::uint16_t* out) {
  for (int i = 0; i < num_queries; ++i)
    for (int key = 0; key < round_up(num_keys, kKeyBlock); key += kLanes)
      store_f16(f32x8::load(weights + i * kSplit + key), out + i * kSplit + key);
}

// Adds one row's attention to `sums`, its keys rounded up to kKeyBlock: beyond what it sees the
// weights of its last block are zero.
void add_row(const std::uint16_t* weights, const float* shares, int group_size, int num_keys,
             float* sums) {
  for (int key = 0; key < num_keys; key += kKeyBlock)
    for (int lane = key; lane < key + kKeyBlock; lane += kLanes) {
      f32x8 sum = f32x8::load(sums + lane);
      for (int i = 0; i < group_size; ++i)
        sum = fma(f32x8::load_f16(weights + i * kSplit + lane), f32x8::set1(shares[i]), sum);
      sum.store(sums + lane);
    }
}

void store_sums(const float* sums, std::int64_t size, std::uint16_t* out) {
  for (std::int64_t i = 0; i < size; i += kLanes) store_f16(f32x8::load(sums + i), out + i);
}

void sum_rows(const SplitRows& rows, int num_keys, bool keeps_all, std::uint16_t* out,
              std::int64_t stride) {
  alignas(64) float sums[kSplit] = {};
  const std::int64_t size = round_up(num_keys, kKeyBlock);
  for (int row = 0; row < rows.num_rows; ++row) {
    const int first = row * rows.group_size;
    add_row(rows.weights + first * kSplit, rows.shares + first, rows.group_size,
            rows.visible[row], sums);
    if (keeps_all) store_sums(sums, size, out + row * stride);
  }
  if (!keeps_all) store_sums(sums, size, out);
}

void append(const std::uint16_t* added, std::int64_t size, std::int64_t known, float* sums) {
  std::fill(sums + known, sums + size, 0.0f);
  const std::int64_t whole = size / kLanes * kLanes;
  for (std::int64_t i = 0; i < whole; i += kLanes)
    (f32x8::load(sums + i) + f32x8::load_f16(added + i)).store(sums + i);
  if (whole == size) return;
  std::uint16_t last[kLanes] = {};
  std::copy(added + whole, added + size, last);
  const f32x8 rest = f32x8::load_f16(last);
  for (std::int64_t i = whole; i < size; ++i) sums[i] += rest[i - whole];
}

void add(const float* const* sources, const std::int64_t* sizes, int count, float* out) {
  std::int64_t i = 0;
  for (int first = 0; first < count; ++first) {
    for (; i + kLanes <= sizes[first]; i += kLanes) {
      f32x8 sum = f32x8::load(sources[first] + i);
      for (int s = first + 1; s < count; ++s) sum = sum + f32x8::load(sources[s] + i);
      sum.store(out + i);
    }
    for (; i < sizes[first]; ++i) {
      float sum = sources[first][i];
      for (int s = first + 1; s < count; ++s) sum += sources[s][i];
      out[i] = sum;
    }
  }
}

}  // namespace

const StatisticsKernels& statistics_kernels() {
  static constexpr StatisticsKernels kernels{keep, sum_rows, append, add};
  return kernels;
}

}  // namespace glimpse::GLIMPSE_ISA
