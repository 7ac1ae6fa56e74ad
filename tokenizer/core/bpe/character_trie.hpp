// The tokens of whole characters: a trie from character to longer token.
//
//   characters_   character -> token
//   extensions_   (token or prefix, character) -> token or prefix
//
//   invariants   immutable after build()
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bpe/merging.hpp"
#include "bpe/wide_joins.hpp"
#include "errors.hpp"
#include "memory/table_array.hpp"
#include "text/utf8.hpp"
#include "unicode/paged_table.hpp"
#include "vocab/vocab.hpp"

namespace fasttoken {

// The longer tokens of a token: (node, character) -> node, in one hash table.
//
//   entries_  node and character in 40 bits, the node reached in 24; 0: free. Open addressing, at most 3/4 full; none
//             lies most_tried or more places behind its own
//   filter_   a bit for each entry, 5 bits or more an entry: most pairs asked for are not there
class Extensions {
 public:
  static constexpr uint32_t none = UINT32_MAX;
  static constexpr uint32_t leads_on = 1u << 23;  // of an entry: there are longer ones

  static uint64_t hash_of(uint32_t node, uint32_t c) { return (uint64_t{node} << 16 | c) * 0x9E3779B97F4A7C15u; }
  // Whether there may be an entry of this hash.
  bool may_be(uint64_t hash) const {
    size_t bit = filter_bit(hash);
    return filter_[bit / 64] >> (bit & 63) & 1;
  }
  // Requests the cache line of the entry; of the first entry where `extends` is false.
  void prefetch(uint64_t hash, bool extends) const { __builtin_prefetch(&entries_[extends ? place_of(hash) : 0]); }
  // The node, with leads_on or not.
  uint32_t find(uint32_t node, uint32_t c) const {
    if (c > 0xFFFF) return none;
    return may_be(hash_of(node, c)) ? find_unfiltered(node, c) : none;
  }
  // The same where the filter was asked; c < 0x10000.
  uint32_t find_unfiltered(uint32_t node, uint32_t c) const {
    const uint64_t key = uint64_t{node} << 16 | c, hash = hash_of(node, c);
    for (size_t i = place_of(hash);; i = (i + 1) & (entries_.size() - 1)) {
      uint64_t entry = entries_[i];
      if (entry == 0) return none;
      if (entry >> 24 == key) return static_cast<uint32_t>(entry & (2 * leads_on - 1));
    }
  }

  // An empty table with room for `most` entries; add() fills it and build() makes the smallest one that holds them.
  void reserve(size_t most) {
    made_.clear();
    entries_.assign(std::bit_ceil(most * 2 + 8), 0);
    filter_.assign(entries_.size() / 8, 0);
  }
  void add(uint32_t node, uint32_t c, uint32_t next) {
    made_.push_back((uint64_t{node} << 16 | c) << 24 | next);
    place(made_.back());
  }
  // `nodes`: all of them are below.
  void build(uint32_t nodes) {
    std::vector<bool> leads(nodes);
    for (uint64_t entry : made_) leads[entry >> 40] = true;
    entries_.assign(std::bit_ceil(made_.size() * 4 / 3 + 8), 0);
    filter_.assign(std::max<size_t>(1, entries_.size() / 16), 0);
    for (uint64_t entry : made_) place(entry | (leads[entry & (leads_on - 1)] ? leads_on : 0));
    made_ = {};
  }

  void tables(auto& io) { io(entries_, filter_); }

 private:
  static constexpr size_t most_tried = 4096;
  size_t place_of(uint64_t hash) const { return hash >> (std::countl_zero(entries_.size()) + 1); }
  size_t filter_bit(uint64_t hash) const { return hash >> 20 & (filter_.size() * 64 - 1); }
  void place(uint64_t entry) {
    const uint64_t hash = hash_of(static_cast<uint32_t>(entry >> 40), static_cast<uint32_t>(entry >> 24 & 0xFFFF));
    const size_t bit = filter_bit(hash);
    filter_[bit / 64] |= uint64_t{1} << (bit & 63);
    size_t i = place_of(hash);
    for (size_t tried = 0; entries_[i]; i = (i + 1) & (entries_.size() - 1))
      if (++tried == most_tried) throw FileError("model.vocab", "beginnings of its tokens share a hash");
    entries_[i] = entry;
  }

  TableArray<uint64_t> entries_, filter_;
  std::vector<uint64_t> made_;  // while it is filled
};

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
    std::vector<std::pair<uint32_t, uint32_t>> longer;  // in bytes, and the token
    for (uint32_t id = 0; id < vocab.end(); ++id) {
      if (!vocab.has(id)) continue;
      const bool whole = whole_characters(vocab, id, bytes);
      wide_joins_.add(bytes);
      if (!whole || !known(id)) continue;
      if (utf8_length(static_cast<unsigned char>(bytes[0])) == bytes.size())
        characters_.set(utf8_at(bytes.data()), id);
      else if (may_extend(bytes))
        longer.push_back({static_cast<uint32_t>(bytes.size()), id});
    }
    size_t nodes = 0;
    for (auto [size, id] : longer) nodes += size / 2;
    if (vocab.end() + nodes >= leads_on) longer.clear();  // they are candidates alone: without them words are merged
    std::sort(longer.begin(), longer.end());              // a prefix comes before the longer tokens
    extensions_.reserve(nodes);
    extend_all(vocab, longer, byte_ids);
    wide_joins_.build();
  }

  const Extensions& extensions() const { return extensions_; }
  const WideJoins& wide_joins() const { return wide_joins_; }
  // The token of a character, or none.
  uint32_t character(uint32_t c) const { return characters_[c]; }
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
    node = blank ? blank_ : characters_[node];
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

  void tables(auto& io) { io(characters_, extensions_, wide_joins_, blank_, tokens_); }

 private:
  // The bytes of a token that has others than ASCII, else none; whether they are whole characters.
  static bool whole_characters(const Vocab& vocab, uint32_t id, std::string& bytes) {
    std::string_view name = vocab.text(id), blank = "\xC4\xA0";  // a blank's name, beside which most are ASCII
    const bool ascii = is_ascii(name.starts_with(blank) ? name.substr(blank.size()) : name);
    const auto decoded = ascii ? std::nullopt : byte_level_decode(name, bytes);
    bytes.resize(decoded && !is_ascii(*decoded) ? decoded->size() : 0);
    return !bytes.empty() && utf8_invalid_at(bytes) == std::string_view::npos;
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
    std::string bytes;
    for (auto [size, id] : longer) {
      if (!whole_characters(vocab, id, bytes)) continue;
      const char *p = bytes.data(), *end = p + bytes.size();
      uint32_t c = utf8_next(p), node = c < 0x80 ? byte_ids[c] : characters_[c];
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

  PagedTable<uint32_t> characters_{none};  // beyond ASCII, that come out of their bytes
  Extensions extensions_;
  WideJoins wide_joins_;
  uint32_t blank_ = none;  // the token of a blank
  uint32_t tokens_ = 0;
};

}  // namespace fasttoken
