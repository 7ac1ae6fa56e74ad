// Whether two tokens may stand beside each other: if the bytes of both, merged together, come out as the two.
//
//   t1 = ..(w x)..  |  t2 = (y v)..      x, y: the tokens at the border before the last merges of t1 and t2
//
//   A token is made by one merge of two others, at that merge's rank; going back in time, of the two tokens at
//   the border the one made later is undone first. At each moment the two that touch would merge across the
//   border if their pair ranks lower than the merge that consumes either (the left one of two equal pairs goes
//   first). If none does, the border stands.
//
//   The whole merges to a chain of tokens if each of them comes out of its own bytes and each two neighbours may
//   stand beside each other (merging.hpp says why). So candidates can be found in any fast way, and then be checked.
//
//   borders_     of each token, hashed to bits: the symbols that can touch a border at its end and merge with another
//                one meanwhile, and those that merge with a symbol that can touch a border at its beginning. Where
//                both have no bit in common nothing merges across, which is true of most neighbours and spares the
//                walk
//
//   invariants   only tokens whose parts rank below them have an entry; for the others nothing is known, and a
//                candidate with one of them is not used. Ranks are stored plus one; single bytes have 0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "bpe/merges.hpp"
#include "memory/table_array.hpp"

namespace fasttoken {

class PairValidity {
 public:
  // is_byte(id): whether the token is a first symbol. order: all merges, by rank.
  template <class F>
  void build(const MergeTable& merges, std::span<const Merge> order, uint32_t ids, F&& is_byte) {
    entries_.assign(ids, {0, 0, unknown});
    for (uint32_t id = 0; id < ids; ++id)
      if (is_byte(id)) entries_[id] = {id, id, 0};
    // Up to the merge at hand: with which tokens one merges on its left, and whether with any on its right. borders_
    // have until the end only symbols that are consumed within a token, each as long as it is there.
    std::vector<uint64_t> on_left(ids);
    std::vector<bool> on_right(ids);
    borders_.assign(ids, {0, 0});
    constexpr size_t ahead = 16;
    for (size_t i = 0; i < order.size(); ++i) {
      if (i + ahead < order.size()) {
        __builtin_prefetch(&entries_[order[i + ahead].a]);
        __builtin_prefetch(&entries_[order[i + ahead].b]);
        __builtin_prefetch(&entries_[order[i + ahead].id], 1);
        __builtin_prefetch(&on_left[order[i + ahead].b], 1);
      }
      const Merge& m = order[i];
      on_left[m.b] |= bit(m.a);
      on_right[m.a] = true;
      if (entries_[m.id].made != unknown) continue;
      if (entries_[m.a].made > m.rank || entries_[m.b].made > m.rank) continue;
      if (!stands(merges, m.a, m.b, m.rank)) continue;
      entries_[m.id] = {m.a, m.b, m.rank + 1};
      borders_[m.id] = {borders_[m.b].end | (on_right[m.b] ? bit(m.b) : 0), borders_[m.a].begin | on_left[m.a]};
    }
    for (uint32_t id = 0; id < ids; ++id) {
      uint64_t not_known = known(id) ? 0 : 3;
      borders_[id].end |= (on_right[id] ? bit(id) : 0) | not_known | 1;
      borders_[id].begin |= on_left[id] | not_known | 2;
    }
  }
  void tables(auto& io) { io(entries_, borders_); }
  bool built() const { return !entries_.empty(); }

  // Whether the token comes out of its own bytes, as far as is known.
  bool known(uint32_t id) const { return id < entries_.size() && entries_[id].made != unknown; }
  // The same for an existing id, once built, from the values that surely_stands() reads.
  bool surely_known(uint32_t id) const { return !(borders_[id].begin & 1); }

  // Whether both are known and stand beside each other, where that can be seen at once.
  bool surely_stands(uint32_t x, uint32_t y) const { return (borders_[x].end & borders_[y].begin) == 0; }
  void fetch(uint32_t id) const { __builtin_prefetch(&borders_[id]); }

  // Both are known. until: the rank at which the two merge themselves; only merges of a lower rank count.
  bool stands(const MergeTable& merges, uint32_t x, uint32_t y, uint32_t until = no_rank) const {
    uint32_t x_goes = until, y_goes = until;  // when the token at the border is consumed
    for (uint32_t rank = until == no_rank ? merges.find(x, y).rank : until;; rank = merges.find(x, y).rank) {
      if (rank < x_goes && rank <= y_goes) return false;
      const Entry &left = entries_[x], &right = entries_[y];
      if (left.made > right.made) {
        x_goes = left.made - 1;
        x = left.right;
      } else if (right.made) {
        y_goes = right.made - 1;
        y = right.left;
      } else {
        return true;
      }
    }
  }

 private:
  static constexpr uint32_t unknown = UINT32_MAX;
  struct Entry {
    uint32_t left, right, made;
  };
  struct Border {
    uint64_t end, begin;  // bit 0, bit 1: always set in the one, in the other for tokens that are not known
  };
  static uint64_t bit(uint32_t id) { return uint64_t{4} << (((id * 0x9E3779B9u) >> 16) * 62 >> 16); }

  TableArray<Entry> entries_;
  TableArray<Border> borders_;
};

}  // namespace fasttoken
