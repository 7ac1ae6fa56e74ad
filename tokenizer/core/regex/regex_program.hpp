// A compiled pattern: regex_compile.cpp writes it, regex.cpp runs it and dfa.hpp makes tables of it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "regex/charclass.hpp"
#include "regex/regex_tree.hpp"

namespace fasttoken {

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
