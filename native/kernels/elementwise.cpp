#include "kernels/elementwise.h"

#include <cmath>

#include "kernels/store.h"
#include "simd.h"

namespace glimpse::GLIMPSE_ISA {
namespace {

float sum_of_squares(const float* x, std::int64_t size) {
  f32x8 parts[4] = {f32x8::zero(), f32x8::zero(), f32x8::zero(), f32x8::zero()};
  for (std::int64_t i = 0; i < size; i += kLanes) {
    const f32x8 some = load_some(x + i, size - i);
    f32x8& part = parts[i / kLanes % 4];
    part = fma(some, some, part);
  }
  return sum((parts[0] + parts[1]) + (parts[2] + parts[3]));
}

void rms_norm(const float* x, const float* weight, std::int64_t size, float eps, float* out) {
  const float mean = sum_of_squares(x, size) / static_cast<float>(size);
  const f32x8 scale = f32x8::set1(1.0f / std::sqrt(mean + eps));
  for (std::int64_t i = 0; i < size; i += kLanes) {
    const std::int64_t count = size - i;
    store_some(load_some(x + i, count) * scale * load_some(weight + i, count), out + i, count);
  }
}

void rotate(float* x, const float* cos, const float* sin, std::int64_t half) {
  for (std::int64_t i = 0; i < half; i += kLanes) {
    const std::int64_t count = half - i;
    const f32x8 a = load_some(x + i, count), b = load_some(x + half + i, count);
    const f32x8 c = load_some(cos + i, count), s = load_some(sin + i, count);
    store_some(a * c - b * s, x + i, count);
    store_some(fma(a, s, b * c), x + half + i, count);
  }
}

void silu_times(const float* gate, const float* up, std::int64_t size, float* out) {
  const f32x8 one = f32x8::set1(1.0f), limit = f32x8::set1(88.0f);
  for (std::int64_t i = 0; i < size; i += kLanes) {
    const std::int64_t count = size - i;
    const f32x8 g = load_some(gate + i, count);
    const f32x8 silu = g / (one + exp(min(f32x8::zero() - g, limit)));
    store_some(silu * load_some(up + i, count), out + i, count);
  }
}

}  // namespace

const ElementwiseKernels& elementwise_kernels() {
  static const ElementwiseKernels table{rms_norm, rotate, silu_times};
  return table;
}

}  // namespace glimpse::GLIMPSE_ISA
