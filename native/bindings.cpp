// The Python module. What crosses it: arrays by reference, errors of use as ValueError or
// RuntimeError. The interpreter's lock is released while a pass or a refresh runs.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bindings_attention.h"
#include "bindings_linear.h"
#include "isa.h"
#include "model.h"
#include "weights.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace glimpse {
namespace {

template <class T>
using Array = nb::ndarray<T, nb::c_contig, nb::device::cpu>;
using FloatArray = Array<const float>;

std::vector<float> to_vector(const std::optional<FloatArray>& array) {
  if (!array) return {};
  return {array->data(), array->data() + array->size()};
}

Activations activations(const std::string& name) {
  if (name == "float32") return Activations::f32;
  if (name == "int8") return Activations::int8;
  throw std::invalid_argument("activations='" + name + "': must be one of float32, int8");
}

// One sequence with the model that it belongs to.
struct Sequence {
  std::shared_ptr<Model> model;
  std::unique_ptr<SequenceState> state;
};

// Runs with the model to itself and without the interpreter's lock.
template <class F>
void alone(Model& model, F&& f) {
  nb::gil_scoped_release release;
  std::lock_guard lock(model.mutex);
  f();
}

std::shared_ptr<PackedMatrix> make_matrix(const std::string& type, std::int64_t num_outputs,
                                          std::int64_t num_inputs, Array<const std::uint8_t> rows,
                                          std::optional<Array<const std::int64_t>> row_order,
                                          std::optional<FloatArray> bias) {
  const StoredMatrix stored{type, num_outputs, num_inputs, rows.data(),
                            row_order ? row_order->data() : nullptr};
  std::vector<float> bias_values = to_vector(bias);
  nb::gil_scoped_release release;
  return std::make_shared<PackedMatrix>(stored, std::move(bias_values));
}

LayerWeights make_layer(FloatArray attention_norm, FloatArray mlp_norm,
                        std::optional<FloatArray> q_norm, std::optional<FloatArray> k_norm,
                        std::vector<std::shared_ptr<PackedMatrix>> matrices) {
  if (matrices.size() != 7) throw std::invalid_argument("a layer has seven matrices");
  return {to_vector(attention_norm), to_vector(mlp_norm), to_vector(q_norm), to_vector(k_norm),
          matrices[0],               matrices[1],         matrices[2],       matrices[3],
          matrices[4],               matrices[5],         matrices[6]};
}

std::shared_ptr<Model> make_model(int num_query_heads, int num_kv_heads, int head_dim,
                                  std::int64_t max_seq_len, float rms_norm_eps,
                                  std::shared_ptr<PackedMatrix> embedding,
                                  std::vector<LayerWeights> layers, FloatArray final_norm,
                                  std::shared_ptr<PackedMatrix> head, FloatArray frequencies,
                                  double rotary_factor, int num_threads, const std::string& isa,
                                  const std::string& activation_type, const std::string& kv_dtype) {
  const KVShape shape{static_cast<int>(layers.size()), num_query_heads, num_kv_heads, head_dim,
                      max_seq_len, parse_kv_type(kv_dtype)};
  ModelWeights weights{std::move(embedding), std::move(layers), to_vector(final_norm),
                       std::move(head)};
  return std::make_shared<Model>(
      shape, std::move(weights), RotaryTable(to_vector(frequencies), rotary_factor), rms_norm_eps,
      ModelOptions{num_threads, choose_isa(isa).isa, activations(activation_type)});
}

// One sequence's part in a pass.
struct Part {
  SequenceState* state;
  int num_rows;
  bool is_observed;
};

void run_pass(Model& model, const std::vector<Part>& parts, bool is_dense, Pass& pass) {
  for (const Part& part : parts) {
    if (is_dense) {
      part.state->check_dense(part.num_rows);
    } else {
      part.state->check_draft(part.num_rows, pass.num_layers);
    }
  }
  for (const Part& part : parts) {
    pass.spans.push_back(is_dense ? part.state->begin_dense(part.num_rows, part.is_observed)
                                  : part.state->begin_draft(part.num_rows));
  }
  model.forward(pass);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (is_dense) {
      parts[i].state->end_dense(pass.spans[i]);
    } else {
      parts[i].state->end_draft(pass.spans[i], pass.num_layers);
    }
  }
}

void forward(Model& model, const std::vector<Sequence*>& sequences,
             const std::vector<int>& num_rows, const std::vector<bool>& is_observed,
             Array<const std::int32_t> token_ids, bool is_dense, int num_layers,
             std::vector<std::int64_t> logit_rows, Array<float> logits,
             const std::vector<std::pair<int, Array<float>>>& hidden) {
  std::vector<Part> parts;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    parts.push_back({sequences[i]->state.get(), num_rows.at(i), is_observed.at(i)});
  }
  Pass pass{token_ids.data(), {}, num_layers, std::move(logit_rows), logits.data(), {}};
  for (const auto& [layer, array] : hidden) pass.hidden.emplace_back(layer, array.data());
  alone(model, [&] { run_pass(model, parts, is_dense, pass); });
}

// ------------------------------------------------------------------------------------- sequences

Sequence open_sequence(std::shared_ptr<Model> model, std::int64_t capacity, int window) {
  std::unique_ptr<SequenceState> state = model->open(capacity, window);
  return {std::move(model), std::move(state)};
}

void copy_from(Sequence& self, const Sequence& other, std::int64_t length) {
  alone(*self.model, [&] { self.state->copy_from(*other.state, length); });
}

void refresh(Sequence& self, std::int64_t budget, std::int64_t sink_size, std::int64_t recent_size,
             int window, std::optional<FloatArray> scores) {
  IndexSpec spec{budget, sink_size, recent_size, window, nullptr, {}};
  if (scores) {
    spec.scores = scores->data();
    for (std::size_t i = 0; i < scores->ndim(); ++i) {
      spec.scores_shape.push_back(static_cast<std::int64_t>(scores->shape(i)));
    }
  }
  alone(*self.model, [&] { self.state->refresh(spec); });
}

void bind_sequence(nb::module_& m) {
  nb::class_<Sequence>(m, "Sequence")
      .def_prop_ro("length", [](const Sequence& self) { return self.state->length(); })
      .def_prop_ro("capacity", [](const Sequence& self) { return self.state->capacity(); })
      .def("check_length",
           [](const Sequence& self, std::int64_t length) { self.state->check_length(length); })
      .def("truncate",
           [](Sequence& self, std::int64_t length) {
             alone(*self.model, [&] { self.state->truncate(length); });
           })
      .def("truncate_draft",
           [](Sequence& self, std::int64_t num_rows) {
             alone(*self.model, [&] { self.state->truncate_draft(num_rows); });
           })
      .def("copy_from", copy_from)
      .def("scores",
           [](Sequence& self, int window, Array<float> out) {
             alone(*self.model, [&] { self.state->scores(window, out.data()); });
           })
      .def("refresh", refresh, "budget"_a, "sink_size"_a, "recent_size"_a, "window"_a,
           "scores"_a.none())
      .def_prop_ro("index_size", [](const Sequence& self) { return self.state->index_size(); })
      .def("index", [](const Sequence& self, Array<std::int64_t> out) {
        self.state->index(out.data());
      });
}

}  // namespace
}  // namespace glimpse

NB_MODULE(_core, m) {
  using namespace glimpse;
  nb::set_leak_warnings(false);  // module globals may outlive the interpreter's last look
  m.def("choose_isa", [](const std::string& wanted) {
    const IsaChoice choice = choose_isa(wanted);
    return std::pair(std::string(isa_name(choice.isa)), choice.reason);
  });
  m.def("is_packable", [](const std::string& type) { return is_packable(type); });
  nb::class_<PackedMatrix>(m, "Matrix");
  m.def("pack", make_matrix, "type"_a, "num_outputs"_a, "num_inputs"_a, "rows"_a,
        "row_order"_a.none(), "bias"_a.none());
  m.def(
      "multiply",
      [](const PackedMatrix& matrix, Array<float> x, Array<float> out, const std::string& isa,
         const std::string& activation_type, int num_threads) {
        multiply_alone(matrix, x, out, isa, activations(activation_type), num_threads);
      },
      "matrix"_a, "x"_a, "out"_a, "isa"_a, "activations"_a, "num_threads"_a);
  m.def("unpack", unpack_alone, "matrix"_a, "out"_a, "isa"_a);
  nb::class_<LayerWeights>(m, "Layer");
  m.def("layer", make_layer, "attention_norm"_a, "mlp_norm"_a, "q_norm"_a.none(),
        "k_norm"_a.none(), "matrices"_a);
  nb::class_<Model>(m, "Model")
      .def_prop_ro("isa", [](const Model& self) { return std::string(isa_name(self.isa())); })
      .def_prop_ro("num_threads", &Model::num_threads)
      .def("open", [](std::shared_ptr<Model> self, std::int64_t capacity, int window) {
        return open_sequence(std::move(self), capacity, window);
      })
      .def("forward", forward, "sequences"_a, "num_rows"_a, "is_observed"_a, "token_ids"_a,
           "is_dense"_a, "num_layers"_a, "logit_rows"_a, "logits"_a, "hidden"_a);
  m.def("model", make_model, nb::kw_only(), "num_query_heads"_a, "num_kv_heads"_a, "head_dim"_a,
        "max_seq_len"_a, "rms_norm_eps"_a, "embedding"_a, "layers"_a, "final_norm"_a, "head"_a,
        "frequencies"_a, "rotary_factor"_a, "num_threads"_a, "isa"_a, "activations"_a,
        "kv_dtype"_a);
  bind_sequence(m);
  bind_attention(m);
}
