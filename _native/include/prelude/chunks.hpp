// Memory of a step's large arrays, used again: new memory from the system is cleared page by page on its first
// touch, which costs more than filling it (8 of 22 us a request of 4,096 tokens, measured).
//
//   places   [ chunk 64 KiB | - | chunk 1 MiB | - | ... ]     take: an exchange a place; give: a compare-and-swap
//
// A chunk is its taker's from take() to give(); one in a place has no owner, and the thread that takes it out owns
// it, so no two threads can have it. Capacities are powers of two; take() accepts up to four times the size asked
// for. A chunk that finds no place, or is larger than kLargest, goes back to the system: at most kPlaces * kLargest
// bytes are kept.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace prelude {

struct Chunk {
  size_t capacity;
  void* data;
};

class ChunkPool {
 public:
  static constexpr int kPlaces = 16;
  static constexpr size_t kSmallest = size_t{1} << 15, kLargest = size_t{1} << 22;

  ChunkPool() = default;
  ChunkPool(const ChunkPool&) = delete;
  ~ChunkPool() {
    for (auto& place : places_) end(place.exchange(nullptr));
  }

  // Not cleared, aligned to a cache line. nullptr: no memory.
  Chunk* take(size_t bytes) {
    for (auto& place : places_) {
      if (place.load(std::memory_order_relaxed) == nullptr) continue;
      Chunk* const chunk = place.exchange(nullptr, std::memory_order_acquire);
      if (chunk == nullptr) continue;
      if (chunk->capacity >= bytes && chunk->capacity / 4 <= bytes) return chunk;
      give(chunk);
    }
    const size_t capacity = std::bit_ceil(bytes < kSmallest ? kSmallest : bytes);
    auto* chunk = new (std::nothrow) Chunk{capacity, ::operator new(capacity, kAlign, std::nothrow)};
    if (chunk != nullptr && chunk->data == nullptr) {
      delete chunk;
      chunk = nullptr;
    }
    return chunk;
  }
  void give(Chunk* chunk) {
    if (chunk->capacity <= kLargest) {
      for (auto& place : places_) {
        Chunk* none = nullptr;
        if (place.load(std::memory_order_relaxed) == nullptr &&
            place.compare_exchange_strong(none, chunk, std::memory_order_release, std::memory_order_relaxed)) {
          return;
        }
      }
    }
    end(chunk);
  }

 private:
  static constexpr std::align_val_t kAlign{64};

  static void end(Chunk* chunk) {
    if (chunk == nullptr) return;
    ::operator delete(chunk->data, kAlign);
    delete chunk;
  }

  std::atomic<Chunk*> places_[kPlaces]{};
};

}  // namespace prelude
