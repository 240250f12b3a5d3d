// Cosines and sines of every position so far: computed in double precision, kept in single.
#pragma once

#include <cstdint>
#include <vector>

namespace glimpse {

class RotaryTable {
 public:
  // `frequencies` [head_dim / 2]; `factor` multiplies cosine and sine.
  RotaryTable(std::vector<float> frequencies, double factor);

  std::int64_t half() const { return static_cast<std::int64_t>(frequencies_.size()); }
  // Grows the table to positions below `end`.
  void reserve(std::int64_t end);
  const float* cos(std::int64_t position) const { return table_.data() + position * 2 * half(); }
  const float* sin(std::int64_t position) const { return cos(position) + half(); }

 private:
  std::vector<float> frequencies_;
  double factor_;
  std::vector<float> table_;  // [position][cos, sin][half]
};

}  // namespace glimpse
