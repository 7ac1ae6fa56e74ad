// The parts of the prefix trie: a node, the table that finds it, the lists that order it.
//
//   nodes[i]   32 bytes; node i is the node of block i, so the arena is as large as the pool, an index is
//              always valid, and a block leads to its node without a lookup
//
//   slots      open addressing, at most an eighth full, home = hash & mask
//              │  ·  │ h,7 │ h,2 │  ·  │ h,9 │  ·  │       each: 32 bits of hash, index + 1; 0 is empty
//              The hash filters; the caller compares parent and tokens. Erasing shifts the entries behind
//              the hole back, so there are no tombstones and a miss ends at the first empty slot.
//
//   lru list   cold ⇄ 4 ⇄ 9 ⇄ 2 ⇄ hot                       doubly linked through the nodes
//
// What a reader on another thread looks at is atomic: slots, parent, state, and tokens (in the trie). On x86
// these are plain moves. An entry that moves is copied before its old slot is overwritten, and `version` counts
// each of these stores: a reader that found nothing, and sees the same version as before, has missed nothing,
// even when the writer stands still in the middle of it.
#pragma once

#include <atomic>
#include <bit>
#include <cstdint>

#include "prelude/lazy_array.hpp"

namespace prelude {

inline constexpr int32_t kNil = -1;

enum class NodeState : uint8_t { absent = 0, ready = 1, promised = 2 };

struct Node {
  uint32_t hash;                // as in the slot: erasing needs its home
  std::atomic<int32_t> parent;  // kNil for the first block of a prompt
  int32_t colder, hotter;       // neighbours in the list, while in one
  uint32_t own_locks;           // taken by callers on this very node
  uint32_t cover;               // own_locks + children that are covered; 0 is evictable, and in a list
  int32_t depth;                // blocks on the path, this one included
  std::atomic<NodeState> state;
  bool protect;  // hit since it was inserted; then every ancestor is, too
  bool listed;
};
static_assert(sizeof(Node) == 32);

class NodeTable {
 public:
  explicit NodeTable(int32_t num_blocks)
      : mask_(std::bit_ceil(static_cast<uint32_t>(num_blocks) * 8) - 1), slots_(size_t{mask_} + 1) {}

  static int32_t index_of(uint64_t slot) { return static_cast<int32_t>(slot & 0xffffffff) - 1; }
  static uint32_t hash_of(uint64_t slot) { return static_cast<uint32_t>(slot >> 32); }
  uint32_t home(uint32_t hash) const { return hash & mask_; }
  uint32_t next(uint32_t at) const { return (at + 1) & mask_; }
  uint32_t mask() const { return mask_; }
  uint64_t load(uint32_t at, std::memory_order order = std::memory_order_relaxed) const {
    return slots_[at].load(order);
  }
  void prefetch(uint32_t hash) const { __builtin_prefetch(&slots_[hash & mask_]); }
  uint32_t version() const { return version_.load(std::memory_order_acquire); }

  // The node's fields have been written: releasing the slot publishes them.
  void insert(uint32_t hash, int32_t index) {
    uint32_t at = home(hash);
    while (load(at) != 0) at = next(at);
    slots_[at].store(uint64_t{hash} << 32 | static_cast<uint32_t>(index + 1), std::memory_order_release);
  }

  // Takes the slots of `count` nodes out.
  void erase(const LazyArray<Node>& nodes, const int32_t* indices, int32_t count) {
    uint32_t version = version_.load(std::memory_order_relaxed);
    for (int32_t k = 0; k < count; ++k) {
      uint32_t hole = home(nodes[static_cast<size_t>(indices[k])].hash);
      while (index_of(load(hole)) != indices[k]) hole = next(hole);
      for (uint32_t at = next(hole);; at = next(at)) {
        const uint64_t slot = load(at);
        if (slot == 0) break;
        // It may move back to the hole unless its home lies behind the hole.
        if (((at - home(hash_of(slot))) & mask_) < ((at - hole) & mask_)) continue;
        version_.store(++version, std::memory_order_release);
        slots_[hole].store(slot, std::memory_order_release);
        hole = at;
      }
      version_.store(++version, std::memory_order_release);
      slots_[hole].store(0, std::memory_order_release);
    }
  }

 private:
  const uint32_t mask_;
  LazyArray<std::atomic<uint64_t>> slots_;
  std::atomic<uint32_t> version_{0};
};

// One of the two ends of eviction order. The nodes are the trie's; a list owns nothing.
class LruList {
 public:
  explicit LruList(LazyArray<Node>& nodes) : nodes_(nodes) {}
  int32_t coldest() const { return coldest_; }
  int32_t hottest() const { return hottest_; }
  int32_t size() const { return size_.load(std::memory_order_relaxed); }

  void append(int32_t i) {  // at the hot end
    Node& n = nodes_[i];
    n.colder = hottest_, n.hotter = kNil, n.listed = true;
    (hottest_ == kNil ? coldest_ : nodes_[hottest_].hotter) = i;
    hottest_ = i;
    count(1);
  }
  // `count` nodes that are linked to each other already, from `cold` to `hot`.
  void append_run(int32_t cold, int32_t hot, int32_t n) {
    nodes_[cold].colder = hottest_, nodes_[hot].hotter = kNil;
    (hottest_ == kNil ? coldest_ : nodes_[hottest_].hotter) = cold;
    hottest_ = hot;
    count(n);
  }
  // Takes up to `most` nodes off the cold end, the coldest first; returns how many.
  int32_t take_coldest(int32_t most, int32_t* out) {
    int32_t i = coldest_, n = 0;
    for (; n < most && i != kNil; ++n) {
      out[n] = i;
      nodes_[i].listed = false;
      i = nodes_[i].hotter;
    }
    coldest_ = i;
    (i == kNil ? hottest_ : nodes_[i].colder) = kNil;
    count(-n);
    return n;
  }
  void remove(int32_t i) {
    Node& n = nodes_[i];
    (n.colder == kNil ? coldest_ : nodes_[n.colder].hotter) = n.hotter;
    (n.hotter == kNil ? hottest_ : nodes_[n.hotter].colder) = n.colder;
    n.listed = false;
    count(-1);
  }

 private:
  void count(int32_t by) { size_.store(size_.load(std::memory_order_relaxed) + by, std::memory_order_relaxed); }
  LazyArray<Node>& nodes_;
  int32_t coldest_ = kNil, hottest_ = kNil;
  std::atomic<int32_t> size_{0};
};

}  // namespace prelude
