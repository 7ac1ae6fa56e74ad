// Cutting a text into words, for each set of instructions; kernels.cpp compiles kernel.hpp once for each.
#pragma once

#include <string_view>

#include "isa.hpp"
#include "merge_batch.hpp"
#include "split_plan.hpp"
#include "words.hpp"

namespace fasttoken {

// Appends the ids of a text's words. The last but one: the end, at or past the text's, of what can be read.
using CutWords = void (*)(const SplitPlan&, std::string_view, const char*, WordWriter&);

// The one for this machine.
CutWords cutter(Isa isa);

}  // namespace fasttoken
