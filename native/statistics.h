// Attention that the last committed queries of a sequence paid to each position.
//
// Two sources. Attention of observed rows is kept, summed after each row, until it is known which
// rows stay; that sum then goes into a bucket of neighbouring rows. And the last queries themselves
// are kept, from which the sums are computed afresh when buckets do not cover the window: after
// plain decoding or a rollback.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "attention.h"
#include "buffer.h"
#include "isa.h"
#include "kernels/statistics.h"
#include "kv.h"
#include "queries.h"
#include "threads.h"

namespace glimpse {

class WindowStatistics {
 public:
  WindowStatistics(const KVShape& shape, int window, Isa isa, ThreadPool& pool);

  int window() const { return window_; }

  // Lets a dense pass keep its rows' queries and, if observed, their attention; the rows before it
  // count as committed.
  void begin(Span& span, bool is_observed);
  // The pass is through: its attention is counted by the next `commit`.
  void end(const Span& span);
  // The first `length` positions stay, all else is taken back.
  void commit(std::int64_t length);

  // Makes `scores` ready for the last `window` queries, or a few more where rows were summed in one
  // bucket. Throws std::runtime_error if a rollback went further back than queries are kept.
  void prepare(const KVStore& kv, int window, std::int64_t length);
  // What was prepared, of one layer and KV head: out [length].
  void scores(int number, float* out) const;

  // Takes what `other` holds of the first `length` positions; null holds nothing.
  void copy_from(const WindowStatistics* other, std::int64_t length);

 private:
  // Attention of the queries at [start, end), summed: [num_heads, stride].
  struct Bucket {
    std::int64_t start, end, stride;
    Buffer<float> sums;

    float* head(int number) const { return sums.data() + number * stride; }
  };

  // Attention of observed rows that are not known to stay, in half precision: [num_heads, num_sums,
  // stride].
  struct Pending {
    Buffer<std::uint16_t> sums;
    std::int64_t start = 0, stride = 0;
    int num_rows = 0, num_sums = 0;  // after each of the rows, or after the last alone

    std::int64_t end() const { return start + num_rows; }
    void reserve(std::size_t size);
    bool has(std::int64_t end) const;
    // The sum of the rows before `end`.
    const std::uint16_t* head(int number, std::int64_t end) const;
  };

  Bucket bucket(std::int64_t start, std::int64_t end);
  void drop_first();
  void drop_last();
  void add(const Pending& pending, std::int64_t end);
  Bucket recompute(const KVStore& kv, std::int64_t start, std::int64_t length);
  void recompute_head(const KVStore& kv, const Bucket& to, int number, float* scratch) const;
  void sum_tile(const QueryTile& tile, float* scratch, float* out) const;

  const KVShape shape_;
  const int window_;
  const AttentionKernels& kernels_;
  const StatisticsKernels& statistics_kernels_;
  ThreadPool& pool_;
  QueryRing queries_;
  std::deque<Bucket> buckets_;
  std::size_t first_covering_ = 0;  // bucket, filled by `prepare`
  std::vector<Buffer<float>> spare_;
  Pending pending_;
};

}  // namespace glimpse
