// A set of characters of at most three bytes of UTF-8 (the Basic Multilingual Plane), as ICU's BMPSet: a bit for
// each, in rows of those that agree in all bytes but the last. No other character is in it.
#pragma once

#include <array>
#include <cstdint>

#include "text/utf8.hpp"

namespace fasttoken {

class BmpSet {
 public:
  static constexpr uint32_t end = 0x10000;

  void add_all() { rows_.fill(UINT64_MAX); }
  void add(uint32_t c) { rows_[c >> 6] |= uint64_t{1} << (c & 63); }
  void remove(uint32_t c) { rows_[c >> 6] &= ~(uint64_t{1} << (c & 63)); }
  bool has(uint32_t c) const { return c < end && rows_[c >> 6] >> (c & 63) & 1; }

  // The character at p, from U+0080 on.
  [[gnu::always_inline]] bool has_wide(const char* p) const {
    const unsigned char first = byte(p);
    return first < 0xF0 && in_row(utf8_row(p), p + (first < 0xE0 ? 1 : 2));
  }
  // The first character from p on that is not in the set, or `stop`; calls each() for those before it.
  template <class F>
  [[gnu::always_inline]] const char* span(const char* p, const char* stop, F&& each) const {
    for (;; each()) {
      for (; stop - p >= 3; p += 3, each()) {
        const uint32_t row = byte(p) * 64u + byte(p + 1) - (0xE0u * 64 + 0x80);  // of three bytes, if it is one
        if (row >= rows_.size()) break;
        if (!in_row(row, p + 2)) return p;
      }
      if (p == stop || !(byte(p) < 0x80 ? has(byte(p)) : has_wide(p))) return p;
      p += utf8_length(byte(p));
    }
  }

 private:
  static unsigned char byte(const char* p) { return static_cast<unsigned char>(*p); }
  bool in_row(uint32_t row, const char* last) const { return rows_[row] >> (byte(last) & 63) & 1; }

  std::array<uint64_t, end / 64> rows_{};
};

}  // namespace fasttoken
