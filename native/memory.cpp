#include "memory.h"

#include <cstdlib>
#include <deque>
#include <mutex>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace glimpse {
namespace {

constexpr std::size_t kLine = 64, kLargePage = std::size_t{1} << 21;
// Smaller arrays come and go, and the first touch of a large page costs several times that of as many
// small ones.
constexpr std::size_t kLongLived = std::size_t{32} << 20;
constexpr std::size_t kMostKept = std::size_t{512} << 20;
constexpr std::size_t kMostWasted = 4;  // a piece is taken if it is at most 1/4 larger than needed

// Pieces that were given back, the latest last.
struct Kept {
  std::mutex mutex;
  std::deque<Piece> pieces;
  std::size_t size = 0;

  Piece take(std::size_t least) {
    auto best = pieces.end();
    for (auto it = pieces.begin(); it != pieces.end(); ++it)
      if (it->size >= least && it->size <= least + least / kMostWasted &&
          (best == pieces.end() || it->size <= best->size))
        best = it;
    if (best == pieces.end()) return {};
    const Piece piece = *best;
    pieces.erase(best);
    size -= piece.size;
    return piece;
  }

  void add(Piece piece) {
    pieces.push_back(piece);
    size += piece.size;
    while (size > kMostKept) {
      std::free(pieces.front().data);
      size -= pieces.front().size;
      pieces.pop_front();
    }
  }
};

// Never destroyed: arrays may outlive any static object.
Kept& kept() {
  static Kept& kept = *new Kept;
  return kept;
}

}  // namespace

// A lock that is not free at once is not waited for: after a fork nobody may be left to free it.
Piece take_memory(std::size_t size) {
  const std::size_t unit = size < kLargePage ? kLine : kLargePage;
  const Piece fresh{nullptr, (size + unit - 1) / unit * unit};
  if (unit == kLargePage) {
    std::unique_lock lock(kept().mutex, std::try_to_lock);
    if (lock.owns_lock())
      if (const Piece piece = kept().take(fresh.size); piece.data != nullptr) return piece;
  }
  void* const data = std::aligned_alloc(unit, fresh.size);
  if (data == nullptr) throw std::bad_alloc();
#if defined(__linux__)
  // A pass reads all of it: large pages spare most of the address translation.
  if (fresh.size > kLongLived) madvise(data, fresh.size, MADV_HUGEPAGE);
#endif
  return {data, fresh.size};
}

void give_back(Piece piece) {
  if (piece.size >= kLargePage) {
    std::unique_lock lock(kept().mutex, std::try_to_lock);
    if (lock.owns_lock()) return kept().add(piece);
  }
  std::free(piece.data);
}

}  // namespace glimpse
