// From a word to ids: the table of single tokens, the cache of the others, and merging for what neither has.
#pragma once

#include <cstring>

#include "bpe.hpp"
#include "id_buffer.hpp"
#include "word_cache.hpp"

namespace fasttoken {

// What one call writes through; `out` runs ahead of the buffer's own end until finish().
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

  // Room for the ids of n bytes, and for a cached row written whole. A mark may be as many ids as it has bytes.
  void room(size_t n) {
    if (spaced_) n *= Bpe::mark.size();
    if (static_cast<size_t>(limit_ - out) < n + WordCache::most_ids) grow(n + WordCache::most_ids);
  }
  void finish() { ids_.finish(out); }

  // A word of at most 15 bytes that is not in the table.
  [[gnu::noinline]] void missed(const char* p, size_t n, const WordKey& word) {
    WordCache::Key key{{word.low, word.high & ~(uint64_t{0xFF} << 56), 0, uint64_t{n} << 56}};
    cached(caches_.words, key, p, n);
  }
  // A longer one.
  [[gnu::noinline]] void long_word(const char* p, size_t n) {
    room(n);
    if (n <= WordCache::longest && !is_clause(p, n)) return cached(caches_.words, WordCache::Key::of(p, n), p, n);
    if (n <= ClauseCache::longest) return cached(caches_.clauses, ClauseCache::Key::of(p, n), p, n);
    merged(p, n);
  }
  void any(const char* p, size_t n) {
    if (n > WordTable::longest) return long_word(p, n);
    room(n);
    WordKey key = WordKey::of(p, n);
    uint32_t id = table.find(key, key.hash());
    if (id == WordTable::none) return missed(p, n, key);
    *out++ = static_cast<int32_t>(id);
  }

 private:
  // Characters of three bytes are about a token each, too many for a line of the smaller cache.
  static bool is_clause(const char* p, size_t n) {
    return n > 3 * WordCache::most_ids && static_cast<unsigned char>(p[n - 3]) >= 0xE0;
  }
  template <class Cache>
  void cached(const Cache& cache, const typename Cache::Key& key, const char* p, size_t n) {
    uint64_t hash = key.hash();
    if (size_t known = cache.find(key, hash, out)) {
      out += known;
      return;
    }
    const int32_t* from = out;
    merged(p, n);
    size_t made = static_cast<size_t>(out - from);
    if (made >= 1 && made <= Cache::most_ids) cache.put(key, hash, from, made);
  }
  void merged(const char* p, size_t n) {
    std::string_view word{p, n};
    if (spaced_) {
      std::string& text = scratch_.spaced;
      text.clear();
      for (; n > 0 && *p == ' '; ++p, --n) text += Bpe::mark;
      word = text.append(p, n);
    }
    bpe_.encode(vocab_, word, scratch_, [&](uint32_t id, uint32_t) { *out++ = static_cast<int32_t>(id); });
  }
  [[gnu::noinline]] void grow(size_t n) {
    ids_.finish(out);
    out = ids_.room(n);
    limit_ = ids_.limit();
  }

  const bool spaced_;
  const int32_t* limit_;
  const Bpe& bpe_;
  const Vocab& vocab_;
  const WordCaches& caches_;
  BpeScratch& scratch_;
  IdBuffer& ids_;
};

}  // namespace fasttoken
