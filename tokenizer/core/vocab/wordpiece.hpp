// WordPiece: the longest token at the start of a word, then the longest continuation, and so on; and
// WordLevel: the word as a whole.
//
//   starts_   all tokens, for the start of a word        rests_   those with the prefix, without it, for its rest
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bpe/bpe.hpp"
#include "vocab/byte_trie.hpp"

namespace fasttoken {

class WordPiece {
 public:
  std::string unknown, prefix;
  uint64_t max_characters = 100;
  bool whole_words = false;  // WordLevel

  // False: a trie would be too large.
  bool finish_loading(const Vocab& vocab) {
    unknown_ = vocab.find(unknown).value_or(none);
    if (whole_words) return true;
    ByteTrie::Entries starts, rests;
    std::vector<WordTable::Word> words;
    for (uint32_t id = 0; id < vocab.end(); ++id) {
      if (!vocab.has(id) || vocab.text(id).empty()) continue;
      std::string_view t = vocab.text(id);
      starts.push_back({t, id});
      if (t.size() <= WordTable::longest && utf8_count(t) <= max_characters)
        words.push_back({WordKey::of(t.data(), t.size()), id});
      if (t.size() > prefix.size() && t.starts_with(prefix)) rests.push_back({t.substr(prefix.size()), id});
    }
    words_.build(words, vocab.end());
    return vocab.end() <= ByteTrie::none && starts_.build(std::move(starts)) == ByteTrie::Built::yes &&
           rests_.build(std::move(rests)) == ByteTrie::Built::yes;
  }

  void tables(auto& io) { io(words_, starts_, rests_, unknown_); }

  // Appends the tokens of the word, which is not empty.
  void encode(const Vocab& vocab, std::string_view word, std::vector<Token>& out) const {
    size_t before = out.size(), n = word.size();
    if (whole_words) {
      auto id = vocab.find(word);
      return id ? out.push_back({*id, 0, static_cast<uint32_t>(n)}) : put_unknown(n, out);
    }
    if (n <= WordTable::longest) {
      uint32_t id = words_.find(word);
      if (id != WordTable::none) return out.push_back({id, 0, static_cast<uint32_t>(n)});
      if (utf8_length(static_cast<unsigned char>(word[0])) == n) return put_unknown(n, out);
    }
    if (n > max_characters && utf8_count(word) > max_characters) return put_unknown(n, out);
    for (size_t at = 0; at < n;) {
      ByteTrie::Walk walk = (at ? rests_ : starts_).walk();
      uint32_t best = none;
      size_t end = at;
      for (size_t i = at; i < n && walk.step(word[i]); ++i) {
        if (walk.id == ByteTrie::none) continue;
        best = walk.id;
        end = i + 1;
      }
      if (best == none) {
        out.resize(before);
        return put_unknown(n, out);
      }
      out.push_back({best, static_cast<uint32_t>(at), static_cast<uint32_t>(end)});
      at = end;
    }
  }

 private:
  static constexpr uint32_t none = UINT32_MAX;

  void put_unknown(size_t n, std::vector<Token>& out) const {
    if (unknown_ == none) throw TextError("the unknown token " + unknown + " is not in the vocabulary", 0);
    out.push_back({unknown_, 0, static_cast<uint32_t>(n)});
  }

  WordTable words_;  // tokens that are whole words, of at most 15 bytes
  ByteTrie starts_, rests_;
  uint32_t unknown_ = none;
};

}  // namespace fasttoken
