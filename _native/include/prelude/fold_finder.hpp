// Which OneShot rows share a cold prefix, so that one step computes it once.
//
//   rows with the same salt, cached prefix and next block          shared tokens = their common prefix, which may
//   ┌ rubric (cold) ┬ text a + question                            hold tokens that are read: rows of the same text
//   │               ├ text b + question                            read the same place
//   └               └ text c + question
//
// A row joins a group only while that saves tokens: with n members sharing s tokens a group saves s * (n - 1).
//
//   table   hash of (salt, prefix, next block) ──▶ group ──first──▶ row ──next──▶ row ──▶ ...
//
// That is decided row by row, since the cost of a row decides whether it fits the step. finish() then looks at the
// rows that joined no fold: those that share less than a block, sorted, deepest first.
//
//   a b c d │ x        a b c d shared by two      fewer tokens with more members may save more
//   a b c d │ y z      a b shared by three        decides whether the deeper one stays
//   a b     │ q
//
// Owner: this object owns the groups; tokens are borrowed until clear(). Rows are numbered by the caller, upwards.
#pragma once

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "prelude/block_hash.hpp"

namespace prelude {

inline int64_t common_prefix(const int32_t* a, int64_t n, const int32_t* b, int64_t m) {
  return std::mismatch(a, a + std::min(n, m), b).first - a;
}

// The prefix before the tokens that a row computes: rows fold only where it is the same. A row that borrows is known
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

  explicit FoldFinder(int32_t least) : least_(least) {}

  void clear() { groups_.clear(), next_.clear(), loose_.clear(), table_.clear(); }

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

  // Row `row`, of which `offer` was made for these tokens, is admitted.
  void admit(const FoldOffer& offer, int32_t row, const FoldPlace& place, const int32_t* tokens, int64_t n) {
    if (n > 0) loose_.push_back({place, tokens, n, row, offer.group});
    if (offer.group >= 0) accept(offer, row);
  }

  // After the last row: groups of those that are alone.
  void finish() {
    std::erase_if(loose_, [this](const Loose& one) {
      return one.group >= 0 && groups_[static_cast<size_t>(one.group)].count > 1;
    });
    if (loose_.size() < 2) return;
    std::sort(loose_.begin(), loose_.end(), [](const Loose& a, const Loose& b) {
      if (const auto order = compare(a.place, b.place); order != 0) return order < 0;
      return std::lexicographical_compare(a.tokens, a.tokens + a.n, b.tokens, b.tokens + b.n);
    });
    std::vector<Draft> drafts;
    std::vector<size_t> free;
    for (size_t first = 0, last; first < loose_.size(); first = last) {
      last = first + 1;
      while (last < loose_.size() && compare(loose_[first].place, loose_[last].place) == 0) ++last;
      if (last - first > 1) partition(first, last, 0, drafts, free);
      free.clear();
    }
    for (const Draft& draft : drafts) {
      const FoldOffer offer{0, static_cast<int32_t>(groups_.size()), draft.shared};
      const Loose& one = loose_[draft.members[0]];
      groups_.push_back({one.place, one.tokens, draft.shared, -1, -1, 0});
      for (const size_t member : draft.members) accept(offer, loose_[member].row);
    }
  }

  const std::vector<Group>& groups() const { return groups_; }
  int32_t next(int32_t row) const { return next_[static_cast<size_t>(row)]; }

 private:
  // A shorter common prefix is not worth a segment of its own, unless it is all there is of the rows; nor is one that
  // is less than this part of a row.
  static constexpr int64_t kLeastShared = 2, kLeastPart = 4;

  struct Loose {
    FoldPlace place;
    const int32_t* tokens;
    int64_t n;
    int32_t row, group;
  };
  struct Draft {
    int64_t shared;
    std::vector<size_t> members;
    int64_t count() const { return static_cast<int64_t>(members.size()); }
  };

  static bool worth(int64_t shared, int64_t n) {
    return shared == n || (shared >= kLeastShared && shared * kLeastPart >= n);
  }

  void accept(const FoldOffer& offer, int32_t row) {
    Group& group = groups_[static_cast<size_t>(offer.group)];
    if (next_.size() <= static_cast<size_t>(row)) next_.resize(static_cast<size_t>(row) + 1, -1);
    (group.count++ == 0 ? group.first : next_[static_cast<size_t>(group.last)]) = row;
    group.last = row;
    group.shared = offer.shared;
  }

  // Rows [first, last) of `loose_` have `depth` tokens in common. Drafts of groups for those of them that share more
  // are added to `drafts`; rows in no group to `free`.
  void partition(size_t first, size_t last, int64_t depth, std::vector<Draft>& drafts, std::vector<size_t>& free) {
    const size_t drafts_before = drafts.size(), free_before = free.size();
    for (size_t from = first, to; from < last; from = to) {
      const Loose& one = loose_[from];
      to = from + 1;
      if (one.n > depth) {
        while (to < last && loose_[to].n > depth && loose_[to].tokens[depth] == one.tokens[depth]) ++to;
      }
      const Loose& end = loose_[to - 1];
      if (to - from == 1) {
        free.push_back(from);
      } else {
        partition(from, to, common_prefix(one.tokens, one.n, end.tokens, end.n), drafts, free);
      }
    }
    if (last - first < 2 || depth == 0) return;
    Draft mine{depth, {}};
    const auto join = [&](size_t row) {
      const bool joins = worth(depth, loose_[row].n);
      if (joins) mine.members.push_back(row);
      return joins;
    };
    free.erase(std::remove_if(free.begin() + static_cast<std::ptrdiff_t>(free_before), free.end(), join), free.end());
    for (size_t at = drafts_before; at < drafts.size();) {  // a deeper group that saves less alone than in this one
      Draft& deeper = drafts[at];
      const bool all = std::all_of(deeper.members.begin(), deeper.members.end(),
                                   [&](size_t row) { return worth(depth, loose_[row].n); });
      if (all && depth * deeper.count() > deeper.shared * (deeper.count() - 1)) {
        mine.members.insert(mine.members.end(), deeper.members.begin(), deeper.members.end());
        drafts.erase(drafts.begin() + static_cast<std::ptrdiff_t>(at));
      } else {
        ++at;
      }
    }
    if (mine.count() > 1) {
      std::sort(mine.members.begin(), mine.members.end(),
                [this](size_t a, size_t b) { return loose_[a].row < loose_[b].row; });
      drafts.push_back(std::move(mine));
    } else {
      free.insert(free.end(), mine.members.begin(), mine.members.end());
    }
  }

  int32_t group_of(const FoldPlace& place, const int32_t* tokens, int64_t n) {
    const uint64_t key = hash(place, tokens);
    for (auto [at, end] = table_.equal_range(key); at != end; ++at) {
      const Group& group = groups_[static_cast<size_t>(at->second)];
      if (compare(group.place, place) == 0 && std::equal(tokens, tokens + least_, group.tokens)) return at->second;
    }
    groups_.push_back({place, tokens, n, -1, -1, 0});  // may throw: no entry names a group that is not there
    return table_.emplace(key, static_cast<int32_t>(groups_.size()) - 1)->second;
  }
  uint64_t hash(const FoldPlace& place, const int32_t* tokens) const {
    uint64_t before = place.salt + static_cast<uint64_t>(place.node) * 0x9e3779b97f4a7c15u;
    for (int64_t i = 0; i < place.num_borrowed; ++i) {
      before = chain_next(before, static_cast<uint64_t>(place.borrowed[i]));
    }
    return chain_next(before, content_hash(tokens, least_, 0));
  }
  static std::strong_ordering compare(const FoldPlace& a, const FoldPlace& b) {
    if (const auto order = a.salt <=> b.salt; order != 0) return order;
    if (const auto order = a.node <=> b.node; order != 0) return order;
    return std::lexicographical_compare_three_way(a.borrowed, a.borrowed + a.num_borrowed, b.borrowed,
                                                  b.borrowed + b.num_borrowed);
  }

  const int32_t least_;
  std::vector<Group> groups_;
  std::vector<int32_t> next_;                         // by row
  std::unordered_multimap<uint64_t, int32_t> table_;  // groups by hash
  std::vector<Loose> loose_;                          // all rows that may fold; after finish() those that were alone
};

}  // namespace prelude
