// Which positions a glimpse holds, for one layer and KV head at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "isa.h"
#include "kernels/selection.h"

namespace glimpse {

// Sinks, the best of the middle and recents, as `IndexSpec` of the Python side.
struct IndexSpec {
  std::int64_t budget = 0;
  std::int64_t sink_size = 4;
  std::int64_t recent_size = 64;
  int window = 0;
  const float* scores = nullptr;  // [num_layers, num_kv_heads, length]
  std::vector<std::int64_t> scores_shape = {};

  bool is_ranked() const { return window > 0 || scores != nullptr; }
};

// How many of each the budget pays for.
struct BudgetSplit {
  std::int64_t num_sinks, num_best, num_recents;
};

// A budget below sinks and recents goes to sinks first, save one position, then to recents.
// Without a ranking recents take what is left.
BudgetSplit split_budget(const IndexSpec& spec);

// A set of positions.
class PositionSet {
 public:
  void clear(std::int64_t length);
  void add(std::int64_t begin, std::int64_t end);
  void add(std::int64_t position) { words_[position / 64] |= bit(position); }
  // Whether a position was in the set; it is not any more.
  bool take(std::int64_t position);
  // The positions in ascending order: writes them and returns how many.
  std::int64_t list(std::int32_t* positions) const;

 private:
  static std::uint64_t bit(std::int64_t position) { return std::uint64_t{1} << position % 64; }

  std::vector<std::uint64_t> words_;
};

// Finds the highest scores; of equal ones the earliest.
class TopK {
 public:
  explicit TopK(Isa isa) : kernels_(selection_kernels(isa)) {}

  // Room for so many positions.
  void reserve(std::int64_t length);
  // Adds to `chosen` the `count` best of the positions [begin, end). `guess` is a score above which
  // enough are expected, from the last time, and becomes that of the last one chosen: a good guess
  // saves most of the work and never changes the result.
  void choose(const float* scores, std::int64_t begin, std::int64_t end, std::int64_t count,
              float& guess, PositionSet& chosen);

 private:
  float guess_from_sample(const float* scores, std::int64_t begin, std::int64_t end,
                          std::int64_t count);

  const SelectionKernels& kernels_;
  std::vector<std::int32_t> positions_;
  std::vector<float> values_;
};

}  // namespace glimpse
