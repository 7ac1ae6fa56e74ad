// A parsed pattern as a tree, and the functions that make one.
//
//   Alt( Seq( Set Repeat(Set) ... ) ... )       groups leave no node: nothing refers back to them
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "unicode/charset.hpp"

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

}  // namespace fasttoken
