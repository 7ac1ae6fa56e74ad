// The tokens of words of several tokens, so that a word is merged once.
//
//   line    |version|      key: 15 bytes, length      |   three ids    |      32 bytes
//           |version|      key: 31 bytes, length      |    six ids     |      64 bytes, one cache line
//           |version|      key: 127 bytes, length     |    30 ids      |      256 bytes: clauses without spaces
//   set     two lines, hash(key) says which; the one written less often is written over
//   order   lines of clauses are written one behind the other instead, and an index says where a word is
//   ids     each plus one, 0 behind the last
//
//   threads  any number, none waits. A writer takes a line by making its version odd, and does nothing if it
//            was odd or changed meanwhile; a reader that finds the version odd, or not the same before and
//            after, has found nothing. Versions have 64 bits and never come again.
//   bound    `bytes` in all, for ever. Of the sets only a part is used at first, which doubles when about half as
//            many words have come in as it has lines: memory costs most when it is touched first, and few words lie
//            close together. A word that now belongs elsewhere is merged once more
//   exact    the key is the whole word, so an entry is a fact about the model and cannot go stale
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <cstring>

#include "cache/word_table.hpp"

namespace fasttoken {

// Lines, and how threads read and write one. id_bits: of an id; larger ones are not kept.
template <size_t key_words, size_t id_words, int id_bits = 32>
class WordLines {
 public:
  static constexpr size_t ids_in_word = 64 / id_bits;
  static constexpr size_t longest = key_words * 8 - 1, most_ids = id_words * ids_in_word;
  static constexpr uint32_t ids_end = static_cast<uint32_t>((uint64_t{1} << id_bits) - 1);  // past the largest

  size_t bytes() const { return memory_.size() * sizeof(Line); }

  struct Key {
    uint64_t part[key_words];

    static Key of(const char* p, size_t n) {
      // Its length is put in as a word: a byte that was just written would hold up the read of the words around it.
      Key key{};
      std::memcpy(key.part, p, n);
      key.part[key_words - 1] |= uint64_t{n} << (std::endian::native == std::endian::little ? 56 : 0);
      return key;
    }
    uint64_t hash() const {
      WordKey low{part[0] ^ std::rotl(part[2], 23), part[1] ^ std::rotl(part[3], 41)};
      uint64_t hash = low.hash();
      for (size_t i = 4; i < key_words && part[i]; i += 4)
        hash = std::rotl(hash, 29) ^
               WordKey { part[i] ^ std::rotl(part[i + 2], 23), part[i + 1] ^ std::rotl(part[i + 3], 41) }.hash();
      return hash;
    }
  };

 protected:
  struct Line {
    uint64_t version, key[key_words], ids[id_words];
  };
  static_assert(std::has_single_bit(sizeof(Line)));

  // How many ids the line has for the word, 0 if it is another's.
  size_t read(Line& line, const Key& key, int32_t* out) const {
    // Words of one length differ in these, or not at all; most others in those beside the version.
    const size_t used =
        key_words <= 4 ? key_words - 1 : (size_t{reinterpret_cast<const unsigned char*>(key.part)[longest]} + 7) / 8;
    constexpr size_t beside = 7;
    uint64_t version = std::atomic_ref(line.version).load(std::memory_order_acquire);
    if (version == 0 || (version & 1)) return 0;
    uint64_t differ = 0;
    auto compare = [&](size_t from, size_t to) {
      for (size_t i = from; i < to; ++i)
        differ |= std::atomic_ref(line.key[i]).load(std::memory_order_relaxed) ^ key.part[i];
    };
    compare(0, std::min(used, beside));
    if (key_words > beside) {
      if (differ) return 0;
      compare(beside, used);
    }
    differ |= std::atomic_ref(line.key[key_words - 1]).load(std::memory_order_relaxed) ^ key.part[key_words - 1];
    if (differ) return 0;
    // Few words have as many ids as there is room.
    size_t n = 0;
    for (size_t i = 0; i < id_words && n == i * ids_in_word; ++i) {
      uint64_t some = std::atomic_ref(line.ids[i]).load(std::memory_order_relaxed);
      for (size_t k = 0; k < ids_in_word; ++k, some = id_bits < 64 ? some >> (id_bits & 63) : 0) {
        uint32_t id = static_cast<uint32_t>(some) & ids_end;
        out[i * ids_in_word + k] = static_cast<int32_t>(id - 1);
        n += id != 0;
      }
    }
    // The version is looked at again after key and ids were read, not before: processors of weak order, as ARM's,
    // could else return one word's ids for the key of the next. No test shows it on x86, where loads keep their order
    // and this is no instruction.
    std::atomic_thread_fence(std::memory_order_acquire);
    return std::atomic_ref(line.version).load(std::memory_order_relaxed) == version ? n : 0;
  }
  // False: an id is too large, or another thread writes the line.
  bool write(Line& line, const Key& key, const int32_t* ids, size_t n) const {
    uint64_t words[id_words] = {};
    for (size_t i = 0; i < n; ++i) {
      uint32_t id = static_cast<uint32_t>(ids[i]);
      if (id >= ids_end) return false;
      words[i / ids_in_word] |= uint64_t{id + 1} << (i % ids_in_word * id_bits);
    }
    std::atomic_ref state(line.version);
    uint64_t version = state.load(std::memory_order_relaxed);
    if ((version & 1) ||
        !state.compare_exchange_strong(version, version + 1, std::memory_order_acquire, std::memory_order_relaxed))
      return false;
    // Release: a thread that sees one of these sees that the version was odd.
    for (size_t i = 0; i < key_words; ++i) std::atomic_ref(line.key[i]).store(key.part[i], std::memory_order_release);
    for (size_t i = 0; i < id_words; ++i) std::atomic_ref(line.ids[i]).store(words[i], std::memory_order_release);
    state.store(version + 2, std::memory_order_release);
    return true;
  }

  BigArray<Line> memory_;
};

// Lines in sets.
template <size_t key_words, size_t id_words, int id_bits = 32>
class CacheOfWords : public WordLines<key_words, id_words, id_bits> {
  using Lines = WordLines<key_words, id_words, id_bits>;
  using Lines::memory_;
  using typename Lines::Line;

 public:
  using typename Lines::Key;

  // bytes: a power of two, at least that of two lines.
  void reserve(size_t bytes, size_t at_first) {
    memory_ = BigArray<Line>(bytes / sizeof(Line));
    lines_ = memory_.data();
    most_ = memory_.size() - 2;
    mask_ = std::min(most_, at_first / sizeof(Line) - 2);
  }
  // Has the memory that is used at first now, not when the first words come in.
  void touch() { memory_.touch((mask_ + 2) * sizeof(Line)); }
  // How many lines are in use.
  size_t used_lines() const { return mask() + 2; }

  void fetch(uint64_t hash) const { __builtin_prefetch(lines_ + (hash & mask())); }

  // How many ids the word has, written to out, which has room for most_ids; 0 when it is not known.
  size_t find(const Key& key, uint64_t hash, int32_t* out) const {
    Line* set = lines_ + (hash & mask());
    for (size_t way = 0; way < 2; ++way)
      if (size_t n = this->read(set[way], key, out)) return n;
    return 0;
  }

  // n: 1 to most_ids.
  void put(const Key& key, uint64_t hash, const int32_t* ids, size_t n) const {
    Line* set = lines_ + (hash & mask());
    const size_t way = std::atomic_ref(set[1].version).load(std::memory_order_relaxed) <
                       std::atomic_ref(set[0].version).load(std::memory_order_relaxed);
    if (this->write(set[way], key, ids, n) && (hash >> 58) == 0) came_in();
  }

 private:
  static constexpr size_t counted_of = 64;  // one word in so many is counted, by its hash

  size_t mask() const { return std::atomic_ref(mask_).load(std::memory_order_relaxed); }
  void came_in() const {
    size_t mask = this->mask(), count = std::atomic_ref(count_).fetch_add(1, std::memory_order_relaxed) + 1;
    if (mask == most_ || count * counted_of * 2 <= mask) return;
    if (std::atomic_ref(mask_).compare_exchange_strong(mask, mask * 2 + 2, std::memory_order_relaxed))
      std::atomic_ref(count_).store(0, std::memory_order_relaxed);
  }
  Line* lines_ = nullptr;
  size_t most_ = 0;
  mutable size_t mask_ = 0;   // of the number of a line, even: the first of its set
  mutable size_t count_ = 0;  // of the words that came in since it changed
};

// Lines that are used in the order in which words come in, from the first on again when all are taken. A line at a
// place of its own for each word would cost a page fault a word.
//
//   rows_    hash says which: two words, the one that came in last lowest, each as 16 bits of the hash and the number
//            of its line plus one; 0: none. The line may be another word's by now, as its key tells
template <size_t key_words, size_t id_words>
class CacheInOrder : public WordLines<key_words, id_words> {
  using Lines = WordLines<key_words, id_words>;
  using Lines::memory_;
  using typename Lines::Line;

 public:
  using typename Lines::Key;

  // bytes: of the lines, a power of two, at least that of two and less than that of 65,536.
  void reserve(size_t bytes) {
    memory_ = BigArray<Line>(bytes / sizeof(Line), false);
    lines_ = memory_.data();
    row_memory_ = BigArray<uint64_t>(memory_.size());
    row_memory_.touch(row_memory_.size() * sizeof(uint64_t));
    rows_ = row_memory_.data();
    row_bits_ = std::countr_zero(memory_.size());
  }
  size_t bytes() const { return Lines::bytes() + row_memory_.size() * sizeof(uint64_t); }

  // Has the row near; once it is, fetch() has the line near that the word may be in.
  void fetch_row(uint64_t hash) const { __builtin_prefetch(rows_ + place_of(hash)); }
  void fetch(uint64_t hash) const {
    for (uint64_t row = this->row(hash).load(std::memory_order_relaxed); row; row >>= 32)
      if (marked(row, hash)) {
        const char* line = reinterpret_cast<const char*>(lines_ + line_of(row));
        for (size_t i = 0; i < sizeof(Line); i += 64) __builtin_prefetch(line + i);
        return;
      }
  }

  // How many ids the word has, written to out, which has room for most_ids; 0 when it is not known.
  size_t find(const Key& key, uint64_t hash, int32_t* out) const {
    for (uint64_t row = this->row(hash).load(std::memory_order_relaxed); row; row >>= 32) {
      if (!marked(row, hash)) continue;
      if (size_t n = this->read(lines_[line_of(row)], key, out)) return n;
    }
    return 0;
  }

  // n: 1 to most_ids.
  void put(const Key& key, uint64_t hash, const int32_t* ids, size_t n) const {
    const size_t at = std::atomic_ref(came_in_).fetch_add(1, std::memory_order_relaxed) & (memory_.size() - 1);
    if (!this->write(lines_[at], key, ids, n)) return;
    auto row = this->row(hash);
    row.store(row.load(std::memory_order_relaxed) << 32 | mark_of(hash) << 16 | (at + 1), std::memory_order_relaxed);
  }

 private:
  size_t place_of(uint64_t hash) const { return hash >> (64 - row_bits_); }
  std::atomic_ref<uint64_t> row(uint64_t hash) const { return std::atomic_ref(rows_[place_of(hash)]); }
  static uint64_t mark_of(uint64_t hash) { return hash >> 8 & 0xFFFF; }
  // Of the row's lowest word.
  static bool marked(uint64_t row, uint64_t hash) { return (row >> 16 & 0xFFFF) == mark_of(hash); }
  static size_t line_of(uint64_t row) { return (row & 0xFFFF) - 1; }

  BigArray<uint64_t> row_memory_;
  Line* lines_ = nullptr;
  uint64_t* rows_ = nullptr;
  int row_bits_ = 0;
  mutable uint64_t came_in_ = 0;  // how many words did
};

// Which words were met before, as far as 16 bits of their hashes tell: a word that is met once only is then neither
// looked for in a cache nor written to it, and a text that never comes again leaves no lines behind. Met again by
// mistake: it is looked for and written. Small enough to stay near.
//
//   rows_   hash says which: four marks of 16 bits, the last one met behind the others; 0: none
class MetBefore {
 public:
  void reserve() {
    memory_ = BigArray<uint64_t>(size_t{1} << bits);
    rows_ = memory_.data();
  }
  size_t bytes() const { return memory_.size() * sizeof(uint64_t); }

  void fetch(uint64_t hash) const { __builtin_prefetch(rows_ + (hash >> (64 - bits))); }
  // Whether a word of this hash was asked about before, as four others of its row were not since.
  bool again(uint64_t hash) const {
    std::atomic_ref row(rows_[hash >> (64 - bits)]);
    const uint64_t marks = row.load(std::memory_order_relaxed), mark = (hash >> 8 & 0xFFFF) | 1;
    // A mark is odd: where it is subtracted in each of the four places, one of them becomes 0.
    constexpr uint64_t each = 0x0001000100010001u;
    const uint64_t differ = marks ^ mark * each;
    if ((differ - each) & ~differ & each << 15) return true;
    row.store(marks << 16 | mark, std::memory_order_relaxed);
    return false;
  }

 private:
  static constexpr int bits = 14;
  BigArray<uint64_t> memory_;
  uint64_t* rows_ = nullptr;
};

using ShortWordCache = CacheOfWords<2, 1, 21>;
using WordCache = CacheOfWords<4, 3>;
using ClauseCache = CacheInOrder<16, 15>;

struct WordCaches {
  ShortWordCache short_words;  // a set is one cache line
  WordCache words;
  ClauseCache clauses;
  MetBefore met;         // of the clauses and segments, and of longer words of wide characters
  ClauseCache segments;  // not words but stretches between control tokens, which chats repeat

  // A text whose ids are a matter of its bytes: read(); fetch(), meet() and find() in turn, each for some texts
  // before the next; put() where its ids were not known.
  struct Text {
    const char* p;
    size_t n;
    WordKey key;  // if it is short
    uint64_t hash;
    // Goes to a cache only when it is met again: clauses, and longer words of wide characters. They seldom come
    // again, and tokenizing them costs less than lines that are written for nothing.
    bool once;
    bool kept;  // whether a cache may have it

    // In place: a copy would be read before its parts are written. readable: up to where bytes can be read; null: as
    // far as the text goes.
    void read(const char* from, size_t size, const char* readable) {
      p = from, n = size, hash = 0, once = false, kept = n <= ClauseCache::longest;
      if (is_short()) {
        key = readable && readable - p >= 16 ? WordKey::of_readable(p, n) : WordKey::of(p, n);
        hash = key.hash();
      } else if (kept) {
        hash = hash_of_text(p, n);
        once = n > WordCache::longest || is_wide();
      }
    }
    bool is_short() const { return n <= WordKey::longest; }
    // Whether the last character has three bytes or more, so that most have.
    bool is_wide() const { return n >= 3 && static_cast<unsigned char>(p[n - 3]) >= 0xE0; }
    // Whether the cache of words may have it. Wide characters are about a token each, too many for one of its lines.
    bool in_words() const { return n <= WordCache::longest && (n <= 3 * WordCache::most_ids || !is_wide()); }
    std::string_view text() const { return {p, n}; }

    ShortWordCache::Key short_key() const { return {{key.low, key.high}}; }
    WordCache::Key words_key() const {
      constexpr uint64_t length = uint64_t{0xFF} << 56;
      return is_short() ? WordCache::Key{{key.low, key.high & ~length, 0, key.high & length}}
                        : WordCache::Key::of(p, n);
    }
    ClauseCache::Key clause_key() const { return ClauseCache::Key::of(p, n); }
  };
  void fetch(const Text& t) const {
    if (t.is_short()) return short_words.fetch(t.hash);
    if (!t.kept) return;
    if (t.once) met.fetch(t.hash);
    if (t.in_words())
      words.fetch(t.hash);
    else
      clauses.fetch_row(t.hash);
  }
  void meet(Text& t) const {
    if (!t.once) return;
    t.kept = met.again(t.hash);
    if (t.kept && !t.in_words()) clauses.fetch(t.hash);
  }
  // How many ids it has, written to `out`, which has room for ClauseCache::most_ids; 0: not known.
  size_t find(const Text& t, int32_t* out) const {
    if (!t.kept) return 0;
    if (!t.in_words()) return clauses.find(t.clause_key(), t.hash, out);
    size_t known = 0;
    if (!t.is_short() || ((known = short_words.find(t.short_key(), t.hash, out)) == 1 && *out == more))
      known = words.find(t.words_key(), t.hash, out);
    return known == 1 && *out == in_clauses ? clauses.find(t.clause_key(), t.hash, out) : known;
  }
  void put(const Text& t, const int32_t* ids, size_t n) const {
    if (n == 0 || n > ClauseCache::most_ids || !t.kept) return;
    const bool in_words = t.in_words(), few = n <= WordCache::most_ids;
    if (t.is_short()) {
      if (n <= ShortWordCache::most_ids) return short_words.put(t.short_key(), t.hash, ids, n);
      short_words.put(t.short_key(), t.hash, few ? &more : &in_clauses, 1);
    } else if (in_words && !few) {
      words.put(t.words_key(), t.hash, &in_clauses, 1);
    }
    if (in_words && few) return words.put(t.words_key(), t.hash, ids, n);
    clauses.put(t.clause_key(), t.hash, ids, n);
  }
  // In the place of ids: they are in the cache of longer words; in that of clauses.
  static constexpr int32_t more = ShortWordCache::ids_end - 1, in_clauses = more - 1;

  void reserve() {
    short_words.reserve(size_t{4} << 20, size_t{1} << 20);
    words.reserve(size_t{4} << 20, size_t{1} << 20);
    short_words.touch();
    words.touch();
    clauses.reserve(size_t{8} << 20);
    segments.reserve(size_t{1} << 21);
    met.reserve();
  }
  size_t bytes() const {
    return short_words.bytes() + words.bytes() + clauses.bytes() + segments.bytes() + met.bytes();
  }
};

}  // namespace fasttoken
