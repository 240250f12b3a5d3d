// The block formats of GGUF files, taken apart: value, scale and minimum of every weight.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kernels/matrix.h"

namespace glimpse {

// Half to single precision, exact.
float half_to_float(std::uint16_t half);

// Where the parts of one stored block go; a weight is scale * value + minimum.
struct BlockParts {
  std::int8_t* values;  // [inputs of a stored block]
  float* scales;        // [of each packed block in it]
  float* minima;        // the same; left alone by formats without minima
};

struct BlockFormat {
  std::string_view name;
  WeightType packed;
  int num_inputs;  // of a stored block
  std::size_t num_bytes;
  void (*decode)(const std::uint8_t* block, BlockParts parts);
};

// The format of that name, or null.
const BlockFormat* find_block_format(std::string_view name);

}  // namespace glimpse
