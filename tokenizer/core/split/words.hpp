// From a word to ids: the table of single tokens, the cache of other words, and merging for words that neither has;
// and cutting a text into words, for each set of instructions (kernels.cpp compiles word_kernel.hpp once for each).
#pragma once

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <span>
#include <type_traits>

#include "bpe/bpe.hpp"
#include "cache/word_cache.hpp"
#include "memory/isa.hpp"
#include "memory/scratch_vector.hpp"
#include "split/split_plan.hpp"

namespace fasttoken {

// The output of one call; `out` runs ahead of the buffer's own end until finish().
class WordWriter {
 public:
  // spaced: the spaces of a word stand for U+2581.
  WordWriter(const Bpe& bpe, const Vocab& vocab, const WordCaches& caches, BpeScratch& scratch, IdBuffer& ids,
             bool spaced)
      : out(ids.room(0)),
        table(spaced ? bpe.spaced_words() : bpe.words()),
        spaced_(spaced),
        bpe_(bpe),
        vocab_(vocab),
        caches_(caches),
        scratch_(scratch),
        ids_(ids) {
    limit_ = ids.limit();
  }

  int32_t* out;
  const WordTable& table;

  // Room for the ids of n bytes, and for the longest row of a cache: a reader may write one that is not its word's
  // before it knows. A mark may be as many ids as it has bytes.
  void room(size_t n) {
    if (spaced_) n *= Bpe::mark.size();
    if (static_cast<size_t>(limit_ - out) < n + ClauseCache::most_ids) grow(n + ClauseCache::most_ids);
  }
  void finish() { ids_.finish(out); }

  // The cached tokens of a word of at most 15 bytes; hash: WordTable's.
  struct Known {
    size_t count;  // of its ids; 0: not known
    bool many;     // not known, but too many for these caches: missed() is to look further
    int32_t ids[WordCache::most_ids];
  };
  void fetch(uint64_t hash) const { caches_.short_words.fetch(hash); }
  Known known(const WordKey& word, uint64_t hash) const {
    Known found;
    found.count = caches_.short_words.find(short_key(word), hash, found.ids);
    found.many = found.count == 1 && found.ids[0] == in_clauses;
    if (found.many)
      found.count = 0;
    else if (found.count == 1 && found.ids[0] == more) [[unlikely]]
      found.count = caches_.words.find(long_key(word), hash, found.ids);
    return found;
  }
  void put(const Known& known) {
    std::memcpy(out, known.ids, sizeof known.ids);
    out += known.count;
  }

  // Has the line near that a cache may have for a longer one.
  void fetch(const char* p, size_t n) const {
    if (n > ClauseCache::longest) return;
    const uint64_t hash = hash_of_text(p, n);
    if (counts_once(p, n)) {
      caches_.met.fetch(hash);
      if (!in_words(p, n)) caches_.clauses.fetch_row(hash);
    } else {
      caches_.words.fetch(hash);
    }
  }

  // Words of which nothing is known, many at a time: later() says of each how it will be done, and takes it up;
  // match() and a batch_merger() do for all of them the work that waits for memory; put_matched() and put_merged()
  // give their ids in the same order.
  enum class Way : uint8_t { known, matched, merged, alone };
  void start() {
    scratch_.together.clear();
    scratch_.batch.clear();
    matched_ = merged_ = 0;
  }
  // found: the cached tokens of a short word; a longer one is looked for here; alone: missed() does
  // it.
  Way later(const char* p, size_t n, Known& found) {
    if (found.count) return Way::known;
    if (found.many || n > ClauseCache::longest) return Way::alone;
    if (n > WordTable::longest) {
      const uint64_t hash = hash_of_text(p, n);
      if (!counts_once(p, n)) {
        found.count = caches_.words.find(WordCache::Key::of(p, n), hash, found.ids);
        if (found.count == 1 && found.ids[0] == in_clauses) return Way::alone;
        if (found.count) return Way::known;
      } else if (caches_.met.again(hash)) {
        if (in_words(p, n))
          caches_.words.fetch(hash);
        else
          caches_.clauses.fetch(hash);
        return Way::alone;
      }
    }
    if (spaced_) return bpe_.add_spaced(scratch_.batch, {p, n}) ? Way::merged : Way::alone;
    if (!is_wide(p, n) && bpe_.merges_bytes({p, n})) {
      bpe_.add_to(scratch_.batch, {p, n});
      return Way::merged;
    }
    if (!bpe_.matches_longest({p, n})) return Way::alone;
    bpe_.read_match({p, n}, scratch_);
    return Way::matched;
  }
  void match() {
    if (!scratch_.together.words.empty()) bpe_.match(scratch_);
  }
  const MergeTable& merges() const { return bpe_.merges; }
  MergeBatch& batch() { return scratch_.batch; }
  void put_matched(const char* p, size_t n) {
    const int32_t* from = out;
    bpe_.resolve_match(vocab_, matched_++, scratch_,
                       [&](uint32_t id, uint32_t) { *out++ = static_cast<int32_t>(id); });
    keep_new(p, n, from);
  }
  void put_merged(const char* p, size_t n) {
    const int32_t* from = out;
    for (const Symbol& token : scratch_.batch[merged_++]) *out++ = static_cast<int32_t>(token.id);
    keep_new(p, n, from);
  }

  // A word that is not in the table, nor in the caches if it is short. bytes: there is room for so many from where it
  // starts, for it and the rest.
  [[gnu::noinline]] void missed(const char* p, size_t n, size_t bytes, bool many = false) {
    if (n <= WordTable::longest) {
      if (many) return cached(caches_.clauses, hash_of_text(p, n), p, n);
      const int32_t* from = out;
      merged(p, n);
      return keep(WordKey::of(p, n), from);
    }
    room(bytes);
    if (n > ClauseCache::longest) return merged(p, n);
    const uint64_t hash = hash_of_text(p, n);
    if (counts_once(p, n) && !caches_.met.again(hash)) return merged(p, n);
    if (in_words(p, n)) return cached(caches_.words, hash, p, n);
    cached(caches_.clauses, hash, p, n);
  }
  void any(const char* p, size_t n) {
    room(n);
    if (n <= WordTable::longest) {
      WordKey word = WordKey::of(p, n);
      uint32_t id = table.find(word);
      if (id != WordTable::none) return void(*out++ = static_cast<int32_t>(id));
      Known found = known(word, WordTable::hash(WordTable::mixed(word)));
      if (found.count) return put(found);
      return missed(p, n, n, found.many);
    }
    missed(p, n, n);
  }

 private:
  static constexpr int32_t more = WordCaches::more, in_clauses = WordCaches::in_clauses;

  static ShortWordCache::Key short_key(const WordKey& word) { return {{word.low, word.high}}; }
  static WordCache::Key long_key(const WordKey& word) {
    constexpr uint64_t length = uint64_t{0xFF} << 56;
    return {{word.low, word.high & ~length, 0, word.high & length}};
  }
  // Of a word that the caches do not have.
  void keep_new(const char* p, size_t n, const int32_t* from) const {
    if (n <= WordTable::longest)
      keep(WordKey::of(p, n), from);
    else if (!counts_once(p, n))
      keep(p, n, from);
  }
  void keep(const WordKey& word, const int32_t* from) const {
    const size_t made = static_cast<size_t>(out - from);
    const uint64_t hash = WordTable::hash(WordTable::mixed(word));
    if (made == 0 || made > ClauseCache::most_ids) return;
    if (made > WordCache::most_ids) return caches_.short_words.put(short_key(word), hash, &in_clauses, 1);
    if (made <= ShortWordCache::most_ids) return caches_.short_words.put(short_key(word), hash, from, made);
    caches_.words.put(long_key(word), hash, from, made);
    caches_.short_words.put(short_key(word), hash, &more, 1);
  }

  // Whether it is the smaller cache that may know a word. Characters of three bytes are about a token each, too many
  // for one of its lines.
  static bool in_words(const char* p, size_t n) {
    if (n > WordCache::longest) return false;
    return n <= 3 * WordCache::most_ids || !is_wide(p, n);
  }
  // Whether the last character has three bytes or more, so that most have.
  static bool is_wide(const char* p, size_t n) { return n >= 3 && static_cast<unsigned char>(p[n - 3]) >= 0xE0; }
  // Whether it goes to a cache when it is met again only: clauses, and longer words of wide characters. They seldom
  // come again, and tokenizing them costs less than lines that are written for nothing.
  static bool counts_once(const char* p, size_t n) { return n > WordCache::longest || is_wide(p, n); }
  void keep(const char* p, size_t n, const int32_t* from) const {
    put_in(caches_.words, WordCache::Key::of(p, n), hash_of_text(p, n), from);
  }
  template <class Cache>
  void put_in(const Cache& cache, const typename Cache::Key& key, uint64_t hash, const int32_t* from) const {
    size_t made = static_cast<size_t>(out - from);
    if (made >= 1 && made <= Cache::most_ids)
      cache.put(key, hash, from, made);
    else if (made > Cache::most_ids && made <= ClauseCache::most_ids)
      cache.put(key, hash, &in_clauses, 1);
  }
  template <class Cache>
  void cached(const Cache& cache, uint64_t hash, const char* p, size_t n) {
    const auto key = Cache::Key::of(p, n);
    if (size_t known = cache.find(key, hash, out)) {
      if constexpr (std::is_same_v<Cache, WordCache>)
        if (known == 1 && *out == in_clauses) return cached(caches_.clauses, hash, p, n);
      out += known;
      return;
    }
    const int32_t* from = out;
    merged(p, n);
    put_in(cache, key, hash, from);
  }
  void merged(const char* p, size_t n) {
    std::string_view word{p, n};
    if (spaced_) {
      std::string& text = scratch_.spaced;
      text.clear();
      for (char c : word)
        if (c == ' ')
          text += Bpe::mark;
        else
          text += c;
      word = text;
    }
    bpe_.encode(vocab_, word, scratch_, [&](uint32_t id, uint32_t) { *out++ = static_cast<int32_t>(id); });
  }
  [[gnu::noinline]] void grow(size_t n) {
    ids_.finish(out);
    out = ids_.room(n);
    limit_ = ids_.limit();
  }

  size_t matched_ = 0, merged_ = 0;  // of the words taken by later(), how many are done

  const bool spaced_;
  const int32_t* limit_;
  const Bpe& bpe_;
  const Vocab& vocab_;
  const WordCaches& caches_;
  BpeScratch& scratch_;
  IdBuffer& ids_;
};

// An added token that is found in a text, as bytes of it, and is no matter of words.
struct Stop {
  uint32_t begin, end;
  int32_t id;
};

// Appends the ids of a text's words, and of the added tokens in it, which are in order. The third: the end, at or
// past the text's, of the readable bytes.
using CutWords = void (*)(const SplitPlan&, std::string_view, const char*, std::span<const Stop>, WordWriter&);

// The one for this machine.
CutWords cutter(Isa isa);

}  // namespace fasttoken
