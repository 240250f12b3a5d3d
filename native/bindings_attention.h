// Attention and KV by themselves, so that they can be held against a definition. Included by
// bindings.cpp alone.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "attention.h"
#include "isa.h"
#include "kv.h"
#include "threads.h"

namespace glimpse {

// One layer of attention, its KV in as many caches as there are sequences.
class LoneAttention {
 public:
  using Array = nanobind::ndarray<float, nanobind::c_contig, nanobind::device::cpu>;
  using Halves = nanobind::ndarray<std::uint16_t, nanobind::c_contig, nanobind::device::cpu>;

  LoneAttention(int num_query_heads, int num_kv_heads, int head_dim, KVType type, Isa isa,
                int num_threads)
      : shape_{1, num_query_heads, num_kv_heads, head_dim, kNoLimit, type},
        pool_(num_threads),
        attention_(shape_, isa, pool_) {}

  KVStore cache() const { return KVStore(shape_, 0); }

  // Rows [num_rows, heads, head_dim] of several caches, each (cache, length, number of rows);
  // `observed` takes [num_kv_heads, num_rows, stride] where there is one cache: a row's attention
  // and that of all before it, as the bits of halves.
  void attend(const std::vector<std::tuple<KVStore*, std::int64_t, int>>& parts, Array q, Array k,
              Array v, Array out, std::optional<Halves> observed) {
    std::vector<Span> spans;
    for (const auto& [cache, length, num_rows] : parts) {
      cache->reserve(length + num_rows, length, kNoLimit);
      spans.push_back({cache, length, length, num_rows});
    }
    if (observed) {
      spans.front().observed = observed->data();
      spans.front().num_observed = spans.front().num_rows;
      spans.front().observed_stride = static_cast<std::int64_t>(observed->shape(2));
    }
    nanobind::gil_scoped_release release;
    attention_.begin(std::move(spans));
    attention_.attend(0, q.data(), k.data(), v.data(), out.data());
  }

 private:
  static constexpr std::int64_t kNoLimit = std::int64_t{1} << 31;

  const KVShape shape_;
  ThreadPool pool_;
  Attention attention_;
};

inline void bind_attention(nanobind::module_& m) {
  namespace nb = nanobind;
  using namespace nb::literals;
  nb::class_<KVStore>(m, "KVCache").def_prop_ro("capacity", &KVStore::capacity);
  nb::class_<LoneAttention>(m, "Attention")
      .def(
          "__init__",
          [](LoneAttention* self, int num_query_heads, int num_kv_heads, int head_dim,
             const std::string& kv_dtype, const std::string& isa, int num_threads) {
            new (self) LoneAttention(num_query_heads, num_kv_heads, head_dim, parse_kv_type(kv_dtype),
                                     choose_isa(isa).isa, num_threads);
          },
          nb::kw_only(), "num_query_heads"_a, "num_kv_heads"_a, "head_dim"_a, "kv_dtype"_a,
          "isa"_a, "num_threads"_a)
      .def("cache", &LoneAttention::cache)
      .def("attend", &LoneAttention::attend, "parts"_a, "q"_a, "k"_a, "v"_a, "out"_a,
           "observed"_a.none() = nb::none());
}

}  // namespace glimpse
