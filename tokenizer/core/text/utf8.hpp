// UTF-8: one decoder, one encoder, one validator. Everything past the entrance of the core is valid UTF-8.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "errors.hpp"

namespace fasttoken {

// The value of a hexadecimal digit, or -1.
inline int hex_digit(char c) {
  return c >= '0' && c <= '9'   ? c - '0'
         : c >= 'a' && c <= 'f' ? c - 'a' + 10
         : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                : -1;
}

// Length of the character that starts with this byte; 1 for a continuation byte.
inline uint32_t utf8_length(unsigned char lead) { return lead < 0xC0 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4; }

inline bool utf8_continues(unsigned char byte) { return (byte & 0xC0) == 0x80; }

// Decode the character at p of valid UTF-8 and step over it.
inline uint32_t utf8_next(const char*& p) {
  auto* u = reinterpret_cast<const unsigned char*>(p);
  uint32_t c = u[0];
  if (c < 0x80) {
    p += 1;
    return c;
  }
  if (c < 0xE0) {
    p += 2;
    return (c & 0x1F) << 6 | (u[1] & 0x3Fu);
  }
  if (c < 0xF0) {
    p += 3;
    return (c & 0x0F) << 12 | (u[1] & 0x3Fu) << 6 | (u[2] & 0x3Fu);
  }
  p += 4;
  return (c & 0x07) << 18 | (u[1] & 0x3Fu) << 12 | (u[2] & 0x3Fu) << 6 | (u[3] & 0x3Fu);
}

inline uint32_t utf8_at(const char* p) { return utf8_next(p); }

// The code point of a character of several bytes, without its lowest six bits.
inline uint32_t utf8_row(const char* p) {
  auto* u = reinterpret_cast<const unsigned char*>(p);
  if (u[0] < 0xE0) return u[0] & 0x1Fu;
  if (u[0] < 0xF0) return (u[0] & 0x0Fu) << 6 | (u[1] & 0x3Fu);
  return (u[0] & 0x07u) << 12 | (u[1] & 0x3Fu) << 6 | (u[2] & 0x3Fu);
}

// The start of the character before p.
inline const char* utf8_back(const char* p) {
  do --p;
  while (utf8_continues(static_cast<unsigned char>(*p)));
  return p;
}

inline size_t utf8_put(char* out, uint32_t c) {
  if (c < 0x80) {
    out[0] = static_cast<char>(c);
    return 1;
  }
  if (c < 0x800) {
    out[0] = static_cast<char>(0xC0 | c >> 6);
    out[1] = static_cast<char>(0x80 | (c & 0x3F));
    return 2;
  }
  if (c < 0x10000) {
    out[0] = static_cast<char>(0xE0 | c >> 12);
    out[1] = static_cast<char>(0x80 | (c >> 6 & 0x3F));
    out[2] = static_cast<char>(0x80 | (c & 0x3F));
    return 3;
  }
  out[0] = static_cast<char>(0xF0 | c >> 18);
  out[1] = static_cast<char>(0x80 | (c >> 12 & 0x3F));
  out[2] = static_cast<char>(0x80 | (c >> 6 & 0x3F));
  out[3] = static_cast<char>(0x80 | (c & 0x3F));
  return 4;
}

inline void utf8_append(std::string& out, uint32_t c) {
  char buffer[4];
  out.append(buffer, utf8_put(buffer, c));
}

// Length of the longest valid prefix of a sequence that may be a character: the Unicode "maximal subpart"
// at p, and whether it is a whole character. At least 1.
struct Utf8Step {
  uint32_t length;
  bool whole;
};

inline Utf8Step utf8_step(const char* p, const char* end) {
  auto* u = reinterpret_cast<const unsigned char*>(p);
  size_t left = static_cast<size_t>(end - p);
  unsigned char b = u[0];
  if (b < 0x80) return {1, true};
  if (b < 0xC2 || b > 0xF4) return {1, false};
  uint32_t need = b < 0xE0 ? 2 : b < 0xF0 ? 3 : 4;
  unsigned char low = b == 0xE0 ? 0xA0 : b == 0xF0 ? 0x90 : 0x80;
  unsigned char high = b == 0xED ? 0x9F : b == 0xF4 ? 0x8F : 0xBF;
  for (uint32_t i = 1; i < need; ++i) {
    if (i >= left || u[i] < low || u[i] > high) return {i, false};
    low = 0x80;
    high = 0xBF;
  }
  return {need, true};
}

inline bool is_ascii(std::string_view s) {
  const char *p = s.data(), *end = p + s.size();
  for (; end - p >= 32; p += 32) {
    uint64_t words[4];
    std::memcpy(words, p, sizeof words);
    if ((words[0] | words[1] | words[2] | words[3]) & 0x8080808080808080u) return false;
  }
  for (; end - p >= 8; p += 8) {
    uint64_t word;
    std::memcpy(&word, p, 8);
    if (word & 0x8080808080808080u) return false;
  }
  for (; p < end; ++p)
    if (static_cast<unsigned char>(*p) >= 0x80) return false;
  return true;
}

// Position of the first byte that is not part of valid UTF-8, or npos.
inline size_t utf8_invalid_at(std::string_view text) {
  const char *p = text.data(), *end = p + text.size();
  while (p < end) {
    if (static_cast<unsigned char>(*p) < 0x80) {
      uint64_t word = 0x8080808080808080u;
      if (end - p >= 8) std::memcpy(&word, p, 8);
      p += word & 0x8080808080808080u ? 1 : 8;
      continue;
    }
    Utf8Step step = utf8_step(p, end);
    if (!step.whole) return static_cast<size_t>(p - text.data());
    p += step.length;
  }
  return std::string_view::npos;
}

// Bytes to text as Rust's from_utf8_lossy does it: each maximal invalid part becomes one U+FFFD.
inline void utf8_append_lossy(std::string& out, std::string_view bytes) {
  if (utf8_invalid_at(bytes) == std::string_view::npos) {
    out.append(bytes);
    return;
  }
  const char *p = bytes.data(), *end = p + bytes.size();
  while (p < end) {
    Utf8Step step = utf8_step(p, end);
    if (step.whole)
      out.append(p, step.length);
    else
      out.append("\xEF\xBF\xBD");
    p += step.length;
  }
}

inline size_t utf8_count(std::string_view text) {
  size_t n = 0;
  for (unsigned char b : text) n += !utf8_continues(b);
  return n;
}

// The UTF-8 of characters that lie in one, two or four bytes each, as Python's strings have them (transcode.cpp): how
// many bytes were written; not_transcoded: a surrogate is among them, or this machine has no quick way. `out` has
// `width + 1` bytes for each character (4 for those of four) and `transcode_margin` more.
inline constexpr size_t not_transcoded = SIZE_MAX, transcode_margin = 64;
size_t utf8_of(const void* characters, size_t n, int width, char* out);

// The byte-level alphabet: each byte as a printable character, so that any bytes are a text.
//
//   0x21..0x7E, 0xA1..0xAC, 0xAE..0xFF  themselves;  the other 68, in order, U+0100..U+0143
namespace detail {
constexpr auto byte_level_chars = [] {
  std::array<uint16_t, 256> out{};
  uint16_t next = 256;
  for (uint32_t b = 0; b < 256; ++b) {
    const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    out[b] = printable ? static_cast<uint16_t>(b) : next++;
  }
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

// The bytes a text stands for, in `room`; nothing if a character stands for none.
inline std::optional<std::string_view> byte_level_decode(std::string_view text, std::string& room) {
  if (room.size() < text.size()) room.resize(text.size());
  char* to = room.data();
  for (const char *p = text.data(), *end = p + text.size(); p < end;) {
    const int b = byte_level_byte(utf8_next(p));
    if (b < 0) return std::nullopt;
    *to++ = static_cast<char>(b);
  }
  return std::string_view(room.data(), static_cast<size_t>(to - room.data()));
}

}  // namespace fasttoken
