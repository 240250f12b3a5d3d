// One decoder for Llama, Mistral, Qwen2 and Qwen3: a forward pass over a ragged batch of rows.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "attention.h"
#include "buffer.h"
#include "isa.h"
#include "kernels/elementwise.h"
#include "kv.h"
#include "linear.h"
#include "rope.h"
#include "sequence.h"
#include "threads.h"
#include "weights.h"

namespace glimpse {

using SharedMatrix = std::shared_ptr<const PackedMatrix>;

struct LayerWeights {
  std::vector<float> attention_norm, mlp_norm;
  std::vector<float> q_norm, k_norm;  // [head_dim], or empty
  SharedMatrix q, k, v, output, gate, up, down;
};

struct ModelWeights {
  SharedMatrix embedding;
  std::vector<LayerWeights> layers;
  std::vector<float> final_norm;
  SharedMatrix head;
};

struct ModelOptions {
  int num_threads;
  Isa isa;
  Activations activations;
};

// The rows of a pass, sequence after sequence, and what is wanted of them.
struct Pass {
  const std::int32_t* token_ids;
  std::vector<Span> spans;
  int num_layers;
  std::vector<std::int64_t> logit_rows;
  float* logits;  // [logit_rows, vocab_size]
  std::vector<std::pair<int, float*>> hidden;  // inputs of a layer, or of the head
};

class Model {
 public:
  // Throws std::invalid_argument for weights that do not fit each other or the shape.
  Model(const KVShape& shape, ModelWeights weights, RotaryTable rotary, float rms_norm_eps,
        const ModelOptions& options);

  // One pass at a time: hold `mutex` around it and around whatever touches a sequence.
  void forward(const Pass& pass);
  std::mutex mutex;

  std::unique_ptr<SequenceState> open(std::int64_t capacity, int window);
  const KVShape& shape() const { return shape_; }
  Isa isa() const { return isa_; }
  int num_threads() const { return pool_.size(); }
  std::int64_t vocab_size() const { return weights_.head->view().num_outputs; }
  std::int64_t hidden_size() const { return hidden_size_; }

 private:
  void check() const;
  void allocate(std::int64_t num_rows);
  void run_layer(int number, const std::vector<std::int64_t>& positions);
  void project(const LayerWeights& layer, const std::vector<std::int64_t>& positions);
  void run_mlp(const LayerWeights& layer);
  void compute_logits(const Pass& pass);
  void normalize(const std::vector<float>& weight);
  // Calls f(row) for every row: on all threads if there are many.
  template <class F>
  void for_rows(F&& f);

  const KVShape shape_;
  const ModelWeights weights_;
  RotaryTable rotary_;
  const float eps_;
  const Isa isa_;
  const std::int64_t hidden_size_, inner_size_, q_size_, kv_size_;
  ThreadPool pool_;
  Linear linear_;
  Attention attention_;
  const ElementwiseKernels& elementwise_;

  std::int64_t num_rows_ = 0;
  // Rows [num_rows, size]: the residual stream, what a product reads, and results of products.
  Buffer<float> x_, normed_, q_, k_, v_, attended_, gate_, up_;
};

}  // namespace glimpse
