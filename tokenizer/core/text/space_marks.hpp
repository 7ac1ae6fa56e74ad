// How a file writes U+2581 for spaces, where all it does to a text before the model is that: its words are then cut
// and looked up in the text as it is.
#pragma once

#include <cstdint>
#include <string_view>

namespace fasttoken {

struct SpaceMarks {
  // The texts that get a mark before them: none; the one at the text's first byte, if it does not begin with a space;
  // each text between added tokens that does not; each.
  enum class Prefix : uint8_t { none, first, each_without, each };

  Prefix prefix = Prefix::none;
  bool each_space = false;  // whether a piece begins at each space

  // Whether stretches between added tokens need no look at where they begin, but the text's first one.
  bool only_at_start() const { return prefix <= Prefix::first; }
  // base: where the stretch begins in the text. It is not empty and has no marks.
  bool puts_before(std::string_view stretch, uint32_t base) const {
    switch (prefix) {
      case Prefix::none:
        return false;
      case Prefix::first:
        return base == 0 && stretch[0] != ' ';
      case Prefix::each_without:
        return stretch[0] != ' ';
      default:
        return true;
    }
  }
};

}  // namespace fasttoken
