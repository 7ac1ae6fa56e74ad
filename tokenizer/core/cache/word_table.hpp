// Words of at most 15 bytes that are one token: most words of a text, found in one cache line.
//
//   line     eight entries of words of 1 to 7 bytes      |rest|second|id + 1| x 8
//            or four of words of 8 to 15               first eight bytes x 4, |rest|second|id + 1| x 4
//   rest     seven bytes and the length are mixed one to one: the highest bits are the number of the line, the rest
//            lies in the entry, so that line and entry are the whole word, and nothing else is found
//   second   a word has two lines, and lies in its second where its first was full of others
//
//   invariants   filled while loading, with words whose encoding is that one token and nothing else (an entry
//                that merging does not reach would change results); read-only afterwards: no lock, no bound.
//                The entries of a line are filled from the first on; a word is in its second line only if the last
//                entry of its first is taken
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>

#include "errors.hpp"
#include "memory/big_array.hpp"

namespace fasttoken {

struct WordKey {
  uint64_t low, high;  // the first byte is the lowest of `low`, the length the highest of `high`

  static constexpr size_t longest = 15;

  // Of a word of at most 15 bytes, reading nothing past its end. No byte is copied: reading a word of bytes that were
  // just written one by one waits for them.
  static WordKey of(const char* p, size_t n) {
    const auto one = [&](size_t i) { return uint64_t{static_cast<unsigned char>(p[i])} << 8 * i; };
    const auto four = [](const char* from) {
      uint32_t word;
      std::memcpy(&word, from, 4);
      return uint64_t{std::endian::native == std::endian::big ? __builtin_bswap32(word) : word};
    };
    const uint64_t size = uint64_t{n} << 56;
    if (n < 4) return {n ? one(0) | one(n / 2) | one(n - 1) : 0, size};
    if (n <= 8) return {four(p) | four(p + n - 4) << 8 * (n - 4), size};
    return {four(p) | four(p + 4) << 32, (four(p + n - 8) | four(p + n - 4) << 32) >> 8 * (16 - n) | size};
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
  // Whether the word has more than seven bytes.
  bool wide() const { return high >> 59 & 1; }
  bool operator==(const WordKey& other) const { return ((low ^ other.low) | (high ^ other.high)) == 0; }
};

// Of any text of at least one byte, without a copy of it; not the hash of its key.
inline uint64_t hash_of_text(const char* p, size_t n) {
  auto eight = [](const char* from) {
    uint64_t bytes;
    std::memcpy(&bytes, from, 8);
    return bytes;
  };
  auto four = [](const char* from) {
    uint32_t bytes;
    std::memcpy(&bytes, from, 4);
    return bytes;
  };
  uint64_t seed = n;
  if (n >= 16) {  // the last 16 bytes may be read twice: without a branch for what is left
    const char* const last = p + n - 16;
    for (; p < last; p += 16) seed = WordKey{eight(p) ^ seed, eight(p + 8)}.hash();
    return WordKey{eight(last) ^ seed, eight(last + 8)}.hash();
  }
  if (n >= 8) return WordKey{eight(p) ^ seed, eight(p + n - 8)}.hash();
  if (n >= 4) return WordKey{four(p) ^ seed, four(p + n - 4)}.hash();
  uint64_t bytes = static_cast<unsigned char>(p[0]) | uint64_t{static_cast<unsigned char>(p[n / 2])} << 8 |
                   uint64_t{static_cast<unsigned char>(p[n - 1])} << 16;
  return WordKey{bytes ^ seed, 0}.hash();
}

class WordTable {
 public:
  static constexpr size_t longest = WordKey::longest;
  static constexpr uint32_t none = UINT32_MAX;

  // How keys are mixed: one to one for words of one kind and, if they are wide, of one `low`. The lowest five bits
  // are 0.
  static constexpr int spare_bits = 5;  // of 64: seven bytes, and the three bits of a length below 8, are 59
  static constexpr uint64_t factors[] = {0xD6E8FEB86659FD93u, 0xBF58476D1CE4E5B9u, 0x94D049BB133111EBu};
  static uint64_t mixed(const WordKey& key) {
    constexpr uint64_t used = ~uint64_t{0} << spare_bits;
    uint64_t low = key.low * factors[0];
    // The length's fourth bit, which wide() says, is shifted out.
    uint64_t x = (key.wide() ? (low ^ low >> 32) & used : key.low << spare_bits) ^ key.high << spare_bits;
    x *= factors[1];
    x ^= x >> 32 & used;
    return x * factors[2];
  }

  struct alignas(64) Line {
    uint64_t at[8];
    bool full() const { return at[7] != 0; }
  };
  // The bits of a word's entry beside its id, and the line it may lie in.
  struct Place {
    uint64_t low, rest;  // low: of a wide word
    uint32_t line;
    bool wide;
  };

  // The table as a caller's loop keeps it in registers.
  struct Probe {
    const Line* lines;
    int bits;  // of the number of a line, each kind of word counted apart

    // mixed: of the word.
    uint32_t line(uint64_t mixed, bool wide) const {
      return static_cast<uint32_t>(mixed >> (64 - bits) | uint64_t{wide} << bits);
    }
    Place place(const WordKey& key) const {
      const uint64_t mixed = WordTable::mixed(key);
      return {key.low, mixed << bits, line(mixed, key.wide()), key.wide()};
    }
    // The second line, as an entry of it says it.
    Place second(Place p) const {
      p.line ^= other(p.rest);
      p.rest |= uint64_t{1} << id_bits();
      return p;
    }
    int id_bits() const { return spare_bits + bits - 1; }
    uint32_t other(uint64_t rest) const { return static_cast<uint32_t>((rest * golden) >> (64 - bits) | 1); }
    void fetch(uint32_t line) const { __builtin_prefetch(lines + line); }

    uint32_t find_in(const Place& p) const {
      const Line& line = lines[p.line];
      for (size_t i = p.wide ? 4 : 0; i < 8; ++i) {
        if ((line.at[i] ^ p.rest) >> id_bits() || (p.wide && line.at[i - 4] != p.low)) continue;
        return static_cast<uint32_t>(line.at[i] & ((uint64_t{1} << id_bits()) - 1)) - 1;  // none where it is empty
      }
      return none;
    }
    uint32_t find(const WordKey& key) const {
      Place p = place(key);
      uint32_t id = find_in(p);
      return id == none && lines[p.line].full() ? find_in(second(p)) : id;
    }
  };
  Probe probe() const { return {lines_.data(), bits_}; }
  uint32_t find(const WordKey& key) const { return probe().find(key); }
  uint32_t find(std::string_view word) const { return find(WordKey::of(word.data(), word.size())); }

  void tables(auto& io) { io(lines_, bits_); }

  struct Word {
    WordKey key;
    uint32_t id;
  };
  // Of different words of 1 to 15 bytes, with ids below `end`; those that come first are found fastest.
  void build(std::span<const Word> words, uint32_t end) {
    bits_ = std::max({1, static_cast<int>(std::bit_width(words.size() / 12)),
                      static_cast<int>(std::bit_width(end)) - spare_bits + 1});
    for (const int most = bits_ + 4;; ++bits_) {
      if (bits_ > most) throw FileError("model.vocab", "words of its tokens share a hash");
      lines_ = BigArray<Line>(size_t{2} << bits_);
      const Probe at = probe();
      constexpr size_t ahead = 16;  // the line of each is far from the last
      size_t n = 0;
      for (; n < words.size(); ++n) {
        if (n + ahead < words.size()) at.fetch(at.place(words[n + ahead].key).line);
        const Place p = at.place(words[n].key);
        if (!put(p.line, p.wide, {p.low, p.rest | (words[n].id + 1)})) break;
      }
      if (n == words.size()) return;
    }
  }

 private:
  static constexpr uint64_t golden = 0x9E3779B97F4A7C15u;

  // An entry that was taken out.
  struct Entry {
    uint64_t low, said;  // rest, second and id + 1
  };
  static Entry& swap(Line& line, size_t i, bool wide, Entry& with) {
    std::swap(line.at[i], with.said);
    if (wide) std::swap(line.at[i - 4], with.low);
    return with;
  }
  static bool put_if_free(Line& line, bool wide, Entry entry) {
    for (size_t i = wide ? 4 : 0; i < 8; ++i) {
      if (line.at[i]) continue;
      swap(line, i, wide, entry);
      return true;
    }
    return false;
  }

  // Into the line, or the entry's other one; where both are full one of the entries there has to go to its own other.
  // False: there is no room for it.
  bool put(uint32_t number, bool wide, Entry entry) {
    constexpr size_t most_moved = 256;
    for (size_t moved = 0; moved < most_moved; ++moved) {
      if (put_if_free(lines_[number], wide, entry)) return true;
      uint32_t elsewhere = moved_over(number, entry);
      if (put_if_free(lines_[elsewhere], wide, entry)) return true;
      moved_over(elsewhere, entry);
      swap(lines_[number], 7 - moved % (wide ? 4 : 8), wide, entry);
      number = moved_over(number, entry);
    }
    return false;
  }
  // The number of the entry's other line, for which it says itself now.
  uint32_t moved_over(uint32_t number, Entry& entry) const {
    const Probe at = probe();
    const uint64_t second = uint64_t{1} << at.id_bits();
    number ^= at.other(entry.said & ~(2 * second - 1));
    entry.said ^= second;
    return number;
  }

  BigArray<Line> lines_{4};
  int bits_ = 1;
};

}  // namespace fasttoken
