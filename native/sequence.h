// What a runner holds of one sequence: dense KV of the first `length` positions, the glimpse and
// the statistics; and the sequence's part in a forward pass.
#pragma once

#include <cstdint>
#include <optional>

#include "attention.h"
#include "glimpse.h"
#include "isa.h"
#include "kv.h"
#include "selection.h"
#include "statistics.h"
#include "threads.h"

namespace glimpse {

// Spans point into it, so it stays where it is. Between a `begin` and its `end` nothing else may be
// asked of it. Errors of use are std::invalid_argument or std::runtime_error and change nothing.
class SequenceState {
 public:
  // `window` queries are kept for statistics, 0 for none.
  SequenceState(const KVShape& shape, std::int64_t capacity, int window, Isa isa, ThreadPool& pool);
  SequenceState(const SequenceState&) = delete;
  SequenceState& operator=(const SequenceState&) = delete;

  std::int64_t length() const { return length_; }
  std::int64_t capacity() const { return kv_.capacity(); }

  // ---- passes
  void check_dense(int num_rows) const;
  Span begin_dense(int num_rows, bool is_observed);
  void end_dense(const Span& span);
  void check_draft(int num_rows, int num_layers) const;
  Span begin_draft(int num_rows);
  void end_draft(const Span& span, int num_layers);

  // ---- between passes
  void check_length(std::int64_t length) const;
  void truncate(std::int64_t length);
  void truncate_draft(std::int64_t num_rows);
  // Attention of the last `window` queries: out [num_layers, num_kv_heads, length].
  void scores(int window, float* out);
  void refresh(const IndexSpec& spec);
  // Positions in the glimpse, ascending: out [num_layers, num_kv_heads, index_size()].
  std::int64_t index_size() const;
  void index(std::int64_t* out) const;
  // Becomes a copy of the first `length` positions of another.
  void copy_from(const SequenceState& other, std::int64_t length);

 private:
  WindowStatistics& statistics_of(int window);
  void prepare_scores(int window);
  void check_spec(const IndexSpec& spec);
  void check_room(std::int64_t start, int num_rows) const;
  void reserve(std::int64_t num_positions);

  const KVShape shape_;
  std::int64_t length_ = 0;
  KVStore kv_;
  Glimpse glimpse_;
  std::optional<WindowStatistics> statistics_;
};

}  // namespace glimpse
