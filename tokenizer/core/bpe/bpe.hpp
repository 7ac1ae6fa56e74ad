// Byte pair encoding over ids.
//
//   first symbols   from bytes (the pre-tokenizer ends in ByteLevel) or from characters, with the file's prefix and
//                   suffix. HF's treatment of unknown ones, in its order: bytes if the file falls back to bytes and
//                   has them all; else the unknown token, fused or not; else nothing at all, and then the character
//                   counts in no offset
//   words           those that come out as one token are looked up whole. A piece of characters is cut first where no
//                   merge can reach across (joins.hpp)
//   others          beyond ASCII by longest match (longest_match.hpp), where that holds; else merged (merging.hpp)
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bpe/joins.hpp"
#include "bpe/longest_match.hpp"
#include "bpe/merge_batch.hpp"
#include "bpe/merging.hpp"
#include "bpe/pair_validity.hpp"
#include "cache/word_table.hpp"
#include "text/utf8.hpp"
#include "vocab/vocab.hpp"

namespace fasttoken {

// A token and the bytes of the piece it stands for.
struct Token {
  uint32_t id, begin, end;
};

struct BpeScratch {
  ScratchVector<Symbol> symbols;  // their lengths in bytes
  MergeScratch merging;
  LongestMatchScratch matching, together;  // of one word, and of several
  MergeBatch batch;                        // of several
  ScratchVector<int32_t> rows;             // of cached words
  std::string text, spaced;
};

struct BpeConfig {
  std::string prefix, suffix;  // of the file; empty when it has none
  std::optional<uint32_t> unknown;
  std::string unknown_text;
  bool wants_unknown = false;  // the file names one, known to the vocabulary or not
  bool fuse_unknown = false, byte_fallback = false, ignore_merges = false;
};

class Bpe {
 public:
  BpeConfig config;
  MergeTable merges;
  ScratchVector<Merge> in_order;  // all merges by rank, until finish_loading()

  // Before the rest.
  void index_bytes(const Vocab& vocab) {
    for (size_t b = 0; b < 256; ++b)
      for (size_t variant = 0; variant < 4; ++variant) {
        std::string text;
        utf8_append(text, byte_level_char(static_cast<unsigned char>(b)));
        byte_ids_[variant][b] = vocab.find(dressed(text, static_cast<int>(variant))).value_or(none);
      }
  }
  // bytes: pieces are raw bytes that stand for the byte-level alphabet.
  void finish_loading(const Vocab& vocab, bool bytes) {
    bytes_ = bytes;
    fallback_ = vocab.byte_tokens();
    falls_back_ = config.byte_fallback && std::find(fallback_.begin(), fallback_.end(), none) == fallback_.end();
    plain_ = config.prefix.empty() && config.suffix.empty();
    complete_ = bytes && knows_all_bytes();
    if (!bytes) index_characters(vocab);
    if (!bytes && plain_ && !config.ignore_merges) find_joins(vocab);
    if (complete_ && plain_) longest_match_.build(merges, in_order, vocab, byte_ids_[0]);
    index_words(vocab);
    in_order = {};
  }

  // Whether a character without a token becomes its bytes.
  bool falls_back() const { return falls_back_; }
  // Whether every byte has a token wherever it stands in a word. Only then may pieces be read as bytes:
  // HF's offsets of omitted characters depend on the alphabet's spelling.
  bool knows_all_bytes() const {
    return std::ranges::none_of(byte_ids_, [](const auto& table) { return std::ranges::count(table, none) != 0; });
  }

  size_t cache_bytes() const { return longest_match_.cache_bytes(); }
  // Made by finish_loading() and the reading of merges; the configuration is read again from the file's own words.
  void tables(auto& io) {
    io(merges, fallback_, characters_, longest_match_, words_, short_words_, spaced_words_, joins_, bytes_, plain_,
       complete_, falls_back_);
  }

  // Whether a word is read as bytes that each have a token, with any neighbours.
  bool plain_bytes() const { return complete_ && plain_; }
  const WordTable& words() const { return short_words_; }
  // Where pieces are cut before merging, if built(); spaced_words() then has the words of one token, with a space in
  // the place of U+2581.
  const Joins& joins() const { return joins_; }
  const WideJoins& wide_joins() const { return longest_match_.wide_joins(); }
  const WordTable& spaced_words() const { return spaced_words_; }
  static constexpr std::string_view mark = "\xE2\x96\x81";  // U+2581
  // Whether the tokens of a word that is none by itself come from the longest matches (longest_match.hpp), so that
  // several words may be tokenized together: read_match() each, match() all, then out() of each as encode() would
  // call it.
  bool matches_longest(std::string_view piece) const { return longest_match_.takes(piece) && !long_token(piece); }
  // Whether such a word may be merged together with others: add_to() a batch, which a batch_merger() then merges.
  bool merges_bytes(std::string_view piece) const {
    return plain_bytes() && piece.size() <= MergeBatch::longest && !long_token(piece);
  }
  void add_to(MergeBatch& batch, std::string_view piece) const { batch.add(piece, byte_ids_[0].data()); }
  // The same of a part of a piece between cuts, whose spaces stand for U+2581. False: it is too long, or has a
  // character that is unknown, and was not added.
  bool add_spaced(MergeBatch& batch, std::string_view part) const {
    uint32_t ids[MergeBatch::longest];
    size_t n = 0;
    for (const char *p = part.data(), *end = p + part.size(); p < end;) {
      const char* const from = p;
      const uint32_t c = utf8_next(p), id = characters_[c == ' ' ? Joins::mark : c];
      const bool known = id != none;
      const std::string_view bytes = c == ' ' ? mark : std::string_view(from, static_cast<size_t>(p - from));
      if (n + (known ? 1 : bytes.size()) > MergeBatch::longest || !(known || falls_back_)) return false;
      if (known)
        ids[n++] = id;
      else
        for (unsigned char b : bytes) ids[n++] = fallback_[b];
    }
    batch.add(n, [&](size_t i) { return ids[i]; });
    return true;
  }
  void read_match(std::string_view piece, BpeScratch& s) const {
    longest_match_.read(piece, byte_ids_[0], s.together);
  }
  void match(BpeScratch& s) const { longest_match_.match(Merger(merges), byte_ids_[0], &short_words_, s.together); }
  template <class Out>
  void resolve_match(const Vocab& vocab, size_t word, BpeScratch& s, Out&& out) const {
    if (!longest_match_.resolve(Merger(merges), merges, byte_ids_[0], word, s.together, s.merging))
      return merge_all(vocab, s.together.words[word].text, s, out);
    for (const Symbol& token : s.merging.chain) out(token.id, token.length);
  }
  // Calls out(id, length) for each token of the piece, which is not empty.
  template <class Out>
  void encode(const Vocab& vocab, std::string_view piece, BpeScratch& s, Out&& out) const {
    if (auto id = long_token(piece)) return out(*id, static_cast<uint32_t>(piece.size()));
    if (!joins_.built()) return encode_word(vocab, piece, s, out);
    while (!piece.empty()) {
      size_t end = joins_.first_cut(piece, false);
      encode_word(vocab, piece.substr(0, end), s, out);
      piece.remove_prefix(end);
    }
  }

 private:
  static constexpr uint32_t none = UINT32_MAX;
  static constexpr size_t small = Merger::linear_limit;

  // The token that a word too long for the table is, where merges are ignored for words of the vocabulary.
  std::optional<uint32_t> long_token(std::string_view piece) const {
    if (!config.ignore_merges || piece.size() <= WordTable::longest) return std::nullopt;
    return words_.find(piece);
  }

  template <class Out>
  void encode_word(const Vocab& vocab, std::string_view piece, BpeScratch& s, Out&& out) const {
    if (piece.size() <= WordTable::longest) {
      uint32_t id = short_words_.find(piece);
      if (id != none) return out(id, static_cast<uint32_t>(piece.size()));
    }
    merge_word(vocab, piece, s, out);
  }

  template <class Out>
  void merge_word(const Vocab& vocab, std::string_view piece, BpeScratch& s, Out&& out) const {
    if (!longest_match_.takes(piece) ||
        !longest_match_.encode(Merger(merges), merges, byte_ids_[0], &short_words_, piece, s.matching, s.merging))
      return merge_all(vocab, piece, s, out);
    for (const Symbol& token : s.merging.chain) out(token.id, token.length);
  }

  // From the first symbols on; bytes of the alphabet need not be a text here.
  template <class Out>
  void merge_all(const Vocab& vocab, std::string_view piece, BpeScratch& s, Out&& out) const {
    const Merger merger(merges);
    first_symbols(vocab, piece, s);
    const Symbol* symbol = s.symbols.data();
    size_t n = s.symbols.size();
    if (n <= small) {
      n = merger.linear(s.symbols.data(), n);
      for (size_t i = 0; i < n; ++i) out(symbol[i].id, symbol[i].length);
      return;
    }
    merger.windows(symbol, n, s.merging);
    for (const Symbol& token : s.merging.chain) {
      uint32_t length = 0;
      for (uint32_t i = 0; i < token.length; ++i) length += symbol++->length;
      out(token.id, length);
    }
  }

  void find_joins(const Vocab& vocab) {
    const bool everywhere = falls_back_;
    // A space may be unknown itself; unknown characters that become nothing let merges reach across them.
    if (!everywhere && (!vocab.find(mark) || !config.wants_unknown)) return;
    std::vector<bool> made(vocab.end()), apart(vocab.end());
    for (uint32_t id : fallback_)
      if (id != none) apart[id] = true;
    if (config.unknown) apart[*config.unknown] = true;
    for (const Merge& m : in_order) {
      if (apart[m.a] || apart[m.b]) return;
      made[m.id] = true;
    }
    joins_.build(everywhere, [&](auto&& token) {
      for (uint32_t id = 0; id < vocab.end(); ++id)
        if (made[id]) token(vocab.text(id));
    });
  }

  // Variant bit 0: not the first character; bit 1: the last.
  std::string dressed(std::string_view text, int variant) const {
    std::string out;
    if (variant & 1) out += config.prefix;
    out += text;
    if (variant & 2) out += config.suffix;
    return out;
  }

  void index_characters(const Vocab& vocab) {
    for (uint32_t id = 0; id < vocab.end(); ++id)
      if (is_character(vocab, id)) characters_.set(utf8_at(vocab.text(id).data()), id);
  }
  static bool is_character(const Vocab& vocab, uint32_t id) {
    if (!vocab.has(id)) return false;
    const std::string_view t = vocab.text(id);
    return !t.empty() && utf8_length(static_cast<unsigned char>(t[0])) == t.size();
  }

  // Words that are surely one token go into the tables as they are; the others are merged for it, many together.
  void index_words(const Vocab& vocab) {
    const bool cuts = joins_.built();
    if (config.ignore_merges) words_.reserve(vocab.size(), vocab.size() * 8);
    // The words as they are, and behind them those with spaces, each at most once a token.
    ScratchVector<WordTable::Word> short_words((cuts ? 2 : 1) * vocab.size());
    WordTable::Word *const spaced_words = short_words.data() + (cuts ? vocab.size() : 0),
                           *short_end = short_words.data(), *spaced_end = spaced_words;
    const auto add = [&](std::string_view word, uint32_t id) {
      if (word.size() <= WordTable::longest) *short_end++ = {WordKey::of(word.data(), word.size()), id};
      std::array<char, WordTable::longest> room;
      if (size_t n = cuts && word.find(' ') == word.npos ? spaced(word, room) : 0)
        *spaced_end++ = {WordKey::of(room.data(), n), id};
    };
    PairValidity of_characters;
    if (!bytes_ && plain_ && !config.ignore_merges)
      of_characters.build(merges, in_order, vocab.end(), [&](uint32_t id) { return is_character(vocab, id); });
    struct Word {
      size_t from, size;
    };
    constexpr size_t enough = 256;
    std::vector<Word> words;
    std::string room, text;
    BpeScratch s;
    MergeBatch batch;
    const MergeWords merge = batch_merger(best_isa());
    auto add_words = [&] {
      merge(merges, batch);
      for (size_t i = 0; i < words.size(); ++i)
        if (batch[i].size() == 1) add(std::string_view(text).substr(words[i].from, words[i].size), batch[i][0].id);
      words.clear();
      text.clear();
      batch.clear();
    };
    for (uint32_t id = 0; id < vocab.end(); ++id) {
      if (!vocab.has(id)) continue;
      std::string_view t = vocab.text(id);
      if (bytes_) {
        const auto bytes = byte_level_decode(t, room);
        if (!bytes) continue;
        t = *bytes;
      }
      if (t.empty()) continue;
      if (config.ignore_merges) {
        add(t, id);
        if (t.size() > WordTable::longest) words_.add(t, id);
        continue;
      }
      if (config.wants_unknown && !config.unknown) continue;
      if (longest_match_.known(id) || of_characters.known(id)) {
        add(t, id);  // there is no cut within it, since a merge made it
        continue;
      }
      std::array<char, WordTable::longest> spaces;
      if (cuts ? spaced(t, spaces) == 0 || joins_.first_cut(t, false) != t.size() : t.size() > WordTable::longest)
        continue;
      first_symbols(vocab, t, s);
      size_t length = 0;
      for (const Symbol& symbol : s.symbols) length += symbol.length;
      if (length != t.size() || s.symbols.size() > MergeBatch::longest) continue;
      batch.add(s.symbols.size(), [&](size_t i) { return s.symbols[i].id; });
      words.push_back({text.size(), t.size()});
      text += t;
      if (words.size() == enough) add_words();
    }
    add_words();
    short_words_.build({short_words.data(), short_end}, vocab.end());
    if (cuts) spaced_words_.build({spaced_words, spaced_end}, vocab.end());
  }

  // The text with a space in the place of each U+2581, and its size; 0 if it is too long.
  static size_t spaced(std::string_view text, std::array<char, WordTable::longest>& out) {
    size_t n = 0;
    for (size_t i = 0; i < text.size(); ++n) {
      if (n == out.size()) return 0;
      const bool is_mark = text[i] == mark[0] && text.substr(i, mark.size()) == mark;
      out[n] = is_mark ? ' ' : text[i];
      i += is_mark ? mark.size() : 1;
    }
    return n;
  }

  uint32_t find_first(const Vocab& vocab, std::string_view text, int variant, BpeScratch& s) const {
    if (bytes_) return byte_ids_[static_cast<size_t>(variant)][static_cast<unsigned char>(text[0])];
    bool bare = (!(variant & 1) || config.prefix.empty()) && (!(variant & 2) || config.suffix.empty());
    if (bare) return characters_[utf8_at(text.data())];
    s.text = dressed(text, variant);
    return vocab.find(s.text).value_or(none);
  }

  void first_symbols(const Vocab& vocab, std::string_view piece, BpeScratch& s) const {
    auto& symbols = s.symbols;
    symbols.clear();
    symbols.reserve(piece.size());
    if (complete_) {
      for (size_t i = 0; i < piece.size(); ++i)
        symbols.push_back(
            {byte_ids_[(i > 0 ? 1 : 0) | (i + 1 == piece.size() ? 2 : 0)][static_cast<unsigned char>(piece[i])], 1});
      return;
    }
    Symbol unknown{none, 0};
    for (size_t at = 0; at < piece.size();) {
      uint32_t n = bytes_ ? 1 : utf8_length(static_cast<unsigned char>(piece[at]));
      std::string_view c = piece.substr(at, n);
      int variant = (at > 0 ? 1 : 0) | (at + n == piece.size() ? 2 : 0);
      at += n;
      uint32_t id = find_first(vocab, c, variant, s);
      if (id != none) {
        if (unknown.id != none) symbols.push_back(unknown);
        unknown.id = none;
        symbols.push_back({id, n});
        continue;
      }
      if (config.byte_fallback && fall_back(c, variant, symbols)) continue;
      if (!config.wants_unknown) continue;
      if (!config.unknown)
        throw TextError("the unknown token " + config.unknown_text + " is not in the vocabulary", at);
      if (unknown.id != none && config.fuse_unknown) {
        unknown.length += n;
      } else {
        if (unknown.id != none) symbols.push_back(unknown);
        unknown = {*config.unknown, n};
      }
    }
    if (unknown.id != none) symbols.push_back(unknown);
  }

  bool fall_back(std::string_view c, int variant, ScratchVector<Symbol>& symbols) const {
    std::string text;
    if (bytes_)
      utf8_append(text, byte_level_char(static_cast<unsigned char>(c[0])));
    else
      text = c;
    text = dressed(text, variant);
    for (unsigned char b : text)
      if (fallback_[b] == none) return false;
    for (unsigned char b : text) symbols.push_back({fallback_[b], 1});
    return true;
  }

  std::array<std::array<uint32_t, 256>, 4> byte_ids_{};
  std::array<uint32_t, 256> fallback_{};
  PagedTable<uint32_t> characters_{none};  // tokens, of a file whose first symbols are characters
  LongestMatch longest_match_;
  Vocab words_;  // of more than 16 bytes, if merges are ignored for words of the vocabulary
  WordTable short_words_, spaced_words_;
  Joins joins_;
  bool bytes_ = false, plain_ = true, complete_ = false;
  bool falls_back_ = false;  // to bytes, which all have tokens
};

}  // namespace fasttoken
