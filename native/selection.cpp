#include "selection.h"

#include <algorithm>
#include <limits>

namespace glimpse {
namespace {

constexpr float kSlack = 0.7f;  // how far the last chosen score may fall from round to round
constexpr std::int64_t kSampleStep = 16;
constexpr float kWorst = -std::numeric_limits<float>::infinity();

}  // namespace

BudgetSplit split_budget(const IndexSpec& spec) {
  const std::int64_t num_sinks = std::min(spec.sink_size, spec.budget - 1);
  const std::int64_t left = spec.budget - num_sinks;
  const std::int64_t num_recents = spec.is_ranked() ? std::min(spec.recent_size, left) : left;
  return {num_sinks, left - num_recents, num_recents};
}

void PositionSet::clear(std::int64_t length) { words_.assign((length + 63) / 64, 0); }

void PositionSet::add(std::int64_t begin, std::int64_t end) {
  for (std::int64_t position = begin; position < end; ++position) add(position);
}

bool PositionSet::take(std::int64_t position) {
  std::uint64_t& word = words_[position / 64];
  const bool was_in = word & bit(position);
  word &= ~bit(position);
  return was_in;
}

std::int64_t PositionSet::list(std::int32_t* positions) const {
  std::int64_t count = 0;
  for (std::size_t i = 0; i < words_.size(); ++i)
    for (std::uint64_t word = words_[i]; word != 0; word &= word - 1)
      positions[count++] = static_cast<std::int32_t>(i * 64 + __builtin_ctzll(word));
  return count;
}

void TopK::reserve(std::int64_t length) {
  positions_.resize(length + 8);
  values_.resize(length + 8);
}

// The score that the best of a few positions reach, as many in proportion.
float TopK::guess_from_sample(const float* scores, std::int64_t begin, std::int64_t end,
                              std::int64_t count) {
  std::int64_t size = 0;
  for (std::int64_t i = begin; i < end; i += kSampleStep)
    values_[size++] = scores[i] > kWorst ? scores[i] : kWorst;
  return kernels_.nth_highest(values_.data(), size,
                              std::min(size, count / kSampleStep + 1));
}

void TopK::choose(const float* scores, std::int64_t begin, std::int64_t end, std::int64_t count,
                  float& guess, PositionSet& chosen) {
  if (count == 0) return;
  const auto collect = [&](float least) {
    return kernels_.collect(scores, begin, end, least, positions_.data(), values_.data());
  };
  if (guess <= 0.0f) guess = guess_from_sample(scores, begin, end, count);
  std::int64_t found = collect(kSlack * guess);
  if (found < count) found = collect(kWorst);
  const float last = guess = kernels_.nth_highest(values_.data(), found, count);
  std::int64_t num_better = 0;
  for (std::int64_t i = 0; i < found; ++i) num_better += values_[i] > last;
  std::int64_t num_equal = count - num_better;
  for (std::int64_t i = 0; i < found; ++i)
    if (values_[i] > last || (values_[i] == last && num_equal-- > 0)) chosen.add(positions_[i]);
}

}  // namespace glimpse
