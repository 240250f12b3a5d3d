// Weights as floats times float activations, and panels turned into floats. Inputs are added in
// order within runs of 128, and the runs in order: one row's result is the same bits whatever rows
// it is computed with, and whether or not its panel was unpacked before.
#pragma once

#include "isa.h"
#include "kernels/matrix.h"

namespace glimpse {

struct FloatRows {
  std::int64_t num_rows;
  std::int64_t num_inputs;
  const float* data;  // [num_rows, num_inputs]
};

struct FloatKernels {
  // Weights of a panel as [num_inputs][8 outputs], each as exact as the file says.
  void (*unpack)(const Matrix& matrix, std::int64_t panel, float* to);
  // Panels [first, last) of a matrix of any type for all rows; `scratch` has room for two panels.
  void (*multiply)(const Matrix& matrix, std::int64_t first, std::int64_t last,
                   const FloatRows& rows, float* scratch, Output out);
};

GLIMPSE_KERNEL_TABLE(FloatKernels, float_kernels)

}  // namespace glimpse
