#include "rope.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace glimpse {

RotaryTable::RotaryTable(std::vector<float> frequencies, double factor)
    : frequencies_(std::move(frequencies)), factor_(factor) {}

void RotaryTable::reserve(std::int64_t end) {
  const auto size = static_cast<std::int64_t>(table_.size()) / (2 * half());
  if (end <= size) return;
  const std::int64_t grown = std::max<std::int64_t>({end, 2 * size, 1024});
  table_.resize(grown * 2 * half());
  for (std::int64_t position = size; position < grown; ++position) {
    float* const row = table_.data() + position * 2 * half();
    for (std::int64_t i = 0; i < half(); ++i) {
      const double angle = static_cast<double>(position) * frequencies_[i];
      row[i] = static_cast<float>(std::cos(angle) * factor_);
      row[half() + i] = static_cast<float>(std::sin(angle) * factor_);
    }
  }
}

}  // namespace glimpse
