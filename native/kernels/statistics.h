// Sums of the attention of observed rows.
#pragma once

#include <cstdint>

#include "isa.h"

namespace glimpse {

// Rows of one KV head against one split of the keys.
struct SplitRows {
  const std::uint16_t* weights;  // [num_rows * group_size][kSplit], from `keep`
  const float* shares;           // [num_rows * group_size]: what makes weights a softmax
  const int* visible;            // [num_rows]: how many keys of the split a row sees
  int num_rows, group_size;
};

struct StatisticsKernels {
  // Weights [num_queries][kSplit] from `attend_split` in half precision: kept until all splits are
  // there, they pass through memory twice. `num_keys` is rounded up to kKeyBlock.
  void (*keep)(const float* weights, int num_queries, int num_keys, std::uint16_t* out);
  // out[row][key] = attention of the rows up to this one, summed over them and their queries; of
  // the last row alone unless `keeps_all`. In half precision; `num_keys` is rounded up to kKeyBlock.
  void (*sum_rows)(const SplitRows&, int num_keys, bool keeps_all, std::uint16_t* out,
                   std::int64_t stride);
  // sums[i] = (i < known ? sums[i] : 0) + added[i] for i < size.
  void (*append)(const std::uint16_t* added, std::int64_t size, std::int64_t known, float* sums);
  // out[i] = sum of sources[..][i], a source counting up to its size; sizes never fall.
  void (*add)(const float* const* sources, const std::int64_t* sizes, int count, float* out);
};

GLIMPSE_KERNEL_TABLE(StatisticsKernels, statistics_kernels)

}  // namespace glimpse
