// Words of at most 15 bytes that are one token: most words of a text, found by one probe.
//
//   key     the bytes, zeros behind them, and the length in the last byte: 16 bytes that are the word itself
//   slots_  hash(key) -> {key, id}     32 bytes, so that a slot lies in one cache line; at most 5/8 full
//
//   invariants   filled while loading, with words whose encoding is that one token and nothing else (an entry
//                that merging does not reach would change results); read-only afterwards: no lock, no bound
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <string_view>

#include "big_array.hpp"

namespace fasttoken {

struct WordKey {
  uint64_t low, high;

  static constexpr size_t longest = 15;

  // Of a word of 1 to 15 bytes, reading nothing past its end.
  static WordKey of(const char* p, size_t n) {
    char bytes[16] = {};
    std::memcpy(bytes, p, n);
    bytes[15] = static_cast<char>(n);
    WordKey key;
    std::memcpy(&key, bytes, 16);
    return key;
  }
  // The same where 16 bytes can be read.
  static WordKey of_readable(const char* p, size_t n) {
    WordKey key;
    std::memcpy(&key, p, 16);
    // Shifts by 64 and more are undefined, so in two steps.
    if constexpr (std::endian::native == std::endian::little) {
      uint64_t bits = n * 8;
      if (n < 8) {
        key.low &= (uint64_t{1} << bits) - 1;
        key.high = 0;
      } else {
        key.high &= (uint64_t{1} << (bits - 64)) - 1;
      }
      key.high |= uint64_t{n} << 56;
      return key;
    }
    return of(p, n);
  }
  uint64_t hash() const {
    __uint128_t m = static_cast<__uint128_t>(low ^ 0x9E3779B97F4A7C15u) * (high ^ 0xD6E8FEB86659FD93u);
    return static_cast<uint64_t>(m) ^ static_cast<uint64_t>(m >> 64);
  }
  bool operator==(const WordKey& other) const { return ((low ^ other.low) | (high ^ other.high)) == 0; }
};

class WordTable {
  struct alignas(32) Slot {
    WordKey key;
    uint32_t id, spare[3];
  };

 public:
  static constexpr size_t longest = WordKey::longest;
  static constexpr uint32_t none = UINT32_MAX;

  size_t bytes() const { return slots_.size() * sizeof(Slot); }
  template <class Self, class Io>
  static void tables(Self& self, Io& io) {
    io.array(self.slots_);
  }

  void reserve(size_t words) { slots_ = BigArray<Slot>(std::bit_ceil(words * 8 / 5 + 8)); }

  // Adds words of 1 to 15 bytes, a few at a time, since the slot of each is far from the last. The same word again
  // takes the new id; words added first are found fastest.
  class Filler {
   public:
    explicit Filler(WordTable& table) : slots_(table.slots_.data()), mask_(table.slots_.size() - 1) {}
    Filler(const Filler&) = delete;
    ~Filler() { flush(); }
    void add(std::string_view word, uint32_t id) {
      WordKey key = WordKey::of(word.data(), word.size());
      held_[count_] = {key, key.hash() & mask_, id};
      __builtin_prefetch(slots_ + held_[count_].at, 1);
      if (++count_ == std::size(held_)) flush();
    }

   private:
    void flush() {
      for (size_t n = 0; n < count_; ++n) {
        auto [key, i, id] = held_[n];
        while (slots_[i].key.high != 0 && !(slots_[i].key == key)) i = (i + 1) & mask_;
        slots_[i] = {key, id, {}};
      }
      count_ = 0;
    }
    struct Held {
      WordKey key;
      size_t at;
      uint32_t id;
    };
    Slot* slots_;
    size_t mask_, count_ = 0;
    Held held_[16];
  };

  // The table as a caller's loop keeps it in registers.
  struct Probe {
    const Slot* slots;
    size_t mask;
    void fetch(uint64_t hash) const { __builtin_prefetch(slots + (hash & mask)); }
    uint32_t find(const WordKey& key, uint64_t hash) const {
      for (size_t i = hash & mask;; i = (i + 1) & mask) {
        const Slot& s = slots[i];
        if (s.key == key) return s.id;
        if (s.key.high == 0) return none;
      }
    }
  };
  Probe probe() const { return {slots_.data(), slots_.size() - 1}; }
  uint32_t find(const WordKey& key, uint64_t hash) const { return probe().find(key, hash); }
  uint32_t find(std::string_view word) const {
    WordKey key = WordKey::of(word.data(), word.size());
    return find(key, key.hash());
  }

 private:
  BigArray<Slot> slots_{1};
};

}  // namespace fasttoken
