// A parsed pattern as a tree, and as a program: regex_compile.cpp writes it, regex.cpp runs it and dfa.hpp makes
// tables of it.
//
//   Alt( Seq( Set Repeat(Set) ... ) ... )       groups leave no node: nothing refers back to them
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "regex/charclass.hpp"

namespace fasttoken {

enum class ReKind : uint8_t { set, seq, alt, repeat, ahead, atomic, assertion, behind };
enum class ReAssert : uint8_t { line_start, line_end, text_start, text_end, text_end_line, word, not_word };
enum class ReGreed : uint8_t { greedy, lazy, possessive };

struct ReNode {
  explicit ReNode(ReKind k) : kind(k) {}
  ReKind kind;
  bool negative = false;  // of ahead and behind
  ReGreed greed = ReGreed::greedy;
  ReAssert assertion{};
  uint32_t min = 0, max = 0;  // of repeat; max UINT32_MAX: no limit
  CharSet set;                // of set and behind
  std::vector<ReNode> parts;
};

// path: where the pattern stands in its file, for errors. Throws Unsupported for syntax that regex_parse.hpp refuses.
ReNode parse_regex(std::string_view pattern, const std::string& path);

enum class ReOp : uint8_t { set, run, split, jump, ahead, atomic, leave, assertion, behind, match };

struct ReIns {
  explicit ReIns(ReOp o) : op(o) {}
  ReOp op;
  ReGreed greed = ReGreed::greedy;
  ReAssert assertion{};
  bool negative = false;
  uint32_t x = 0, y = 0;             // split: preferred and other pc; run: min, max; ahead, atomic: pc past it
  uint64_t mask = 0, other = ~0ull;  // split: the characters that each branch can begin with
  uint32_t memo = UINT32_MAX;        // number among the instructions that remember
};

struct RegexProgram {
  std::vector<ReIns> code;
  CharClasses classes;
  uint64_t first = ~0ull;  // classes a match can begin with
  uint64_t word = 0, newline = 0;
  uint32_t memos = 0;  // states that remember, a position
  bool matches_empty = false;
};

// path: where the pattern stands in its file, for errors. Throws Unsupported for syntax outside the subset.
RegexProgram compile_regex(std::string_view pattern, const std::string& path);

}  // namespace fasttoken
