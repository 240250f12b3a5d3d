#include "kernels/selection.h"

#include <limits>

#include "simd.h"

namespace glimpse::GLIMPSE_ISA {
namespace {

constexpr float kWorst = -std::numeric_limits<float>::infinity();

// A bit per lane that is at least `least`.
GLIMPSE_INLINE unsigned lanes_from(f32x8 x, f32x8 least) {
  const Ints is_in = x.v >= least.v;
#if GLIMPSE_SIMD_AVX2
  return static_cast<unsigned>(_mm256_movemask_ps((Floats)is_in));
#else
  unsigned bits = 0;
  for (int lane = 0; lane < kLanes; ++lane) bits |= (is_in[lane] & 1u) << lane;
  return bits;
#endif
}

std::int64_t collect(const float* scores, std::int64_t begin, std::int64_t end, float least,
                     std::int32_t* positions, float* values) {
  std::int64_t count = 0, i = begin;
  const auto add = [&](std::int64_t position) {
    positions[count] = static_cast<std::int32_t>(position);
    values[count++] = scores[position] > kWorst ? scores[position] : kWorst;
  };
  if (least > kWorst)
    for (; i + kLanes <= end; i += kLanes) {
      unsigned bits = lanes_from(f32x8::load(scores + i), f32x8::set1(least));
      for (; bits != 0; bits &= bits - 1) add(i + __builtin_ctz(bits));
    }
  for (; i < end; ++i)
    if (least == kWorst || scores[i] >= least) add(i);
  return count;
}

std::int64_t count_from(const float* values, std::int64_t n, float least) {
  Ints counts{};
  std::int64_t i = 0, count = 0;
  for (; i + kLanes <= n; i += kLanes) counts -= f32x8::load(values + i).v >= least;
  for (int lane = 0; lane < kLanes; ++lane) count += counts[lane];
  for (; i < n; ++i) count += values[i] >= least;
  return count;
}

// Floats in the order of integers, so that they can be bisected.
std::int32_t rank(float x) {
  std::int32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits ^ ((bits >> 31) & 0x7fffffff);
}

float with_rank(std::int32_t bits) {
  bits ^= (bits >> 31) & 0x7fffffff;
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

float nth_highest(const float* values, std::int64_t n, std::int64_t count) {
  float least = values[0], most = values[0];
  for (std::int64_t i = 1; i < n; ++i) {
    least = values[i] < least ? values[i] : least;
    most = values[i] > most ? values[i] : most;
  }
  // At least `count` values reach low, fewer reach anything above high.
  std::int64_t low = rank(least), high = rank(most);
  while (low < high) {
    const std::int64_t middle = low + (high - low + 1) / 2;
    if (count_from(values, n, with_rank(static_cast<std::int32_t>(middle))) >= count)
      low = middle;
    else
      high = middle - 1;
  }
  return with_rank(static_cast<std::int32_t>(low));
}

}  // namespace

const SelectionKernels& selection_kernels() {
  static constexpr SelectionKernels kernels{collect, nth_highest};
  return kernels;
}

}  // namespace glimpse::GLIMPSE_ISA
