#include "glimpse.h"

#include <algorithm>
#include <atomic>

namespace glimpse {
namespace {

constexpr std::int64_t kDraftRoom = 32;

}  // namespace

Glimpse::Glimpse(const KVShape& shape, Isa isa, ThreadPool& pool)
    : kv(shape, 0),
      shape_(shape),
      kernels_(kv_kernels(isa)),
      pool_(pool),
      index_(shape.num_heads()),
      guesses_(shape.num_heads(), 0.0f),
      scratch_(pool.size(), Scratch(isa)) {}

void Glimpse::truncate(std::int64_t length) {
  tail_length = 0;
  if (length_ > length) size_ = 0;
}

void Glimpse::refresh(const KVStore& dense, std::int64_t length, const IndexSpec& spec,
                      const HeadScores& scores) {
  prepare(length, spec.budget);
  std::atomic<int> next{0};
  pool_.run(static_cast<int>(scratch_.size()), [&](int worker) {
    for (int number; (number = next.fetch_add(1)) < shape_.num_heads();) {
      choose(spec, length, number, scores, scratch_[worker]);
      replace(dense, number, spec.budget, scratch_[worker]);
    }
  });
  size_ = spec.budget;
  length_ = length;
  is_whole = false;
}

// All memory that the threads need. Until they are through there is no glimpse.
void Glimpse::prepare(std::int64_t length, std::int64_t size) {
  // A budget grows with the text: some room more spares most of the moving.
  if (size + kDraftRoom > kv.capacity())
    kv.reserve(size + size / 4 + kDraftRoom, std::min(size, size_), size);
  for (auto& positions : index_) {
    positions.resize(size_);
    positions.reserve(size);
  }
  for (Scratch& scratch : scratch_) {
    scratch.scores.resize(length);
    scratch.stale.reserve(size);
    scratch.missing.resize(length);
    scratch.moves.reserve(size);
    scratch.chosen.clear(length);
    scratch.top_k.reserve(length);
  }
  size_ = 0;
}

void Glimpse::choose(const IndexSpec& spec, std::int64_t length, int number,
                     const HeadScores& scores, Scratch& scratch) {
  const BudgetSplit split = split_budget(spec);
  scratch.chosen.clear(length);
  scratch.chosen.add(0, split.num_sinks);
  scratch.chosen.add(length - split.num_recents, length);
  if (split.num_best == 0) return;
  scores(number, scratch.scores.data());
  scratch.top_k.choose(scratch.scores.data(), split.num_sinks, length - split.num_recents,
                       split.num_best, guesses_[number], scratch.chosen);
}

// Fills the slots whose entry is not chosen with the chosen positions that have no slot. There are
// as many of the one as of the other, so the two lists pair up in order.
void Glimpse::replace(const KVStore& dense, int number, std::int64_t size, Scratch& scratch) {
  std::vector<std::int32_t>& positions = index_[number];
  const std::int64_t held = std::min<std::int64_t>(size, positions.size());
  positions.resize(size);
  scratch.stale.clear();
  for (std::int64_t slot = 0; slot < size; ++slot)
    if (slot >= held || !scratch.chosen.take(positions[slot]))
      scratch.stale.push_back(static_cast<std::int32_t>(slot));
  scratch.chosen.list(scratch.missing.data());
  scratch.moves.clear();
  for (std::size_t i = 0; i < scratch.stale.size(); ++i) {
    positions[scratch.stale[i]] = scratch.missing[i];
    scratch.moves.push_back({scratch.missing[i], scratch.stale[i]});
  }
  const int layer = number / shape_.num_kv_heads, kv_head = number % shape_.num_kv_heads;
  kernels_.copy(shape_.type, kv.head(layer, kv_head), dense.head(layer, kv_head),
                scratch.moves.data(), static_cast<int>(scratch.moves.size()), shape_.head_dim);
}

void Glimpse::index(int number, std::int64_t* out) const {
  std::copy(index_[number].begin(), index_[number].begin() + size_, out);
  std::sort(out, out + size_);
}

}  // namespace glimpse
