// Token strings and ids, immutable once loaded.
//
//   arena_   all strings, one after the other     where_   id -> (offset, length); length `hole`: it is not defined
//   entries_   hash -> (tag, id)                  open addressing, a power of two, at most 5/8 full
//   seed_    of the hash: a secret of this process, or of the one that wrote the tables. Without it no file can be
//            made whose tokens share their hash. Where a token's place is far from its hash, the file is refused
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "errors.hpp"
#include "memory/table_array.hpp"

namespace fasttoken {

struct HashSeed {
  uint64_t of_words, of_state;

  static HashSeed random() {
    std::random_device device;
    const auto number = [&] { return uint64_t{device()} << 32 | device(); };
    const uint64_t first = number();
    return {first, number()};
  }
  static const HashSeed& of_process() {
    static const HashSeed seed = random();
    return seed;
  }
};

// A word that equals seed.of_words makes 0 of any state, and the words whose products have one fold depend on both
// numbers: strings of equal hash are found by those alone who know the seed.
inline uint64_t hash_bytes(const char* p, size_t n, const HashSeed& seed) {
  uint64_t h = n * 0x9E3779B97F4A7C15u;
  auto mix = [&](uint64_t word) {
    __uint128_t m = static_cast<__uint128_t>(word ^ seed.of_words) * ((h ^ seed.of_state) | 1);
    h = static_cast<uint64_t>(m) ^ static_cast<uint64_t>(m >> 64);
  };
  for (; n >= 8; p += 8, n -= 8) {
    uint64_t word;
    std::memcpy(&word, p, 8);
    mix(word);
  }
  uint32_t first = 0, last = 0;  // which overlap
  if (n >= 4) {
    std::memcpy(&first, p, 4);
    std::memcpy(&last, p + n - 4, 4);
  } else if (n > 0) {
    const auto at = [&](size_t i) { return uint32_t{static_cast<unsigned char>(p[i])}; };
    first = at(0) | at(n / 2) << 8 | at(n - 1) << 16;
  }
  mix(uint64_t{last} << 32 | first);
  return h;
}

class Vocab {
 public:
  static constexpr uint32_t hole = UINT32_MAX;
  // Entries that add() looks at. Of strings that have hashes by chance none has a hundred before its own.
  static constexpr size_t most_probes = 1024;

  Vocab() : Vocab(HashSeed::of_process()) {}
  explicit Vocab(const HashSeed& seed) : seed_(seed) {}

  void reserve(size_t tokens, size_t bytes) {
    arena_.reserve(bytes);
    where_.reserve(tokens);
    size_t entries = std::bit_ceil(tokens * 8 / 5 + 8);
    if (entries > entries_.size()) rehash(entries);
  }

  // The id a string had before, if any. The same string again takes the new id. FileError past `most_probes`.
  std::optional<uint32_t> add(std::string_view token, uint32_t id) { return add(token, id, hash(token)); }
  std::optional<uint32_t> add(std::string_view token, uint32_t id, uint64_t h) {
    if ((count_ + 1) * 8 > entries_.size() * 5) rehash(std::max<size_t>(16, entries_.size() * 2));
    if (id >= where_.size()) where_.resize(size_t{id} + 1, {0, hole});
    Entry* entry = probe<true>(token, h);
    std::optional<uint32_t> old;
    if (entry->id != hole) {
      old = entry->id;
      where_[entry->id].length = hole;
    } else {
      ++count_;
    }
    where_[id] = {static_cast<uint32_t>(arena_.size()), static_cast<uint32_t>(token.size())};
    arena_.append(token.data(), token.size());
    *entry = {tag(h), id};
    return old;
  }

  // For callers of many: the hash of each is made once, and the memory that is read for it fetched ahead, first
  // with prefetch(), then with prefetch_text().
  uint64_t hash(std::string_view s) const { return hash_bytes(s.data(), s.size(), seed_); }
  void prefetch(uint64_t h) const { __builtin_prefetch(first(h), 1); }
  void prefetch_text(uint64_t h) const {
    if (const uint32_t id = first(h)->id; id != hole) __builtin_prefetch(&where_[id]);
  }
  std::optional<uint32_t> find(std::string_view token) const { return find(token, hash(token)); }
  std::optional<uint32_t> find(std::string_view token, uint64_t h) const {
    if (entries_.empty()) return std::nullopt;
    const Entry* entry = const_cast<Vocab*>(this)->probe<false>(token, h);
    return entry->id == hole ? std::nullopt : std::optional<uint32_t>(entry->id);
  }
  // The token "<0xHH>" of each byte, or `hole`.
  std::array<uint32_t, 256> byte_tokens() const {
    std::array<uint32_t, 256> all;
    for (unsigned b = 0; b < 256; ++b) {
      char name[8];
      std::snprintf(name, sizeof name, "<0x%02X>", b);
      all[b] = find(name).value_or(hole);
    }
    return all;
  }
  bool has(uint32_t id) const { return id < where_.size() && where_[id].length != hole; }
  std::string_view text(uint32_t id) const { return {arena_.data() + where_[id].offset, where_[id].length}; }
  size_t size() const { return count_; }
  uint32_t end() const { return static_cast<uint32_t>(where_.size()); }  // past the largest id
  // Calls io, of loading/tables_file.hpp, with all that a file of tables has; so in all classes.
  void tables(auto& io) { io(arena_, where_, entries_, count_, seed_); }

 private:
  struct Where {
    uint32_t offset, length;
  };
  struct Entry {
    uint32_t tag, id;
  };
  static uint32_t tag(uint64_t h) { return static_cast<uint32_t>(h >> 32); }

  const Entry* first(uint64_t h) const { return entries_.data() + (h & (entries_.size() - 1)); }

  template <bool bounded>
  Entry* probe(std::string_view token, uint64_t h) {
    size_t mask = entries_.size() - 1, first = h & mask;
    for (size_t i = first;; i = (i + 1) & mask) {
      if (bounded && ((i - first) & mask) == most_probes)
        throw FileError("model.vocab", "more than " + std::to_string(most_probes) + " tokens share a hash");
      Entry& entry = entries_[i];
      if (entry.id == hole || (entry.tag == tag(h) && text(entry.id) == token)) return &entry;
    }
  }
  void rehash(size_t size) {
    std::vector<Entry> old(size, Entry{0, hole});
    entries_.swap(old);
    for (const Entry& entry : old) {
      if (entry.id == hole) continue;
      size_t i = hash(text(entry.id)) & (size - 1);
      while (entries_[i].id != hole) i = (i + 1) & (size - 1);
      entries_[i] = entry;
    }
  }

  TableArray<char> arena_;
  TableArray<Where> where_;
  TableArray<Entry> entries_;
  size_t count_ = 0;
  HashSeed seed_;
};

}  // namespace fasttoken
