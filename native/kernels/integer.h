// Quantised weights times activations of 8 bits: integer sums inside a block, blocks added in order.
// One row's result is the same bits whatever rows it is computed with.
#pragma once

#include "isa.h"
#include "kernels/matrix.h"

namespace glimpse {

// Rows of activations [num_rows, num_inputs] in blocks of 32: scale * value.
struct IntegerRows {
  std::int64_t num_rows;
  std::int64_t num_inputs;
  const std::int8_t* bytes;    // the values
  const std::int16_t* shorts;  // the same values
  const float* scales;         // [num_rows, num_inputs / 32]
  const float* sums;           // scale * sum of the values [num_rows, num_inputs / 16]
};

struct IntegerKernels {
  // The IntegerRows arrays of one row of `num_inputs`, a multiple of 32.
  void (*quantize)(const float* x, std::int64_t num_inputs, std::int8_t* bytes,
                   std::int16_t* shorts, float* scales, float* sums);
  // Panels [first, last) of a quantised matrix for all rows.
  void (*multiply)(const Matrix& matrix, std::int64_t first, std::int64_t last,
                   const IntegerRows& rows, Output out);
};

GLIMPSE_KERNEL_TABLE(IntegerKernels, integer_kernels)

}  // namespace glimpse
