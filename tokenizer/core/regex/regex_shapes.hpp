// The shapes of parsed patterns: some patterns are recognised by their trees, in any spelling.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "regex/regex_tree.hpp"

namespace fasttoken {

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

}  // namespace fasttoken
