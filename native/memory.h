// Memory for large arrays, from the system or from what was given back.
//
// The first touch of fresh memory is slow, on a virtual machine milliseconds a megabyte. So large
// pieces that are given back are kept, up to a limit, for the next array of about their size.
#pragma once

#include <cstddef>

namespace glimpse {

// Memory aligned to a cache line, not initialised; its size, which may be larger than asked for.
struct Piece {
  void* data = nullptr;
  std::size_t size = 0;
};

// Throws std::bad_alloc.
Piece take_memory(std::size_t size);
void give_back(Piece piece);

}  // namespace glimpse
