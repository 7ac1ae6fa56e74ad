// States of recurrent layers at nodes of the prefix trie: which entry holds the state at the end of a prefix.
//
//   node (block)   [A B]──▶[C D]──▶[E F]──▶[G H]          a match ends at the deepest node that has a state:
//                             │               │           tokens behind it are computed again, since no
//   entry                     5               7           layer can go on from keys and values alone
//
//   an entry is   free ──take()──▶ taken (a lease's, a step writes it) ──give()──▶ kept at a node ──forget()──▶ free
//                ▲                 │                                               │ where another needs it: the
//                └───put_back()────┘                                               ▼ coldest, unless it is pinned
//                                                                                taken
//
// Kept states have an order of their own, apart from the trie's. States from which no request went on are evicted
// first, then the one that was used longest ago. A pinned state stays: a lease goes on from it.
//
// Invariants: an entry is free, taken, or kept at one node; a node has one entry at most. The search for a victim
// reads all entries: there are some hundreds, and each holds kilobytes to megabytes of computed state.
//
// Threads: one writer at a time; state_at() may be asked from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "prelude/lazy_array.hpp"

namespace prelude {

class PrefixStates {
 public:
  static constexpr int32_t kNone = -1;

  // Of a trie of `nodes` nodes; no entries before open().
  explicit PrefixStates(int32_t nodes) : by_node_(static_cast<size_t>(nodes)) {}

  // `count` entries with the numbers from `first` on. Once.
  void open(int32_t first, int32_t count) {
    entries_.resize(static_cast<size_t>(count));
    free_.reserve(entries_.size());
    for (int32_t k = count; k-- > 0;) free_.push_back(k);
    first_ = first;
  }
  bool any() const { return !entries_.empty(); }
  int32_t size() const { return static_cast<int32_t>(entries_.size()); }
  int32_t num_free() const { return static_cast<int32_t>(free_.size()); }
  int32_t num_kept() const { return kept_; }
  int64_t evicted() const { return evicted_; }

  // The entry with the state at the end of node i, or kNone.
  int32_t state_at(int32_t i) const {
    const int32_t held = by_node_[static_cast<size_t>(i)].load(std::memory_order_acquire);
    return held == 0 ? kNone : first_ + held - 1;
  }

  // An entry to write to: a free one, else that of the coldest kept state. `spare_used`: not one from which a prompt
  // went on.
  // kNone where there is none.
  int32_t take(bool spare_used) noexcept {
    if (!free_.empty()) {
      const int32_t k = free_.back();
      free_.pop_back();
      return first_ + k;
    }
    int32_t victim = kNone;
    for (int32_t k = 0; k < size(); ++k) {
      const Entry& one = entries_[static_cast<size_t>(k)];
      if (one.node == kNone || one.pins > 0 || (spare_used && one.used)) continue;
      if (victim == kNone || colder(one, entries_[static_cast<size_t>(victim)])) victim = k;
    }
    if (victim == kNone) return kNone;
    release(victim);
    ++evicted_;
    return first_ + victim;
  }
  void put_back(int32_t entry) noexcept { free_.push_back(entry - first_); }
  // A taken entry holds the state of node i from here on; put back where the node has one. `used`: as if it had been
  // gone on from.
  void give(int32_t entry, int32_t i, bool used) noexcept {
    if (state_at(i) != kNone) {
      touch(state_at(i), used);
      return put_back(entry);
    }
    Entry& one = entries_[static_cast<size_t>(entry - first_)];
    one.node = i, one.used = used, one.at = ++clock_;
    by_node_[static_cast<size_t>(i)].store(entry - first_ + 1, std::memory_order_release);
    ++kept_;
  }
  // Node i is gone.
  void forget(int32_t i) noexcept {
    const int32_t held = by_node_[static_cast<size_t>(i)].load(std::memory_order_relaxed);
    if (held == 0) return;
    release(held - 1);
    free_.push_back(held - 1);
  }

  // A lease goes on from the entry's state until unpin().
  void pin(int32_t entry) noexcept {
    ++entries_[static_cast<size_t>(entry - first_)].pins;
    touch(entry, true);
  }
  void unpin(int32_t entry) noexcept { --entries_[static_cast<size_t>(entry - first_)].pins; }

  // The invariant that does not hold, or null.
  const char* audit() const {
    int32_t kept = 0;
    for (int32_t k = 0; k < size(); ++k) {
      const Entry& one = entries_[static_cast<size_t>(k)];
      if (one.pins < 0) return "a state is unpinned more often than pinned";
      if (one.node == kNone) {
        if (one.pins != 0) return "a pinned state is at no node";
        continue;
      }
      ++kept;
      if (state_at(one.node) != first_ + k) return "a node does not have the state that is kept at it";
    }
    return kept == kept_ ? nullptr : "the kept states are not as many as counted";
  }

 private:
  struct Entry {
    int32_t node = kNone;  // that has it; kNone: free or taken
    int32_t pins = 0;
    bool used = false;
    uint64_t at = 0;
  };
  static bool colder(const Entry& a, const Entry& b) { return a.used != b.used ? b.used : a.at < b.at; }
  void touch(int32_t entry, bool used) noexcept {
    Entry& one = entries_[static_cast<size_t>(entry - first_)];
    one.used |= used, one.at = ++clock_;
  }
  void release(int32_t k) noexcept {
    Entry& one = entries_[static_cast<size_t>(k)];
    by_node_[static_cast<size_t>(one.node)].store(0, std::memory_order_release);
    one.node = kNone;
    --kept_;
  }

  LazyArray<std::atomic<int32_t>> by_node_;  // entry + 1; 0: none
  std::vector<Entry> entries_;
  std::vector<int32_t> free_;
  int32_t first_ = 0, kept_ = 0;
  int64_t evicted_ = 0;
  uint64_t clock_ = 0;
};

}  // namespace prelude
