#include "sequence.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

namespace glimpse {
namespace {

std::string text(std::int64_t n) { return std::to_string(n); }

std::string text(const std::vector<std::int64_t>& sizes, const char* open, const char* close) {
  std::string list;
  for (const std::int64_t size : sizes) list += (list.empty() ? "" : ", ") + text(size);
  return open + list + close;
}

void check_sign(const char* name, std::int64_t value) {
  if (value < 0)
    throw std::invalid_argument(std::string(name) + "=" + text(value) + ": must be at least 0");
}

}  // namespace

SequenceState::SequenceState(const KVShape& shape, std::int64_t capacity, int window, Isa isa,
                             ThreadPool& pool)
    : shape_(shape),
      kv_(shape, std::min(capacity, shape.max_seq_len)),
      glimpse_(shape, isa, pool) {
  if (window > 0) statistics_.emplace(shape, window, isa, pool);
}

// --------------------------------------------------------------------------------------- passes

void SequenceState::check_dense(int num_rows) const { check_room(length_, num_rows); }

Span SequenceState::begin_dense(int num_rows, bool is_observed) {
  glimpse_.tail_length = 0;
  reserve(length_ + num_rows);
  Span span{&kv_, length_, length_, num_rows};
  if (statistics_) statistics_->begin(span, is_observed);
  return span;
}

void SequenceState::end_dense(const Span& span) {
  length_ += span.num_rows;
  if (statistics_) statistics_->end(span);
}

void SequenceState::check_draft(int num_rows, int num_layers) const {
  if (!glimpse_.exists())
    throw std::runtime_error("the sequence has no glimpse: refresh it before drafting");
  if (glimpse_.tail_length > 0 && num_layers > glimpse_.tail_layers)
    throw std::invalid_argument("exit_layer=" + text(num_layers) + ": must be at most " +
                                text(glimpse_.tail_layers) +
                                ", where the draft tail stopped; refresh drops it");
  check_room(length_ + glimpse_.tail_length, num_rows);
}

Span SequenceState::begin_draft(int num_rows) {
  const std::int64_t position = length_ + glimpse_.tail_length;
  if (glimpse_.is_whole) {
    reserve(position + num_rows);
    return {&kv_, position, position, num_rows};
  }
  const std::int64_t start = glimpse_.size() + glimpse_.tail_length;
  glimpse_.kv.reserve(start + num_rows, start, shape_.max_seq_len);
  return {&glimpse_.kv, start, position, num_rows};
}

void SequenceState::end_draft(const Span& span, int num_layers) {
  glimpse_.tail_length += span.num_rows;
  glimpse_.tail_layers = num_layers;
}

// -------------------------------------------------------------------------------- between passes

void SequenceState::check_length(std::int64_t length) const {
  if (length < 0 || length > length_)
    throw std::invalid_argument("length=" + text(length) + ": must be from 0 to " + text(length_));
}

void SequenceState::truncate(std::int64_t length) {
  check_length(length);
  length_ = length;
  glimpse_.truncate(length);
  if (statistics_) statistics_->commit(length);
}

void SequenceState::truncate_draft(std::int64_t num_rows) {
  if (num_rows < 0 || num_rows > glimpse_.tail_length)
    throw std::invalid_argument("num_tokens=" + text(num_rows) + ": must be from 0 to " +
                                text(glimpse_.tail_length) + ", the draft tail");
  glimpse_.tail_length = num_rows;
}

void SequenceState::scores(int window, float* out) {
  prepare_scores(window);
  for (int number = 0; number < shape_.num_heads(); ++number)
    statistics_->scores(number, out + number * length_);
}

void SequenceState::refresh(const IndexSpec& spec) {
  check_spec(spec);
  glimpse_.tail_length = 0;
  if (spec.budget >= length_) {
    glimpse_.is_whole = true;
    return;
  }
  if (spec.window > 0) prepare_scores(spec.window);
  glimpse_.refresh(kv_, length_, spec, [&](int number, float* out) {
    if (spec.window > 0) return statistics_->scores(number, out);
    std::copy_n(spec.scores + number * length_, length_, out);
  });
}

std::int64_t SequenceState::index_size() const {
  if (glimpse_.is_whole) return length_;
  if (!glimpse_.has_index())
    throw std::runtime_error("the sequence has no glimpse: refresh it first");
  return glimpse_.size();
}

void SequenceState::index(std::int64_t* out) const {
  const std::int64_t size = index_size();
  for (int number = 0; number < shape_.num_heads(); ++number, out += size) {
    if (glimpse_.is_whole)
      std::iota(out, out + size, 0);
    else
      glimpse_.index(number, out);
  }
}

void SequenceState::copy_from(const SequenceState& other, std::int64_t length) {
  reserve(length);
  kv_.copy_from(other.kv_, length);
  length_ = length;
  if (statistics_)
    statistics_->copy_from(other.statistics_ ? &*other.statistics_ : nullptr, length);
}

// --------------------------------------------------------------------------------------- checks

WindowStatistics& SequenceState::statistics_of(int window) {
  const int kept = statistics_ ? statistics_->window() : 0;
  if (window < 1 || window > kept)
    throw std::invalid_argument("window=" + text(window) + ": must be from 1 to the " + text(kept) +
                                " queries that the sequence was opened to keep");
  return *statistics_;
}

void SequenceState::prepare_scores(int window) {
  WindowStatistics& statistics = statistics_of(window);
  statistics.commit(length_);
  statistics.prepare(kv_, window, length_);
}

void SequenceState::check_spec(const IndexSpec& spec) {
  if (spec.budget < 1)
    throw std::invalid_argument("budget=" + text(spec.budget) + ": must be at least 1 position");
  check_sign("sink_size", spec.sink_size);
  check_sign("recent_size", spec.recent_size);
  check_sign("window", spec.window);
  if (spec.window > 0) statistics_of(spec.window);
  if (spec.scores == nullptr) return;
  if (spec.window > 0)
    throw std::invalid_argument("window=" + text(spec.window) +
                                ": must be 0 where scores are given");
  const std::vector<std::int64_t> shape{shape_.num_layers, shape_.num_kv_heads, length_};
  if (spec.scores_shape != shape)
    throw std::invalid_argument("scores of shape " + text(spec.scores_shape, "(", ")") +
                                ": must be [num_layers, num_kv_heads, length] = " +
                                text(shape, "[", "]"));
}

void SequenceState::check_room(std::int64_t start, int num_rows) const {
  const std::int64_t excess = start + num_rows - shape_.max_seq_len;
  if (excess > 0)
    throw std::invalid_argument(text(num_rows) + " tokens from position " + text(start) + " on: " +
                                text(excess) + " more than fit into the model's context of " +
                                text(shape_.max_seq_len));
}

void SequenceState::reserve(std::int64_t num_positions) {
  const std::int64_t used = length_ + (glimpse_.is_whole ? glimpse_.tail_length : 0);
  kv_.reserve(num_positions, used, shape_.max_seq_len);
}

}  // namespace glimpse
