// Memory for large arrays: aligned, not initialised, never moved behind the owner's back.
#pragma once

#include <cstddef>
#include <memory>

#include "memory.h"

namespace glimpse {

template <class T>
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(std::size_t size) : size_(size), data_(allocate(size)) {}

  T* data() const { return data_.get(); }
  std::size_t size() const { return size_; }

  // Room for at least `size` elements; what was held is lost if there was less.
  T* at_least(std::size_t size) {
    if (size > size_) *this = Buffer(size + size / 2);
    return data();
  }

 private:
  struct GiveBack {
    std::size_t size;  // bytes
    void operator()(T* p) const { give_back({p, size}); }
  };
  using Owner = std::unique_ptr<T, GiveBack>;

  static Owner allocate(std::size_t size) {
    if (size == 0) return Owner(nullptr, {0});
    const Piece piece = take_memory(size * sizeof(T));
    return Owner(static_cast<T*>(piece.data), {piece.size});
  }

  std::size_t size_ = 0;
  Owner data_{nullptr, {0}};
};

}  // namespace glimpse
