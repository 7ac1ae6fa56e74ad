// The parts of the prefix trie: a node, the table that finds it, the lists that order it.
//
//   nodes[i]   32 bytes; node i is the node of block i, so the arena is as large as the pool, an index is
//              always valid, and a block leads to its node without a lookup
//   entries    32 bits of the hash of a path, and index + 1; 0 is empty. Open addressing, a miss ends at the first
//              empty entry. The hash filters; the caller compares parent and tokens
//   lru list   cold ⇄ 4 ⇄ 9 ⇄ 2 ⇄ hot                       doubly linked through the nodes
#pragma once

#include <bit>
#include <cstdint>

#include "prelude/lazy_array.hpp"

namespace prelude {

inline constexpr int32_t kNil = -1;

enum class NodeState : uint8_t { absent = 0, ready = 1, promised = 2 };

struct Node {
  uint32_t hash;           // of the path to it, its key in the table
  int32_t parent;          // kNil for the first block of a prompt
  int32_t colder, hotter;  // neighbours in the list, while in one
  uint32_t own_locks;      // taken by callers on this very node
  uint32_t cover;          // own_locks + children that are covered; 0 is evictable, and in a list
  int32_t depth;           // blocks on the path, this one included
  NodeState state;
  bool protect;  // hit since it was inserted; then every ancestor is, too
  bool listed;
};
static_assert(sizeof(Node) == 32);

class NodeTable {
 public:
  // At least four entries for each block of the pool: short searches, and only entries in use cost memory.
  explicit NodeTable(int32_t num_blocks)
      : mask_(std::bit_ceil(4 * static_cast<uint32_t>(num_blocks)) - 1), entries_(size_t{mask_} + 1) {}

  static int32_t index_of(uint64_t entry) { return static_cast<int32_t>(entry & 0xffffffff) - 1; }
  uint32_t size() const { return mask_ + 1; }
  uint64_t operator[](uint32_t at) const { return entries_[at]; }
  void prefetch(uint32_t hash) const { __builtin_prefetch(&entries_[hash & mask_], 1); }

  // The node of this hash for which `same(index)` holds, or kNil.
  template <class Same>
  int32_t find(uint32_t hash, Same&& same) const {
    for (uint32_t at = hash & mask_; entries_[at] != 0; at = next(at)) {
      if (hash_of(entries_[at]) == hash && same(index_of(entries_[at]))) return index_of(entries_[at]);
    }
    return kNil;
  }
  void insert(uint32_t hash, int32_t index) {
    uint32_t at = hash & mask_;
    while (entries_[at] != 0) at = next(at);
    entries_[at] = uint64_t{hash} << 32 | static_cast<uint32_t>(index + 1);
  }
  // Takes out a node that is there. Entries that were put behind it for want of room move up.
  void erase(uint32_t hash, int32_t index) {
    uint32_t hole = hash & mask_;
    while (index_of(entries_[hole]) != index) hole = next(hole);
    for (uint32_t at = next(hole); entries_[at] != 0; at = next(at)) {
      const uint32_t home = hash_of(entries_[at]) & mask_;
      if (((at - home) & mask_) < ((at - hole) & mask_)) continue;  // its search begins behind the hole
      entries_[hole] = entries_[at];
      hole = at;
    }
    entries_[hole] = 0;
  }

 private:
  static uint32_t hash_of(uint64_t entry) { return static_cast<uint32_t>(entry >> 32); }
  uint32_t next(uint32_t at) const { return (at + 1) & mask_; }

  const uint32_t mask_;
  LazyArray<uint64_t> entries_;
};

// One of the two ends of eviction order. The nodes are the trie's; a list owns nothing.
class LruList {
 public:
  explicit LruList(LazyArray<Node>& nodes) : nodes_(nodes) {}
  int32_t coldest() const { return coldest_; }
  int32_t hottest() const { return hottest_; }
  int32_t size() const { return size_; }

  void append(int32_t i) {  // at the hot end
    Node& n = nodes_[i];
    n.colder = hottest_, n.hotter = kNil, n.listed = true;
    (hottest_ == kNil ? coldest_ : nodes_[hottest_].hotter) = i;
    hottest_ = i;
    ++size_;
  }
  // `count` nodes that are linked to each other already, from `cold` to `hot`.
  void append_run(int32_t cold, int32_t hot, int32_t n) {
    nodes_[cold].colder = hottest_, nodes_[hot].hotter = kNil;
    (hottest_ == kNil ? coldest_ : nodes_[hottest_].hotter) = cold;
    hottest_ = hot;
    size_ += n;
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
    size_ -= n;
    return n;
  }
  void remove(int32_t i) {
    Node& n = nodes_[i];
    (n.colder == kNil ? coldest_ : nodes_[n.colder].hotter) = n.hotter;
    (n.hotter == kNil ? hottest_ : nodes_[n.hotter].colder) = n.colder;
    n.listed = false;
    --size_;
  }

 private:
  LazyArray<Node>& nodes_;
  int32_t coldest_ = kNil, hottest_ = kNil;
  int32_t size_ = 0;
};

}  // namespace prelude
