// Causal attention of a ragged batch over the KV of its sequences, one call per layer.
#pragma once

#include <cstdint>
#include <vector>

#include "buffer.h"
#include "isa.h"
#include "kernels/attention.h"
#include "kernels/statistics.h"
#include "kv.h"
#include "threads.h"

namespace glimpse {

class QueryRing;

// The rows of one sequence in a pass: where their KV goes, and what is noted about them.
struct Span {
  KVStore* kv;
  std::int64_t start;     // where in `kv` the rows' own KV goes; they see everything before it
  std::int64_t position;  // of the first row in the text
  int num_rows;
  QueryRing* queries = nullptr;  // keeps the last rows' queries
  // Takes the attention of the last `num_observed` rows, each row's added to that of those before
  // it, in half precision: [num_layers, num_kv_heads, num_observed, observed_stride], or the last
  // sum alone.
  std::uint16_t* observed = nullptr;
  std::int64_t observed_stride = 0;
  int num_observed = 0;
  bool keeps_all_sums = true;

  std::int64_t end() const { return start + num_rows; }
};

class Attention {
 public:
  // Throws std::invalid_argument for a shape that the kernels cannot do.
  Attention(const KVShape& shape, Isa isa, ThreadPool& pool);

  // Plans a pass over rows that lie one span after the other.
  void begin(std::vector<Span> spans);
  // q and out [num_rows, num_query_heads, head_dim], k and v [num_rows, num_kv_heads, head_dim],
  // rotated already. Stores the rows' KV, then attends.
  void attend(int layer, const float* q, const float* k, const float* v, float* out);

 private:
  // A span in the flat list of rows, and its part of the scratch memory where the splits of a
  // query are computed apart and folded later.
  struct Plan {
    Span span;
    std::int64_t first_row;
    int num_queries;  // of a KV head
    std::int64_t num_splits;
    bool is_split;
    std::int64_t partials = 0;  // first of [num_kv_heads, num_splits, num_queries]
    std::int64_t weights = 0;   // the same, for observed rows alone
  };
  // Queries of one KV head against a run of splits.
  struct Item {
    int plan, kv_head, query, num_queries;
    std::int64_t split, end_split;
  };
  // One row of one KV head, to be folded.
  struct Row {
    int plan, kv_head, row;
  };
  // Observed rows of one KV head against a run of splits.
  struct Sums {
    int plan, kv_head;
    std::int64_t split, end_split;
  };
  // Rows whose queries are kept.
  struct Record {
    QueryRing* queries;
    std::int64_t first_row;
    int num_rows;
  };
  // What a task works in, on its stack.
  struct Scratch {
    alignas(64) float packed[kTileQueries * kMaxHeadDim];
    alignas(64) float weights[kTileQueries * kSplit];
    alignas(64) float values[2][kTileQueries * kMaxHeadDim];
    float largest[2][kTileQueries], totals[2][kTileQueries];
    std::int64_t visible[kTileQueries];
  };
  struct Rows {
    int layer;
    const float *q, *k, *v;
    float* out;
  };

  void add(Span span);
  void add(Plan plan);
  void add_items(const Plan& plan, int number);
  void write(const Rows& rows, const Plan& plan, int kv_head) const;
  void run(const Rows& rows, const Item& item) const;
  QueryTile pack(const Rows& rows, const Item& item, Scratch& scratch) const;
  void run_apart(const Item& item, const QueryTile& tile, Scratch& scratch) const;
  void run_through(const Rows& rows, const Item& item, const QueryTile& tile,
                   Scratch& scratch) const;
  void fold(const Rows& rows, const Row& row) const;
  void observe(const Rows& rows, const Sums& sums) const;
  std::int64_t at(const Plan& plan, int kv_head, std::int64_t split, int query) const;
  Softmax partial(std::int64_t number) const;
  const float* query(const Rows& rows, const Plan& plan, int kv_head, int number) const;
  float* output(const Rows& rows, const Plan& plan, int kv_head, int number) const;

  const KVShape shape_;
  const AttentionKernels& kernels_;
  const KVKernels& kv_kernels_;
  const StatisticsKernels& statistics_kernels_;
  ThreadPool& pool_;
  std::vector<Plan> plans_;
  std::vector<Item> items_;
  std::vector<Row> rows_;
  std::vector<Sums> sums_;
  std::vector<Record> records_;
  std::int64_t num_rows_ = 0, num_partials_ = 0, num_weights_ = 0;
  Buffer<float> largest_, totals_, values_;
  Buffer<std::uint16_t> weights_;
};

}  // namespace glimpse
