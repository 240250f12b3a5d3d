// Products of rows of activations with packed matrices, shared out over the threads by outputs.
#pragma once

#include <cstdint>
#include <vector>

#include "buffer.h"
#include "isa.h"
#include "kernels/floats.h"
#include "kernels/integer.h"
#include "threads.h"

namespace glimpse {

enum class Activations { f32, int8 };

struct Product {
  Matrix matrix;
  Output out;
};

class Linear {
 public:
  Linear(Activations activations, Isa isa, ThreadPool& pool);

  // Products of the same x [num_rows, num_inputs] with several matrices, as one piece of work.
  // Quantised weights meet activations of the precision chosen, float weights float activations.
  void multiply(const float* x, std::int64_t num_rows, const std::vector<Product>& products);

  // One row of a matrix, in float32.
  void read_row(const Matrix& matrix, std::int64_t row, float* to);

 private:
  // A run of panels of one product.
  struct Task {
    int product;
    std::int64_t first, last;
  };

  bool is_integer(const Matrix& matrix) const;
  IntegerRows quantize(const float* x, std::int64_t num_rows, std::int64_t num_inputs);
  void plan(const std::vector<Product>& products, std::int64_t num_rows);

  const Activations activations_;
  const IntegerKernels& integer_;
  const FloatKernels& float_;
  ThreadPool& pool_;
  std::vector<Task> tasks_;
  Buffer<std::int8_t> bytes_;
  Buffer<std::int16_t> shorts_;
  Buffer<float> scales_, sums_;
};

}  // namespace glimpse
