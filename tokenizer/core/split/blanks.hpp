// Cutting a text at its blanks (a space, a tab, an end of line) into stretches that are tokenized one by one.
//
//   exact   a file's steps are kept off a stretch's neighbours by the blanks around it: they change and cut
//   characters
//           one by one, or within a cluster or a match, and neither reaches across a blank. Three things do: blanks
//           that stand together, first, or last, which loading tries out (Tokenizer::plan_blanks); a cluster that a
//           blank is in; and blanks at the ends of a stretch once a step has changed it, unless all white space only
//           parts the text. A stretch of the last two kinds is refused, and its text is done as a whole
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstring>
#include <string_view>

#include "unicode/graphemes.hpp"
#include "unicode/unicode.hpp"

namespace fasttoken {

struct Blanks {
  static constexpr std::string_view candidates = " \n\r\t\v\f";
  std::array<bool, 256> is{};
  bool together = false, first = false, last = false;  // whether blanks that stand so give nothing
  bool strict = true;                                  // whether white space at the ends of a stretch matters
  uint32_t mark = UINT32_MAX;                          // of white space

  // The stretches of a text, one after the other.
  class Stretches {
   public:
    Stretches(const Blanks& blanks, std::string_view text)
        : blanks_(blanks), text_(text.data()), p_(text_), end_(text_ + text.size()) {}
    // Empty after the last one, and where blanks stand where they matter: is_done() tells which.
    std::string_view next() {
      const auto blank = [&](char c) { return blanks_.is[static_cast<unsigned char>(c)]; };
      const char *from = p_, *p = from;
      while (p < end_ && blank(*p)) ++p;
      const bool begins = from == text_;
      if ((p > from + 1 && !blanks_.together) || (begins && p > from && !blanks_.first)) return {};
      if (p == end_) {
        if (p == from || (blanks_.last && !begins)) p_ = nullptr;
        return {};
      }
      from = p;
      do p = low_byte(p + 1, end_);
      while (p < end_ && !blank(*p));
      p_ = p;
      return {from, static_cast<size_t>(p - from)};
    }
    bool is_done() const { return p_ == nullptr; }

   private:
    const Blanks& blanks_;
    const char *const text_, *p_, *const end_;
  };

  // The first byte from p on that may be a blank; `end` if there is none.
  static const char* low_byte(const char* p, const char* end) {
    constexpr uint64_t each = 0x0101010101010101u;
    const auto low = [](uint64_t bytes) {
      // Where a byte below 0x21 is subtracted from, its highest bit becomes 1; those of lower bytes do not depend on
      // it.
      return (bytes - each * 0x21) & ~bytes & each << 7;
    };
    constexpr bool little = std::endian::native == std::endian::little;
    for (uint64_t bytes; little && end - p >= 8; p += 8) {
      std::memcpy(&bytes, p, 8);
      if (const uint64_t found = low(bytes)) return p + std::countr_zero(found) / 8;
    }
    if (little && end - p >= 4) {
      uint32_t bytes;
      std::memcpy(&bytes, p, 4);
      if (const uint32_t found = static_cast<uint32_t>(low(bytes))) return p + std::countr_zero(found) / 8;
      p += 4;
    }
    while (p < end && static_cast<unsigned char>(*p) > ' ') ++p;
    return p;
  }
  // Whether there is no white space in a text, nor a mark of it.
  bool has_none(std::string_view text) const {
    const unsigned char most =
        mark == UINT32_MAX || mark < 0x4000 ? 0xE3 : 0xFF;  // of the first bytes of all of these
    const auto byte = [](const char* p) { return static_cast<unsigned char>(*p); };
    for (const char *p = text.data(), *const end = p + text.size();; p += utf8_length(byte(p))) {
      while (p < end && byte(p) > most && byte(p) < 0xF0) p += 3;
      if (p == end) return true;
      if (byte(p) <= ' ') return false;
      if (byte(p) >= 0x80 && byte(p) <= most)
        if (const uint32_t c = utf8_at(p); c == mark || ucd().is(c, rust_space)) return false;
    }
  }
  // Whether the blanks beside a stretch have no part in what a step does with it: neither of its ends joins a cluster
  // with one, nor, if they matter, is white space or a mark of it.
  bool stand_apart(std::string_view stretch) const {
    const auto apart = [&](const char* p, uint16_t joins) {
      if (static_cast<unsigned char>(*p) < 0x80) return *p > ' ' || (!strict && *p != '\r');
      const uint32_t c = utf8_at(p);
      return !(graphemes().flags(c) & joins) && !(strict && (c == mark || ucd().is(c, rust_space)));
    };
    if (stretch.empty()) return !strict;
    return apart(stretch.data(), joins_back) && apart(utf8_back(stretch.data() + stretch.size()), joins_ahead);
  }
};

}  // namespace fasttoken
