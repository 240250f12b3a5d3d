// Packed matrices by themselves, so that they can be held against a definition. Included by
// bindings.cpp alone.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <string>

#include "isa.h"
#include "linear.h"
#include "threads.h"
#include "weights.h"

namespace glimpse {

using LinearArray = nanobind::ndarray<float, nanobind::c_contig, nanobind::device::cpu>;

// out [num_rows, num_outputs] = x [num_rows, num_inputs] times the matrix, and its bias.
inline void multiply_alone(const PackedMatrix& matrix, LinearArray x, LinearArray out,
                           const std::string& isa, Activations activations, int num_threads) {
  const Matrix view = matrix.view();
  ThreadPool pool(num_threads);
  Linear linear(activations, choose_isa(isa).isa, pool);
  linear.multiply(x.data(), static_cast<std::int64_t>(x.shape(0)),
                  {{view, {out.data(), view.num_outputs, false}}});
}

// The weights in float32: out [num_outputs, num_inputs].
inline void unpack_alone(const PackedMatrix& matrix, LinearArray out, const std::string& isa) {
  const Matrix view = matrix.view();
  ThreadPool pool(1);
  Linear linear(Activations::f32, choose_isa(isa).isa, pool);
  for (std::int64_t row = 0; row < view.num_outputs; ++row) {
    linear.read_row(view, row, out.data() + row * view.num_inputs);
  }
}

}  // namespace glimpse
