#include "kv.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace glimpse {
namespace {

constexpr std::int64_t kMinCapacity = 64;

}  // namespace

KVType parse_kv_type(const std::string& name) {
  if (name == "float32") return KVType::f32;
  if (name == "float16") return KVType::f16;
  if (name == "int16") return KVType::i16;
  if (name == "int8") return KVType::i8;
  throw std::invalid_argument("kv_dtype='" + name +
                              "': must be one of float32, float16, int16, int8");
}

KVStore::KVStore(const KVShape& shape, std::int64_t capacity)
    : shape_(shape), capacity_(round_up(capacity, kKeyBlock)) {
  const std::size_t heads = shape_.num_heads();
  keys_ = Buffer<std::byte>(heads * key_bytes(capacity_));
  values_ = Buffer<std::byte>(heads * value_bytes(capacity_));
  if (is_scaled(shape_.type)) scales_ = Buffer<float>(2 * heads * capacity_);
}

std::int64_t KVStore::key_bytes(std::int64_t positions) const {
  return round_up(positions, kKeyBlock) * key_stride(shape_.head_dim) * element_size(shape_.type);
}

std::int64_t KVStore::value_bytes(std::int64_t positions) const {
  return round_up(positions, 2) * value_stride(shape_.head_dim) * element_size(shape_.type);
}

KVHead KVStore::head(int layer, int kv_head) const {
  const std::int64_t number = layer * shape_.num_kv_heads + kv_head;
  KVHead head{keys_.data() + number * key_bytes(capacity_),
              values_.data() + number * value_bytes(capacity_), nullptr, nullptr};
  if (is_scaled(shape_.type)) {
    head.key_scales = scales_.data() + number * capacity_;
    head.value_scales = scales_.data() + (shape_.num_heads() + number) * capacity_;
  }
  return head;
}

void KVStore::reserve(std::int64_t capacity, std::int64_t used, std::int64_t limit) {
  if (capacity <= capacity_) return;
  const std::int64_t doubled = std::max(2 * capacity_, kMinCapacity);
  KVStore grown(shape_, std::max(capacity, std::min(doubled, limit)));
  grown.copy_from(*this, used);
  *this = std::move(grown);
}

void KVStore::copy_from(const KVStore& other, std::int64_t length) {
  if (length == 0) return;
  for (int layer = 0; layer < shape_.num_layers; ++layer)
    for (int kv_head = 0; kv_head < shape_.num_kv_heads; ++kv_head) {
      const KVHead to = head(layer, kv_head), from = other.head(layer, kv_head);
      std::memcpy(to.keys, from.keys, key_bytes(length));
      std::memcpy(to.values, from.values, value_bytes(length));
      if (!is_scaled(shape_.type)) continue;
      std::memcpy(to.key_scales, from.key_scales, length * sizeof(float));
      std::memcpy(to.value_scales, from.value_scales, length * sizeof(float));
    }
}

}  // namespace glimpse
