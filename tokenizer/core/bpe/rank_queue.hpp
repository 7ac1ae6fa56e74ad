// A queue of (rank, position), lowest first, for merging long words in near-linear time.
//
//   bits_   one bit a rank that has entries, in three levels of 64    lowest rank: three bit scans
//   bucket_of_   rank -> bucket        bucket: positions, drained from the front in ascending order
//
//   A bucket is sorted only if something was appended out of order. Buckets and tables are kept between
//   words and are all empty between them.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "memory/scratch_vector.hpp"

namespace fasttoken {

class RankQueue {
 public:
  void prepare(uint32_t ranks) {
    if (bucket_of_.size() >= ranks) return;
    bucket_of_.assign(ranks, none);
    for (size_t level = 0, n = ranks; level < 3; ++level) {
      n = (n + 63) / 64;
      bits_[level].assign(n, 0);
    }
  }

  void push(uint32_t rank, uint32_t position) {
    uint32_t& bucket = bucket_of_[rank];
    if (bucket == none) {
      if (free_.empty()) {
        free_.push_back(static_cast<uint32_t>(buckets_.size()));
        buckets_.emplace_back();
      }
      bucket = free_.back();
      free_.pop_back();
      for (auto& level : bits_) {
        level[rank >> 6] |= uint64_t{1} << (rank & 63);
        rank >>= 6;
      }
    }
    Bucket& b = buckets_[bucket];
    if (!b.positions.empty() && b.positions.back() > position) b.sorted = false;
    b.positions.push_back(position);
  }

  bool pop(uint32_t& rank, uint32_t& position) {
    uint32_t top = 0;
    while (top < bits_[2].size() && !bits_[2][top]) ++top;
    if (top == bits_[2].size()) return false;
    rank = top;
    for (int level = 2; level >= 0; --level)
      rank = rank << 6 | static_cast<uint32_t>(std::countr_zero(bits_[static_cast<size_t>(level)][rank]));
    Bucket& b = buckets_[bucket_of_[rank]];
    if (!b.sorted) {
      std::sort(b.positions.begin() + static_cast<long>(b.next), b.positions.end());
      b.sorted = true;
    }
    position = b.positions[b.next++];
    if (b.next == b.positions.size()) {
      b.positions.clear();
      b.next = 0;
      free_.push_back(bucket_of_[rank]);
      bucket_of_[rank] = none;
      uint32_t r = rank;
      for (auto& level : bits_) {
        level[r >> 6] &= ~(uint64_t{1} << (r & 63));
        if (level[r >> 6]) break;
        r >>= 6;
      }
    }
    return true;
  }

 private:
  static constexpr uint32_t none = UINT32_MAX;
  struct Bucket {
    ScratchVector<uint32_t> positions;
    size_t next = 0;
    bool sorted = true;
  };
  std::vector<uint64_t> bits_[3];
  std::vector<uint32_t> bucket_of_, free_;
  std::vector<Bucket> buckets_;
};

}  // namespace fasttoken
