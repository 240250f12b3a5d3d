#include "model.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

namespace glimpse {
namespace {

constexpr std::int64_t kManyRows = 4;  // from here on rows are shared out between the threads

void check_matrix(const char* name, const SharedMatrix& matrix, std::int64_t num_outputs,
                  std::int64_t num_inputs) {
  const Matrix view = matrix->view();
  if (view.num_outputs == num_outputs && view.num_inputs == num_inputs) return;
  throw std::invalid_argument(std::string(name) + " is [" + std::to_string(view.num_outputs) +
                              ", " + std::to_string(view.num_inputs) + "]: must be [" +
                              std::to_string(num_outputs) + ", " + std::to_string(num_inputs) +
                              "]");
}

void check_vector(const char* name, const std::vector<float>& vector, std::int64_t size) {
  if (static_cast<std::int64_t>(vector.size()) == size) return;
  throw std::invalid_argument(std::string(name) + " has " + std::to_string(vector.size()) +
                              " elements: must have " + std::to_string(size));
}

std::vector<std::int64_t> row_positions(const std::vector<Span>& spans) {
  std::vector<std::int64_t> positions;
  for (const Span& span : spans) {
    for (int i = 0; i < span.num_rows; ++i) positions.push_back(span.position + i);
  }
  return positions;
}

}  // namespace

Model::Model(const KVShape& shape, ModelWeights weights, RotaryTable rotary, float rms_norm_eps,
             const ModelOptions& options)
    : shape_(shape),
      weights_(std::move(weights)),
      rotary_(std::move(rotary)),
      eps_(rms_norm_eps),
      isa_(options.isa),
      hidden_size_(weights_.embedding->view().num_inputs),
      inner_size_(weights_.layers.at(0).down->view().num_inputs),
      q_size_(std::int64_t{shape.num_query_heads} * shape.head_dim),
      kv_size_(std::int64_t{shape.num_kv_heads} * shape.head_dim),
      pool_(options.num_threads),
      linear_(options.activations, options.isa, pool_),
      attention_(shape, options.isa, pool_),
      elementwise_(elementwise_kernels(options.isa)) {
  check();
}

void Model::check() const {
  check_vector("final norm", weights_.final_norm, hidden_size_);
  check_matrix("head", weights_.head, weights_.embedding->view().num_outputs, hidden_size_);
  if (static_cast<int>(weights_.layers.size()) != shape_.num_layers) {
    throw std::invalid_argument(std::to_string(weights_.layers.size()) + " layers: must be " +
                                std::to_string(shape_.num_layers));
  }
  for (const LayerWeights& layer : weights_.layers) {
    check_vector("attention norm", layer.attention_norm, hidden_size_);
    check_vector("mlp norm", layer.mlp_norm, hidden_size_);
    check_vector("q norm", layer.q_norm, layer.q_norm.empty() ? 0 : shape_.head_dim);
    check_vector("k norm", layer.k_norm, layer.q_norm.empty() ? 0 : shape_.head_dim);
    check_matrix("q", layer.q, q_size_, hidden_size_);
    check_matrix("k", layer.k, kv_size_, hidden_size_);
    check_matrix("v", layer.v, kv_size_, hidden_size_);
    check_matrix("output", layer.output, hidden_size_, q_size_);
    check_matrix("gate", layer.gate, inner_size_, hidden_size_);
    check_matrix("up", layer.up, inner_size_, hidden_size_);
    check_matrix("down", layer.down, hidden_size_, inner_size_);
  }
  if (2 * rotary_.half() != shape_.head_dim) {
    throw std::invalid_argument(std::to_string(rotary_.half()) + " rotary frequencies: must be " +
                                std::to_string(shape_.head_dim / 2));
  }
}

std::unique_ptr<SequenceState> Model::open(std::int64_t capacity, int window) {
  return std::make_unique<SequenceState>(shape_, capacity, window, isa_, pool_);
}

void Model::forward(const Pass& pass) {
  const std::vector<std::int64_t> positions = row_positions(pass.spans);
  allocate(static_cast<std::int64_t>(positions.size()));
  rotary_.reserve(*std::max_element(positions.begin(), positions.end()) + 1);
  for_rows([&](std::int64_t row) {
    linear_.read_row(weights_.embedding->view(), pass.token_ids[row],
                     x_.data() + row * hidden_size_);
  });
  attention_.begin(pass.spans);
  for (int number = 0; number < pass.num_layers; ++number) {
    for (const auto& [layer, to] : pass.hidden) {
      if (layer == number) std::memcpy(to, x_.data(), num_rows_ * hidden_size_ * sizeof(float));
    }
    run_layer(number, positions);
  }
  for (const auto& [layer, to] : pass.hidden) {
    if (layer != pass.num_layers) continue;
    normalize(weights_.final_norm);
    std::memcpy(to, normed_.data(), num_rows_ * hidden_size_ * sizeof(float));
  }
  compute_logits(pass);
}

void Model::allocate(std::int64_t num_rows) {
  num_rows_ = num_rows;
  x_.at_least(num_rows * hidden_size_);
  normed_.at_least(num_rows * hidden_size_);
  q_.at_least(num_rows * q_size_);
  k_.at_least(num_rows * kv_size_);
  v_.at_least(num_rows * kv_size_);
  attended_.at_least(num_rows * q_size_);
  gate_.at_least(num_rows * inner_size_);
  up_.at_least(num_rows * inner_size_);
}

void Model::run_layer(int number, const std::vector<std::int64_t>& positions) {
  const LayerWeights& layer = weights_.layers[number];
  normalize(layer.attention_norm);
  project(layer, positions);
  attention_.attend(number, q_.data(), k_.data(), v_.data(), attended_.data());
  linear_.multiply(attended_.data(), num_rows_,
                   {{layer.output->view(), {x_.data(), hidden_size_, true}}});
  normalize(layer.mlp_norm);
  run_mlp(layer);
}

// q, k and v of the normed rows, q and k rotated.
void Model::project(const LayerWeights& layer, const std::vector<std::int64_t>& positions) {
  linear_.multiply(normed_.data(), num_rows_,
                   {{layer.q->view(), {q_.data(), q_size_, false}},
                    {layer.k->view(), {k_.data(), kv_size_, false}},
                    {layer.v->view(), {v_.data(), kv_size_, false}}});
  const auto prepare = [&](float* head, const std::vector<float>& norm, std::int64_t position) {
    if (!norm.empty()) {
      elementwise_.rms_norm(head, norm.data(), shape_.head_dim, eps_, head);
    }
    elementwise_.rotate(head, rotary_.cos(position), rotary_.sin(position), rotary_.half());
  };
  for_rows([&](std::int64_t row) {
    for (std::int64_t i = 0; i < q_size_; i += shape_.head_dim) {
      prepare(q_.data() + row * q_size_ + i, layer.q_norm, positions[row]);
    }
    for (std::int64_t i = 0; i < kv_size_; i += shape_.head_dim) {
      prepare(k_.data() + row * kv_size_ + i, layer.k_norm, positions[row]);
    }
  });
}

void Model::run_mlp(const LayerWeights& layer) {
  linear_.multiply(normed_.data(), num_rows_,
                   {{layer.gate->view(), {gate_.data(), inner_size_, false}},
                    {layer.up->view(), {up_.data(), inner_size_, false}}});
  for_rows([&](std::int64_t row) {
    float* const gate = gate_.data() + row * inner_size_;
    elementwise_.silu_times(gate, up_.data() + row * inner_size_, inner_size_, gate);
  });
  linear_.multiply(gate_.data(), num_rows_,
                   {{layer.down->view(), {x_.data(), hidden_size_, true}}});
}

void Model::compute_logits(const Pass& pass) {
  const auto num_logits = static_cast<std::int64_t>(pass.logit_rows.size());
  for (std::int64_t i = 0; i < num_logits; ++i) {
    elementwise_.rms_norm(x_.data() + pass.logit_rows[i] * hidden_size_,
                          weights_.final_norm.data(), hidden_size_, eps_,
                          normed_.data() + i * hidden_size_);
  }
  linear_.multiply(normed_.data(), num_logits,
                   {{weights_.head->view(), {pass.logits, vocab_size(), false}}});
}

void Model::normalize(const std::vector<float>& weight) {
  for_rows([&](std::int64_t row) {
    elementwise_.rms_norm(x_.data() + row * hidden_size_, weight.data(), hidden_size_, eps_,
                          normed_.data() + row * hidden_size_);
  });
}

template <class F>
void Model::for_rows(F&& f) {
  if (num_rows_ < kManyRows) {
    for (std::int64_t row = 0; row < num_rows_; ++row) f(row);
  } else {
    pool_.run(static_cast<int>(num_rows_), f);
  }
}

}  // namespace glimpse
