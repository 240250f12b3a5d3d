// Attention of a tile of queries over one split of the keys, and the joining of splits.
//
// A query's result has one order of arithmetic: splits begin at fixed positions; inside a split a
// dot product runs over head_dim in order, the sums of weights over fixed lanes, the values over
// keys in order; splits are folded in order. Neither the other queries of a tile nor the way that
// work is shared out can change a bit of it.
#pragma once

#include <cstdint>

#include "isa.h"
#include "kernels/kv.h"

namespace glimpse {

constexpr int kSplit = 256;        // keys, a multiple of kKeyBlock
constexpr int kTileQueries = 48;   // at most
constexpr int kMaxHeadDim = 256;

// Queries of one KV head, in the order of their rows, so that the last sees the most keys.
struct QueryTile {
  KVType type;
  KVHead kv;
  int head_dim;
  int num_queries;
  const float* packed;          // from `pack`: as the products over keys of this type read them
  const std::int64_t* visible;  // per query: the keys before this one are seen
};

// Softmax over some of the keys: per query the largest score, and sums of 2^(score - largest) and
// of that times the values [value_stride]. Scores are in units of ln 2.
struct Softmax {
  float* largest;
  float* total;
  float* values;
};

struct AttentionKernels {
  // `queries` point at head_dim floats each; packed has room for kTileQueries * kMaxHeadDim.
  void (*pack)(KVType, const float* const* queries, int num_queries, int head_dim, float* packed);
  // The keys of one split. `weights` [num_queries][kSplit] becomes 2^(score - largest), 0 where a
  // key is not seen. Where part.values is null the values are left out.
  void (*attend_split)(const QueryTile&, std::int64_t split, float* weights, const Softmax& part);
  // Folds a split into what comes before it; `clear` makes a Softmax over no keys.
  void (*clear)(const Softmax& all, int num_queries, int head_dim);
  void (*fold)(const QueryTile&, std::int64_t split, const Softmax& part, const Softmax& all);
  // out [head_dim] of one query.
  void (*finish)(float total, const float* values, int head_dim, float* out);
  // What turns a query's weights of a split into its softmax.
  float (*share)(float part_largest, float all_largest, float all_total);
  // out[key] += sum over queries of weights[query][key] * shares[query], for num_keys rounded up
  // to kKeyBlock.
  void (*sum_weights)(const float* weights, const float* shares, int num_queries, int num_keys,
                      float* out);
};

GLIMPSE_KERNEL_TABLE(AttentionKernels, attention_kernels)

}  // namespace glimpse
