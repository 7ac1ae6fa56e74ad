// The added tokens of a file, and finding them in a text in one pass.
//
//   trie   nodes_[n]: bytes that must follow (labels_), then the token that ends here, edges sorted by byte in
//          edges_[from, to); the root has a table of 256 instead. Up to four possible first bytes are looked
//          for with memchr. Most contents are known by their first and last eight bytes (wholes_), without a walk
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

namespace fasttoken {

class AddedMatcher {
 public:
  struct Hit {
    uint32_t begin, end;
    int32_t token;  // index of the AddedToken
  };

  // Of two equal contents the first counts; the value is the index to report.
  void build(const std::vector<std::pair<std::string, int32_t>>& contents) {
    struct Branch {
      std::map<unsigned char, uint32_t> next;
      int32_t token = -1;
    };
    std::vector<Branch> tree(1);
    for (auto& [content, token] : contents) {
      uint32_t at = 0;
      for (char c : content) {
        auto [edge, fresh] =
            tree[at].next.try_emplace(static_cast<unsigned char>(c), static_cast<uint32_t>(tree.size()));
        uint32_t to = edge->second;
        if (fresh) tree.emplace_back();
        at = to;
      }
      if (tree[at].token < 0) tree[at].token = token;
    }
    nodes_.clear();
    edges_.clear();
    labels_.clear();
    nodes_.resize(tree.size());
    std::vector<bool> within(tree.size());  // a label
    for (size_t n = 0; n < tree.size(); ++n) {
      if (within[n]) continue;
      Node& node = nodes_[n];
      const Branch* at = &tree[n];
      node.label = static_cast<uint32_t>(labels_.size());
      while (n && at->token < 0 && at->next.size() == 1) {
        auto [byte, to] = *at->next.begin();
        labels_ += static_cast<char>(byte);
        within[to] = true;
        at = &tree[to];
      }
      node.length = static_cast<uint32_t>(labels_.size()) - node.label;
      node.token = at->token;
      node.from = static_cast<uint32_t>(edges_.size());
      for (auto& [byte, to] : at->next) edges_.push_back({byte, to});
      node.to = static_cast<uint32_t>(edges_.size());
    }
    index_wholes(contents);
    root_.fill(0);
    firsts_.clear();
    for (auto& [byte, to] : tree[0].next) {
      root_[byte] = to;
      firsts_ += static_cast<char>(byte);
    }
  }

  bool empty() const { return firsts_.empty(); }

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
        uint32_t node = m_.root_[static_cast<unsigned char>(text_[at])];
        int32_t best = -1;
        size_t i = at + 1, best_end = i;
        while (node) {
          const Node& here = m_.nodes_[node];
          if (n - i < here.length || !equal(text_.data() + i, m_.labels_.data() + here.label, here.length)) break;
          i += here.length;
          if (here.token >= 0) {
            best = here.token;
            best_end = i;
          }
          if (i == n) break;
          node = m_.step(here, static_cast<unsigned char>(text_[i++]));
        }
        if (best >= 0) return {static_cast<uint32_t>(at), static_cast<uint32_t>(best_end), best};
      }
      return {0, 0, -1};
    }

   private:
    static constexpr size_t few = 4;

    // Labels are a few bytes: comparing them costs less than a call of memcmp.
    static bool equal(const char* a, const char* b, size_t n) {
      uint64_t x, y;
      for (; n >= 8; a += 8, b += 8, n -= 8) {
        std::memcpy(&x, a, 8);
        std::memcpy(&y, b, 8);
        if (x != y) return false;
      }
      for (; n > 0; ++a, ++b, --n)
        if (*a != *b) return false;
      return true;
    }

    // Where a possible first byte is, from `at` on.
    size_t candidate(size_t at) {
      const size_t n = text_.size(), kinds = m_.firsts_.size();
      if (kinds > few) {
        while (at < n && !m_.root_[static_cast<unsigned char>(text_[at])]) ++at;
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
    wholes_.fill({});
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

  struct Node {
    uint32_t from, to, label, length;
    int32_t token;
  };
  struct Edge {
    unsigned char byte;
    uint32_t to;
  };

  uint32_t step(const Node& node, unsigned char byte) const {
    const auto begin = edges_.begin() + node.from, end = edges_.begin() + node.to;
    const auto at =
        std::lower_bound(begin, end, byte, [](const Edge& edge, unsigned char b) { return edge.byte < b; });
    return at != end && at->byte == byte ? at->to : 0;
  }

  std::vector<Node> nodes_;
  std::vector<Edge> edges_;
  std::array<uint32_t, 256> root_{};
  std::array<Whole, 64> wholes_{};  // by the hash of the first 8 bytes
  std::string labels_, firsts_;
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
