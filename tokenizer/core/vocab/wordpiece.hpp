// WordPiece: the longest token at the start of a word, then the longest continuation, and so on; and
// WordLevel: the word as a whole.
//
//   trie   (node, byte) -> node in one open-addressed table; token_[node] or none
//          root 0 for the start of a word, root 1 for the rest of a word (tokens with the prefix, without it)
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bpe/bpe.hpp"

namespace fasttoken {

class WordPiece {
 public:
  std::string unknown, prefix;
  uint64_t max_characters = 100;
  bool whole_words = false;  // WordLevel
  static constexpr size_t most_nodes = size_t{1} << 23;

  // False: the trie might have more than `most_nodes`.
  bool finish_loading(const Vocab& vocab) {
    unknown_ = vocab.find(unknown).value_or(none);
    if (whole_words) return true;
    tokens_.assign(2, none);
    entries_.assign(1 << 16, {empty, 0});
    std::vector<WordTable::Word> words;
    for (uint32_t id = 0; id < vocab.end(); ++id) {
      if (!vocab.has(id)) continue;
      std::string_view t = vocab.text(id);
      if (tokens_.size() + 2 * t.size() > most_nodes) return false;  // it is inserted below one root or both
      if (!t.empty()) insert(0, t, id);
      if (!t.empty() && t.size() <= WordTable::longest && utf8_count(t) <= max_characters)
        words.push_back({WordKey::of(t.data(), t.size()), id});
      if (t.size() > prefix.size() && t.starts_with(prefix)) insert(1, t.substr(prefix.size()), id);
    }
    words_.build(words, vocab.end());
    return true;
  }

  void tables(auto& io) { io(words_, tokens_, entries_, unknown_); }

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
    }
    if (n > max_characters && utf8_count(word) > max_characters) return put_unknown(n, out);
    for (size_t at = 0; at < n;) {
      uint32_t node = at ? 1 : 0, best = none;
      size_t end = at;
      for (size_t i = at; i < n && (node = step(node, static_cast<unsigned char>(word[i]))); ++i) {
        if (tokens_[node] == none) continue;
        best = tokens_[node];
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
  static constexpr uint64_t empty = UINT64_MAX;
  struct Entry {
    uint64_t key, to;  // two of a size: no bytes between them that a file of tables would get unwritten
  };

  void put_unknown(size_t n, std::vector<Token>& out) const {
    if (unknown_ == none) throw TextError("the unknown token " + unknown + " is not in the vocabulary", 0);
    out.push_back({unknown_, 0, static_cast<uint32_t>(n)});
  }

  static size_t hash(uint64_t key) {
    uint64_t h = key * 0x9E3779B97F4A7C15u;
    return static_cast<size_t>(h ^ h >> 29);
  }
  uint32_t step(uint32_t node, unsigned char byte) const {
    uint64_t key = uint64_t{node} << 8 | byte;
    for (size_t i = hash(key) & (entries_.size() - 1);; i = (i + 1) & (entries_.size() - 1)) {
      if (entries_[i].key == key) return static_cast<uint32_t>(entries_[i].to);
      if (entries_[i].key == empty) return 0;
    }
  }
  void link(uint64_t key, uint64_t to) {
    size_t i = hash(key) & (entries_.size() - 1);
    while (entries_[i].key != empty) i = (i + 1) & (entries_.size() - 1);
    entries_[i] = {key, to};
  }
  void insert(uint32_t node, std::string_view text, uint32_t id) {
    for (unsigned char b : text) {
      uint32_t next = step(node, b);
      if (!next) {
        if (tokens_.size() * 2 > entries_.size()) {
          std::vector<Entry> old(entries_.size() * 2, {empty, 0});
          entries_.swap(old);
          for (const Entry& s : old)
            if (s.key != empty) link(s.key, s.to);
        }
        next = static_cast<uint32_t>(tokens_.size());
        tokens_.push_back(none);
        link(uint64_t{node} << 8 | b, next);
      }
      node = next;
    }
    tokens_[node] = id;
  }

  WordTable words_;  // tokens that are whole words, of at most 15 bytes
  TableArray<uint32_t> tokens_;
  TableArray<Entry> entries_;
  uint32_t unknown_ = none;
};

}  // namespace fasttoken
