// Which OneShot rows share a cold prefix, so that one step computes it once.
//
//   rows with the same salt, cached prefix and next block          shared tokens = their common prefix
//   ┌ rubric (cold) ┬ text a + question                            (never past the first token that is read)
//   │               ├ text b + question
//   └               └ text c + question
//
// A row joins a group only while that saves tokens: with n members sharing s tokens a group saves s * (n - 1).
//
//   table   hash of (salt, prefix, next block) ──▶ group ──first──▶ row ──next──▶ row ──▶ ...   open addressing
//
// Owner: this object owns the groups; tokens are borrowed until clear(). Rows are numbered by the caller, upwards.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "prelude/block_hash.hpp"

namespace prelude {

inline int64_t common_prefix(const int32_t* a, int64_t n, const int32_t* b, int64_t m) {
  return std::mismatch(a, a + std::min(n, m), b).first - a;
}

// What stands before the tokens that a row computes: rows fold only where it is the same. A row that borrows is known
// by the blocks it reads, others by the trie's node.
struct FoldPlace {
  uint64_t salt;
  int64_t node;
  const int32_t* borrowed;
  int64_t num_borrowed;
};

// Joining costs `tokens` to compute, all in all; accept() makes it so. `group` is -1 where there is nothing to share.
struct FoldOffer {
  int64_t tokens = 0;
  int32_t group = -1;
  int64_t shared = 0;
};

class FoldFinder {
 public:
  struct Group {
    FoldPlace place;
    const int32_t* tokens;  // its first row's foldable ones
    int64_t shared;
    int32_t first, last, count;
  };

  explicit FoldFinder(int32_t least) : least_(least), slots_(kSmall, -1) {}

  void clear() {
    groups_.clear(), next_.clear();
    slots_.assign(kSmall, -1);
  }

  // For a row with `uncached` tokens to compute, `n` of them (`tokens`) shareable from the front.
  FoldOffer offer(const FoldPlace& place, const int32_t* tokens, int64_t n, int64_t uncached) {
    if (n < least_) return {uncached, -1, 0};
    const int32_t at = group_of(place, tokens, n);
    const Group& group = groups_[static_cast<size_t>(at)];
    if (group.count == 0) return {uncached, at, n};
    const int64_t shared = common_prefix(group.tokens, group.shared, tokens, n);
    if (shared * group.count < group.shared * (group.count - 1)) return {uncached, -1, 0};
    return {uncached - shared + (group.shared - shared) * (group.count - 1), at, shared};
  }

  void accept(const FoldOffer& offer, int32_t row) {
    Group& group = groups_[static_cast<size_t>(offer.group)];
    if (next_.size() <= static_cast<size_t>(row)) next_.resize(static_cast<size_t>(row) + 1, -1);
    (group.count++ == 0 ? group.first : next_[static_cast<size_t>(group.last)]) = row;
    group.last = row;
    group.shared = offer.shared;
  }

  const std::vector<Group>& groups() const { return groups_; }
  int32_t next(int32_t row) const { return next_[static_cast<size_t>(row)]; }

 private:
  static constexpr size_t kSmall = 128;

  int32_t group_of(const FoldPlace& place, const int32_t* tokens, int64_t n) {
    if (2 * (groups_.size() + 1) > slots_.size()) grow();
    size_t at = hash(place, tokens) & (slots_.size() - 1);
    for (; slots_[at] >= 0; at = (at + 1) & (slots_.size() - 1)) {
      const Group& group = groups_[static_cast<size_t>(slots_[at])];
      if (same(group.place, place) && std::equal(tokens, tokens + least_, group.tokens)) return slots_[at];
    }
    slots_[at] = static_cast<int32_t>(groups_.size());
    groups_.push_back({place, tokens, n, -1, -1, 0});
    return slots_[at];
  }
  void grow() {
    slots_.assign(2 * slots_.size(), -1);
    for (size_t g = 0; g < groups_.size(); ++g) {
      size_t at = hash(groups_[g].place, groups_[g].tokens) & (slots_.size() - 1);
      while (slots_[at] >= 0) at = (at + 1) & (slots_.size() - 1);
      slots_[at] = static_cast<int32_t>(g);
    }
  }
  size_t hash(const FoldPlace& place, const int32_t* tokens) const {
    uint64_t before = place.salt + static_cast<uint64_t>(place.node) * 0x9e3779b97f4a7c15u;
    for (int64_t i = 0; i < place.num_borrowed; ++i) {
      before = chain_next(before, static_cast<uint64_t>(place.borrowed[i]));
    }
    return static_cast<size_t>(chain_next(before, content_hash(tokens, least_, 0)) >> 20);
  }
  static bool same(const FoldPlace& a, const FoldPlace& b) {
    return a.salt == b.salt && a.node == b.node &&
           std::equal(a.borrowed, a.borrowed + a.num_borrowed, b.borrowed, b.borrowed + b.num_borrowed);
  }

  const int32_t least_;
  std::vector<Group> groups_;
  std::vector<int32_t> next_, slots_;  // by row; by hash
};

}  // namespace prelude
