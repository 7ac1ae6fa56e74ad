// Sets of code points as sorted, disjoint intervals, and the names patterns give to them.
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "unicode/unicode.hpp"

namespace fasttoken {

class CharSet {
 public:
  struct Range {
    uint32_t first, last;
    auto operator<=>(const Range&) const = default;
  };

  CharSet() = default;
  static CharSet one(uint32_t c) { return range(c, c); }
  static CharSet range(uint32_t first, uint32_t last) {
    CharSet s;
    s.ranges_.push_back({first, last});
    return s;
  }
  // The code points whose record satisfies holds(record).
  template <class F>
  static CharSet where(F&& holds) {
    using namespace tables;
    CharSet s;
    each_run(run_start, run_start_size, [&](uint32_t first, uint32_t end, unsigned i) {
      if (!holds(run_record[i])) return;
      if (!s.ranges_.empty() && s.ranges_.back().last + 1 == first)
        s.ranges_.back().last = end - 1;
      else
        s.ranges_.push_back({first, end - 1});
    });
    return s;
  }

  const std::vector<Range>& ranges() const { return ranges_; }
  bool empty() const { return ranges_.empty(); }
  bool has(uint32_t c) const {
    auto at =
        std::upper_bound(ranges_.begin(), ranges_.end(), c, [](uint32_t x, const Range& r) { return x < r.first; });
    return at != ranges_.begin() && std::prev(at)->last >= c;
  }

  void add(const CharSet& other) {
    std::vector<Range> joined;
    joined.reserve(ranges_.size() + other.ranges_.size());
    const Range *a = ranges_.data(), *const a_end = a + ranges_.size();
    const Range *b = other.ranges_.data(), *const b_end = b + other.ranges_.size();
    while (a != a_end || b != b_end) {
      const Range& r = b == b_end || (a != a_end && a->first < b->first) ? *a++ : *b++;
      if (!joined.empty() && r.first <= joined.back().last + 1)
        joined.back().last = std::max(joined.back().last, r.last);
      else
        joined.push_back(r);
    }
    ranges_ = std::move(joined);
  }
  CharSet negated() const {
    CharSet out;
    uint32_t next = 0;
    for (const Range& r : ranges_) {
      if (r.first > next) out.ranges_.push_back({next, r.first - 1});
      next = r.last + 1;
    }
    if (next < code_points) out.ranges_.push_back({next, code_points - 1});
    return out;
  }
  CharSet common(const CharSet& other) const {
    CharSet all = negated();
    all.add(other.negated());
    return all.negated();
  }

  // With everything that differs from a member only by case.
  CharSet folded() const {
    CharSet out = *this, more;
    auto fold = ucd().fold();
    for (const Range& r : ranges_) {
      size_t i = static_cast<size_t>(std::lower_bound(fold.keys, fold.keys + fold.size, r.first) - fold.keys);
      for (; i < fold.size && fold.keys[i] <= r.last; ++i)
        for (unsigned c : fold[i]) more.ranges_.push_back({c, c});
    }
    std::sort(more.ranges_.begin(), more.ranges_.end());
    out.add(more);
    return out;
  }
  bool same(const CharSet& other) const { return ranges_ == other.ranges_; }

  static CharSet flagged(uint16_t flag) {
    return where([flag](unsigned r) { return (tables::record_flags[r] & flag) != 0; });
  }
  // The characters that \w matches; inside brackets the engine has a slightly smaller set.
  static CharSet word(bool in_brackets) {
    CharSet all = flagged(onig_word);
    if (!in_brackets) return all;
    CharSet less;
    for (unsigned i = 0; i < tables::bare_word_size; ++i) less.add(one(tables::bare_word[i]));
    return all.common(less.negated());
  }
  static CharSet categories(uint32_t bits) {
    return where([bits](unsigned r) { return (bits >> tables::record_category[r] & 1) != 0; });
  }

  // The set behind \p{name}: general categories and scripts, as the pattern engine spells them.
  static std::optional<CharSet> property(std::string_view name) {
    std::string key = plain(name);
    if (key == "any") return range(0, code_points - 1);
    if (key == "ascii") return range(0, 127);
    // The names of groups of categories; then the long name of each category, in their order.
    static constexpr std::pair<std::string_view, std::string_view> groups[] = {
        {"l letter", "Lu Ll Lt Lm Lo"},
        {"lc casedletter", "Lu Ll Lt"},
        {"m mark combiningmark", "Mn Mc Me"},
        {"n number", "Nd Nl No"},
        {"p punctuation", "Pc Pd Ps Pe Pi Pf Po"},
        {"s symbol", "Sm Sc Sk So"},
        {"z separator", "Zs Zl Zp"},
        {"c other", "Cc Cf Cs Co Cn"}};
    static constexpr std::string_view names[] = {
        "uppercaseletter",    "lowercaseletter",  "titlecaseletter",  "modifierletter",
        "otherletter",        "nonspacingmark",   "spacingmark",      "enclosingmark",
        "decimalnumber",      "letternumber",     "othernumber",      "connectorpunctuation",
        "dashpunctuation",    "openpunctuation",  "closepunctuation", "initialpunctuation",
        "finalpunctuation",   "otherpunctuation", "mathsymbol",       "currencysymbol",
        "modifiersymbol",     "othersymbol",      "spaceseparator",   "lineseparator",
        "paragraphseparator", "control",          "format",           "surrogate",
        "privateuse",         "unassigned"};
    static_assert(std::size(names) == std::size(category_names));
    const auto one_of = [](std::string_view list, std::string_view word) {
      for (size_t at = 0, end; at < list.size(); at = end + 1) {
        end = std::min(list.find(' ', at), list.size());
        if (list.substr(at, end - at) == word) return true;
      }
      return false;
    };
    std::string_view group;
    for (auto& [aliases, members] : groups)
      if (one_of(aliases, key)) group = members;
    uint32_t bits = 0;
    for (uint32_t i = 0; i < std::size(names); ++i)
      if (one_of(group, category_names[i]) || names[i] == key || plain(category_names[i]) == key) bits |= 1u << i;
    if (bits) return categories(bits);
    using namespace tables;
    for (unsigned s = 1; s < script_names_size; ++s) {
      if (plain(script_names[s]) != key) continue;
      CharSet out;
      each_run(script_start, script_start_size, [&](uint32_t first, uint32_t end, unsigned i) {
        if (script_value[i] == s) out.ranges_.push_back({first, end - 1});
      });
      return out;
    }
    return std::nullopt;
  }

 private:
  static std::string plain(std::string_view name) {
    std::string out;
    for (char c : name)
      if (c != ' ' && c != '_' && c != '-') out += static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
    return out;
  }

  std::vector<Range> ranges_;
};

}  // namespace fasttoken
