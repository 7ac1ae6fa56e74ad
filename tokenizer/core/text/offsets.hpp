// Offsets of tokens: without the white space at their ends, in code points, and from the ids alone.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "encoded.hpp"
#include "memory/table_array.hpp"
#include "text/bmp_set.hpp"
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

// Which characters each token stands for, from the ids alone: where nothing was rewritten or left out, the tokens'
// bytes are the text, and their lengths say where each lies.
//
//   counts_   id -> how many characters begin in its bytes; `continues`: its first byte begins none; `unsaid`: it may
//             stand for others
//   token     [begun before it, less the one it continues; begun up to its end)      in characters, as in HF
//   marks     a mark of a space counts as one; of a mark that was put before the text no character is left
//   blanks    tokens are parted by them (Blanks): they are passed over before a token. A mark or a prefix at a
//             token's beginning counts nothing. Of each character a table says what it becomes; a text with another
//             is not known
//   own       a character that is a token by itself, of whatever id; or, if unknown characters are fused, one that no
//             token has, so that the unknown token stands for all of them in a row
//
//   invariants   made while loading and only read afterwards. A sum that is not the length of the text (white
//                space that an added token swallowed) means that nothing is known
class CharSpans {
 public:
  enum class Of : uint8_t { bytes, marks, blanks };
  // Of blanks: the kind of each character of a text. kept: it stays, or one takes its place.
  enum Kind : uint8_t { other, kept, blank, own };

  // marks: whether one may be put before the text. blanks: whether a token's mark stands for the one before it.
  void read_marks(bool puts_before) { of_ = Of::marks, marked_ = puts_before; }
  void read_blanks(const std::array<Kind, 128>& ascii, bool marked, bool fuses, std::string_view inside) {
    of_ = Of::blanks, ascii_ = ascii, marked_ = marked, fuses_ = fuses, inside_ = inside;
  }
  Of of() const { return of_; }
  bool reads_text() const { return of_ == Of::blanks; }
  bool fuses() const { return fuses_; }
  // kept, own or other, of characters from 0x80 to 0xFFFF; those of the others are other.
  void add_wide(uint32_t c, Kind kind) {
    if (kind != other) (kind == own ? own_ : kept_).add(c);
  }
  Kind kind_at(const char* p) const {
    if (const unsigned char c = static_cast<unsigned char>(*p); c < 0x80) return ascii_[c];
    return own_.has_wide(p) ? own : kept_.has_wide(p) ? kept : other;
  }

  void reserve(size_t ids) { counts_.assign(ids, 0); }
  // The bytes a token stands for in a text; marked: a mark at its beginning is not among them. False: it is too long
  // to be kept here.
  bool add(uint32_t id, std::string_view bytes, bool marked = false) {
    const size_t count = utf8_count(bytes);
    if (count > most) return false;
    bool inside = !bytes.empty() && utf8_continues(static_cast<unsigned char>(bytes[0]));
    counts_[id] = static_cast<uint16_t>(count | (inside ? continues : 0) | (marked ? begins_marked : 0));
    return true;
  }
  void leave_unsaid(uint32_t id) { counts_[id] = unsaid; }
  void tables(auto& io) { io(counts_, kept_, own_); }
  bool known() const { return !counts_.empty(); }
  void forget() { counts_.clear(); }

  // n rows at out, of a text of so many characters, which is given if reads_text(); ascii: that is all it is. False:
  // it is not known where they lie.
  bool put(const int32_t* ids, size_t n, size_t characters, std::string_view text, bool ascii, Align* out) const {
    if (of_ == Of::blanks) {
      if (!inside_.empty() && text.find(inside_) != std::string_view::npos) return false;
      return ascii ? between_blanks(ids, n, text, out) : between_blanks_wide(ids, n, text, out);
    }
    size_t at = 0;
    for (size_t i = 0; i < n; ++i) {
      const uint32_t id = static_cast<uint32_t>(ids[i]);
      if (id >= counts_.size()) return false;
      const uint32_t count = counts_[id];
      if (count == unsaid) return false;
      out[i].begin = static_cast<uint32_t>(at) - (count >> 15);
      at += count & most;
      out[i].end = static_cast<uint32_t>(at);
    }
    if (at == characters) return true;
    if (!marked_ || at != characters + 1 || !(counts_[static_cast<uint32_t>(ids[0])] & begins_marked)) return false;
    for (size_t i = 0; i < n; ++i) out[i] = {out[i].begin - (i > 0), out[i].end - 1};
    out[0].end = std::max(out[0].end, 1u);
    return true;
  }

 private:
  static constexpr uint32_t continues = 1u << 15, begins_marked = 1u << 14, most = begins_marked - 1;
  static constexpr uint16_t unsaid = UINT16_MAX;

  bool between_blanks(const int32_t* ids, size_t n, std::string_view text, Align* out) const {
    const auto at_byte = [&](size_t at) { return ascii_[static_cast<unsigned char>(text[at])]; };
    bool known = true;
    for (size_t i = 0; i < text.size(); ++i) known &= at_byte(i) != other;
    if (!known) return false;
    uint32_t at = 0;
    const uint32_t end = static_cast<uint32_t>(text.size());
    for (size_t i = 0; i < n; ++i) {
      const uint32_t id = static_cast<uint32_t>(ids[i]), before = at;
      if (id >= counts_.size() || counts_[id] == unsaid) return false;
      while (at < end && at_byte(at) == blank) ++at;
      const bool marked = marked_ && at > before && (counts_[id] & begins_marked);
      if (marked && (at > before + 1 || before == 0)) return false;  // a step may strip them, or make them one
      out[i].begin = marked ? before : at;
      at += counts_[id] & most;
      out[i].end = std::max(at, out[i].begin + 1);
    }
    while (at < end && at_byte(at) == blank) ++at;
    return at == end;
  }

  // The same for a text of any characters, whose kinds are looked at one by one.
  bool between_blanks_wide(const int32_t* ids, size_t n, std::string_view text, Align* out) const {
    const char *p = text.data(), *const end = p + text.size();
    const auto look = [this, end](const char* at) { return at < end ? kind_at(at) : other; };
    const auto behind = [](const char* at) { return at + utf8_length(static_cast<unsigned char>(*at)); };
    uint32_t at = 0;
    Kind now = look(p);
    for (size_t i = 0; i < n; ++i) {
      const uint32_t id = static_cast<uint32_t>(ids[i]), before = at;
      if (id >= counts_.size()) return false;
      const uint32_t count = counts_[id];
      for (; now == blank; ++at) now = look(p = behind(p));
      const bool marked = marked_ && at > before && count != unsaid && (count & begins_marked);
      if (marked && (at > before + 1 || before == 0)) return false;
      out[i].begin = marked ? before : at;
      if (now == own && (!fuses_ || count == unsaid)) {
        if (fuses_)
          p = own_.span(p, end, [&] { ++at; });
        else
          p = behind(p), ++at;
        now = look(p);
      } else {
        if (count == unsaid) return false;
        for (uint32_t left = count & most; left > 0; --left, ++at) {
          if (now != kept) return false;
          now = look(p = behind(p));
        }
      }
      out[i].end = std::max(at, out[i].begin + 1);
    }
    while (now == blank) now = look(p = behind(p));
    return p == end;
  }

  TableArray<uint16_t> counts_;
  BmpSet kept_, own_;
  Of of_ = Of::bytes;
  bool marked_ = false, fuses_ = false;
  std::array<Kind, 128> ascii_{};
  std::string inside_;  // the prefix of a token inside a word: a text that has it can be read in two ways
};

}  // namespace fasttoken
