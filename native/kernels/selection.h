// Finding the highest of many scores.
#pragma once

#include <cstdint>

#include "isa.h"

namespace glimpse {

struct SelectionKernels {
  // Lists the positions of [begin, end) with a score of at least `least`, ascending, and their
  // scores. What is not a number counts as -infinity. Returns how many there are; the lists need
  // room for all of the range and 8 more.
  std::int64_t (*collect)(const float* scores, std::int64_t begin, std::int64_t end, float least,
                          std::int32_t* positions, float* values);
  // The count-th highest of n values, 1 <= count <= n; none of them is not a number.
  float (*nth_highest)(const float* values, std::int64_t n, std::int64_t count);
};

GLIMPSE_KERNEL_TABLE(SelectionKernels, selection_kernels)

}  // namespace glimpse
