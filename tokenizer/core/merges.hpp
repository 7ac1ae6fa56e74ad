// Which two tokens merge, and into what.
//
//   slots_   hash(a, b) -> {a, b, rank, id}    open addressing, 16 bytes a slot, at most 5/8 full
//   filter_  one bit a pair, 16 bits for each merge: most pairs asked for do not merge, and this small table
//            says so without touching the large one
//   direct_  pairs of ids below 256, which is where most files have the single bytes: a table, no hash
//   rank     the position in the file's list: the lowest merges first; the same pair again takes the later
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "big_array.hpp"
#include "table_array.hpp"

namespace fasttoken {

inline constexpr uint32_t no_rank = UINT32_MAX;

struct Merge {
  uint32_t a, b, rank, id;
};

class MergeTable {
 public:
  void reserve(size_t merges) {
    slots_ = free_slots(std::bit_ceil(merges * 8 / 5 + 8));
    size_t bits = std::bit_ceil(merges * 12 + 64);
    filter_.assign(bits / 64, 0);
    shift_ = 64 - std::countr_zero(bits);
    direct_.assign(direct * direct, {no_rank, 0});
  }

  // Asks for what add() will read.
  void prefetch(uint32_t a, uint32_t b) const {
    uint64_t h = hash(a, b);
    __builtin_prefetch(&slots_[h & (slots_.size() - 1)], 1);
    __builtin_prefetch(&filter_[h >> shift_ >> 6], 1);
  }

  // Whether the pair is new.
  bool add(uint32_t a, uint32_t b, uint32_t rank, uint32_t id) {
    if ((a | b) < direct) direct_[a * direct + b] = {rank, id};
    uint64_t h = hash(a, b);
    filter_[h >> shift_ >> 6] |= uint64_t{1} << (h >> shift_ & 63);
    size_t mask = slots_.size() - 1;
    for (size_t i = h & mask;; i = (i + 1) & mask) {
      Merge& m = slots_[i];
      if (m.rank == no_rank || (m.a == a && m.b == b)) {
        bool fresh = m.rank == no_rank;
        m = {a, b, rank, id};
        return fresh;
      }
    }
  }

  // rank no_rank: they do not merge.
  [[gnu::always_inline]] Merge find(uint32_t a, uint32_t b) const {
    if ((a | b) < direct) {
      const Ranked& r = direct_[a * direct + b];
      return {a, b, r.rank, r.id};
    }
    uint64_t h = hash(a, b);
    if (!(filter_[h >> shift_ >> 6] >> (h >> shift_ & 63) & 1)) return {a, b, no_rank, 0};
    size_t mask = slots_.size() - 1;
    for (size_t i = h & mask;; i = (i + 1) & mask) {
      const Merge& m = slots_[i];
      if ((m.a == a && m.b == b) || m.rank == no_rank) return m;
    }
  }
  const BigArray<Merge>& slots() const { return slots_; }
  size_t bytes() const {
    return slots_.size() * sizeof(Merge) + filter_.bytes() + direct_.bytes();
  }
  template <class Self, class Io>
  static void tables(Self& self, Io& io) {
    io.array(self.slots_);
    io.array(self.filter_);
    io.array(self.direct_);
    io.value(self.shift_);
  }

 private:
  static constexpr uint32_t direct = 256;
  struct Ranked {
    uint32_t rank, id;
  };

  static BigArray<Merge> free_slots(size_t n) {
    BigArray<Merge> slots(n);
    std::fill(slots.begin(), slots.end(), Merge{0, 0, no_rank, 0});
    return slots;
  }
  static uint64_t hash(uint32_t a, uint32_t b) {
    uint64_t h = (uint64_t{a} << 32 | b) * 0x9E3779B97F4A7C15u;
    return h ^ h >> 32;
  }
  BigArray<Merge> slots_ = free_slots(1);
  TableArray<uint64_t> filter_{1, 0};
  TableArray<Ranked> direct_{direct * direct, {no_rank, 0}};
  int shift_ = 58;
};

}  // namespace fasttoken
