// Cutting a text into words, for each set of instructions; kernels.cpp compiles word_kernel.hpp once for each.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "bpe/merge_batch.hpp"
#include "memory/isa.hpp"
#include "split/split_plan.hpp"
#include "split/words.hpp"

namespace fasttoken {

// An added token that is found in a text, as bytes of it, and is no matter of words.
struct Stop {
  uint32_t begin, end;
  int32_t id;
};

// Appends the ids of a text's words, and of the added tokens in it, which are in order. The third: the end, at or
// past the text's, of the readable bytes.
using CutWords = void (*)(const SplitPlan&, std::string_view, const char*, std::span<const Stop>, WordWriter&);

// The one for this machine.
CutWords cutter(Isa isa);

}  // namespace fasttoken
