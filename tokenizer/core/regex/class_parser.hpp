// Reading a pattern: its characters, and the sets of characters that escapes and brackets name. A class of the engine
// HF uses may hold classes (`[a[bc]]`) and intersections (`[a-z&&[^aeiou]]`).
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

#include "errors.hpp"
#include "regex/regex_program.hpp"

namespace fasttoken {

class ClassParser {
 public:
  ClassParser(std::string_view pattern, std::string path) : pattern_(pattern), path_(std::move(path)) {}

 protected:
  [[noreturn]] void refuse(const std::string& what) const {
    const size_t end = std::min<size_t>(pattern_.size(), 200);
    const size_t shown =
        end < pattern_.size() ? static_cast<size_t>(utf8_back(pattern_.data() + end + 1) - pattern_.data()) : end;
    throw Unsupported("a pattern with " + what + ": " + std::string(pattern_.substr(0, shown)), path_);
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

  uint32_t hex(size_t least, size_t most) {
    uint32_t value = 0;
    size_t n = 0;
    for (; n < most && more(); ++n, ++at_) {
      const int digit = hex_digit(look());
      if (digit < 0) break;
      value = value << 4 | static_cast<uint32_t>(digit);
    }
    if (n < least || value >= code_points) refuse("a bad code point");
    return value;
  }

  // After a backslash: a set of characters, or (nothing set) a single one in c.
  bool class_escape(CharSet& s, uint32_t& c, bool in_brackets) {
    if (!more()) refuse("a backslash at its end");
    uint32_t x = character();
    static constexpr std::string_view names = "ntrfvae", meanings = "\n\t\r\f\v\a\x1B";
    if (x < 0x80)
      if (size_t i = names.find(static_cast<char>(x)); i != names.npos) {
        c = static_cast<unsigned char>(meanings[i]);
        return false;
      }
    const auto set = [&](const CharSet& found, bool negative) {
      s = negative ? found.negated() : found;
      return true;
    };
    switch (x) {
      case 's':
      case 'S':
        return set(CharSet::flagged(onig_space), x == 'S');
      case 'w':
      case 'W':
        return set(CharSet::word(in_brackets), x == 'W');
      case 'd':
      case 'D':
        return set(*CharSet::property("Nd"), x == 'D');
      case 'h':
      case 'H': {
        CharSet digits = CharSet::range('0', '9');
        digits.add(CharSet::range('a', 'f'));
        digits.add(CharSet::range('A', 'F'));
        return set(digits, x == 'H');
      }
      case 'p':
      case 'P': {
        if (!take("{")) refuse("\\p without braces");
        bool negative = take("^") != (x == 'P');
        size_t end = pattern_.find('}', at_);
        if (end == std::string_view::npos) refuse("an unclosed property");
        auto found = CharSet::property(pattern_.substr(at_, end - at_));
        if (!found) refuse("the property " + std::string(pattern_.substr(at_, end - at_)));
        at_ = end + 1;
        return set(*found, negative);
      }
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

  std::string_view pattern_;
  std::string path_;
  size_t at_ = 0;
  bool fold_ = false;  // under (?i)
};

}  // namespace fasttoken
