// From a word to ids: the table of single tokens, the cache of other words, and merging for words that neither has;
// and cutting a text into words, for each set of instructions (kernels.cpp compiles word_kernel.hpp once for each).
#pragma once

#include <algorithm>
#include <array>
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

  // A word that is not in the table, or not in its first line there.
  enum class Way : uint8_t { table, known, matched, merged, again, alone };
  struct Missing {
    WordCaches::Text text;
    Way way;
    uint32_t count;      // of the ids of a known word, and of one that was put; again: the number of the first
    const int32_t* ids;  // these
  };
  // Many at a time, each step for all of them before the next: fetch(); look_up(); find(), behind start(); match()
  // and a batch_merger(), which do the work that waits for memory; and put() in the order of find().
  void fetch(Missing& word, const char* p, size_t n) const {
    word.text.read(p, n, p + 16);
    caches_.fetch(word.text);
  }
  void look_up(Missing& word) const { caches_.meet(word.text); }
  void start(const Missing* words, size_t count) {
    words_ = words;
    scratch_.together.clear();
    scratch_.batch.clear();
    matched_ = merged_ = 0;
    merging_.fill(0);
    if (scratch_.rows.size() < count * ClauseCache::most_ids) scratch_.rows.resize(count * ClauseCache::most_ids);
    row_ = scratch_.rows.data();
  }
  void find(Missing& word) {
    word.ids = row_;
    word.count = static_cast<uint32_t>(caches_.find(word.text, row_));
    row_ += word.count;
    word.way = word.count ? Way::known : way_of(word);
  }
  void match() {
    if (!scratch_.together.words.empty()) bpe_.match(scratch_);
  }
  const MergeTable& merges() const { return bpe_.merges; }
  MergeBatch& batch() { return scratch_.batch; }
  void put(Missing& word) {
    constexpr size_t few = 8;
    if (word.way == Way::again) {
      const Missing& first = words_[word.count];
      word.way = Way::known, word.count = first.count, word.ids = first.ids;
    }
    if (word.way == Way::known && word.count <= few) {
      std::array<int32_t, few> ids;  // of a constant size: one store; by way of it, since a word may follow its like
      std::memcpy(ids.data(), word.ids, sizeof ids);
      std::memcpy(out, ids.data(), sizeof ids);
      out += word.count;
      return;
    }
    const int32_t* const from = out;
    const auto add = [&](uint32_t id, uint32_t) { *out++ = static_cast<int32_t>(id); };
    if (word.way == Way::known)
      out = std::copy_n(word.ids, word.count, out);
    else if (word.way == Way::matched)
      bpe_.resolve_match(vocab_, matched_++, scratch_, add);
    else if (word.way == Way::merged)
      for (const Symbol& token : scratch_.batch[merged_++]) add(token.id, token.length);
    else
      merged(word.text.text());
    if (word.way == Way::known) return;
    word.ids = from;
    word.count = static_cast<uint32_t>(out - from);
    caches_.put(word.text, from, word.count);
  }

  // One word.
  void any(const char* p, size_t n) {
    room(n);
    if (n <= WordTable::longest) {
      const uint32_t id = table.find(WordKey::of(p, n));
      if (id != WordTable::none) return void(*out++ = static_cast<int32_t>(id));
    }
    WordCaches::Text text;
    text.read(p, n, nullptr);
    caches_.meet(text);
    const int32_t* const from = out;
    if (size_t known = caches_.find(text, out)) return void(out += known);
    merged({p, n});
    caches_.put(text, from, static_cast<size_t>(out - from));
  }

 private:
  Way way_of(Missing& missing) {
    const WordCaches::Text& text = missing.text;
    const std::string_view word = text.text();
    if (spaced_ || (!text.is_wide() && bpe_.merges_bytes(word))) {
      uint16_t& same = merging_[text.hash % merging_.size()];
      if (same && words_[same - 1].text.text() == word) {
        missing.count = same - 1u;
        return Way::again;
      }
      if (!spaced_)
        bpe_.add_to(scratch_.batch, word);
      else if (!bpe_.add_spaced(scratch_.batch, word))
        return Way::alone;
      same = static_cast<uint16_t>(&missing - words_ + 1);
      return Way::merged;
    }
    if (!bpe_.matches_longest(word)) return Way::alone;
    bpe_.read_match(word, scratch_);
    return Way::matched;
  }
  void merged(std::string_view word) {
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

  size_t matched_ = 0, merged_ = 0;  // of the words that find() took up, how many are done
  int32_t* row_ = nullptr;           // where the ids of the next known word go
  const Missing* words_ = nullptr;
  std::array<uint16_t, 256> merging_;  // by hash, the numbers of words that are merged, plus one

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
