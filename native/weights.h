// Weight matrices, packed into panels from the forms that files store.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "buffer.h"
#include "kernels/matrix.h"

namespace glimpse {

// A matrix as a file stores it: rows one after the other, each a whole number of blocks.
struct StoredMatrix {
  std::string_view type;  // as GGUF names it: F32, F16, BF16, Q4_0, ...
  std::int64_t num_outputs;
  std::int64_t num_inputs;
  const std::uint8_t* rows;
  const std::int64_t* row_order;  // which stored row is output n; null for n
};

// Whether a matrix of this type can be packed without its values changing.
bool is_packable(std::string_view type);

class PackedMatrix {
 public:
  // `bias` [num_outputs] or empty. Throws std::invalid_argument for a type or size that cannot be
  // packed. Stored as they come: F32, F16, BF16, Q4_0, Q4_1, Q8_0. With the same values in wider
  // blocks: Q5_0, Q5_1 and the K types, whose scales become floats.
  PackedMatrix(const StoredMatrix& stored, std::vector<float> bias);

  Matrix view() const {
    const float* const bias = bias_.empty() ? nullptr : bias_.data();
    return {type_, num_outputs_, num_inputs_, panels_.data(), bias};
  }

 private:
  WeightType type_;
  std::int64_t num_outputs_, num_inputs_;
  Buffer<std::uint8_t> panels_;
  std::vector<float> bias_;
};

}  // namespace glimpse
