// What words of several tokens came out as, so that a word is merged once.
//
//   line    |version|      key: 31 bytes, length      |    six ids     |      64 bytes, one cache line
//   set     two lines, hash(key) says which; the one written less often is written over
//
//   threads  any number, none waits. A writer takes a line by making its version odd, and does nothing if it
//            was odd or changed meanwhile; a reader that finds the version odd, or not the same before and
//            after, has found nothing. Versions have 64 bits and never come again.
//   bound    `bytes` in all, from the start and for ever; pages that no word has touched cost nothing
//   exact    the key is the whole word, so an entry is a fact about the model and cannot go stale
#pragma once

#include <atomic>
#include <bit>
#include <cstdint>
#include <cstring>

#include "word_table.hpp"

namespace fasttoken {

class WordCache {
  struct Line {
    uint64_t version, key[4], ids[3];
  };
  static_assert(sizeof(Line) == 64);

 public:
  static constexpr size_t longest = 31, most_ids = 6;
  static constexpr size_t usual_bytes = size_t{8} << 20;

  struct Key {
    uint64_t part[4];

    static Key of(const char* p, size_t n) {
      char bytes[32] = {};
      std::memcpy(bytes, p, n);
      bytes[31] = static_cast<char>(n);
      Key key;
      std::memcpy(&key, bytes, 32);
      return key;
    }
    uint64_t hash() const {
      WordKey low{part[0] ^ std::rotl(part[2], 23), part[1] ^ std::rotl(part[3], 41)};
      return low.hash();
    }
  };

  // bytes: a power of two, at least 128.
  void reserve(size_t bytes = usual_bytes) {
    memory_ = BigArray<Line>(bytes / sizeof(Line));
    lines_ = memory_.data();
    mask_ = memory_.size() - 2;
  }
  bool ready() const { return lines_ != nullptr; }
  size_t bytes() const { return memory_.size() * sizeof(Line); }

  // How many ids the word has, written to out, which has room for six; 0 when it is not known.
  size_t find(const Key& key, uint64_t hash, int32_t* out) const {
    Line* set = lines_ + (hash & mask_);
    for (size_t way = 0; way < 2; ++way) {
      Line& line = set[way];
      uint64_t version = std::atomic_ref(line.version).load(std::memory_order_acquire);
      if (version == 0 || (version & 1)) continue;
      uint64_t differ = 0;
      for (size_t i = 0; i < 4; ++i)
        differ |= std::atomic_ref(line.key[i]).load(std::memory_order_relaxed) ^ key.part[i];
      if (differ) continue;
      uint64_t ids[3];
      // Acquire: the version is looked at again after these, not before.
      for (size_t i = 0; i < 3; ++i) ids[i] = std::atomic_ref(line.ids[i]).load(std::memory_order_acquire);
      if (std::atomic_ref(line.version).load(std::memory_order_relaxed) != version) continue;
      std::memcpy(out, ids, sizeof ids);
      size_t n = 1;
      while (n < most_ids && out[n] >= 0) ++n;
      return n;
    }
    return 0;
  }

  // n: 1 to 6.
  void put(const Key& key, uint64_t hash, const int32_t* ids, size_t n) const {
    Line* set = lines_ + (hash & mask_);
    uint64_t versions[2];
    for (size_t way = 0; way < 2; ++way)
      versions[way] = std::atomic_ref(set[way].version).load(std::memory_order_relaxed);
    size_t way = versions[1] < versions[0];
    uint64_t version = versions[way];
    std::atomic_ref state(set[way].version);
    if ((version & 1) ||
        !state.compare_exchange_strong(version, version + 1, std::memory_order_acquire, std::memory_order_relaxed))
      return;
    int32_t row[most_ids] = {-1, -1, -1, -1, -1, -1};
    std::memcpy(row, ids, n * sizeof *ids);
    uint64_t words[3];
    std::memcpy(words, row, sizeof row);
    // Release: whoever sees one of these sees that the version was odd.
    for (size_t i = 0; i < 4; ++i) std::atomic_ref(set[way].key[i]).store(key.part[i], std::memory_order_release);
    for (size_t i = 0; i < 3; ++i) std::atomic_ref(set[way].ids[i]).store(words[i], std::memory_order_release);
    state.store(version + 2, std::memory_order_release);
  }

 private:
  BigArray<Line> memory_;
  Line* lines_ = nullptr;
  size_t mask_ = 0;  // of the number of a line, even: the first of its set
};

}  // namespace fasttoken
