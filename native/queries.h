// The last queries of a sequence, in a ring.
#pragma once

#include <cstdint>

#include "buffer.h"
#include "kv.h"

namespace glimpse {

class QueryRing {
 public:
  QueryRing(const KVShape& shape, int num_slots);

  // Queries are held of positions from here to the end of the last rows announced.
  std::int64_t first() const { return first_; }
  // Announces rows; those that have no slot are not kept.
  void begin(std::int64_t start, int num_rows);
  // q [num_rows, num_query_heads, head_dim] of the rows announced.
  void record(int layer, const float* q, int num_rows);
  // [num_query_heads, head_dim] of one position.
  const float* at(int layer, std::int64_t position) const;
  // Takes what `other` holds of the first `length` positions; null holds nothing.
  void copy_from(const QueryRing* other, std::int64_t length);

 private:
  float* slot(int layer, std::int64_t position) const;

  int num_layers_, num_slots_;
  std::int64_t row_size_;
  std::int64_t start_ = 0, first_ = 0;
  Buffer<float> queries_;  // [num_layers, num_slots, num_query_heads, head_dim]
};

}  // namespace glimpse
