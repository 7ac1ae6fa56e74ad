// The byte-level alphabet: each byte as a printable character, so that any bytes are a text.
//
//   0x21..0x7E, 0xA1..0xAC, 0xAE..0xFF  themselves;  the other 68, in order, U+0100..U+0143
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "text/utf8.hpp"

namespace fasttoken {

namespace detail {
constexpr bool byte_is_printable(uint32_t b) {
  return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
}
constexpr auto byte_level_chars = [] {
  std::array<uint16_t, 256> out{};
  uint16_t next = 256;
  for (uint32_t b = 0; b < 256; ++b) out[b] = byte_is_printable(b) ? static_cast<uint16_t>(b) : next++;
  return out;
}();
constexpr auto byte_level_bytes = [] {
  std::array<int16_t, 324> out{};
  for (auto& x : out) x = -1;
  for (uint32_t b = 0; b < 256; ++b) out[byte_level_chars[b]] = static_cast<int16_t>(b);
  return out;
}();
}  // namespace detail

inline uint32_t byte_level_char(unsigned char b) { return detail::byte_level_chars[b]; }
// The byte a character stands for, or -1.
inline int byte_level_byte(uint32_t c) { return c < 324 ? detail::byte_level_bytes[c] : -1; }

// Appends the bytes a text stands for; false, and nothing appended, if a character stands for none.
inline bool byte_level_decode(std::string_view text, std::string& out) {
  size_t old = out.size();
  for (const char *p = text.data(), *end = p + text.size(); p < end;) {
    int b = byte_level_byte(utf8_next(p));
    if (b < 0) {
      out.resize(old);
      return false;
    }
    out += static_cast<char>(b);
  }
  return true;
}

}  // namespace fasttoken
