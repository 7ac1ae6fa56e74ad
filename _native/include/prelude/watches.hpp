// Watches: the waiting requests that a change of the trie concerns.
//
//   prompt  [A B][C D][E F] ...      the trie has A B and C D:
//                     │ └─ waits for: a node that the table would know by this hash (E F below C D)
//                     └─── stands on: the node of C D
//
// The answer of a match changes only when a node that a watch waits for becomes ready, or the node that it stands
// on goes away (its ancestors cannot go before it). So a watch is in two lists at most, one by node and one by
// hash; an event takes the lists' members out and reports each of them once, until it is placed again. Equal
// hashes of other prefixes report one too many, never one too few.
//
// Costs nothing while there is no watch. One writer, the trie's. Only add() and place() allocate: they may throw
// std::bad_alloc, and then change nothing but where place() put the watch. Events find the memory that add() has
// reserved for a report of every watch, so that the trie can change where there is no memory left.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

namespace prelude {

class Watches {
 public:
  static constexpr int32_t kNone = -1;

  bool empty() const { return count_ == 0; }
  int32_t size() const { return count_; }
  bool exists(int32_t id) const { return id >= 0 && id < static_cast<int32_t>(all_.size()) && all_[id].used; }

  int32_t add() {
    int32_t id;
    if (free_.empty()) {
      id = static_cast<int32_t>(all_.size());
      all_.emplace_back();
      if (reports_.capacity() < all_.capacity() || free_.capacity() < all_.capacity()) reserve();
    } else {
      id = free_.back();
      free_.pop_back();
    }
    all_[id] = Watch{};
    all_[id].used = true;
    ++count_;
    return id;
  }

  // Where a match ended: on `node` (kNone: nowhere), waiting for `hash` if there is more to wait for.
  void place(int32_t id, int32_t node, bool waits, uint32_t hash) {
    leave(id);
    Watch& w = all_[id];
    if (node != kNone) enter(by_node_, static_cast<uint32_t>(node), id, &Watch::at_node), w.node = node;
    if (waits) enter(by_hash_, hash, id, &Watch::at_hash), w.hash = hash, w.waits = true;
  }

  void remove(int32_t id) noexcept {
    leave(id);
    all_[id].used = false;  // an unread report of it is dropped by moved()
    --count_;
    if (!all_[id].reported) free_.push_back(id);
  }

  // A node with this hash is ready; this node is gone.
  void appeared(uint32_t hash) noexcept { report(by_hash_, hash, &Watch::at_hash); }
  void gone(int32_t node) noexcept { report(by_node_, static_cast<uint32_t>(node), &Watch::at_node); }

  // Calls f(id) for each watch that something was reported to since, and forgets the reports.
  template <class F>
  void moved(F f) {
    for (const int32_t id : reports_) {
      all_[id].reported = false;
      if (all_[id].used) {
        f(id);
      } else {
        free_.push_back(id);
      }
    }
    reports_.clear();
  }
  int32_t num_reports() const { return static_cast<int32_t>(reports_.size()); }

 private:
  struct Link {
    int32_t before = kNone, after = kNone;
  };
  struct Watch {
    int32_t node = kNone;
    uint32_t hash = 0;
    bool waits = false, used = false, reported = false;
    Link at_node, at_hash;
  };
  using Heads = std::unordered_map<uint32_t, int32_t>;

  // A report of each watch at most lies in either, read or not.
  void reserve() {
    try {
      reports_.reserve(all_.capacity()), free_.reserve(all_.capacity());
    } catch (...) {
      all_.pop_back();
      throw;
    }
  }

  void enter(Heads& heads, uint32_t key, int32_t id, Link Watch::* link) {
    const auto [at, fresh] = heads.try_emplace(key, id);
    Link& mine = all_[id].*link;
    mine = Link{};
    if (fresh) return;
    mine.after = at->second;
    (all_[at->second].*link).before = id;
    at->second = id;
  }

  void exit(Heads& heads, uint32_t key, int32_t id, Link Watch::* link) {
    const Link mine = all_[id].*link;
    if (mine.after != kNone) (all_[mine.after].*link).before = mine.before;
    if (mine.before != kNone) {
      (all_[mine.before].*link).after = mine.after;
    } else if (mine.after != kNone) {
      heads.find(key)->second = mine.after;
    } else {
      heads.erase(key);
    }
  }

  void leave(int32_t id) {
    Watch& w = all_[id];
    if (w.node != kNone) exit(by_node_, static_cast<uint32_t>(w.node), id, &Watch::at_node);
    if (w.waits) exit(by_hash_, w.hash, id, &Watch::at_hash);
    w.node = kNone, w.waits = false;
  }

  void report(Heads& heads, uint32_t key, Link Watch::* link) {
    auto at = heads.find(key);
    while (at != heads.end()) {
      const int32_t id = at->second;
      const bool last = (all_[id].*link).after == kNone;
      leave(id);
      if (!all_[id].reported) all_[id].reported = true, reports_.push_back(id);
      if (last) return;
      at = heads.find(key);
    }
  }

  std::vector<Watch> all_;
  std::vector<int32_t> free_, reports_;
  Heads by_node_, by_hash_;
  int32_t count_ = 0;
};

}  // namespace prelude
