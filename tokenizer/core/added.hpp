// The added tokens of a file, and finding them in a text in one pass.
//
//   text   Hi <|im_start|> user ...
//             '--- first byte in the set? walk the trie, remember the longest end
//
//   trie   nodes_[n]: token that ends here, edges sorted by byte in edges_[from, to)
//          the root has a table of 256 instead, and a bit set of possible first bytes
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

#include "unicode.hpp"

namespace fasttoken {

struct AddedToken {
  uint32_t id;
  std::string content;
  bool single_word = false, lstrip = false, rstrip = false, normalized = false, special = false;
};

class AddedMatcher {
 public:
  struct Hit {
    uint32_t begin, end;
    int32_t token;  // index of the AddedToken
  };

  // Contents in order of preference; the value is the index to report.
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
    for (const Branch& node : tree) {
      nodes_.push_back({static_cast<uint32_t>(edges_.size()), 0, node.token});
      for (auto& [byte, to] : node.next) edges_.push_back({byte, to});
      nodes_.back().to = static_cast<uint32_t>(edges_.size());
    }
    root_.fill(0);
    only_ = -1;
    int firsts = 0;
    for (auto& [byte, to] : tree[0].next) {
      root_[byte] = to;
      only_ = byte;
      ++firsts;
    }
    if (firsts != 1) only_ = -1;
    empty_ = firsts == 0;
  }

  bool empty() const { return empty_; }

  // The next match at or after `at`; token -1 when there is none.
  Hit next(std::string_view text, size_t at) const {
    const size_t n = text.size();
    while (at < n) {
      if (only_ >= 0) {
        const void* found = std::memchr(text.data() + at, only_, n - at);
        if (!found) break;
        at = static_cast<size_t>(static_cast<const char*>(found) - text.data());
      }
      uint32_t node = root_[static_cast<unsigned char>(text[at])];
      if (node) {
        int32_t best = nodes_[node].token;
        size_t best_end = at + 1;
        for (size_t i = at + 1; i < n && (node = step(node, static_cast<unsigned char>(text[i]))); ++i) {
          if (nodes_[node].token < 0) continue;
          best = nodes_[node].token;
          best_end = i + 1;
        }
        if (best >= 0) return {static_cast<uint32_t>(at), static_cast<uint32_t>(best_end), best};
      }
      ++at;
    }
    return {0, 0, -1};
  }

 private:
  struct Node {
    uint32_t from, to;
    int32_t token;
  };
  struct Edge {
    unsigned char byte;
    uint32_t to;
  };

  uint32_t step(uint32_t node, unsigned char byte) const {
    uint32_t from = nodes_[node].from, to = nodes_[node].to;
    if (to - from <= 8) {
      for (; from < to; ++from)
        if (edges_[from].byte == byte) return edges_[from].to;
      return 0;
    }
    while (from < to) {
      uint32_t middle = (from + to) / 2;
      if (edges_[middle].byte < byte)
        from = middle + 1;
      else
        to = middle;
    }
    return from < nodes_[node].to && edges_[from].byte == byte ? edges_[from].to : 0;
  }

  std::vector<Node> nodes_;
  std::vector<Edge> edges_;
  std::array<uint32_t, 256> root_{};
  int only_ = -1;
  bool empty_ = true;
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
    for (;;) {
      AddedMatcher::Hit hit = matcher.next(text, at);
      if (hit.token < 0) break;
      at = hit.end;
      const AddedToken& t = tokens[static_cast<size_t>(hit.token)];
      if (t.special && !parse_special) continue;
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
