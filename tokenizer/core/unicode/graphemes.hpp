// Grapheme clusters as HF's normalizer of sentencepiece's maps cuts a text into them, by the rules of UAX 29.
// Regional indicators are taken one by one: HF's result depends on clusters of at most five bytes alone, and two of
// them have eight.
#pragma once

#include "text/utf8.hpp"
#include "unicode/unicode.hpp"

namespace fasttoken {

// The order of make_tables.py, but for the last two, which code points of Hangul syllables have.
enum GraphemeFlag : uint16_t {
  joins_back = 1 << 0,   // Extend, ZWJ, SpacingMark
  joins_ahead = 1 << 1,  // Prepend
  stands_apart = 1 << 2,
  pictographic = 1 << 3,
  pictographic_extend = 1 << 4,
  zero_width_joiner = 1 << 5,
  conjunct_consonant = 1 << 6,
  conjunct_linker = 1 << 7,
  conjunct_extend = 1 << 8,
  hangul_l = 1 << 9,
  hangul_v = 1 << 10,
  hangul_t = 1 << 11,
  hangul_lv = 1 << 12,
  hangul_lvt = 1 << 13,
};
// A character with none of these is in no cluster with others of which that holds.
inline constexpr uint16_t joins_others = joins_back | joins_ahead | zero_width_joiner | conjunct_linker |
                                         conjunct_extend | pictographic_extend | hangul_l | hangul_v | hangul_t;

class Graphemes {
 public:
  Graphemes() {
    using namespace tables;
    each_run(grapheme_start, grapheme_start_size,
             [&](uint32_t first, uint32_t end, unsigned i) { flags_.set(first, end, grapheme_flags[i]); });
    flags_.set(Unicode::hangul, Unicode::hangul_end, hangul_lvt);
    for (uint32_t c = Unicode::hangul; c < Unicode::hangul_end; c += 28) flags_.set(c, hangul_lv);
  }

  uint16_t flags(uint32_t c) const { return flags_[c]; }

  // The end of the cluster that begins at p, which is before `end`.
  const char* next(const char* p, const char* end) const {
    const uint32_t first = utf8_next(p);
    if (first == '\r') return p < end && *p == '\n' ? p + 1 : p;
    uint16_t before = flags(first);
    bool picture = before & pictographic, joined_picture = false;
    bool consonant = before & conjunct_consonant, linked = false;
    while (p < end) {
      const char* after = p;
      const uint16_t now = flags(utf8_next(after));
      if ((before | now) == 0 || ((before | now) & stands_apart)) break;
      if (!((now & joins_back) || (before & joins_ahead) || joins_hangul(before, now) ||
            (joined_picture && (now & pictographic)) || (consonant && linked && (now & conjunct_consonant))))
        break;
      joined_picture = picture && (now & zero_width_joiner);
      picture = (now & pictographic) || (picture && (now & pictographic_extend));
      if (now & conjunct_consonant) {
        consonant = true;
        linked = false;
      } else if (consonant && (now & (conjunct_linker | conjunct_extend))) {
        linked |= (now & conjunct_linker) != 0;
      } else {
        consonant = false;
      }
      before = now;
      p = after;
    }
    return p;
  }

 private:
  static bool joins_hangul(uint16_t before, uint16_t now) {
    if (before & hangul_l) return now & (hangul_l | hangul_v | hangul_lv | hangul_lvt);
    if (before & (hangul_v | hangul_lv)) return now & (hangul_v | hangul_t);
    return (before & (hangul_t | hangul_lvt)) && (now & hangul_t);
  }

  PagedTable<uint16_t> flags_;
};

inline const Graphemes& graphemes() {
  static const Graphemes all;
  return all;
}

}  // namespace fasttoken
