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

#include <cstdio>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>

#include "regex/regex_program.hpp"

namespace fasttoken {

// The shapes of parsed patterns: some patterns are recognised by their trees, in any spelling.
struct Shapes {
  using Parts = std::vector<ReNode>;
  static constexpr uint32_t unlimited = UINT32_MAX;

  static bool same(const ReNode& a, const ReNode& b) {
    if (a.kind != b.kind || a.negative != b.negative || a.parts.size() != b.parts.size()) return false;
    if (a.kind == ReKind::repeat && (a.greed != b.greed || a.min != b.min || a.max != b.max)) return false;
    if (a.kind == ReKind::assertion && a.assertion != b.assertion) return false;
    if ((a.kind == ReKind::set || a.kind == ReKind::behind) && !a.set.same(b.set)) return false;
    for (size_t i = 0; i < a.parts.size(); ++i)
      if (!same(a.parts[i], b.parts[i])) return false;
    return true;
  }
  static bool is(const ReNode& node, std::string_view pattern) { return same(node, parse_regex(pattern, "")); }
  inline static const std::string folded_contractions = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";

  // The set of X+, ` ?X+` and the like; null when the node is something else.
  static const CharSet* run(const ReNode& node, uint32_t min, uint32_t max) {
    bool fits = node.kind == ReKind::repeat && node.greed == ReGreed::greedy && node.min == min && node.max == max;
    return fits && node.parts[0].kind == ReKind::set ? &node.parts[0].set : nullptr;
  }
  static const CharSet* optional_then_run(const ReNode& node, const CharSet*& before) {
    if (node.kind != ReKind::seq || node.parts.size() != 2) return nullptr;
    before = run(node.parts[0], 0, 1);
    return before ? run(node.parts[1], 1, unlimited) : nullptr;
  }

  static bool apart(const CharSet& a, const CharSet& b) { return a.common(b).empty(); }
  static CharSet space() { return CharSet::flagged(onig_space); }
  static CharSet newline() {
    CharSet s = CharSet::one('\n');
    s.add(CharSet::one('\r'));
    return s;
  }
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
    const CharSet *number = run(numbers, 1, 3), *script = run(scripts, 1, unlimited);
    if (!number || !script || words.kind != ReKind::alt || words.parts.size() != 6) return std::nullopt;
    const Parts& p = words.parts;
    if (p[0].kind != ReKind::seq || p[0].parts.size() != 2 || p[0].parts[0].kind != ReKind::set) return std::nullopt;
    const CharSet *marks = &p[0].parts[0].set, *plain = run(p[0].parts[1], 1, unlimited), *before = nullptr;
    const CharSet* letter = optional_then_run(p[1], before);
    if (!plain || !letter || p[2].kind != ReKind::seq || p[2].parts.size() != 3) return std::nullopt;
    const CharSet *blank = run(p[2].parts[0], 0, 1), *other = run(p[2].parts[1], 1, unlimited);
    const CharSet* trail = run(p[2].parts[2], 0, unlimited);
    if (!blank || !blank->same(CharSet::one(' ')) || !other || !trail || !trail->same(newline())) return std::nullopt;
    if (!is(p[3], "\\s*[\\r\\n]+") || !is(p[4], "\\s+(?!\\S)") || !is(p[5], "\\s+")) return std::nullopt;

    const CharSet ascii = CharSet::range(0, 127);
    for (auto [a, b] : {std::pair{number, script}, {letter, other}, {number, letter}, {number, other}})
      if (!apart(*a, *b)) return std::nullopt;
    for (const CharSet* set : {number, script, letter, other})
      if (!apart(*set, space())) return std::nullopt;
    if (!apart(*script, ascii) || !marks->same(other->common(ascii)) || !plain->same(letter->common(ascii)))
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
    if (!apart(*before, never) || !without(always, *before).empty()) return std::nullopt;
    out.before_ = *before;
    out.script_rest = out.rest.common(*script);
    out.rest = without(out.rest, *script);
    if (out.script_letter.empty() || out.script_other.empty()) return std::nullopt;
    return out;
  }

  // A pattern whose matches are the pieces of all three.
  std::string pattern() const {
    const CharSet piece_ends = all_of({&number, &script, &space_}), ascii = CharSet::range(0, 127);
    std::string out = in(number) + "{1,3}";
    const CharSet script_before = before_.common(script);
    out += "|" + (script_before.empty() ? "" : in(script_before) + "?") + in(script_letter) + "+";
    out += "|" + in(script_other) + "+";
    if (!script_rest.empty()) out += "|" + in(script_rest) + "+(?!" + in(script_letter) + ")";
    out += "|" + in(other.common(ascii)) + in(letter.common(ascii)) + "+";
    out += "|" + in(without(without(before_, number), script)) + "?" + in(letter) + "+";
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

  CharSet before_, space_ = space();
};

}  // namespace fasttoken
