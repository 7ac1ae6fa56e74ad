// Words beyond ASCII, tokenized by longest match and then checked, which takes fewer look-ups than merging their
// bytes.
//
//   match      finds candidates: the longest token of whole characters at each place, by a trie; ASCII between them,
//              found whole or merged; a character that begins no token, and a blank before a character, as their
//              bytes merge
//   resolve    goes from left to right. A candidate stays if it is valid behind the token before it
//              (pair_validity.hpp). If it is not, these are tried in order: a shorter token of whole characters at
//              its place, or at the place of a token before it, then longest matches until they meet a candidate's
//              border again; merging its bytes, together with a neighbour on either side, and with more on the left
//              until the result is valid behind the token before it
//
//   Why the result is exact: all of its tokens are valid two by two. Tokens that one merging made are, because a
//   border that a merging leaves is one that its two tokens leave alone. The pair at the left of a merged window is
//   checked, and the pair at its right is checked with the next candidate.
//
//   trie_         the tokens of whole characters                     character_trie.hpp
//   pairs_        whether pairs were found to stand, so that a pair of a text is looked at once: one word a pair, the
//                 whole pair in it. An entry depends on the model alone, so any thread may write it or overwrite it
//   repairs_      the tokens of merged windows, kept as word_cache.hpp keeps words
//
//   threads       the tables are immutable; pairs_ is written by any thread, a word at a time
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <string_view>
#include <vector>

#include "bpe/character_trie.hpp"
#include "bpe/merging.hpp"
#include "bpe/pair_validity.hpp"
#include "cache/word_cache.hpp"
#include "cache/word_table.hpp"
#include "text/utf8.hpp"
#include "vocab/vocab.hpp"

namespace fasttoken {

struct LongestMatchScratch {
  struct Character {
    uint32_t id;  // none if it is no token
    // The code point, how many bytes it has, and whether with the one before it, it may begin a longer token.
    uint32_t code : 24, length : 7, extends : 1;
  };
  struct Word {
    std::string_view text;
    size_t characters, candidates;  // where each of them ends
  };
  // Of all words, one behind the other.
  ScratchVector<Character> characters;
  ScratchVector<Symbol> candidates;
  std::vector<Word> words;
  ScratchVector<Symbol> resolved;  // of one

  void clear() {
    characters.clear();
    candidates.clear();
    words.clear();
  }
};

class LongestMatch {
 public:
  static constexpr uint32_t none = UINT32_MAX;
  using ByteIds = CharacterTrie::ByteIds;

  // byte_ids: the token of each byte. order: all merges, by rank.
  void build(const MergeTable& merges, std::span<const Merge> order, const Vocab& vocab, const ByteIds& byte_ids) {
    std::vector<bool> first(vocab.end());
    for (uint32_t id : byte_ids) first[id] = true;
    pair_validity_.build(merges, order, vocab.end(), [&](uint32_t id) { return first[id]; });
    trie_.build(vocab, byte_ids, [&](uint32_t id) { return pair_validity_.known(id); });
    remember();
  }
  bool built() const { return pair_validity_.built(); }
  // Whether a word is to be read here: its last character is of a script of its own.
  bool takes(std::string_view piece) const {
    return built() &&
           ((piece.size() >= 2 && CharacterTrie::is_apart(static_cast<unsigned char>(piece[piece.size() - 2]))) ||
            (piece.size() >= 3 && leads_wide(piece[piece.size() - 3])));
  }
  // Where a text may be cut beforehand.
  const WideJoins& wide_joins() const { return trie_.wide_joins(); }
  // Whether the token comes out of its own bytes, as far as is known.
  bool known(uint32_t id) const { return pair_validity_.known(id); }

  // The tokens into s.chain, their lengths in bytes; false: not known, nothing is said. The piece is a text. words:
  // of one token, where a word of ASCII may be found; none: all are merged.
  bool encode(const Merger& merger, const MergeTable& merges, const ByteIds& byte_ids, const WordTable* words,
              std::string_view piece, LongestMatchScratch& g, MergeScratch& s) const {
    g.clear();
    read(piece, byte_ids, g);
    match(merger, byte_ids, words, g);
    return resolve(merger, merges, byte_ids, 0, g, s);
  }

  // The same for several words, each step for all of them before the next: a step reads the table lines that the
  // step before prefetched. clear() g, read() each word, match() all, resolve() each.
  void read(std::string_view piece, const ByteIds& byte_ids, LongestMatchScratch& g) const {
    size_t from = g.characters.size();
    g.characters.resize(from + piece.size());
    LongestMatchScratch::Character* to = g.characters.data() + from;
    const Extensions& extensions = trie_.extensions();
    uint32_t before = none;
    for (const char *p = piece.data(), *end = p + piece.size(); p < end; ++to) {
      const char* const begin = p;
      uint32_t c = static_cast<unsigned char>(*p), id;
      if (leads_wide(*p)) [[likely]] {
        c = (c & 15) << 12 | (p[1] & 63u) << 6 | (p[2] & 63u);
        p += 3;
        id = trie_.character(c);
      } else if (c < 0x80) {
        ++p;
        id = byte_ids[c];
      } else {
        id = trie_.character(c = utf8_next(p));
      }
      // For a character that is no token, or a large code point, the filter may say yes by mistake, as for any other.
      const uint64_t hash = Extensions::hash_of(before, c);
      const bool extends = extensions.may_be(hash);
      extensions.prefetch(hash, extends);
      *to = {id, c, static_cast<uint32_t>(p - begin), extends};
      before = id;
    }
    g.characters.resize(static_cast<size_t>(to - g.characters.data()));
    g.words.push_back({piece, g.characters.size(), 0});
  }
  void match(const Merger& merger, const ByteIds& byte_ids, const WordTable* words, LongestMatchScratch& g) const {
    const LongestMatchScratch::Character* from = g.characters.data();
    for (LongestMatchScratch::Word& word : g.words) {
      const LongestMatchScratch::Character* to = g.characters.data() + word.characters;
      longest(from, static_cast<size_t>(to - from), byte_ids, words, word.text, merger, g);
      word.candidates = g.candidates.size();
      from = to;
    }
    for (size_t i = 1; i < g.candidates.size(); ++i) {
      uint32_t x = g.candidates[i - 1].id, y = g.candidates[i].id;
      if (pair_validity_.surely_stands(x, y))
        g.candidates[i].length |= sure;
      else
        __builtin_prefetch(pair_entries_ + pair_place(x, y));
    }
  }

  // The tokens of a word whose candidates were found, into s.chain, as encode() has them.
  bool resolve(const Merger& merger, const MergeTable& merges, const ByteIds& byte_ids, size_t word,
               LongestMatchScratch& g, MergeScratch& s) const {
    const std::string_view piece = g.words[word].text;
    const Symbol* candidates = g.candidates.data() + (word ? g.words[word - 1].candidates : 0);
    const size_t found = static_cast<size_t>(g.candidates.data() + g.words[word].candidates - candidates);
    g.resolved.resize(piece.size());  // no token is shorter than a byte
    Chain out{g.resolved.data(), g.resolved.data()};
    size_t at = 0, spent = 0, searched = 0;
    bool follows = false;  // whether the candidate before this one was kept
    for (size_t i = 0; i < found;) {
      const Symbol token{candidates[i].id, candidates[i].length & ~sure};
      if (follows ? (candidates[i].length & sure) || remembered(merges, out.end[-1].id, token.id)
                  : stays(merges, out, token)) {
        follows = true;
        at += token.length;
        *out.end++ = token;
        ++i;
        continue;
      }
      follows = false;
      if (2 * searched <= piece.size() + 128 && resumed(merges, piece, candidates, i, at, searched, out)) continue;
      size_t begin = at, end = at + token.length;
      if (++i < found) end += candidates[i++].length & ~sure;
      Symbol window[small];
      size_t n;
      do {
        if (!out.empty()) begin -= (--out.end)->length;
        spent += end - begin;
        if (end - begin > small || spent > 4 * piece.size())
          return false;  // a word made so that no candidate is valid
        n = repaired(merger, byte_ids, piece.substr(begin, end - begin), window);
      } while (!out.empty() && !stays(merges, out, window[0]));
      out.end = std::copy(window, window + n, out.end);
      at = end;
    }
    g.resolved.resize(out.size());
    s.chain.swap(g.resolved);
    return true;
  }

  size_t cache_bytes() const { return pairs_.bytes() + repairs_.bytes(); }
  void tables(auto& io) {
    io(pair_validity_, trie_);
    if (io.reads && built()) remember();
  }

 private:
  static constexpr size_t small = Merger::linear_limit;
  static constexpr int pair_bits = 16;
  static constexpr size_t repair_bytes = size_t{1} << 19;
  using RepairCache = CacheOfWords<4, 3>;  // with the lengths of the tokens beside them
  static constexpr uint32_t leads_on = Extensions::leads_on;
  static constexpr uint64_t golden = 0x9E3779B97F4A7C15u;
  static constexpr uint32_t sure = 1u << 31;  // in the length of a candidate: it is valid behind the one before it

  static bool leads_wide(char c) { return (static_cast<unsigned char>(c) & 0xF0) == 0xE0; }
  void remember() {
    pairs_ = BigArray<uint64_t>(size_t{1} << pair_bits);
    pair_entries_ = pairs_.data();
    repairs_.reserve(repair_bytes, repair_bytes);
  }

  // ---- the candidates

  void longest(const LongestMatchScratch::Character* all, size_t n, const ByteIds& byte_ids, const WordTable* words,
               std::string_view piece, const Merger& merger, LongestMatchScratch& g) const {
    const Extensions& extensions = trie_.extensions();
    auto& out = g.candidates;
    const size_t before = out.size();
    out.resize(before + piece.size());
    Symbol* top = out.data() + before;
    const auto put_merged = [&](std::string_view bytes) {
      for (size_t left = repaired(merger, byte_ids, bytes, top); left; --left) pair_validity_.fetch((top++)->id);
    };
    size_t at = 0;
    for (size_t i = 0; i < n;) {
      uint32_t id = all[i].id;
      size_t from = at;
      if (all[i].code < 0x80) {
        size_t plain = i + 1;
        while (plain < n && plain - i < small && all[plain].code < 0x80) ++plain;
        if (plain > i + 1) {  // a word of ASCII among them
          at += plain - i;
          i = plain;
          const std::string_view ascii = piece.substr(from, at - from);
          const uint32_t one = words && ascii.size() <= WordTable::longest ? words->find(ascii) : none;
          if (one != WordTable::none) {
            *top++ = {one, static_cast<uint32_t>(ascii.size())};
            pair_validity_.fetch(one);
          } else {
            put_merged(ascii);
          }
          continue;
        }
        if (all[i].code == ' ' && i + 1 < n && all[i + 1].length == 3 &&
            (!all[i + 1].extends || extensions.find(id, all[i + 1].code) == none)) {
          put_merged(piece.substr(at, 4));
          if (top[-1].id == all[i + 1].id) {  // by itself, and may begin a longer one
            --top;
            at += 1;
            i += 1;
          } else {
            at += 4;
            i += 2;
            continue;
          }
          from = at;
          id = all[i].id;
        }
      }
      at += all[i++].length;
      if (id == none) {
        put_merged(piece.substr(from, at - from));
        continue;
      }
      uint32_t node = id;
      size_t reached = at;
      for (size_t j = i, second = i; j < n; ++j) {
        if (j == second && !all[j].extends) break;
        const uint32_t entry = j == second && all[j].code < 0x10000 ? extensions.find_unfiltered(node, all[j].code)
                                                                    : extensions.find(node, all[j].code);
        if (entry == none) break;
        node = entry & (leads_on - 1);
        reached += all[j].length;
        if (node < trie_.tokens()) {
          id = node;
          at = reached;
          i = j + 1;
        }
        if (!(entry & leads_on)) break;
      }
      *top++ = {id, static_cast<uint32_t>(at - from)};
      pair_validity_.fetch(id);
    }
    out.resize(static_cast<size_t>(top - out.data()));
  }

  // ---- resolving them

  // The resolved tokens of a word; there is room for a token a byte.
  struct Chain {
    Symbol *begin, *end;
    bool empty() const { return begin == end; }
    size_t size() const { return static_cast<size_t>(end - begin); }
  };
  bool stays(const MergeTable& merges, const Chain& out, const Symbol& token) const {
    return out.empty() ? pair_validity_.surely_known(token.id) : stand(merges, out.end[-1].id, token.id);
  }

  // Goes on where candidate i, which begins at `at`, does not stand behind the resolved tokens: until the tokens end
  // where a candidate is valid, and i is the next. False: there are none of whole characters, or not soon; then all
  // is as before. No place is begun at twice, since the tokens resolved up to there would be the same.
  bool resumed(const MergeTable& merges, std::string_view piece, const Symbol* candidates, size_t& i, size_t& at,
               size_t& searched, Chain& out) const {
    constexpr size_t most_tried = 24;
    const size_t first = at, resolved = out.size();
    size_t next = i, met = at, least = resolved, tried = 0, here = at;
    Symbol taken[most_tried];  // of the resolved tokens, the last first
    size_t dead[most_tried], deads = 0;
    CharacterTrie::Path path;
    auto fetch = [&](uint32_t id) { pair_validity_.fetch(id); };
    trie_.path_of(piece.substr(here), path, fetch);
    size_t k = path.n > 0 ? path.n - 1 : 0;  // the longest does not stand
    for (;;) {
      bool stood = false;
      while (k > 0 && tried < most_tried) {
        const Symbol& token = path.token[--k];
        const size_t end = here + token.length;
        if (std::find(dead, dead + deads, end) != dead + deads) continue;
        ++tried;
        if (!stays(merges, out, token)) continue;
        stood = true;
        *out.end++ = token;
        here = end;
        break;
      }
      if (tried == most_tried) break;
      if (stood) {
        while (met < here) met += candidates[next++].length & ~sure;
        if (here > first && met == here) {
          i = next;
          at = here;
          searched += tried;
          return true;
        }
        trie_.path_of(piece.substr(here), path, fetch);
        k = path.n;
        continue;
      }
      if (out.empty() || deads == most_tried) break;
      dead[deads++] = here;
      const Symbol back = *--out.end;
      if (out.size() < least) {
        taken[resolved - out.size() - 1] = back;
        least = out.size();
      }
      here -= back.length;
      if (here < first) met = first, next = i;
      trie_.path_of(piece.substr(here), path, fetch);
      for (k = path.n; k > 0 && path.token[k - 1].length >= back.length;) --k;
    }
    searched += tried;
    out.end = out.begin + least;
    while (least < resolved) *out.end++ = taken[resolved - ++least];
    return false;
  }

  // Whether both are known and may stand beside each other.
  bool stand(const MergeTable& merges, uint32_t x, uint32_t y) const {
    return pair_validity_.surely_stands(x, y) || remembered(merges, x, y);
  }
  // The same where that is not seen at once.
  bool remembered(const MergeTable& merges, uint32_t x, uint32_t y) const {
    uint64_t pair = uint64_t{x} << 32 | y, kept = pair + 1;  // an empty entry is no pair
    constexpr uint64_t falls = uint64_t{1} << 63;
    std::atomic_ref cell(pair_entries_[pair_place(x, y)]);
    uint64_t found = cell.load(std::memory_order_relaxed);
    if ((found & ~falls) == kept) return !(found & falls);
    bool stands = pair_validity_.known(x) && pair_validity_.known(y) && pair_validity_.stands(merges, x, y);
    cell.store(stands ? kept : kept | falls, std::memory_order_relaxed);
    return stands;
  }
  // The tokens that so many bytes, at most `small`, merge to: often kept from before.
  size_t repaired(const Merger& merger, const ByteIds& byte_ids, std::string_view bytes, Symbol* out) const {
    constexpr int id_bits = 24;
    static_assert(RepairCache::longest < 1u << (31 - id_bits));
    RepairCache::Key key;
    uint64_t hash = 0;
    int32_t row[RepairCache::most_ids];
    const bool may_know = bytes.size() <= RepairCache::longest && trie_.tokens() < 1u << id_bits;
    size_t n = 0;
    if (may_know) {
      key = RepairCache::Key::of(bytes.data(), bytes.size());
      hash = key.hash();
      n = repairs_.find(key, hash, row);
      for (size_t i = 0; i < n; ++i) {
        uint32_t one = static_cast<uint32_t>(row[i]);
        out[i] = {one & ((1u << id_bits) - 1), one >> id_bits};
      }
      if (n) return n;
    }
    for (char b : bytes) out[n++] = {byte_ids[static_cast<unsigned char>(b)], 1};
    n = merger.linear(out, n);
    if (!may_know || n > RepairCache::most_ids) return n;
    for (size_t i = 0; i < n; ++i) row[i] = static_cast<int32_t>(out[i].length << id_bits | out[i].id);
    repairs_.put(key, hash, row, n);
    return n;
  }
  static size_t pair_place(uint32_t x, uint32_t y) { return ((uint64_t{x} << 32 | y) * golden) >> (64 - pair_bits); }

  PairValidity pair_validity_;
  CharacterTrie trie_;
  BigArray<uint64_t> pairs_;
  RepairCache repairs_;
  uint64_t* pair_entries_ = nullptr;
};

}  // namespace fasttoken
