// Which two characters may stand side by side within a token, so that a text is cut between all others before
// merging.
//
//   merges   _ t | _t h | _th e ...        text   _ t h e _ c a t ( s ) .
//   joins    (_,t) (t,h) (h,e) ...         cut         ^     ^ ^ ^ ^        where (e,_) (t,() ... are no joins
//
//   Why cutting is exact: a merge across a place makes a token that has the two characters around the place side by
//   side. Where no merge makes such a token, the parts on both sides merge independently of each other. Joins of too
//   many pairs only cut less.
//
//   _           U+2581, which such files write for a space; here both are ' '
//   left_, right_   ASCII: a and b join if left_[a] & right_[b]. The rows of the 128 x 128 matrix are united to eight
//   filter_     other pairs: a bit by a hash of the pair; 16 bits a pair, so that few others are taken for joins
//
//   invariants  A character that is no token becomes the tokens of its bytes. A file where a merge takes one of
//               those, or the unknown token, has no joins (built() is false). A file without all tokens of bytes
//               fuses unknown characters: it is cut before a space that follows something else, and nowhere else
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <numeric>
#include <string_view>
#include <vector>

#include "memory/table_array.hpp"
#include "text/utf8.hpp"

namespace fasttoken {

class Joins {
 public:
  static constexpr uint32_t mark = 0x2581;

  // tokens: calls its argument with the text of each token that a merge makes. everywhere: whether all bytes have
  // tokens.
  template <class Tokens>
  void build(bool everywhere, Tokens&& tokens) {
    everywhere_ = everywhere;
    Rows rows{};
    std::array<uint64_t, 128> weights{};  // how many tokens have the character
    std::vector<uint64_t> others;         // pairs beyond ASCII
    tokens([&](std::string_view text) {
      uint32_t before = 0;
      const char* const begin = text.data();
      for (const char *p = begin, *end = begin + text.size(); p < end;) {
        const bool first = p == begin;
        const uint32_t c = next(p);
        if (c < 128) ++weights[c];
        if (!first) {
          if (before < 128 && c < 128)
            rows[before].set(c);
          else
            others.push_back(uint64_t{before} << 32 | c);
        }
        before = c;
      }
      if (others.size() > most_held) drop_copies(others);
    });
    drop_copies(others);
    if (!everywhere)
      for (uint32_t a = 0; a < 128; ++a)
        for (uint32_t b = 0; b < 128; ++b)
          if (b != ' ' || a == ' ') rows[a].set(b);
    unite(rows, weights);
    filter_.assign(std::max<size_t>(1, std::bit_ceil(others.size() * 16) / 64), 0);
    for (uint64_t pair : others) {
      const size_t bit = filter_bit(static_cast<uint32_t>(pair >> 32), static_cast<uint32_t>(pair));
      filter_[bit / 64] |= uint64_t{1} << (bit & 63);
    }
  }
  bool built() const { return !filter_.empty(); }

  // Of ASCII: a joins b behind it if the entries of a and b share a bit.
  const std::array<uint8_t, 128>& lefts() const { return left_; }
  const std::array<uint8_t, 128>& rights() const { return right_; }

  // Of any two code points; a space stands for U+2581.
  bool join(uint32_t a, uint32_t b) const {
    if (a < 128 && b < 128) return left_[a] & right_[b];
    if (!everywhere_ && (b != ' ' || a == ' ')) return true;
    const size_t bit = filter_bit(a, b);
    return filter_[bit / 64] >> (bit & 63) & 1;
  }

  // Past the first part of a text that is not empty. spaced: its spaces stand for U+2581; else they are characters as
  // others, and perhaps unknown.
  size_t first_cut(std::string_view text, bool spaced) const {
    const bool at_spaces = spaced || everywhere_;
    const char *p = text.data(), *end = p + text.size();
    for (uint32_t before = next(p); p < end;) {
      const char* const at = p;
      const uint32_t c = next(p);
      if (!join(before, c) && (at_spaces || *at != ' ')) return static_cast<size_t>(at - text.data());
      before = c;
    }
    return text.size();
  }

  void tables(auto& io) { io(left_, right_, filter_, everywhere_); }

 private:
  static constexpr size_t most_held = size_t{1} << 20;
  struct Row {
    uint64_t bits[2];
    void set(uint32_t c) { bits[c / 64] |= uint64_t{1} << (c & 63); }
    bool has(uint32_t c) const { return bits[c / 64] >> (c & 63) & 1; }
  };
  using Rows = std::array<Row, 128>;

  static uint32_t next(const char*& p) {
    const uint32_t c = utf8_next(p);
    return c == mark ? ' ' : c;
  }
  static void drop_copies(std::vector<uint64_t>& pairs) {
    std::sort(pairs.begin(), pairs.end());
    pairs.erase(std::unique(pairs.begin(), pairs.end()), pairs.end());
  }
  size_t filter_bit(uint32_t a, uint32_t b) const {
    return ((uint64_t{a} << 21 | b) * 0x9E3779B97F4A7C15u) >> 32 & (filter_.size() * 64 - 1);
  }

  // Each character with a row that is not empty begins a class. The two classes whose union adds the fewest pairs,
  // weighted by how common the characters are, become one, until eight are left.
  void unite(const Rows& rows, const std::array<uint64_t, 128>& weights) {
    struct Class {
      Row row;
      std::vector<uint32_t> characters;
      uint64_t weight = 0;
    };
    std::vector<Class> classes;
    for (uint32_t c = 0; c < 128; ++c)
      if (rows[c].bits[0] | rows[c].bits[1]) classes.push_back({rows[c], {c}, weights[c] + 1});
    const auto added = [&](const Class& to, const Class& by) {
      uint64_t sum = 0;
      for (uint32_t k = 0; k < 2; ++k)
        for (uint64_t rest = by.row.bits[k] & ~to.row.bits[k]; rest; rest &= rest - 1)
          sum += weights[k * 64 + static_cast<uint32_t>(std::countr_zero(rest))] + 1;
      return static_cast<double>(to.weight) * static_cast<double>(sum);
    };
    std::vector<std::array<double, 128>> costs(classes.size());  // of each class with those behind it
    const auto weigh = [&](size_t i, size_t j) {
      costs[i][j] = added(classes[i], classes[j]) + added(classes[j], classes[i]);
    };
    std::vector<size_t> live(classes.size());
    std::iota(live.begin(), live.end(), size_t{0});
    for (size_t i : live)
      for (size_t j = i + 1; j < classes.size(); ++j) weigh(i, j);
    while (live.size() > 8) {
      size_t to = live[0], by = live[1];
      for (size_t i : live)
        for (size_t j : live)
          if (i < j && costs[i][j] < costs[to][by]) to = i, by = j;
      Class& into = classes[to];
      const Class& from = classes[by];
      for (size_t k = 0; k < 2; ++k) into.row.bits[k] |= from.row.bits[k];
      into.characters.insert(into.characters.end(), from.characters.begin(), from.characters.end());
      into.weight += from.weight;
      std::erase(live, by);
      for (size_t i : live)
        if (i != to) weigh(std::min(i, to), std::max(i, to));
    }
    left_.fill(0);
    right_.fill(0);
    for (uint8_t bit = 1; size_t k : live) {
      for (uint32_t a : classes[k].characters) left_[a] = bit;
      for (uint32_t b = 0; b < 128; ++b)
        if (classes[k].row.has(b)) right_[b] |= bit;
      bit = static_cast<uint8_t>(bit << 1);
    }
  }

  std::array<uint8_t, 128> left_{}, right_{};
  TableArray<uint64_t> filter_;
  bool everywhere_ = false;
};

}  // namespace fasttoken
