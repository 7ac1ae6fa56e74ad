// Which two tokens merge, and into what.
//
//   slots_   hash(a, b) -> {a, b, rank, id}    open addressing, 16 bytes a slot, at most 5/8 full
//   filter_  one bit a pair, 16 bits for each merge: most pairs asked for do not merge, and this small table
//            says so without touching the large one
//   rank     the position in the file's list: the lowest merges first; the same pair again takes the later
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

namespace fasttoken {

inline constexpr uint32_t no_rank = UINT32_MAX;

struct Merge {
  uint32_t a, b, rank, id;
};

class MergeTable {
 public:
  void reserve(size_t merges) {
    slots_.assign(std::bit_ceil(merges * 8 / 5 + 8), {0, 0, no_rank, 0});
    size_t bits = std::bit_ceil(merges * 12 + 64);
    filter_.assign(bits / 64, 0);
    shift_ = 64 - std::countr_zero(bits);
  }

  void add(uint32_t a, uint32_t b, uint32_t rank, uint32_t id) {
    uint64_t h = hash(a, b);
    filter_[h >> shift_ >> 6] |= uint64_t{1} << (h >> shift_ & 63);
    size_t mask = slots_.size() - 1;
    for (size_t i = h & mask;; i = (i + 1) & mask) {
      Merge& m = slots_[i];
      if (m.rank == no_rank || (m.a == a && m.b == b)) {
        m = {a, b, rank, id};
        return;
      }
    }
  }

  // rank no_rank: they do not merge.
  Merge find(uint32_t a, uint32_t b) const {
    uint64_t h = hash(a, b);
    if (!(filter_[h >> shift_ >> 6] >> (h >> shift_ & 63) & 1)) return {a, b, no_rank, 0};
    size_t mask = slots_.size() - 1;
    for (size_t i = h & mask;; i = (i + 1) & mask) {
      const Merge& m = slots_[i];
      if ((m.a == a && m.b == b) || m.rank == no_rank) return m;
    }
  }
  const std::vector<Merge>& slots() const { return slots_; }

 private:
  static uint64_t hash(uint32_t a, uint32_t b) {
    uint64_t h = (uint64_t{a} << 32 | b) * 0x9E3779B97F4A7C15u;
    return h ^ h >> 32;
  }
  std::vector<Merge> slots_ = {{0, 0, no_rank, 0}};
  std::vector<uint64_t> filter_ = {0};
  int shift_ = 58;
};

}  // namespace fasttoken
