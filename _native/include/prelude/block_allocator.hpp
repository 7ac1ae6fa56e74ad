// The pool of KV blocks and their reference counts; every operation is O(1) for any size of the pool.
//
//   state[b]     free │ held by callers, 1..n references │ in the trie
//                  ▲        │ release         │ insert        ▲ │
//                  └────────┘                 └───────────────┘ │
//                  └──────────────── evict ◀────────────────────┘
//
//   free list    a stack of ids:  [ 7 3 0 │ ........ ]      the block freed last is handed out first: its
//                                   count ▲                 bookkeeping is still in the CPU's cache
//
// A block in the trie is `used` while a lock covers its node and `cached` otherwise; the trie says which.
// Invariants, checked by audit():
//   free + used + cached == total
//   a block is on the free list exactly when its state is free, and then once
//   generation[b] counts how often b was freed: an id kept across that is detected where the caller shows the
//   generation it has seen
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
  int64_t total = 0, free = 0, used = 0, cached = 0;
  int64_t counted_free = 0, counted_held = 0, counted_trie = 0;
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

  // n blocks with one reference each, owned by the caller. All or nothing.
  Result allocate(int64_t n, int32_t* out);

  // One more reference on each. All or nothing. `seen` (may be null) are generations to check.
  Result retain(const int32_t* ids, int64_t n, const uint32_t* seen = nullptr);

  // Gives a reference back; the last one frees the block. All or nothing, also when an id comes twice.
  Result release(const int32_t* ids, int64_t n, const uint32_t* seen = nullptr);

  // 0 unless callers hold the block.
  uint32_t references(int32_t b) const {
    const uint32_t s = blocks_[b].state;
    return s >= kHeld ? s - kHeld + 1 : 0;
  }
  bool in_trie(int32_t b) const { return blocks_[b].state == kInTrie; }
  bool is_block(int64_t b) const { return b >= 0 && b < num_blocks_; }
  // Readable from any thread. Where it has changed, the block's node of the reader is gone.
  uint32_t generation(int32_t b) const { return blocks_[b].generation.load(std::memory_order_acquire); }

  // --- for the trie, the only other owner of blocks -------------------------------------------------------

  // Marks n blocks that callers hold once each, so that no id can come twice; undone by unmark().
  Result mark_for_trie(const int32_t* ids, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      Result r = check_held(ids[i], nullptr);
      if (r.ok() && blocks_[ids[i]].state != kHeld) r = {Status::block_shared, ids[i]};
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
  // A block's state: three marks, then the number of references.
  static constexpr uint32_t kFree = 0, kInTrie = 1, kMarked = 2, kHeld = 3;
  struct Block {
    uint32_t state;
    std::atomic<uint32_t> generation;
  };

  Result check_held(int32_t b, const uint32_t* seen) const {
    if (!is_block(b)) return {Status::foreign_block, b};
    const uint32_t s = blocks_[b].state;
    if (s == kInTrie) return {Status::block_in_trie, b};
    if (s < kHeld) return {Status::double_free, b};
    if (seen != nullptr && *seen != generation(b)) return {Status::stale_block, b};
    return {};
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

}  // namespace prelude
