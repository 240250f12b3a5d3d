// KV of one sequence: preallocated, grown by doubling; what is beyond its length is free space.
#pragma once

#include <cstdint>
#include <string>

#include "buffer.h"
#include "kernels/kv.h"

namespace glimpse {

// What attention needs to know of a model.
struct KVShape {
  int num_layers;
  int num_query_heads;
  int num_kv_heads;
  int head_dim;
  std::int64_t max_seq_len;
  KVType type;

  int group_size() const { return num_query_heads / num_kv_heads; }
  int num_heads() const { return num_layers * num_kv_heads; }
};

// "float32", "float16" or "int8"; throws std::invalid_argument for another.
KVType parse_kv_type(const std::string& name);

class KVStore {
 public:
  KVStore(const KVShape& shape, std::int64_t capacity);

  std::int64_t capacity() const { return capacity_; }
  KVHead head(int layer, int kv_head) const;

  // Makes room for `capacity` positions, keeping the first `used`; at most `limit` where more
  // are not needed.
  void reserve(std::int64_t capacity, std::int64_t used, std::int64_t limit);
  void copy_from(const KVStore& other, std::int64_t length);

 private:
  std::int64_t key_bytes(std::int64_t positions) const;
  std::int64_t value_bytes(std::int64_t positions) const;

  KVShape shape_;
  std::int64_t capacity_ = 0;
  Buffer<std::byte> keys_, values_;
  Buffer<float> scales_;  // of keys, then of values
};

}  // namespace glimpse
