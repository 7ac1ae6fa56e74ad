// The parts of the prefix trie: a node, the table that finds it, the lists that order it.
//
//   nodes[i]   32 bytes; node i is the node of block i, so the arena is as large as the pool, an index is
//              always valid, and a block leads to its node without a lookup
//
//   entries    a run is 8 successive blocks of a path; its first block's hash names a cache line of 8 entries, and
//              each block of the run has its own entry there: a path of 32 blocks lies in 4 lines
//
//     run of A B C D ...  ──▶ │ C │ D │ · │ · │ · │ · │ A │ B │    each entry: 32 bits of hash, index + 1; 0 is empty
//     whose entry is taken is displaced    ──▶ to the same entry of the neighbouring line (runs that share a line);
//                                         ──▶ else to any entry of the line that its own hash names, or of the next
//                                             that has room (siblings); overflow[line] counts the nodes that went on
//
//              The hash filters; the caller compares parent and tokens. An entry never moves while it lives, and a
//              miss ends at the first line from which no node went on.
//
//   lru list   cold ⇄ 4 ⇄ 9 ⇄ 2 ⇄ hot                       doubly linked through the nodes
//
// The values that a reader on another thread reads are atomic: entries, overflow, parent, state, and tokens (in the
// trie). On x86 these are plain moves. Entries stay where they are, and a count of displaced ones is raised before
// the entry is stored and lowered after it is taken out: a reader finds every node that was there all the while.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>

#include "prelude/lazy_array.hpp"

namespace prelude {

inline constexpr int32_t kNil = -1;

enum class NodeState : uint8_t { absent = 0, ready = 1, promised = 2 };

struct Node {
  uint32_t entry;               // where the table has it
  std::atomic<int32_t> parent;  // kNil for the first block of a prompt
  int32_t colder, hotter;       // neighbours in the list, while in one
  uint32_t own_locks;           // taken by callers on this very node
  uint32_t cover;               // own_locks + children that are covered; 0 is evictable, and in a list
  int32_t depth;                // blocks on the path, this one included
  std::atomic<NodeState> state;
  bool protect;  // hit since it was inserted; then every ancestor is, too
  bool listed;
  bool displaced;  // its entry is not the one its run has for it
};
static_assert(sizeof(Node) == 32);

// The table's key of a node.
struct NodeKey {
  uint32_t hash;  // of the path to it
  uint32_t run;   // hash of the path to the first block of its run
  uint32_t at;    // its place in the run
};

class NodeTable {
 public:
  static constexpr uint32_t kRun = 8;  // entries in a cache line

  // A line for every block of the pool: half as many would do, but then twice as many runs meet in one, and a run
  // that has to go on costs more than the memory, of which only the lines in use are ever touched.
  explicit NodeTable(int32_t num_blocks)
      : mask_(std::bit_ceil(std::max<uint32_t>(2, static_cast<uint32_t>(num_blocks) * kSlotsPerBlock / kRun)) - 1),
        entries_((size_t{mask_} + 1) * kRun),
        overflow_(size_t{mask_} + 1) {}

  static int32_t index_of(uint64_t entry) { return static_cast<int32_t>(entry & 0xffffffff) - 1; }
  static uint32_t hash_of(uint64_t entry) { return static_cast<uint32_t>(entry >> 32); }
  static uint32_t place_in_run(int32_t depth) { return static_cast<uint32_t>(depth - 1) % kRun; }
  uint32_t size() const { return (mask_ + 1) * kRun; }
  uint32_t line(uint32_t hash) const { return hash & mask_; }
  uint32_t next(uint32_t line) const { return (line + 1) & mask_; }
  uint32_t overflow(uint32_t line) const { return overflow_[line].load(std::memory_order_acquire); }
  // Runs begin anywhere in their line: short ones would otherwise meet in its first entries.
  uint32_t home(const NodeKey& key) const { return line(key.run) * kRun + (((key.run >> 29) + key.at) & (kRun - 1)); }
  // The second choice: neighbours are fetched together.
  static uint32_t neighbour(uint32_t entry) { return entry ^ kRun; }
  uint64_t load(uint32_t at, std::memory_order order = std::memory_order_relaxed) const {
    return entries_[at].load(order);
  }
  void prefetch_run(uint32_t run) const { __builtin_prefetch(&entries_[line(run) * kRun]); }
  void prefetch_to_fill(uint32_t run) const {
    __builtin_prefetch(&entries_[line(run) * kRun], 1);
    __builtin_prefetch(&entries_[neighbour(line(run) * kRun)], 1);
  }
  void prefetch_entry(uint32_t at) const { __builtin_prefetch(&entries_[at], 1); }

  // The node of this key for which `same(index)` holds, or kNil.
  template <class Same>
  int32_t find(const NodeKey& key, Same&& same, std::memory_order order = std::memory_order_relaxed) const {
    const uint64_t entry = load(home(key), order);
    if (entry != 0 && hash_of(entry) == key.hash && same(index_of(entry))) return index_of(entry);
    return overflow(line(key.run)) == 0 ? kNil : find_displaced(key, same, order);
  }

  // Puts nodes in. Holds the values that it needs of the table in registers.
  class Writer {
   public:
    explicit Writer(NodeTable& table) : table_(table), mask_(table.mask_), entries_(table.entries_.data()) {}
    // The node's fields have been written: releasing the entry publishes them.
    void insert(const NodeKey& key, Node& node, int32_t index) {
      uint32_t entry = home(key, mask_);
      const bool displaced = entries_[entry].load(std::memory_order_relaxed) != 0;
      if (displaced) entry = table_.displace(key);
      node.entry = entry, node.displaced = displaced;
      entries_[entry].store(uint64_t{key.hash} << 32 | static_cast<uint32_t>(index + 1), std::memory_order_release);
    }

   private:
    NodeTable& table_;
    const uint32_t mask_;
    std::atomic<uint64_t>* const entries_;
  };
  void erase(const Node& node) { entries_[node.entry].store(0, std::memory_order_release); }
  // For displaced ones, after erase(): the lines on the way to it count one less.
  void uncount_passed(const NodeKey& key, const Node& node) {
    each_passed(key, node.entry, [this](uint32_t at) {
      const uint8_t n = overflow_[at].load(std::memory_order_relaxed);
      if (n != UINT8_MAX) overflow_[at].store(n - 1, std::memory_order_release);
    });
  }
  // The lines that a displaced node in `entry` had to go on from.
  template <class See>
  void each_passed(const NodeKey& key, uint32_t entry, See&& see) const {
    const uint32_t first = home(key);
    see(first / kRun);
    if (entry == neighbour(first)) return;
    see(neighbour(first) / kRun);
    for (uint32_t at = line(key.hash); at != entry / kRun; at = next(at)) see(at);
  }

 private:
  static uint32_t home(const NodeKey& key, uint32_t mask) {
    return (key.run & mask) * kRun + (((key.run >> 29) + key.at) & (kRun - 1));
  }
  static constexpr uint32_t kSlotsPerBlock = 8;

  template <class Same>
  int32_t find_displaced(const NodeKey& key, Same&& same, std::memory_order order) const {
    const uint32_t second = neighbour(home(key));
    const uint64_t there = load(second, order);
    if (there != 0 && hash_of(there) == key.hash && same(index_of(there))) return index_of(there);
    if (overflow(second / kRun) == 0) return kNil;
    uint32_t at = line(key.hash);
    for (uint32_t seen = 0; seen <= mask_; ++seen, at = next(at)) {
      for (uint32_t k = 0; k < kRun; ++k) {
        const uint64_t entry = load(at * kRun + k, order);
        if (entry != 0 && hash_of(entry) == key.hash && same(index_of(entry))) return index_of(entry);
      }
      if (overflow(at) == 0) break;
    }
    return kNil;
  }
  uint32_t displace(const NodeKey& key) {
    const uint32_t first = home(key), second = neighbour(first);
    pass(first / kRun);
    if (load(second) == 0) return second;
    pass(second / kRun);
    for (uint32_t at = line(key.hash);; at = next(at)) {
      for (uint32_t k = 0; k < kRun; ++k) {
        if (load(at * kRun + k) == 0) return at * kRun + k;
      }
      pass(at);
    }
  }
  // A count that reaches 255 stays there: lookups in that line are a little dearer from then on.
  void pass(uint32_t line) {
    const uint8_t n = overflow_[line].load(std::memory_order_relaxed);
    if (n != UINT8_MAX) overflow_[line].store(n + 1, std::memory_order_release);
  }

  const uint32_t mask_;  // lines - 1
  LazyArray<std::atomic<uint64_t>> entries_;
  LazyArray<std::atomic<uint8_t>> overflow_;
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
