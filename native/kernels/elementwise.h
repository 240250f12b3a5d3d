// What happens to one row between the products.
#pragma once

#include <cstdint>

#include "isa.h"

namespace glimpse {

struct ElementwiseKernels {
  // x over its root mean square, times `weight`; `out` may be `x`.
  void (*rms_norm)(const float* x, const float* weight, std::int64_t size, float eps, float* out);
  // Rotates one head in place: halves (a, b) to (a cos - b sin, b cos + a sin), each of `half`.
  void (*rotate)(float* x, const float* cos, const float* sin, std::int64_t half);
  // silu(gate) * up; `out` may be either.
  void (*silu_times)(const float* gate, const float* up, std::int64_t size, float* out);
};

GLIMPSE_KERNEL_TABLE(ElementwiseKernels, elementwise_kernels)

}  // namespace glimpse
