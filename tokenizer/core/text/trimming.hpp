// Offsets of tokens: without the white space at their ends, and in code points.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "encoded.hpp"
#include "text/bytelevel.hpp"
#include "text/utf8.hpp"
#include "unicode/unicode.hpp"

namespace fasttoken {

// The white space at a token's ends, in characters.
struct Trim {
  uint32_t lead, trail;
};

inline Trim trim_of(std::string_view token) {
  const Unicode& u = ucd();
  auto space = [&](uint32_t c) { return c == byte_level_char(' ') || u.is(c, rust_space); };
  Trim t{0, 0};
  const char *p = token.data(), *end = p + token.size();
  while (p < end && space(utf8_next(p))) ++t.lead;
  p = token.data();
  while (end > p && space(utf8_at(end = utf8_back(end)))) ++t.trail;
  return t;
}

// One pass of offset trimming; trims gives the white space around the token at an index.
template <class F>
void trim_offsets(Align* offsets, size_t n, bool add_prefix_space, F&& trims) {
  for (uint32_t i = 0; i < n; ++i) {
    auto [lead, trail] = trims(i);
    Align& o = offsets[i];
    if (lead > 0) {
      if ((i == 0 || o.begin == 0) && add_prefix_space && lead == 1) lead = 0;
      o.begin = std::min(o.begin + lead, o.end);
    }
    if (trail > 0 && o.end >= trail) o.end = std::max(o.end - trail, o.begin);
  }
}

// Byte offsets to code points, in place, with HF's treatment of offsets outside.
inline void to_characters(std::string_view text, std::vector<Align>& offsets) {
  if (is_ascii(text)) return;
  uint32_t n = static_cast<uint32_t>(text.size()), count = UINT32_MAX;
  std::vector<uint32_t> index(n);
  for (uint32_t i = 0; i < n; ++i) {
    count += !utf8_continues(static_cast<unsigned char>(text[i]));
    index[i] = count;
  }
  for (Align& o : offsets) {
    if (o.begin >= n) continue;
    uint32_t begin = index[o.begin];
    o.end = o.end < n ? index[o.end] : (o.end == n ? index[n - 1] : begin + 1) + 1;
    o.begin = begin;
  }
}

}  // namespace fasttoken
