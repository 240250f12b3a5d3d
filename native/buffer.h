// Memory for large arrays: aligned, not initialised, never moved behind the owner's back.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

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
  struct Free {
    void operator()(T* p) const { std::free(p); }
  };

  static T* allocate(std::size_t size) {
    constexpr std::size_t kLine = 64, kPage = std::size_t{1} << 21;
    if (size == 0) return nullptr;
    const std::size_t bytes = size * sizeof(T);
    const std::size_t unit = bytes < kPage ? kLine : kPage;
    void* p = std::aligned_alloc(unit, (bytes + unit - 1) / unit * unit);
    if (p == nullptr) throw std::bad_alloc();
#if defined(__linux__)
    // A pass reads all of it: large pages spare most of the address translation.
    if (unit == kPage) madvise(p, (bytes + unit - 1) / unit * unit, MADV_HUGEPAGE);
#endif
    return static_cast<T*>(p);
  }

  std::size_t size_ = 0;
  std::unique_ptr<T, Free> data_;
};

}  // namespace glimpse
