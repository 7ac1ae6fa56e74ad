// Which two Han characters, kana or marks of theirs may stand side by side within a token: a text is cut between all
// others, so that most of its parts are single tokens, which are looked up, where a clause would have to be merged.
//
//   filter_   a bit by a hash of the six bytes of a pair; 8 to 16 bits a pair, so that few others are taken for joins
//
//   Why cutting is exact: a merge across a place makes a token with the bytes on both sides of it. Tokens that begin
//   or end within a character join it as all the characters that have these bytes. Joins of too many pairs only cut
//   less.
//
//   invariants   of all tokens, made by a merge or not, since a file may take a word that is a token as it is. Where
//                tokens of parts of characters join too many pairs, there is no filter (built() is false)
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "memory/table_array.hpp"
#include "text/utf8.hpp"

namespace fasttoken {

class WideJoins {
 public:
  // Whether the first byte is that of a character that is cut from others: U+2000 to U+9FFF, U+F000 to U+FFFF.
  static constexpr uint8_t lead_from = 0xE2, lead_to = 0xE9, lead_apart = 0xEF;

  // The bytes of each token with others than ASCII, which need not be whole characters; then build().
  void add(std::string_view token) {
    size_t i = 0;
    while (i < token.size() && is_inside(token[i])) ++i;
    std::string_view before = token.substr(0, i);
    for (; i < token.size() && pairs_.size() <= most; i += before.size()) {
      const std::string_view next = token.substr(i, utf8_length(static_cast<unsigned char>(token[i])));
      if (is_wide(next[0]) && (before.size() == 3 || (!before.empty() && before.size() < 3 && is_inside(before[0]))))
        each(before, 3 - before.size(), [&](auto a) {
          if (pairs_.size() > most) return;
          each(next, 0, [&](auto b) {
            pairs_.push_back(pair_at(std::array{a[0], a[1], a[2], b[0], b[1], b[2], '\0', '\0'}.data()));
          });
        });
      before = next;
    }
  }
  void build() {
    if (pairs_.size() <= most) {
      const size_t bits = std::bit_ceil(std::max<size_t>(64, pairs_.size() * 8));
      filter_.assign(bits / 64, 0);
      shift_ = static_cast<uint32_t>(std::countl_zero(bits)) + 1;
      for (uint64_t pair : pairs_) filter_[bit_of(pair) / 64] |= uint64_t{1} << (bit_of(pair) & 63);
    }
    pairs_ = {};
  }
  bool built() const { return !filter_.empty(); }

  // Of the two characters at p, both with such a first byte; eight bytes can be read.
  bool join(const char* p) const {
    const size_t bit = bit_of(pair_at(p));
    return filter_[bit / 64] >> (bit & 63) & 1;
  }

  void tables(auto& io) { io(filter_, shift_); }

 private:
  static constexpr size_t most = size_t{1} << 16;

  static bool is_inside(char c) { return (c & 0xC0) == 0x80; }
  static bool is_wide(char c) {
    const uint8_t lead = static_cast<uint8_t>(c);
    return (lead >= lead_from && lead <= lead_to) || lead == lead_apart;
  }
  static uint64_t pair_at(const char* p) {
    uint64_t bytes;
    std::memcpy(&bytes, p, 8);
    return std::endian::native == std::endian::little ? bytes << 16 : bytes >> 16;
  }
  size_t bit_of(uint64_t pair) const { return pair * 0x9E3779B97F4A7C15u >> shift_; }

  // The characters that have the part from their byte `at` on.
  template <class F>
  static void each(std::string_view part, size_t at, F&& f) {
    if (part.size() + at > 3) return;
    const auto with = [&](size_t k, uint8_t from, uint8_t to, auto&& use) {
      const bool known = k >= at && k - at < part.size();
      for (unsigned b = known ? static_cast<uint8_t>(part[k - at]) : from; b <= (known ? b : to); ++b) {
        use(static_cast<char>(b));
        if (known) break;
      }
    };
    with(0, lead_from, lead_apart, [&](char a) {
      if (!is_wide(a)) return;
      with(1, 0x80, 0xBF, [&](char b) { with(2, 0x80, 0xBF, [&](char c) { f(std::array{a, b, c}); }); });
    });
  }

  std::vector<uint64_t> pairs_;  // while it is filled
  TableArray<uint64_t> filter_;
  uint32_t shift_ = 0;
};

}  // namespace fasttoken
