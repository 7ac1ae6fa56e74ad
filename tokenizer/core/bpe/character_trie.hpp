// The tokens of whole characters: a trie from character to longer token.
//
//   characters_   character -> token                                  character_ids.hpp
//   extensions_   (token or prefix, character) -> token or prefix     extensions.hpp
//
//   invariants   immutable after build()
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bpe/character_ids.hpp"
#include "bpe/extensions.hpp"
#include "bpe/merging.hpp"
#include "text/bytelevel.hpp"
#include "text/utf8.hpp"
#include "vocab/vocab.hpp"

namespace fasttoken {

class CharacterTrie {
 public:
  static constexpr uint32_t none = UINT32_MAX;
  static constexpr uint32_t leads_on = Extensions::leads_on;
  using ByteIds = std::array<uint32_t, 256>;

  // The tokens of whole characters that the text begins with, the shortest first; those behind the first few are left
  // out.
  struct Path {
    static constexpr size_t most = 8;
    Symbol token[most];
    size_t n = 0;
  };

  // known(id): whether the token comes out of its own bytes.
  template <class Known>
  void build(const Vocab& vocab, const ByteIds& byte_ids, Known&& known) {
    tokens_ = vocab.end();
    blank_ = byte_ids[' '];
    std::string bytes;
    characters_.clear();
    std::vector<std::pair<uint32_t, uint32_t>> longer;  // in bytes, and the token
    for (uint32_t id = 0; id < vocab.end(); ++id) {
      if (!vocab.has(id) || !known(id) || !whole_characters(vocab, id, bytes)) continue;
      if (utf8_length(static_cast<unsigned char>(bytes[0])) == bytes.size())
        characters_.set(utf8_at(bytes.data()), id);
      else if (may_extend(bytes))
        longer.push_back({static_cast<uint32_t>(bytes.size()), id});
    }
    if (vocab.end() >= leads_on / 2) longer.clear();
    std::sort(longer.begin(), longer.end());  // a prefix comes before the longer tokens
    extend_all(vocab, longer, byte_ids);
  }

  const Extensions& extensions() const { return extensions_; }
  // The token of a character, or none.
  uint32_t character(uint32_t c) const { return characters_.find(c); }
  // How many tokens there are: nodes from here on are prefixes and no tokens.
  uint32_t tokens() const { return tokens_; }

  // Calls met(token) for each token of the path.
  template <class Met>
  void path_of(std::string_view text, Path& path, Met&& met) const {
    path.n = 0;
    const char *p = text.data(), *end = p + text.size();
    if (p == end || (*p != ' ' && static_cast<unsigned char>(*p) < 0xC0)) return;
    const bool blank = *p == ' ';
    uint32_t node = utf8_next(p);
    node = blank ? blank_ : characters_.find(node);
    for (uint32_t entry = node == none ? none : node | leads_on; entry != none;) {
      if (node < tokens_) {
        path.token[path.n++] = {node, static_cast<uint32_t>(p - text.data())};
        met(node);
      }
      if (p == end || path.n == Path::most || !(entry & leads_on)) return;
      entry = extensions_.find(node, utf8_next(p));
      node = entry & (leads_on - 1);
    }
  }

  // Whether a character is of a script of its own: of three bytes, or of two and no letter of Latin with a mark.
  static bool is_apart(unsigned char lead) { return lead >= 0xCE && lead < 0xF0; }

  size_t bytes() const { return characters_.bytes() + extensions_.bytes(); }
  template <class Self, class Io>
  static void tables(Self& self, Io& io) {
    CharacterIds::tables(self.characters_, io);
    Extensions::tables(self.extensions_, io);
    io.value(self.blank_);
    io.value(self.tokens_);
  }

 private:
  // The bytes of a token, if they are whole characters and not ASCII alone.
  static bool whole_characters(const Vocab& vocab, uint32_t id, std::string& bytes) {
    std::string_view name = vocab.text(id), blank = "\xC4\xA0";  // a blank's name, beside which most are ASCII
    if (is_ascii(name.starts_with(blank) ? name.substr(blank.size()) : name)) return false;
    bytes.clear();
    return byte_level_decode(name, bytes) && !is_ascii(bytes) && utf8_invalid_at(bytes) == std::string_view::npos;
  }
  // Behind the first character only those of scripts of their own, or a blank and one character: few enough to be
  // kept.
  static bool may_extend(std::string_view bytes) {
    if (bytes[0] == ' ' && bytes.size() <= 3) return true;
    for (size_t i = utf8_length(static_cast<unsigned char>(bytes[0])); i < bytes.size();) {
      const unsigned char lead = static_cast<unsigned char>(bytes[i]);
      if (!is_apart(lead)) return false;
      i += utf8_length(lead);
    }
    return true;
  }
  void extend_all(const Vocab& vocab, const std::vector<std::pair<uint32_t, uint32_t>>& longer,
                  const ByteIds& byte_ids) {
    uint32_t fresh = tokens_;
    size_t most = 0;
    for (auto [size, id] : longer) most += size / 2;
    extensions_.reserve(most);
    std::string bytes;
    for (auto [size, id] : longer) {
      if (!whole_characters(vocab, id, bytes)) continue;
      const char *p = bytes.data(), *end = p + bytes.size();
      uint32_t c = utf8_next(p), node = c < 0x80 ? byte_ids[c] : characters_.find(c);
      while (node != none && p < end) {
        c = utf8_next(p);
        uint32_t next = extensions_.find(node, c);
        if (next == none) {
          next = p == end ? id : fresh++;
          extensions_.add(node, c, next);
        }
        node = next;
      }
    }
    extensions_.build(fresh);
  }

  CharacterIds characters_;  // beyond ASCII, that come out of their bytes
  Extensions extensions_;
  uint32_t blank_ = none;  // the token of a blank
  uint32_t tokens_ = 0;
};

}  // namespace fasttoken
