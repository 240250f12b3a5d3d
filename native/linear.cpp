#include "linear.h"

#include <algorithm>

namespace glimpse {
namespace {

constexpr std::int64_t kTasksPerThread = 8;
constexpr std::int64_t kMinPanels = 4, kMaxPanels = 64;  // of a task
constexpr std::int64_t kManyRows = 4;                    // from here on rows are shared out, too

// Room for two panels of floats, the same for every task that a thread runs.
float* scratch(std::int64_t num_inputs) {
  thread_local Buffer<float> room;
  return room.at_least(static_cast<std::size_t>(2 * num_inputs * kPanel));
}

}  // namespace

Linear::Linear(Activations activations, Isa isa, ThreadPool& pool)
    : activations_(activations),
      integer_(integer_kernels(isa)),
      float_(float_kernels(isa)),
      pool_(pool) {}

void Linear::multiply(const float* x, std::int64_t num_rows, const std::vector<Product>& products) {
  if (num_rows == 0) return;
  const std::int64_t num_inputs = products[0].matrix.num_inputs;
  const bool is_any_integer =
      std::any_of(products.begin(), products.end(),
                  [&](const Product& product) { return is_integer(product.matrix); });
  const IntegerRows integers =
      is_any_integer ? quantize(x, num_rows, num_inputs) : IntegerRows{};
  const FloatRows floats{num_rows, num_inputs, x};
  plan(products, num_rows);
  pool_.run(static_cast<int>(tasks_.size()), [&](int i) {
    const Task& task = tasks_[i];
    const Product& product = products[task.product];
    if (is_integer(product.matrix)) {
      integer_.multiply(product.matrix, task.first, task.last, integers, product.out);
    } else {
      float_.multiply(product.matrix, task.first, task.last, floats, scratch(num_inputs),
                      product.out);
    }
  });
}

void Linear::read_row(const Matrix& matrix, std::int64_t row, float* to) {
  float* const panel = scratch(matrix.num_inputs);
  float_.unpack(matrix, row / kPanel, panel);
  for (std::int64_t i = 0; i < matrix.num_inputs; ++i) to[i] = panel[i * kPanel + row % kPanel];
}

bool Linear::is_integer(const Matrix& matrix) const {
  return activations_ == Activations::int8 && !is_float(matrix.type);
}

IntegerRows Linear::quantize(const float* x, std::int64_t num_rows, std::int64_t num_inputs) {
  const std::size_t size = num_rows * num_inputs, blocks = size / kBlock;
  std::int8_t* const bytes = bytes_.at_least(size);
  std::int16_t* const shorts = shorts_.at_least(size);
  float* const scales = scales_.at_least(blocks);
  float* const sums = sums_.at_least(2 * blocks);
  const auto one = [&](int row) {
    const std::int64_t at = row * num_inputs;
    integer_.quantize(x + at, num_inputs, bytes + at, shorts + at, scales + at / kBlock,
                      sums + 2 * at / kBlock);
  };
  if (num_rows < kManyRows) {
    for (int row = 0; row < num_rows; ++row) one(row);
  } else {
    pool_.run(static_cast<int>(num_rows), one);
  }
  return {num_rows, num_inputs, bytes, shorts, scales, sums};
}

void Linear::plan(const std::vector<Product>& products, std::int64_t num_rows) {
  tasks_.clear();
  std::int64_t total = 0;
  for (const Product& product : products) total += product.matrix.num_panels();
  const std::int64_t share = total / (kTasksPerThread * pool_.size());
  const std::int64_t size =
      pool_.size() == 1 && num_rows < kManyRows ? total : std::clamp(share, kMinPanels, kMaxPanels);
  for (int number = 0; number < static_cast<int>(products.size()); ++number) {
    const std::int64_t end = products[number].matrix.num_panels();
    for (std::int64_t first = 0; first < end; first += size) {
      tasks_.push_back({number, first, std::min(first + size, end)});
    }
  }
}

}  // namespace glimpse
