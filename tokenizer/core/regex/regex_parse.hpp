// A pattern in the syntax of the engine HF uses (Oniguruma's Ruby syntax), as a tree. Syntax that is not here is
// refused with Unsupported, never guessed: a caller then matches by other means.
//
//   differences from other dialects kept on purpose:  {n,m}+ repeats the group, it is not possessive;
//   ^ and $ are at lines; . is all but \n; (?i:s) also matches U+017F, as simple case folding has it
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "errors.hpp"
#include "regex/regex_tree.hpp"

namespace fasttoken {

class RegexParser {
 public:
  RegexParser(std::string_view pattern, std::string path) : pattern_(pattern), path_(std::move(path)) {}

  ReNode parse() {
    ReNode node = alternatives(0);
    if (at_ < pattern_.size()) refuse("an unmatched )");
    return node;
  }

 private:
  static constexpr uint32_t unlimited = UINT32_MAX;

  [[noreturn]] void refuse(const std::string& what) const {
    const size_t end = std::min<size_t>(pattern_.size(), 200);
    const size_t shown =
        end < pattern_.size() ? static_cast<size_t>(utf8_back(pattern_.data() + end + 1) - pattern_.data()) : end;
    throw Unsupported("a pattern with " + what + ": " + std::string(pattern_.substr(0, shown)), path_, true);
  }
  bool more() const { return at_ < pattern_.size(); }
  char look(size_t ahead = 0) const { return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0'; }
  bool take(std::string_view text) {
    if (pattern_.substr(at_, text.size()) != text) return false;
    at_ += text.size();
    return true;
  }
  uint32_t character() {
    const char* p = pattern_.data() + at_;
    uint32_t c = utf8_next(p);
    at_ = static_cast<size_t>(p - pattern_.data());
    return c;
  }

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
    std::vector<uint32_t> literal;  // the run of plain characters just read, under case folding
    while (more() && look() != '|' && look() != ')') {
      literal_ = 0;
      ReNode atom{ReKind::seq};
      if (!this->atom(depth, atom)) continue;
      uint32_t plain = literal_;
      bool repeated = false;
      if (quantifier(atom)) repeated = true;
      if (plain && fold_ && !repeated) {
        literal.push_back(plain);
        check_multifold(literal);
      } else {
        literal.clear();
      }
      seq.parts.push_back(std::move(atom));
    }
    return seq.parts.size() == 1 ? std::move(seq.parts[0]) : seq;
  }

  // Several characters may fold to one ("ss" and U+00DF): such literals are refused.
  void check_multifold(const std::vector<uint32_t>& literal) const {
    auto multi = ucd().multifold();
    for (unsigned i = 0; i < multi.size; ++i) {
      auto sequence = multi.find(multi.keys[i]);
      if (literal.size() < sequence.size()) continue;
      bool same = true;
      for (size_t k = 0; k < sequence.size(); ++k) {
        uint32_t c = literal[literal.size() - sequence.size() + k];
        CharSet both = CharSet::one(c).folded();
        same = same && both.has(sequence[k]);
      }
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
    if (c == '#' && extended_) refuse("a comment");
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
    if (look() == ')') {
      ++at_;
      // The rest of the group up to its end, alternatives included.
      bool old_fold = fold_, old_dot = dot_all_;
      fold_ = fold;
      dot_all_ = dot_all;
      out = alternatives(depth + 1);
      fold_ = old_fold;
      dot_all_ = old_dot;
      return true;
    }
    if (!take(":")) refuse("a group option that is not supported");
    bool old_fold = fold_, old_dot = dot_all_;
    fold_ = fold;
    dot_all_ = dot_all;
    out = alternatives(depth + 1);
    fold_ = old_fold;
    dot_all_ = old_dot;
    close();
    literal_ = 0;
    return true;
  }

  uint32_t hex(size_t least, size_t most) {
    uint32_t value = 0;
    size_t n = 0;
    for (; n < most && more(); ++n, ++at_) {
      char c = look();
      uint32_t digit = c >= '0' && c <= '9'   ? static_cast<uint32_t>(c - '0')
                       : c >= 'a' && c <= 'f' ? static_cast<uint32_t>(c - 'a' + 10)
                       : c >= 'A' && c <= 'F' ? static_cast<uint32_t>(c - 'A' + 10)
                                              : 99;
      if (digit == 99) break;
      value = value << 4 | digit;
    }
    if (n < least || value >= code_points) refuse("a bad code point");
    return value;
  }

  // After a backslash: a set of characters, or (nothing set) a single one in c.
  bool class_escape(CharSet& s, uint32_t& c, bool in_brackets) {
    if (!more()) refuse("a backslash at its end");
    uint32_t x = character();
    switch (x) {
      case 's':
        s = CharSet::flagged(onig_space);
        return true;
      case 'S':
        s = CharSet::flagged(onig_space).negated();
        return true;
      case 'w':
        s = CharSet::word(in_brackets);
        return true;
      case 'W':
        s = CharSet::word(in_brackets).negated();
        return true;
      case 'd':
        s = *CharSet::property("Nd");
        return true;
      case 'D':
        s = CharSet::property("Nd")->negated();
        return true;
      case 'h':
      case 'H':
        s = CharSet::range('0', '9');
        s.add(CharSet::range('a', 'f'));
        s.add(CharSet::range('A', 'F'));
        if (x == 'H') s = s.negated();
        return true;
      case 'p':
      case 'P': {
        if (!take("{")) refuse("\\p without braces");
        bool negative = take("^") != (x == 'P');
        size_t end = pattern_.find('}', at_);
        if (end == std::string_view::npos) refuse("an unclosed property");
        auto found = CharSet::property(pattern_.substr(at_, end - at_));
        if (!found) refuse("the property " + std::string(pattern_.substr(at_, end - at_)));
        at_ = end + 1;
        s = negative ? found->negated() : *found;
        return true;
      }
      case 'n':
        c = '\n';
        return false;
      case 't':
        c = '\t';
        return false;
      case 'r':
        c = '\r';
        return false;
      case 'f':
        c = '\f';
        return false;
      case 'v':
        c = '\v';
        return false;
      case 'a':
        c = '\a';
        return false;
      case 'e':
        c = 0x1B;
        return false;
      case 'x':
        if (take("{")) {
          c = hex(1, 8);
          if (!take("}")) refuse("an unclosed code point");
        } else {
          c = hex(1, 2);
          if (c >= 0x80) refuse("a raw byte");
        }
        return false;
      case 'u':
        c = hex(4, 4);
        return false;
      default:
        if ((x >= '0' && x <= '9') || (x >= 'a' && x <= 'z') || (x >= 'A' && x <= 'Z'))
          refuse("the escape \\" + std::string(1, static_cast<char>(x)));
        c = x;
        return false;
    }
  }

  void escape(ReNode& out) {
    ++at_;
    switch (look()) {
      case 'A':
        ++at_;
        out = assertion(ReAssert::text_start);
        return;
      case 'z':
        ++at_;
        out = assertion(ReAssert::text_end);
        return;
      case 'Z':
        ++at_;
        out = assertion(ReAssert::text_end_line);
        return;
      case 'b':
        ++at_;
        out = assertion(ReAssert::word);
        return;
      case 'B':
        ++at_;
        out = assertion(ReAssert::not_word);
        return;
      default:
        break;
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

  // Past the opening bracket.
  CharSet bracket(int depth) {
    if (depth > 20) refuse("too deep nesting");
    bool negative = take("^");
    CharSet all, current;
    bool intersect = false, first = true, any = false;
    auto join = [&] {
      all = intersect ? all.common(current) : current;
      current = {};
    };
    for (;; first = false) {
      if (!more()) refuse("an unclosed class");
      if (look() == ']' && !first) break;
      if (look() == ']' && pattern_.find(']', at_ + 1) == std::string_view::npos) refuse("an empty class");
      if (take("&&")) {
        join();
        intersect = true;
        continue;
      }
      any = true;
      if (look() == '[') {
        if (look(1) == ':') refuse("a POSIX class");
        ++at_;
        if (fold_) refuse("nested classes under case folding");
        current.add(bracket(depth + 1));
        continue;
      }
      class_item(current);
    }
    ++at_;
    if (!any) refuse("an empty class");
    join();
    return negative ? all.negated() : all;
  }

  void class_item(CharSet& into) {
    CharSet s;
    uint32_t low = 0;
    if (take("\\")) {
      if (more() && (look() == 'b' || look() == 'R' || look() == 'X')) refuse("an escape in a class");
      if (class_escape(s, low, true)) {
        if (look() == '-' && look(1) != ']' && look(1) != '\0') refuse("a range from a class");
        if (fold_ && !s.folded().same(s)) refuse("a property under case folding");
        return into.add(s);
      }
    } else {
      low = character();
    }
    uint32_t high = low;
    if (look() == '-' && look(1) != ']' && look(1) != '\0' && !(look(1) == '&' && look(2) == '&')) {
      ++at_;
      if (look() == '[') refuse("a range to a class");
      if (take("\\")) {
        if (class_escape(s, high, true)) refuse("a range to a class");
      } else {
        high = character();
      }
      if (high < low) refuse("an empty range");
    }
    CharSet range = CharSet::range(low, high);
    if (fold_) {
      if (high >= 0x80) refuse("case folding of a character beyond ASCII");
      range = range.folded();
    }
    into.add(range);
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

  std::string_view pattern_;
  std::string path_;
  size_t at_ = 0;
  bool fold_ = false, dot_all_ = false, extended_ = false;
  uint32_t literal_ = 0;
};

}  // namespace fasttoken
