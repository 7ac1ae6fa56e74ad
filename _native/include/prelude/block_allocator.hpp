// The pool of KV blocks; every operation is O(1) for any size of the pool.
//
//   state[b]     free │ held by a caller │ in the trie
//                  ▲     │ release  │ insert   ▲ │
//                  └─────┘          └──────────┘ │
//                  └──────────── evict ◀─────────┘
//
//   free list    a stack of ids:  [ 7 3 0 │ ........ ]      the block freed last is handed out first: its
//                                   count ▲                 bookkeeping is still in the CPU's cache
//
// A block in the trie is `used` while a lock covers its node and `cached` otherwise; the trie says which.
// Invariants, checked by audit():
//   free + used + cached == total
//   a block is on the free list exactly when its state is free, and then once
//   generation[b] counts how often b was freed: a node id that was kept across that is detected
//
// Ids are the physical block numbers that kernels use. Owner: this object owns the tables and nothing else;
// KV memory is the executor's. One writer at a time; counters and generations may be read from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "prelude/lazy_array.hpp"
#include "prelude/status.hpp"

namespace prelude {

struct AllocatorAudit {
  const char* broken = nullptr;  // the invariant that fails, or null
  int64_t at = -1;               // the block where it shows
  int64_t free = 0, used = 0, cached = 0, counted_free = 0;
};

class BlockAllocator {
 public:
  static constexpr int32_t kMaxBlocks = 1 << 24;

  // 1 <= num_blocks <= kMaxBlocks and block_size >= 1: the caller has checked.
  BlockAllocator(int32_t num_blocks, int32_t block_size)
      : num_blocks_(num_blocks), block_size_(block_size), blocks_(num_blocks), stack_(num_blocks) {
    for (int32_t i = 0; i < num_blocks; ++i) stack_[i] = num_blocks - 1 - i;
    free_.store(num_blocks, std::memory_order_relaxed);
  }

  int32_t num_blocks() const { return num_blocks_; }
  int32_t block_size() const { return block_size_; }
  int32_t num_free() const { return free_.load(std::memory_order_relaxed); }
  int32_t num_used() const { return used_.load(std::memory_order_relaxed); }
  int32_t num_cached() const { return cached_.load(std::memory_order_relaxed); }

  // n blocks, the caller's from here on. All or nothing.
  Result allocate(int64_t n, int32_t* out);

  // Frees blocks of the caller. All or nothing, also when an id comes twice.
  Result release(const int32_t* ids, int64_t n);

  bool is_held(int32_t b) const { return blocks_[b].state == kHeld; }
  bool in_trie(int32_t b) const { return blocks_[b].state == kInTrie; }
  bool is_block(int64_t b) const { return b >= 0 && b < num_blocks_; }
  // Readable from any thread. Where it has changed, the block's node of the reader is gone.
  uint32_t generation(int32_t b) const { return blocks_[b].generation.load(std::memory_order_acquire); }

  // --- for the trie, the only other owner of blocks -------------------------------------------------------

  // Marks n blocks that callers hold, so that no id can come twice; undone by unmark().
  Result mark(const int32_t* ids, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      const Result r = check_held(ids[i]);
      if (!r.ok()) {
        unmark(ids, i);
        return r;
      }
      blocks_[ids[i]].state = kMarked;
    }
    return {};
  }
  void unmark(const int32_t* ids, int64_t n) {
    for (int64_t i = 0; i < n; ++i) blocks_[ids[i]].state = kHeld;
  }
  void prefetch(int32_t b) const { __builtin_prefetch(&blocks_[b], 1); }
  void give_to_trie(int32_t b) { blocks_[b].state = kInTrie; }  // still counted as used
  void used_to_cached(int64_t n) { add(used_, -n), add(cached_, n); }
  void cached_to_used(int64_t n) { add(used_, n), add(cached_, -n); }
  void free_cached(const int32_t* ids, int64_t n) { push_free(ids, n), add(cached_, -n); }
  void free_used(const int32_t* ids, int64_t n) { push_free(ids, n), add(used_, -n); }

  AllocatorAudit audit() const;

 private:
  static constexpr uint32_t kFree = 0, kInTrie = 1, kMarked = 2, kHeld = 3;
  struct Block {
    uint32_t state;
    std::atomic<uint32_t> generation;
  };

  Result check_held(int32_t b) const {
    if (!is_block(b)) return {Status::foreign_block, b};
    const uint32_t s = blocks_[b].state;
    if (s == kInTrie) return {Status::block_in_trie, b};
    return s == kHeld ? Result{} : Result{Status::double_free, b};
  }
  void push_free(const int32_t* ids, int64_t n) {
    int32_t top = num_free();
    for (int64_t i = 0; i < n; ++i) {
      Block& block = blocks_[ids[i]];
      block.state = kFree;
      const uint32_t ended = block.generation.load(std::memory_order_relaxed);
      block.generation.store(ended + 1, std::memory_order_release);
      stack_[top++] = ids[i];
    }
    free_.store(top, std::memory_order_relaxed);
  }
  // Only the writer writes a counter, so it needs no read-modify-write.
  static void add(std::atomic<int32_t>& counter, int64_t n) {
    counter.store(counter.load(std::memory_order_relaxed) + static_cast<int32_t>(n), std::memory_order_relaxed);
  }

  const int32_t num_blocks_;
  const int32_t block_size_;
  LazyArray<Block> blocks_;
  LazyArray<int32_t> stack_;
  std::atomic<int32_t> free_{0}, used_{0}, cached_{0};
};

inline Result BlockAllocator::allocate(int64_t n, int32_t* out) {
  int32_t top = num_free();
  if (n > top) return {Status::out_of_blocks, top};
  for (int64_t i = 0; i < n; ++i) {
    const int32_t b = stack_[--top];
    blocks_[b].state = kHeld;
    out[i] = b;
  }
  add(free_, -n), add(used_, n);
  return {};
}

inline Result BlockAllocator::release(const int32_t* ids, int64_t n) {
  const Result marked = mark(ids, n);
  if (!marked.ok()) return marked;
  for (int64_t i = n; i-- > 0;) {  // backwards, so that the next caller gets them in the same order
    push_free(ids + i, 1);
  }
  add(used_, -n);
  return {};
}

inline AllocatorAudit BlockAllocator::audit() const {
  AllocatorAudit a;
  a.free = num_free(), a.used = num_used(), a.cached = num_cached();
  auto fail = [&a](const char* what, int64_t at) {
    if (a.broken == nullptr) a.broken = what, a.at = at;
  };
  for (int32_t b = 0; b < num_blocks_; ++b) {
    const uint32_t s = blocks_[b].state;
    if (s == kMarked) fail("a block is left marked", b);
    a.counted_free += s == kFree;
  }
  std::vector<bool> on_list(static_cast<size_t>(num_blocks_));
  for (int64_t i = 0; i < a.free && i < num_blocks_; ++i) {
    const int32_t b = stack_[i];
    if (!is_block(b) || blocks_[b].state != kFree) {
      fail("the free list holds a block that is not free", b);
    } else if (on_list[static_cast<size_t>(b)]) {
      fail("the free list holds a block twice", b);
    } else {
      on_list[static_cast<size_t>(b)] = true;
    }
  }
  if (a.free + a.used + a.cached != num_blocks_) fail("free + used + cached != total", -1);
  if (a.free != a.counted_free) fail("free blocks are missing from the free list", -1);
  return a;
}

}  // namespace prelude
