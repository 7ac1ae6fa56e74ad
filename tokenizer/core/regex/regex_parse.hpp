// A pattern in the syntax of the engine HF uses (Oniguruma's Ruby syntax), as a tree. Syntax that is not here is
// refused with Unsupported, never guessed: a caller then matches by other means.
//
//   differences from other dialects kept on purpose:  {n,m}+ repeats the group, it is not possessive;
//   ^ and $ are at lines; . is all but \n; (?i:s) also matches U+017F, as simple case folding has it
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "regex/class_parser.hpp"
#include "regex/regex_program.hpp"

namespace fasttoken {

class RegexParser : private ClassParser {
 public:
  using ClassParser::ClassParser;

  ReNode parse() {
    ReNode node = alternatives(0);
    if (at_ < pattern_.size()) refuse("an unmatched )");
    return node;
  }

 private:
  static constexpr uint32_t unlimited = UINT32_MAX;

  static ReNode set(CharSet s) {
    ReNode node{ReKind::set};
    node.set = std::move(s);
    return node;
  }
  static ReNode assertion(ReAssert a) {
    ReNode node{ReKind::assertion};
    node.assertion = a;
    return node;
  }

  ReNode alternatives(int depth) {
    if (depth > 40) refuse("too deep nesting");
    bool fold = fold_;
    ReNode alt{ReKind::alt};
    alt.parts.push_back(sequence(depth));
    while (more() && look() == '|') {
      ++at_;
      alt.parts.push_back(sequence(depth));
    }
    fold_ = fold;
    return alt.parts.size() == 1 ? std::move(alt.parts[0]) : alt;
  }

  ReNode sequence(int depth) {
    ReNode seq{ReKind::seq};
    std::vector<CharSet> literal;  // the run of plain characters just read, each with those that fold to it
    while (more() && look() != '|' && look() != ')') {
      literal_ = 0;
      ReNode atom{ReKind::seq};
      if (!this->atom(depth, atom)) continue;
      const uint32_t plain = literal_;
      if (!quantifier(atom) && plain && fold_) {
        literal.push_back(CharSet::one(plain).folded());
        check_multifold(literal);
      } else {
        literal.clear();
      }
      seq.parts.push_back(std::move(atom));
    }
    return seq.parts.size() == 1 ? std::move(seq.parts[0]) : seq;
  }

  // Several characters may fold to one ("ss" and U+00DF): such literals are refused.
  void check_multifold(const std::vector<CharSet>& literal) const {
    auto multi = ucd().multifold();
    for (unsigned i = 0; i < multi.size; ++i) {
      auto sequence = multi[i];
      if (literal.size() < sequence.size()) continue;
      bool same = true;
      for (size_t k = 0; k < sequence.size(); ++k)
        same = same && literal[literal.size() - sequence.size() + k].has(sequence[k]);
      if (same) refuse("a case-insensitive text that one character can stand for");
    }
  }

  // Reads one atom; false if it was only a directive.
  bool atom(int depth, ReNode& out) {
    char c = look();
    if (c == '(') return group(depth, out);
    if (c == '[') {
      ++at_;
      out = set(bracket(0));
      return true;
    }
    if (c == '\\') {
      escape(out);
      return true;
    }
    if (c == '*' || c == '+' || c == '?') refuse("a repetition of nothing");
    if (c == '^' || c == '$' || c == '.') {
      ++at_;
      if (c == '.')
        out = set(dot_all_ ? CharSet::range(0, code_points - 1) : CharSet::one('\n').negated());
      else
        out = assertion(c == '^' ? ReAssert::line_start : ReAssert::line_end);
      return true;
    }
    out = literal(character());
    return true;
  }

  ReNode literal(uint32_t c) {
    CharSet s = CharSet::one(c);
    literal_ = c;
    if (!fold_) return set(s);
    if (c >= 0x80) refuse("case folding of a character beyond ASCII");
    return set(s.folded());
  }

  bool group(int depth, ReNode& out) {
    ++at_;
    if (!take("?")) {
      out = alternatives(depth + 1);
      close();
      return true;
    }
    if (take("#")) {
      while (more() && look() != ')') ++at_;
      close();
      return false;
    }
    if (take(":")) {
      out = alternatives(depth + 1);
    } else if (take(">")) {
      out = ReNode(ReKind::atomic);
      out.parts.push_back(alternatives(depth + 1));
    } else if (look() == '=' || look() == '!') {
      out = ReNode(ReKind::ahead);
      out.negative = look() == '!';
      ++at_;
      out.parts.push_back(alternatives(depth + 1));
    } else if (look() == '<' && (look(1) == '=' || look(1) == '!')) {
      out = ReNode(ReKind::behind);
      out.negative = look(1) == '!';
      at_ += 2;
      ReNode body = alternatives(depth + 1);
      if (body.kind != ReKind::set) refuse("a look-behind of more than one character");
      out.set = std::move(body.set);
    } else if (look() == '<' || look() == '\'') {
      char end = look() == '<' ? '>' : '\'';
      ++at_;
      while (more() && look() != end) ++at_;
      ++at_;
      out = alternatives(depth + 1);
    } else {
      return options(depth, out);
    }
    close();
    return true;
  }

  void close() {
    if (!take(")")) refuse("an unclosed group");
  }

  // (?i) (?m) (?-i) for the rest of the group, (?i:...) for the group.
  bool options(int depth, ReNode& out) {
    bool fold = fold_, dot_all = dot_all_, on = true;
    for (;; ++at_) {
      char c = look();
      if (c == '-')
        on = false;
      else if (c == 'i')
        fold = on;
      else if (c == 'm')
        dot_all = on;
      else
        break;
    }
    const bool rest = take(")");  // of the group up to its end, alternatives included
    if (!rest && !take(":")) refuse("a group option that is not supported");
    std::swap(fold, fold_);
    std::swap(dot_all, dot_all_);
    out = alternatives(depth + 1);
    fold_ = fold;
    dot_all_ = dot_all;
    if (rest) return true;
    close();
    literal_ = 0;
    return true;
  }

  void escape(ReNode& out) {
    ++at_;
    static constexpr std::pair<std::string_view, ReAssert> assertions[] = {{"A", ReAssert::text_start},
                                                                           {"z", ReAssert::text_end},
                                                                           {"Z", ReAssert::text_end_line},
                                                                           {"b", ReAssert::word},
                                                                           {"B", ReAssert::not_word}};
    for (auto [name, meaning] : assertions)
      if (take(name)) {
        out = assertion(meaning);
        return;
      }
    CharSet s;
    uint32_t c = 0;
    if (class_escape(s, c, false)) {
      if (fold_ && !s.folded().same(s)) refuse("a property under case folding");
      out = set(std::move(s));
    } else {
      out = literal(c);
    }
  }

  // Wraps the node before it; returns whether there was a quantifier.
  bool quantifier(ReNode& atom) {
    bool found = false;
    for (;;) {
      uint32_t min = 0, max = unlimited;
      bool interval = false;
      char c = look();
      if (c == '*' || c == '+' || c == '?') {
        ++at_;
        min = c == '+';
        if (c == '?') max = 1;
      } else if (c == '{' && bounds(min, max)) {
        interval = true;
      } else {
        return found;
      }
      if (found) refuse("a repetition of a repetition");
      if (atom.kind == ReKind::assertion || atom.kind == ReKind::ahead || atom.kind == ReKind::behind)
        refuse("a repetition of an assertion");
      ReNode repeat{ReKind::repeat};
      repeat.min = min;
      repeat.max = max;
      if (look() == '?') {
        if (interval && min == max) refuse("{n}?");
        ++at_;
        repeat.greed = ReGreed::lazy;
      } else if (look() == '+' && !interval) {
        ++at_;
        repeat.greed = ReGreed::possessive;
      }
      repeat.parts.push_back(std::move(atom));
      atom = std::move(repeat);
      found = true;
      if (interval && look() == '+') {  // {n,m}+ repeats the interval
        ++at_;
        ReNode outer{ReKind::repeat};
        outer.min = 1;
        outer.max = unlimited;
        outer.parts.push_back(std::move(atom));
        atom = std::move(outer);
      }
    }
  }

  // {n} {n,} {,m} {n,m}; anything else is literal text.
  bool bounds(uint32_t& min, uint32_t& max) {
    size_t i = at_ + 1;
    auto number = [&](uint32_t& out) {
      size_t from = i;
      out = 0;
      while (i < pattern_.size() && pattern_[i] >= '0' && pattern_[i] <= '9' && out < 100000)
        out = out * 10 + static_cast<uint32_t>(pattern_[i++] - '0');
      return i > from;
    };
    bool low = number(min);
    if (!low) min = 0;
    if (i < pattern_.size() && pattern_[i] == ',') {
      ++i;
      bool high = number(max);
      if (!high) max = unlimited;
      if (!low && !high) return false;
    } else {
      if (!low) return false;
      max = min;
    }
    if (i >= pattern_.size() || pattern_[i] != '}') return false;
    if (max < min || min > 1000 || (max != unlimited && max > 1000)) refuse("a large or odd repetition");
    at_ = i + 1;
    return true;
  }

  bool dot_all_ = false;
  uint32_t literal_ = 0;
};

}  // namespace fasttoken
