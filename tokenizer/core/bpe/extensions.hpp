// The longer tokens of a token: (node, character) -> node, a trie of characters in one hash table.
//
//   nodes     below `first_prefix` tokens; the others are prefixes of tokens and no tokens themselves
//   entries_  node and character in 40 bits, the node reached in 24; 0: free. Open addressing, at most 3/4 full
//   filter_   a bit for each entry, 5 bits or more an entry: most pairs asked for are not there
//
//   invariants   immutable after build()
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "memory/table_array.hpp"

namespace fasttoken {

class Extensions {
 public:
  static constexpr uint32_t none = UINT32_MAX;
  static constexpr uint32_t leads_on = 1u << 23;  // of an entry: there are longer ones

  static uint64_t hash_of(uint32_t node, uint32_t c) { return (uint64_t{node} << 16 | c) * 0x9E3779B97F4A7C15u; }
  // Whether there may be an entry of this hash.
  bool may_be(uint64_t hash) const {
    size_t bit = filter_bit(hash);
    return filter_[bit / 64] >> (bit & 63) & 1;
  }
  // Requests the cache line of the entry; of the first entry where `extends` is false.
  void prefetch(uint64_t hash, bool extends) const { __builtin_prefetch(&entries_[extends ? place_of(hash) : 0]); }
  // The node, with leads_on or not.
  uint32_t find(uint32_t node, uint32_t c) const {
    if (c > 0xFFFF) return none;
    return may_be(hash_of(node, c)) ? find_unfiltered(node, c) : none;
  }
  // The same where the filter was asked; c < 0x10000.
  uint32_t find_unfiltered(uint32_t node, uint32_t c) const {
    const uint64_t key = uint64_t{node} << 16 | c, hash = hash_of(node, c);
    for (size_t i = place_of(hash);; i = (i + 1) & (entries_.size() - 1)) {
      uint64_t entry = entries_[i];
      if (entry == 0) return none;
      if (entry >> 24 == key) return static_cast<uint32_t>(entry & (2 * leads_on - 1));
    }
  }

  // An empty table with room for `most` entries; add() fills it and build() makes the smallest one that holds them.
  void reserve(size_t most) {
    made_.clear();
    entries_.assign(std::bit_ceil(most * 2 + 8), 0);
    filter_.assign(entries_.size() / 8, 0);
  }
  void add(uint32_t node, uint32_t c, uint32_t next) {
    made_.push_back((uint64_t{node} << 16 | c) << 24 | next);
    place(made_.back());
  }
  // `nodes`: all of them are below.
  void build(uint32_t nodes) {
    std::vector<bool> leads(nodes);
    for (uint64_t entry : made_) leads[entry >> 40] = true;
    entries_.assign(std::bit_ceil(made_.size() * 4 / 3 + 8), 0);
    filter_.assign(std::max<size_t>(1, entries_.size() / 16), 0);
    for (uint64_t entry : made_) place(entry | (leads[entry & (leads_on - 1)] ? leads_on : 0));
    made_ = {};
  }

  size_t bytes() const { return entries_.bytes() + filter_.bytes(); }
  template <class Self, class Io>
  static void tables(Self& self, Io& io) {
    io.array(self.entries_);
    io.array(self.filter_);
  }

 private:
  size_t place_of(uint64_t hash) const { return hash >> (std::countl_zero(entries_.size()) + 1); }
  size_t filter_bit(uint64_t hash) const { return hash >> 20 & (filter_.size() * 64 - 1); }
  void place(uint64_t entry) {
    const uint64_t hash = hash_of(static_cast<uint32_t>(entry >> 40), static_cast<uint32_t>(entry >> 24 & 0xFFFF));
    const size_t bit = filter_bit(hash);
    filter_[bit / 64] |= uint64_t{1} << (bit & 63);
    size_t i = place_of(hash);
    while (entries_[i]) i = (i + 1) & (entries_.size() - 1);
    entries_[i] = entry;
  }

  TableArray<uint64_t> entries_, filter_;
  std::vector<uint64_t> made_;  // while it is filled
};

}  // namespace fasttoken
