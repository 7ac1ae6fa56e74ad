// The instructions of a compiled pattern: what regex.hpp writes and runs, and dfa.hpp tabulates.
#pragma once

#include <cstdint>

#include "regex_parse.hpp"

namespace fasttoken {

enum class ReOp : uint8_t { set, run, split, jump, ahead, atomic, leave, assertion, behind, match };

struct ReIns {
  explicit ReIns(ReOp o) : op(o) {}
  ReOp op;
  ReGreed greed = ReGreed::greedy;
  ReAssert assertion{};
  bool negative = false;
  uint32_t x = 0, y = 0;             // split: preferred and other pc; run: min, max; ahead, atomic: pc past it
  uint64_t mask = 0, other = ~0ull;  // split: what each branch can begin with
  uint32_t memo = UINT32_MAX;        // number among the instructions that remember
};

}  // namespace fasttoken
