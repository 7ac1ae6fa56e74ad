// Sets of code points as sorted, disjoint intervals, and the names patterns give to them.
#pragma once

#include <algorithm>
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
    for (unsigned i = 0; i < run_start_size; ++i) {
      if (!holds(run_record[i])) continue;
      uint32_t first = run_start[i];
      uint32_t last = (i + 1 < run_start_size ? run_start[i + 1] : code_points) - 1;
      if (!s.ranges_.empty() && s.ranges_.back().last + 1 == first)
        s.ranges_.back().last = last;
      else
        s.ranges_.push_back({first, last});
    }
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
    bool behind = !ranges_.empty() && !other.empty() && ranges_.back().last + 1 < other.ranges_.front().first;
    ranges_.insert(ranges_.end(), other.ranges_.begin(), other.ranges_.end());
    if (behind) return;
    std::sort(ranges_.begin(), ranges_.end(), [](const Range& a, const Range& b) { return a.first < b.first; });
    std::vector<Range> joined;
    for (const Range& r : ranges_) {
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
        for (size_t k = fold.index[i]; k < fold.index[i + 1]; ++k)
          more.ranges_.push_back({fold.flat[k], fold.flat[k]});
    }
    out.add(more);
    return out;
  }
  bool same(const CharSet& other) const {
    return std::equal(ranges_.begin(), ranges_.end(), other.ranges_.begin(), other.ranges_.end(),
                      [](const Range& a, const Range& b) { return a.first == b.first && a.last == b.last; });
  }

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
    static constexpr std::pair<std::string_view, std::string_view> groups[] = {
        {"l", "Lu Ll Lt Lm Lo"},
        {"letter", "Lu Ll Lt Lm Lo"},
        {"lc", "Lu Ll Lt"},
        {"casedletter", "Lu Ll Lt"},
        {"m", "Mn Mc Me"},
        {"mark", "Mn Mc Me"},
        {"combiningmark", "Mn Mc Me"},
        {"n", "Nd Nl No"},
        {"number", "Nd Nl No"},
        {"p", "Pc Pd Ps Pe Pi Pf Po"},
        {"punctuation", "Pc Pd Ps Pe Pi Pf Po"},
        {"s", "Sm Sc Sk So"},
        {"symbol", "Sm Sc Sk So"},
        {"z", "Zs Zl Zp"},
        {"separator", "Zs Zl Zp"},
        {"c", "Cc Cf Cs Co Cn"},
        {"other", "Cc Cf Cs Co Cn"},
        {"uppercaseletter", "Lu"},
        {"lowercaseletter", "Ll"},
        {"titlecaseletter", "Lt"},
        {"modifierletter", "Lm"},
        {"otherletter", "Lo"},
        {"nonspacingmark", "Mn"},
        {"spacingmark", "Mc"},
        {"enclosingmark", "Me"},
        {"decimalnumber", "Nd"},
        {"letternumber", "Nl"},
        {"othernumber", "No"},
        {"connectorpunctuation", "Pc"},
        {"dashpunctuation", "Pd"},
        {"openpunctuation", "Ps"},
        {"closepunctuation", "Pe"},
        {"initialpunctuation", "Pi"},
        {"finalpunctuation", "Pf"},
        {"otherpunctuation", "Po"},
        {"mathsymbol", "Sm"},
        {"currencysymbol", "Sc"},
        {"modifiersymbol", "Sk"},
        {"othersymbol", "So"},
        {"spaceseparator", "Zs"},
        {"lineseparator", "Zl"},
        {"paragraphseparator", "Zp"},
        {"control", "Cc"},
        {"format", "Cf"},
        {"surrogate", "Cs"},
        {"privateuse", "Co"},
        {"unassigned", "Cn"}};
    std::string_view list;
    for (auto& [alias, members] : groups)
      if (alias == key) list = members;
    uint32_t bits = 0;
    for (uint32_t i = 0; i < std::size(category_names); ++i)
      if (list.find(category_names[i]) != std::string_view::npos || plain(category_names[i]) == key) bits |= 1u << i;
    if (bits) return categories(bits);
    using namespace tables;
    for (unsigned s = 1; s < script_names_size; ++s) {
      if (plain(script_names[s]) != key) continue;
      CharSet out;
      for (unsigned i = 0; i < script_start_size; ++i) {
        uint32_t end = i + 1 < script_start_size ? script_start[i + 1] : code_points;
        if (script_value[i] == s) out.ranges_.push_back({script_start[i], end - 1});
      }
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
