#include "queries.h"

#include <algorithm>

namespace glimpse {

QueryRing::QueryRing(const KVShape& shape, int num_slots)
    : num_layers_(shape.num_layers),
      num_slots_(num_slots),
      row_size_(std::int64_t{shape.num_query_heads} * shape.head_dim),
      queries_(num_layers_ * num_slots_ * row_size_) {}

void QueryRing::begin(std::int64_t start, int num_rows) {
  start_ = start;
  // After a rollback below what is held, only the new rows are.
  first_ = std::max(std::min(first_, start), start + num_rows - num_slots_);
}

void QueryRing::record(int layer, const float* q, int num_rows) {
  for (std::int64_t position = std::max(start_, first_); position < start_ + num_rows; ++position) {
    const float* row = q + (position - start_) * row_size_;
    std::copy(row, row + row_size_, slot(layer, position));
  }
}

const float* QueryRing::at(int layer, std::int64_t position) const {
  return slot(layer, position);
}

void QueryRing::copy_from(const QueryRing* other, std::int64_t length) {
  first_ = other == nullptr ? length : std::max(other->first_, length - num_slots_);
  for (int layer = 0; layer < num_layers_; ++layer)
    for (std::int64_t position = first_; position < length; ++position) {
      const float* row = other->at(layer, position);
      std::copy(row, row + row_size_, slot(layer, position));
    }
}

float* QueryRing::slot(int layer, std::int64_t position) const {
  return queries_.data() + (std::int64_t{layer} * num_slots_ + position % num_slots_) * row_size_;
}

}  // namespace glimpse
