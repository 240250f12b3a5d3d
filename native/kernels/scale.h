// Scales that turn a few floats into integers. Included by kernel files alone.
#pragma once

#include <algorithm>
#include <cmath>

#include "simd.h"

namespace glimpse::GLIMPSE_ISA {

// What integers are multiplied by to give the floats back, and its inverse.
struct Scale {
  float scale, inverse;
};

// `size` becomes `limit`. Something too small to have an inverse scale is stored as zeros.
GLIMPSE_INLINE Scale scale_to(float size, float limit) {
  return size < 1e-30f ? Scale{0.0f, 0.0f} : Scale{size / limit, limit / size};
}

GLIMPSE_INLINE float largest(const float* x, int n) {
  float most = 0.0f;
  for (int i = 0; i < n; ++i) most = std::max(most, std::fabs(x[i]));
  return most;
}

// As a vector.
GLIMPSE_INLINE float length(const float* x, int n) {
  double squares = 0.0;
  for (int i = 0; i < n; ++i) squares += static_cast<double>(x[i]) * x[i];
  return static_cast<float>(std::sqrt(squares));
}

}  // namespace glimpse::GLIMPSE_ISA
