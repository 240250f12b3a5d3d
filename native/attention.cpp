#include "attention.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "queries.h"

namespace glimpse {
namespace {

constexpr int kFewWrites = 64;        // rows of KV heads that are not worth waking threads for
constexpr int kItemsPerThread = 16;   // so that threads finish at about the same time
constexpr int kTilesPerThread = 4;    // as many tiles keep all threads busy without splitting
constexpr int kSplitsPerSum = 4;      // observed rows are summed over so many splits at a time

}  // namespace

Attention::Attention(const KVShape& shape, Isa isa, ThreadPool& pool)
    : shape_(shape),
      kernels_(attention_kernels(isa)),
      kv_kernels_(kv_kernels(isa)),
      statistics_kernels_(statistics_kernels(isa)),
      pool_(pool) {
  if (shape.head_dim < 1 || shape.head_dim > kMaxHeadDim)
    throw std::invalid_argument("head_dim=" + std::to_string(shape.head_dim) +
                                ": must be from 1 to " + std::to_string(kMaxHeadDim));
}

// ----------------------------------------------------------------------------------- the plan

void Attention::begin(std::vector<Span> spans) {
  plans_.clear(), items_.clear(), rows_.clear(), sums_.clear(), records_.clear();
  num_rows_ = num_partials_ = num_weights_ = 0;
  for (const Span& span : spans) {
    if (span.queries != nullptr) records_.push_back({span.queries, num_rows_, span.num_rows});
    const int num_before = span.num_rows - span.num_observed;
    Span before = span, observed = span;
    before.num_rows = num_before, before.observed = nullptr;
    observed.start += num_before, observed.num_rows = span.num_observed;
    if (before.num_rows > 0) add(before);
    if (observed.num_rows > 0) add(observed);
  }
  // What takes longest comes first, so that threads finish at about the same time.
  std::stable_sort(items_.begin(), items_.end(), [](const Item& a, const Item& b) {
    return (a.end_split - a.split) * a.num_queries > (b.end_split - b.split) * b.num_queries;
  });
  largest_.at_least(num_partials_);
  totals_.at_least(num_partials_);
  values_.at_least(num_partials_ * value_stride(shape_.head_dim));
  weights_.at_least(num_weights_ * kSplit);
}

void Attention::add(Span span) {
  const int num_rows = span.num_rows;
  Plan plan{span, num_rows_, num_rows * shape_.group_size(), 0, true};
  plan.num_splits = (span.end() + kSplit - 1) / kSplit;
  num_rows_ += num_rows;
  add(std::move(plan));
}

void Attention::add(Plan plan) {
  const int num_tiles = (plan.num_queries + kTileQueries - 1) / kTileQueries;
  const std::int64_t size = shape_.num_kv_heads * plan.num_splits * plan.num_queries;
  plan.is_split = plan.span.observed != nullptr ||
                  num_tiles * shape_.num_kv_heads < kTilesPerThread * pool_.size();
  if (plan.is_split) {
    plan.partials = num_partials_;
    num_partials_ += size;
  }
  if (plan.span.observed != nullptr) {
    plan.weights = num_weights_;
    num_weights_ += size;
  }
  const int number = static_cast<int>(plans_.size());
  add_items(plan, number);
  for (int row = 0; plan.is_split && row < plan.span.num_rows; ++row)
    for (int head = 0; head < shape_.num_kv_heads; ++head) rows_.push_back({number, head, row});
  for (int head = 0; plan.span.observed != nullptr && head < shape_.num_kv_heads; ++head)
    for (std::int64_t split = 0; split < plan.num_splits; split += kSplitsPerSum)
      sums_.push_back({number, head, split, std::min(split + kSplitsPerSum, plan.num_splits)});
  plans_.push_back(std::move(plan));
}

void Attention::add_items(const Plan& plan, int number) {
  const int num_tiles = (plan.num_queries + kTileQueries - 1) / kTileQueries;
  const std::int64_t num_tasks = std::int64_t{num_tiles} * shape_.num_kv_heads * plan.num_splits;
  const std::int64_t run =
      plan.is_split ? std::max<std::int64_t>(1, num_tasks / (kItemsPerThread * pool_.size()))
                    : plan.num_splits;
  for (int head = 0; head < shape_.num_kv_heads; ++head)
    for (int tile = 0; tile < num_tiles; ++tile) {
      const int begin = plan.num_queries * tile / num_tiles;
      const int end = plan.num_queries * (tile + 1) / num_tiles;
      const std::int64_t seen = plan.span.start + (end - 1) / shape_.group_size() + 1;
      const std::int64_t num_splits = (seen + kSplit - 1) / kSplit;
      for (std::int64_t split = 0; split < num_splits; split += run)
        items_.push_back({number, head, begin, end - begin, split,
                          std::min(split + run, num_splits)});
    }
}

// ---------------------------------------------------------------------------------- one layer

void Attention::attend(int layer, const float* q, const float* k, const float* v, float* out) {
  const Rows rows{layer, q, k, v, out};
  const int num_heads = shape_.num_kv_heads;
  const int num_writes = static_cast<int>(plans_.size()) * num_heads;
  const auto write_one = [&](int i) { write(rows, plans_[i / num_heads], i % num_heads); };
  if (num_rows_ * num_heads > kFewWrites) {
    pool_.run(num_writes, write_one);
  } else {
    for (int i = 0; i < num_writes; ++i) write_one(i);
  }
  for (const Record& record : records_)
    record.queries->record(layer, q + record.first_row * shape_.num_query_heads * shape_.head_dim,
                           record.num_rows);
  pool_.run(static_cast<int>(items_.size()), [&](int i) { run(rows, items_[i]); });
  pool_.run(static_cast<int>(rows_.size()), [&](int i) { fold(rows, rows_[i]); });
  pool_.run(static_cast<int>(sums_.size()), [&](int i) { observe(rows, sums_[i]); });
}

void Attention::write(const Rows& rows, const Plan& plan, int kv_head) const {
  const std::int64_t stride = std::int64_t{shape_.num_kv_heads} * shape_.head_dim;
  const std::int64_t offset = plan.first_row * stride + kv_head * shape_.head_dim;
  kv_kernels_.write(shape_.type, plan.span.kv->head(rows.layer, kv_head), plan.span.start,
                    plan.span.num_rows, rows.k + offset, rows.v + offset, stride,
                    shape_.head_dim);
}

void Attention::run(const Rows& rows, const Item& item) const {
  Scratch scratch;
  const QueryTile tile = pack(rows, item, scratch);
  if (plans_[item.plan].is_split) {
    run_apart(item, tile, scratch);
  } else {
    run_through(rows, item, tile, scratch);
  }
}

QueryTile Attention::pack(const Rows& rows, const Item& item, Scratch& scratch) const {
  const Plan& plan = plans_[item.plan];
  const float* queries[kTileQueries];
  for (int i = 0; i < item.num_queries; ++i) {
    queries[i] = query(rows, plan, item.kv_head, item.query + i);
    scratch.visible[i] = plan.span.start + (item.query + i) / shape_.group_size() + 1;
  }
  kernels_.pack(shape_.type, queries, item.num_queries, shape_.head_dim, scratch.packed);
  return {shape_.type,     plan.span.kv->head(rows.layer, item.kv_head),
          shape_.head_dim, item.num_queries,
          scratch.packed,  scratch.visible};
}

// Every split by itself, to be folded when all are there.
void Attention::run_apart(const Item& item, const QueryTile& tile, Scratch& scratch) const {
  const Plan& plan = plans_[item.plan];
  for (std::int64_t split = item.split; split < item.end_split; ++split) {
    const std::int64_t number = at(plan, item.kv_head, split, item.query);
    kernels_.attend_split(tile, split, scratch.weights, partial(plan.partials + number));
    if (plan.span.observed == nullptr) continue;
    const std::int64_t num_keys = std::min<std::int64_t>(
        kSplit, scratch.visible[item.num_queries - 1] - split * kSplit);
    statistics_kernels_.keep(scratch.weights, item.num_queries, static_cast<int>(num_keys),
                             weights_.data() + (plan.weights + number) * kSplit);
  }
}

// All splits, folded one after the other.
void Attention::run_through(const Rows& rows, const Item& item, const QueryTile& tile,
                            Scratch& scratch) const {
  const Softmax part{scratch.largest[0], scratch.totals[0], scratch.values[0]};
  const Softmax all{scratch.largest[1], scratch.totals[1], scratch.values[1]};
  kernels_.clear(all, item.num_queries, shape_.head_dim);
  for (std::int64_t split = item.split; split < item.end_split; ++split) {
    kernels_.attend_split(tile, split, scratch.weights, part);
    kernels_.fold(tile, split, part, all);
  }
  for (int i = 0; i < item.num_queries; ++i)
    kernels_.finish(all.total[i], all.values + i * value_stride(shape_.head_dim), shape_.head_dim,
                    output(rows, plans_[item.plan], item.kv_head, item.query + i));
}

void Attention::fold(const Rows& rows, const Row& row) const {
  const Plan& plan = plans_[row.plan];
  const std::int64_t visible = plan.span.start + row.row + 1;
  const QueryTile tile{shape_.type, {}, shape_.head_dim, 1, nullptr, &visible};
  alignas(64) float sums[kMaxHeadDim];
  for (int g = 0; g < shape_.group_size(); ++g) {
    const int number = row.row * shape_.group_size() + g;
    float largest, total;
    const Softmax all{&largest, &total, sums};
    kernels_.clear(all, 1, shape_.head_dim);
    for (std::int64_t split = 0; split * kSplit < visible; ++split)
      kernels_.fold(tile, split,
                    partial(plan.partials + at(plan, row.kv_head, split, number)), all);
    kernels_.finish(total, sums, shape_.head_dim, output(rows, plan, row.kv_head, number));
    if (plan.span.observed == nullptr) continue;
    // The splits' totals are not needed any more: their place takes the shares for `observe`.
    for (std::int64_t split = 0; split * kSplit < visible; ++split) {
      const std::int64_t i = plan.partials + at(plan, row.kv_head, split, number);
      totals_.data()[i] = kernels_.share(largest_.data()[i], largest, total);
    }
  }
}

void Attention::observe(const Rows& rows, const Sums& sums) const {
  const Plan& plan = plans_[sums.plan];
  const Span& span = plan.span;
  const std::int64_t number = std::int64_t{rows.layer} * shape_.num_kv_heads + sums.kv_head;
  const int num_sums = span.keeps_all_sums ? span.num_rows : 1;
  std::uint16_t* const out = span.observed + number * num_sums * span.observed_stride;
  std::vector<int> visible(span.num_rows);
  for (std::int64_t split = sums.split; split < sums.end_split; ++split) {
    const std::int64_t first = split * kSplit, i = at(plan, sums.kv_head, split, 0);
    for (int row = 0; row < span.num_rows; ++row)
      visible[row] = static_cast<int>(
          std::clamp<std::int64_t>(span.start + row + 1 - first, 0, kSplit));
    statistics_kernels_.sum_rows(
        {weights_.data() + (plan.weights + i) * kSplit, totals_.data() + plan.partials + i,
         visible.data(), span.num_rows, shape_.group_size()},
        visible.back(), span.keeps_all_sums, out + first, span.observed_stride);
  }
}

// ------------------------------------------------------------------------------------ addresses

std::int64_t Attention::at(const Plan& plan, int kv_head, std::int64_t split, int query) const {
  return (kv_head * plan.num_splits + split) * plan.num_queries + query;
}

Softmax Attention::partial(std::int64_t number) const {
  return {largest_.data() + number, totals_.data() + number,
          values_.data() + number * value_stride(shape_.head_dim)};
}

const float* Attention::query(const Rows& rows, const Plan& plan, int kv_head, int number) const {
  const int group = shape_.group_size();
  const std::int64_t row = plan.first_row + number / group;
  const std::int64_t head = row * shape_.num_query_heads + kv_head * group + number % group;
  return rows.q + head * shape_.head_dim;
}

float* Attention::output(const Rows& rows, const Plan& plan, int kv_head, int number) const {
  return rows.out + (query(rows, plan, kv_head, number) - rows.q);
}

}  // namespace glimpse
