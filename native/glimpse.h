// The glimpse: a compact copy of a few KV positions, chosen per layer and KV head.
//
// Entries that stay in the index stay in their slots; only what changed is copied. Drafted tokens
// go behind the slots.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "isa.h"
#include "kernels/kv.h"
#include "kv.h"
#include "selection.h"
#include "threads.h"

namespace glimpse {

// Writes the scores [length] of one layer and KV head.
using HeadScores = std::function<void(int number, float* out)>;

class Glimpse {
 public:
  Glimpse(const KVShape& shape, Isa isa, ThreadPool& pool);

  // Slots in use, the same for every head.
  std::int64_t size() const { return size_; }
  bool has_index() const { return size_ > 0; }
  bool exists() const { return is_whole || has_index(); }
  // Drops the tail, and the index if it knows of positions that are no more.
  void truncate(std::int64_t length);
  // Holds what `spec` chooses of the first `length` positions; `dense` still has those held before.
  void refresh(const KVStore& dense, std::int64_t length, const IndexSpec& spec,
               const HeadScores& scores);
  // The positions of one head, in ascending order.
  void index(int number, std::int64_t* out) const;

  KVStore kv;
  bool is_whole = false;  // it is the dense KV itself, with the draft tail right behind it
  std::int64_t tail_length = 0;
  int tail_layers = 0;  // how many layers have KV of the draft tail

 private:
  // What one thread works with.
  struct Scratch {
    explicit Scratch(Isa isa) : top_k(isa) {}

    std::vector<float> scores;
    std::vector<std::int32_t> stale, missing;
    std::vector<Move> moves;
    PositionSet chosen;
    TopK top_k;
  };

  void prepare(std::int64_t length, std::int64_t size);
  void choose(const IndexSpec& spec, std::int64_t length, int number, const HeadScores& scores,
              Scratch& scratch);
  void replace(const KVStore& dense, int number, std::int64_t size, Scratch& scratch);

  const KVShape shape_;
  const KVKernels& kernels_;
  ThreadPool& pool_;
  std::int64_t size_ = 0, length_ = 0;
  std::vector<std::vector<std::int32_t>> index_;  // per head, the position in each slot
  std::vector<float> guesses_;                    // per head, for `TopK`
  std::vector<Scratch> scratch_;
};

}  // namespace glimpse
