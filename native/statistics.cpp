#include "statistics.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace glimpse {
namespace {

constexpr int kMaxObservedRows = 32;  // of more, those in the window alone are observed
constexpr int kUsualRows = 17;        // of a pass that verifies a long draft
constexpr int kSpareShare = 16;       // a text may grow by this share before memory is touched anew
constexpr int kSpareQueries = 48;     // a rollback of up to so many rows loses none that are needed
constexpr int kBucketsPerWindow = 4;
constexpr int kStrideStep = 1024;     // a bucket's memory serves many rounds
constexpr int kMaxSources = 8;        // buckets summed at a time

}  // namespace

WindowStatistics::WindowStatistics(const KVShape& shape, int window, Isa isa, ThreadPool& pool)
    : shape_(shape),
      window_(window),
      kernels_(attention_kernels(isa)),
      statistics_kernels_(statistics_kernels(isa)),
      pool_(pool),
      queries_(shape, window + kSpareQueries) {}

// ------------------------------------------------------------------------------- a dense pass

void WindowStatistics::begin(Span& span, bool is_observed) {
  commit(span.start);
  queries_.begin(span.start, span.num_rows);
  span.queries = &queries_;
  const bool is_long = span.num_rows > kMaxObservedRows;
  if (!is_observed || (is_long && window_ > kMaxObservedRows)) return;
  // A long pass is a prefill, of which nobody takes back a few rows: one sum will do.
  span.num_observed = is_long ? window_ : span.num_rows;
  span.keeps_all_sums = !is_long;
  span.observed_stride = round_up(span.end(), kKeyBlock);
  if (is_long) pending_.reserve(shape_.num_heads() * kUsualRows * span.observed_stride);
  const std::int64_t num_sums = is_long ? 1 : span.num_observed;
  span.observed = pending_.sums.at_least(shape_.num_heads() * num_sums * span.observed_stride);
}

// Memory for passes to come, touched while a prompt is read rather than while somebody waits for
// the next token.
void WindowStatistics::Pending::reserve(std::size_t size) {
  if (size <= sums.size()) return;
  sums = Buffer<std::uint16_t>(size + size / kSpareShare);
  std::fill_n(sums.data(), sums.size(), 0);
}

void WindowStatistics::end(const Span& span) {
  if (span.observed == nullptr) return;
  pending_.start = span.end() - span.num_observed;
  pending_.stride = span.observed_stride;
  pending_.num_rows = span.num_observed;
  pending_.num_sums = span.keeps_all_sums ? span.num_observed : 1;
}

void WindowStatistics::commit(std::int64_t length) {
  while (!buckets_.empty() && buckets_.back().end > length) drop_last();
  const std::int64_t end = std::min(length, pending_.end());
  if (pending_.has(end)) add(pending_, end);
  pending_.num_rows = 0;
}

bool WindowStatistics::Pending::has(std::int64_t end) const {
  return start < end && end <= this->end() && (num_sums == num_rows || end == this->end());
}

const std::uint16_t* WindowStatistics::Pending::head(int number, std::int64_t end) const {
  const std::int64_t row = num_sums - 1 - (this->end() - end);
  return sums.data() + (number * num_sums + row) * stride;
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
void WindowStatistics::add(const Pending& pending, std::int64_t end) {
  const std::int64_t start = pending.start;
  if (!buckets_.empty() && buckets_.back().end != start)
    while (!buckets_.empty()) drop_last();
  const bool joins =
      !buckets_.empty() && (start - buckets_.back().start) * kBucketsPerWindow < window_ &&
      end <= buckets_.back().stride;
  if (!joins) buckets_.push_back(bucket(start, end));
  Bucket& last = buckets_.back();
  last.end = end;
  pool_.run(shape_.num_heads(), [&](int number) {
    statistics_kernels_.append(pending.head(number, end), end, joins ? start : 0,
                               last.head(number));
  });
  while (buckets_.size() > 1 && buckets_[1].start <= end - window_) drop_first();
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
  const float* sources[kMaxSources];
  std::int64_t sizes[kMaxSources];
  int count = 0;
  for (std::size_t i = first_covering_; i < buckets_.size(); ++i) {
    if (count == kMaxSources) {
      statistics_kernels_.add(sources, sizes, count, out);
      sources[0] = out;
      sizes[0] = sizes[count - 1];
      count = 1;
    }
    sources[count] = buckets_[i].head(number);
    sizes[count++] = buckets_[i].end;
  }
  statistics_kernels_.add(sources, sizes, count, out);
}

void WindowStatistics::copy_from(const WindowStatistics* other, std::int64_t length) {
  queries_.copy_from(other == nullptr ? nullptr : &other->queries_, length);
  if (other == nullptr) return;
  for (const Bucket& from : other->buckets_) {
    if (from.end > length) break;
    buckets_.push_back(bucket(from.start, from.end));
    for (int number = 0; number < shape_.num_heads(); ++number)
      std::copy_n(from.head(number), from.end, buckets_.back().head(number));
  }
  if (other->pending_.has(length)) add(other->pending_, length);
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
    kernels_.sum_weights(weights(split), shares, n, static_cast<int>(seen), out + split * kSplit);
  }
}

}  // namespace glimpse
