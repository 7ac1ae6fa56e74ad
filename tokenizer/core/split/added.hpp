// The added tokens of a file, and finding them in a text in one pass.
//
//   Up to four possible first bytes are looked for with memchr. Most contents are known by their first and last eight
//   bytes (wholes_), without a walk through the trie
//
//   Leftmost start, then longest, then first in the file: as HF's automaton has it. A match that its flags
//   discard is skipped together with its text, and the search goes on behind it (also as HF has it).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "encoded.hpp"
#include "unicode/unicode.hpp"
#include "vocab/byte_trie.hpp"

namespace fasttoken {

class AddedMatcher {
 public:
  struct Hit {
    uint32_t begin, end;
    int32_t token;  // index of the AddedToken
  };

  // Bytes of a content. A search walks from each place of a text, so a text may cost that many steps a byte.
  static constexpr size_t longest = 512;

  // Of two equal contents the first counts; the value is the index to report. False: they cannot be held.
  bool build(const std::vector<std::pair<std::string, int32_t>>& contents) {
    ByteTrie::Entries entries;
    for (auto& [content, token] : contents) {
      entries.push_back({content, static_cast<uint32_t>(token)});
      bool& begins = begins_[static_cast<unsigned char>(content[0])];
      if (!begins) firsts_ += content[0];
      begins = true;
    }
    index_wholes(contents);
    return trie_.build(std::move(entries)) == ByteTrie::Built::yes;
  }

  bool empty() const { return firsts_.empty(); }
  // False: a text, which is short, has none of the first bytes.
  bool may_be_in(std::string_view text) const {
    bool any = text.size() > 16;
    for (size_t i = 0; !any && i < text.size(); ++i) any = begins_[static_cast<unsigned char>(text[i])];
    return any;
  }

  // The search in one text.
  class Search {
   public:
    Search(const AddedMatcher& matcher, std::string_view text) : m_(matcher), text_(text) {}

    // The next match at or after `at`, which is not before the last one's; token -1 when there is none.
    Hit next(size_t at) {
      const size_t n = text_.size();
      for (; (at = candidate(at)) < n; ++at) {
        if (const Whole* whole = m_.whole_at(text_.data() + at, n - at))
          return {static_cast<uint32_t>(at), static_cast<uint32_t>(at + whole->size), whole->token};
        int32_t best = -1;
        size_t best_end = at;
        ByteTrie::Walk walk = m_.trie_.walk();
        for (size_t i = at; i < n && walk.step(text_[i]); ++i) {
          if (walk.id == ByteTrie::none) continue;
          best = static_cast<int32_t>(walk.id);
          best_end = i + 1;
        }
        if (best >= 0) return {static_cast<uint32_t>(at), static_cast<uint32_t>(best_end), best};
      }
      return {0, 0, -1};
    }

   private:
    static constexpr size_t few = 4;

    // Where a possible first byte is, from `at` on.
    size_t candidate(size_t at) {
      const size_t n = text_.size(), kinds = m_.firsts_.size();
      if (kinds > few) {
        while (at < n && !m_.begins_[static_cast<unsigned char>(text_[at])]) ++at;
        return at;
      }
      size_t least = n;
      for (size_t k = 0; k < kinds; ++k) {
        if (!looked_[k] || seen_[k] < at) {
          const void* found = at < n ? std::memchr(text_.data() + at, m_.firsts_[k], n - at) : nullptr;
          seen_[k] = found ? static_cast<size_t>(static_cast<const char*>(found) - text_.data()) : n;
          looked_[k] = true;
        }
        least = std::min(least, seen_[k]);
      }
      return least;
    }

    const AddedMatcher& m_;
    std::string_view text_;
    size_t seen_[few] = {};
    bool looked_[few] = {};
  };

 private:
  // A content of 8 to 16 bytes, of which the first 8 are no other's: where they are and its last 8, it is, and
  // nothing longer.
  struct Whole {
    uint64_t first, last;
    uint32_t size = 0;  // 0: none
    int32_t token;
  };
  static uint64_t eight(const char* p) {
    uint64_t bytes;
    std::memcpy(&bytes, p, sizeof bytes);
    return bytes;
  }
  static size_t place_of(uint64_t first) { return (first * 0x9E3779B97F4A7C15u) >> 58; }
  const Whole* whole_at(const char* p, size_t left) const {
    if (left < 16) return nullptr;
    uint64_t first = eight(p);
    const Whole& whole = wholes_[place_of(first)];
    return whole.size && whole.first == first && eight(p + whole.size - 8) == whole.last ? &whole : nullptr;
  }
  void index_wholes(const std::vector<std::pair<std::string, int32_t>>& contents) {
    std::map<std::string_view, size_t> begins;
    for (auto& [content, token] : contents) ++begins[std::string_view(content).substr(0, 8)];
    for (auto& [content, token] : contents) {
      const size_t size = content.size();
      if (size < 8 || size > 16 || begins[std::string_view(content).substr(0, 8)] > 1) continue;
      Whole& whole = wholes_[place_of(eight(content.data()))];
      if (!whole.size)
        whole = {eight(content.data()), eight(content.data() + size - 8), static_cast<uint32_t>(size), token};
    }
  }

  ByteTrie trie_;
  std::array<bool, 256> begins_{};
  std::array<Whole, 64> wholes_{};  // by the hash of the first 8 bytes
  std::string firsts_;
};

// Applies the flags of a match; calls plain(begin, end) and token(begin, end, index) to cover the text.
template <class Plain, class Token>
void split_added(std::string_view text, const AddedMatcher& matcher, const std::vector<AddedToken>& tokens,
                 bool parse_special, Plain&& plain, Token&& token) {
  uint32_t done = 0;
  size_t at = 0;
  const Unicode& u = ucd();
  auto word_before = [&](size_t i) { return i > 0 && u.is(utf8_at(utf8_back(text.data() + i)), rust_word); };
  auto word_after = [&](size_t i) { return i < text.size() && u.is(utf8_at(text.data() + i), rust_word); };
  if (!matcher.empty()) {
    AddedMatcher::Search search(matcher, text);
    for (;;) {
      AddedMatcher::Hit hit = search.next(at);
      if (hit.token < 0) break;
      at = hit.end;
      const AddedToken& t = tokens[static_cast<size_t>(hit.token)];
      if (t.once_special && !parse_special) continue;
      if (t.single_word && (word_before(hit.begin) || word_after(hit.end))) continue;
      uint32_t begin = hit.begin, end = hit.end;
      if (t.lstrip) {
        while (begin > done) {
          const char* p = utf8_back(text.data() + begin);
          if (!u.is(utf8_at(p), re_space)) break;
          begin = static_cast<uint32_t>(p - text.data());
        }
        begin = std::max(begin, done);
      }
      if (t.rstrip) {
        while (end < text.size()) {
          const char* p = text.data() + end;
          if (!u.is(utf8_next(p), re_space)) break;
          end = static_cast<uint32_t>(p - text.data());
        }
      }
      begin = std::min(begin, end);
      if (done < begin) plain(done, begin);
      if (begin < end) token(begin, end, hit.token);
      done = end;
    }
  }
  if (done != text.size()) plain(done, static_cast<uint32_t>(text.size()));
}

}  // namespace fasttoken
