// Three patterns that cut a text one after the other, as DeepSeek-V3 has them, as one pattern.
//
//   first    N{1,3}                                              numbers are pieces
//   second   C+                                                  between those, runs of some scripts
//   third    A[A-Za-z]+|B?L+| ?O+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+   of each piece; A: O and ASCII
//
//   The third sees one piece at a time. N and C begin and end one, so as one pattern:
//   - within C: its L, its O, and the rest of it, each by themselves
//   - outside: the third without N and C; a run before N or C ends there, so that spaces before it are not parted
//   - characters that the third matches nowhere are a piece between matches: a run of the rest, less its last where
//     letters follow, since B has the rest
#pragma once

#include <algorithm>
#include <array>
#include <cstdio>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "regex/regex_program.hpp"

namespace fasttoken {

// Parsed patterns beside shapes: patterns in which a capital letter stands for a set, the same one wherever it
// stands.
class Shapes {
 public:
  using Parts = std::vector<ReNode>;
  static constexpr std::string_view folded_contractions = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";

  static CharSet space() { return CharSet::flagged(onig_space); }
  static CharSet newline() {
    CharSet s = CharSet::one('\n');
    s.add(CharSet::one('\r'));
    return s;
  }

 protected:
  // The set of a letter, once a shape with it was fitted.
  const CharSet& operator[](char letter) const { return *sets_[static_cast<size_t>(letter - 'A')]; }
  bool fits(const ReNode& node, std::string_view shape) { return fits(node, parse_regex(shape, "")); }
  // The parts from `from` on, as many as there are shapes.
  bool fit(const Parts& parts, size_t from, std::initializer_list<std::string_view> shapes) {
    return parts.size() == from + shapes.size() &&
           std::equal(shapes.begin(), shapes.end(), parts.begin() + static_cast<std::ptrdiff_t>(from),
                      [&](std::string_view shape, const ReNode& part) { return fits(part, shape); });
  }
  static bool apart(const CharSet& a, const CharSet& b) { return a.common(b).empty(); }

 private:
  bool fits(const ReNode& a, const ReNode& shape) {
    if (a.kind != shape.kind || a.negative != shape.negative || a.greed != shape.greed || a.min != shape.min ||
        a.max != shape.max || a.assertion != shape.assertion || a.parts.size() != shape.parts.size())
      return false;
    const auto& ranges = shape.set.ranges();
    if (ranges.size() == 1 && ranges[0].first == ranges[0].last && ranges[0].first - 'A' < sets_.size()) {
      std::optional<CharSet>& named = sets_[ranges[0].first - 'A'];
      if (!named) named = a.set;
      if (!named->same(a.set)) return false;
    } else if (!a.set.same(shape.set)) {
      return false;
    }
    return std::equal(a.parts.begin(), a.parts.end(), shape.parts.begin(),
                      [&](const ReNode& part, const ReNode& other) { return fits(part, other); });
  }

  std::array<std::optional<CharSet>, 26> sets_;
};

class JoinedSplits : private Shapes {
 public:
  CharSet number, script;               // N and C
  CharSet letter, other;                // L and O outside C
  CharSet script_letter, script_other;  // and within
  CharSet rest, script_rest;            // in none of them, no space: outside C, and within

  // Nothing where the three are of other shapes, or their sets overlap.
  static std::optional<JoinedSplits> read(const ReNode& numbers, const ReNode& scripts, const ReNode& words) {
    JoinedSplits out;
    if (!out.fits(numbers, "N{1,3}") || !out.fits(scripts, "C+") || words.kind != ReKind::alt ||
        !out.fit(words.parts, 0, {"MA+", "B?L+", " ?O+[\\r\\n]*", "\\s*[\\r\\n]+", "\\s+(?!\\S)", "\\s+"}))
      return std::nullopt;
    const CharSet *number = &out['N'], *script = &out['C'], *letter = &out['L'], *other = &out['O'];
    const CharSet ascii = CharSet::range(0, 127);
    for (auto [a, b] : {std::pair{number, script}, {letter, other}, {number, letter}, {number, other}})
      if (!apart(*a, *b)) return std::nullopt;
    for (const CharSet* set : {number, script, letter, other})
      if (!apart(*set, space())) return std::nullopt;
    if (!apart(*script, ascii) || !out['M'].same(other->common(ascii)) || !out['A'].same(letter->common(ascii)))
      return std::nullopt;
    out.number = *number;
    out.script = *script;
    out.script_letter = letter->common(*script);
    out.script_other = other->common(*script);
    out.letter = without(*letter, *script);
    out.other = without(*other, *script);
    out.rest = all_of({number, letter, other}).negated();
    out.rest = without(out.rest, space());
    // B: spaces but ends of lines, and the rest; no punctuation, and no matter of letters.
    CharSet never = all_of({other}), always = without(space(), newline());
    never.add(newline());
    always.add(out.rest);
    if (!apart(out['B'], never) || !without(always, out['B']).empty()) return std::nullopt;
    out.script_rest = out.rest.common(*script);
    out.rest = without(out.rest, *script);
    if (out.script_letter.empty() || out.script_other.empty()) return std::nullopt;
    return out;
  }

  // A pattern whose matches are the pieces of all three.
  std::string pattern() const {
    const CharSet spaces = space(), piece_ends = all_of({&number, &script, &spaces}), ascii = CharSet::range(0, 127);
    std::string out = in(number) + "{1,3}";
    const CharSet script_before = (*this)['B'].common(script);
    out += "|" + (script_before.empty() ? "" : in(script_before) + "?") + in(script_letter) + "+";
    out += "|" + in(script_other) + "+";
    if (!script_rest.empty()) out += "|" + in(script_rest) + "+(?!" + in(script_letter) + ")";
    out += "|" + in(other.common(ascii)) + in(letter.common(ascii)) + "+";
    out += "|" + in(without(without((*this)['B'], number), script)) + "?" + in(letter) + "+";
    out += "| ?" + in(other) + "+[\\r\\n]*|\\s*[\\r\\n]+";
    out += "|\\s+(?!" + in(piece_ends.negated()) + ")|\\s+";
    return out + "|" + in(rest) + "+(?!" + in(letter) + ")";
  }

 private:
  static CharSet without(const CharSet& a, const CharSet& b) { return a.common(b.negated()); }
  static CharSet all_of(std::initializer_list<const CharSet*> sets) {
    CharSet all;
    for (const CharSet* set : sets) all.add(*set);
    return all;
  }
  static std::string in(const CharSet& set) {
    std::string out = "[";
    char range[32];
    for (const CharSet::Range& r : set.ranges()) {
      std::snprintf(range, sizeof range, "\\x{%X}-\\x{%X}", r.first, r.last);
      out += range;
    }
    return out + "]";
  }
};

}  // namespace fasttoken
