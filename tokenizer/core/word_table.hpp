// Words of at most 16 bytes that are one token: most words of a text, found by one probe.
//
//   word --> first and last 8 (or 4, or 1) bytes, overlapping, and its length: two words and a number that
//            together are the word itself       slots_   hash -> {head, tail, length, id}
//
//   invariants   filled while loading, with words whose encoding is that one token and nothing else (an entry
//                that merging does not reach would change results); read-only afterwards: no lock, no bound
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace fasttoken {

class WordTable {
 public:
  static constexpr size_t longest = 16;
  static constexpr uint32_t none = UINT32_MAX;

  void reserve(size_t words) { slots_.assign(std::bit_ceil(words * 8 / 5 + 8), {0, 0, none, 0}); }

  // The word has 1 to 16 bytes.
  void add(std::string_view word, uint32_t id) {
    Slot key = pack(word);
    size_t i = hash(key) & (slots_.size() - 1);
    while (slots_[i].id != none && !same(slots_[i], key)) i = (i + 1) & (slots_.size() - 1);
    key.id = id;
    slots_[i] = key;
  }

  uint32_t find(std::string_view word) const {
    Slot key = pack(word);
    for (size_t i = hash(key) & (slots_.size() - 1);; i = (i + 1) & (slots_.size() - 1)) {
      const Slot& s = slots_[i];
      if (same(s, key) || s.id == none) return s.id;
    }
  }

 private:
  struct Slot {
    uint64_t head, tail;
    uint32_t id, length;
  };

  static bool same(const Slot& a, const Slot& b) {
    return a.head == b.head && a.tail == b.tail && a.length == b.length;
  }
  template <class T>
  static uint64_t load(const char* p) {
    T value;
    std::memcpy(&value, p, sizeof value);
    return value;
  }
  static Slot pack(std::string_view w) {
    const char* p = w.data();
    size_t n = w.size();
    if (n >= 8) return {load<uint64_t>(p), load<uint64_t>(p + n - 8), none, static_cast<uint32_t>(n)};
    if (n >= 4) return {load<uint32_t>(p), load<uint32_t>(p + n - 4), none, static_cast<uint32_t>(n)};
    auto byte = [&](size_t i) { return static_cast<uint64_t>(static_cast<unsigned char>(p[i])); };
    return {byte(0) | byte(n / 2) << 8 | byte(n - 1) << 16, 0, none, static_cast<uint32_t>(n)};
  }
  static size_t hash(const Slot& k) {
    uint64_t h = (k.head ^ std::rotl(k.tail, 29) ^ uint64_t{k.length} << 56) * 0x9E3779B97F4A7C15u;
    return static_cast<size_t>((h ^ h >> 32) * 0xD6E8FEB86659FD93u >> 20);
  }

  std::vector<Slot> slots_ = {{0, 0, none, 0}};
};

}  // namespace fasttoken
