#include "statistics.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace glimpse {
namespace {

constexpr int kMaxObservedRows = 32;  // more are not worth their memory
constexpr int kSpareQueries = 48;     // a rollback of up to so many rows loses none that are needed
constexpr int kBucketsPerWindow = 4;
constexpr int kStrideStep = 1024;     // a bucket's memory serves many rounds

void add_to(float* sums, const float* added, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) sums[i] += added[i];
}

}  // namespace

WindowStatistics::WindowStatistics(const KVShape& shape, int window, Isa isa, ThreadPool& pool)
    : shape_(shape),
      window_(window),
      kernels_(attention_kernels(isa)),
      pool_(pool),
      queries_(shape, window + kSpareQueries) {}

// ------------------------------------------------------------------------------- a dense pass

void WindowStatistics::begin(Span& span, bool is_observed) {
  commit(span.start);
  queries_.begin(span.start, span.num_rows);
  span.queries = &queries_;
  if (!is_observed || span.num_rows > kMaxObservedRows) return;
  span.observed_stride = round_up(span.end(), kKeyBlock);
  span.observed = pending_.at_least(std::int64_t{shape_.num_heads()} * span.num_rows *
                                    span.observed_stride);
}

void WindowStatistics::end(const Span& span) {
  if (span.observed == nullptr) return;
  pending_start_ = span.start;
  pending_stride_ = span.observed_stride;
  pending_rows_ = span.num_rows;
}

void WindowStatistics::commit(std::int64_t length) {
  while (!buckets_.empty() && buckets_.back().end > length) drop_last();
  const std::int64_t end = std::min(length, pending_start_ + pending_rows_);
  if (pending_rows_ > 0 && pending_start_ < end) add(pending_start_, end);
  pending_rows_ = 0;
}

// ------------------------------------------------------------------------------------- buckets

WindowStatistics::Bucket WindowStatistics::bucket(std::int64_t start, std::int64_t end) {
  const std::int64_t stride = round_up(end + 1, kStrideStep);
  Buffer<float> memory;
  if (!spare_.empty()) {
    memory = std::move(spare_.back());
    spare_.pop_back();
  }
  memory.at_least(shape_.num_heads() * stride);
  return {start, end, stride, std::move(memory)};
}

void WindowStatistics::drop_first() {
  spare_.push_back(std::move(buckets_.front().sums));
  buckets_.pop_front();
}

void WindowStatistics::drop_last() {
  spare_.push_back(std::move(buckets_.back().sums));
  buckets_.pop_back();
}

// Appends pending rows; small neighbours share a bucket, and what the window has left is dropped.
void WindowStatistics::add(std::int64_t start, std::int64_t end) {
  if (!buckets_.empty() && buckets_.back().end != start)
    while (!buckets_.empty()) drop_last();
  const bool joins =
      !buckets_.empty() && (start - buckets_.back().start) * kBucketsPerWindow < window_ &&
      end <= buckets_.back().stride;
  if (!joins) buckets_.push_back(bucket(start, end));
  Bucket& last = buckets_.back();
  last.end = end;
  const std::int64_t known = joins ? start : 0;
  pool_.run(shape_.num_heads(), [&](int number) { sum_rows(known, last, number); });
  while (buckets_.size() > 1 && buckets_[1].start <= end - window_) drop_first();
}

// Adds the pending rows that stay to a bucket with sums for `known` keys.
void WindowStatistics::sum_rows(std::int64_t known, const Bucket& to, int number) const {
  float* sums = to.head(number);
  std::fill(sums + known, sums + to.end, 0.0f);
  for (std::int64_t row = 0; pending_start_ + row < to.end; ++row)
    add_to(sums, pending_.data() + (number * pending_rows_ + row) * pending_stride_,
           pending_start_ + row + 1);
}

void WindowStatistics::prepare(const KVStore& kv, int window, std::int64_t length) {
  const std::int64_t start = std::max<std::int64_t>(0, length - window);
  const auto covering = [&](const Bucket& bucket) { return bucket.end > start; };
  const auto first = std::find_if(buckets_.begin(), buckets_.end(), covering);
  first_covering_ = first - buckets_.begin();
  if (first != buckets_.end() && first->start <= start && buckets_.back().end >= length) return;
  Bucket fresh = recompute(kv, start, length);
  while (!buckets_.empty()) drop_last();
  buckets_.push_back(std::move(fresh));
  first_covering_ = 0;
}

void WindowStatistics::scores(int number, float* out) const {
  const Bucket& last = buckets_.back();
  std::copy(last.head(number), last.head(number) + last.end, out);
  for (std::size_t i = first_covering_; i + 1 < buckets_.size(); ++i)
    add_to(out, buckets_[i].head(number), buckets_[i].end);
}

void WindowStatistics::copy_from(const WindowStatistics* other, std::int64_t length) {
  queries_.copy_from(other == nullptr ? nullptr : &other->queries_, length);
}

// ---------------------------------------------------------------------------- from the queries

WindowStatistics::Bucket WindowStatistics::recompute(const KVStore& kv, std::int64_t start,
                                                     std::int64_t length) {
  start = std::max(start, queries_.first());
  if (start >= length)
    throw std::runtime_error("no queries are held of the last positions below " +
                             std::to_string(length) +
                             ": run the last tokens again to have attention statistics");
  Bucket fresh = bucket(start, length);
  const int num_workers = std::min(pool_.size(), shape_.num_heads());
  const std::int64_t num_splits = (length + kSplit - 1) / kSplit;
  std::vector<Buffer<float>> scratch;
  for (int i = 0; i < num_workers; ++i)
    scratch.emplace_back(num_splits * kTileQueries * (kSplit + 2));
  pool_.run(num_workers, [&](int worker) {
    for (int number = worker; number < shape_.num_heads(); number += num_workers)
      recompute_head(kv, fresh, number, scratch[worker].data());
  });
  return fresh;
}

void WindowStatistics::recompute_head(const KVStore& kv, const Bucket& to, int number,
                                      float* scratch) const {
  alignas(64) float packed[kTileQueries * kMaxHeadDim];
  const float* queries[kTileQueries];
  std::int64_t visible[kTileQueries];
  const int layer = number / shape_.num_kv_heads, kv_head = number % shape_.num_kv_heads;
  const int group = shape_.group_size();
  const std::int64_t num_queries = (to.end - to.start) * group;
  std::fill(to.head(number), to.head(number) + to.end, 0.0f);
  for (std::int64_t first = 0; first < num_queries; first += kTileQueries) {
    const int size = static_cast<int>(std::min<std::int64_t>(kTileQueries, num_queries - first));
    for (int i = 0; i < size; ++i) {
      const std::int64_t position = to.start + (first + i) / group;
      const std::int64_t head = kv_head * group + (first + i) % group;
      queries[i] = queries_.at(layer, position) + head * shape_.head_dim;
      visible[i] = position + 1;
    }
    kernels_.pack(shape_.type, queries, size, shape_.head_dim, packed);
    sum_tile({shape_.type, kv.head(layer, kv_head), shape_.head_dim, size, packed, visible},
             scratch, to.head(number));
  }
}

// Adds the softmax of a tile's queries, summed, to out [visible keys]. Scratch holds per split the
// weights [num_queries][kSplit], and then per split the largest scores and the totals.
void WindowStatistics::sum_tile(const QueryTile& tile, float* scratch, float* out) const {
  const int n = tile.num_queries;
  const std::int64_t num_keys = tile.visible[n - 1];
  const std::int64_t num_splits = (num_keys + kSplit - 1) / kSplit;
  float largest[kTileQueries], totals[kTileQueries], shares[kTileQueries];
  float* const parts = scratch + num_splits * n * kSplit;
  const auto weights = [&](std::int64_t split) { return scratch + split * n * kSplit; };
  const auto part = [&](std::int64_t split) {
    return Softmax{parts + 2 * split * n, parts + (2 * split + 1) * n, nullptr};
  };
  const Softmax all{largest, totals, nullptr};
  kernels_.clear(all, n, tile.head_dim);
  for (std::int64_t split = 0; split < num_splits; ++split) {
    kernels_.attend_split(tile, split, weights(split), part(split));
    kernels_.fold(tile, split, part(split), all);
  }
  for (std::int64_t split = 0; split < num_splits; ++split) {
    for (int i = 0; i < n; ++i)
      shares[i] = kernels_.share(part(split).largest[i], largest[i], totals[i]);
    const std::int64_t seen = std::min<std::int64_t>(kSplit, num_keys - split * kSplit);
    kernels_.sum_weights(weights(split), shares, n, static_cast<int>(seen), true,
                         out + split * kSplit);
  }
}

}  // namespace glimpse
