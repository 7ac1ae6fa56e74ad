// The results of the core: an encoded text as columns, and the added tokens of a file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fasttoken {

struct Align {
  uint32_t begin, end;
};

// One encoded text, as columns. added: the tokens that are added tokens, and the text each stood for.
struct Encoded {
  struct Added {
    uint32_t index;
    std::string text;
  };
  std::vector<int32_t> ids, words;
  std::vector<Align> offsets;
  std::vector<Added> added;
};

struct AddedToken {
  uint32_t id;
  std::string content;
  bool single_word = false, lstrip = false, rstrip = false, normalized = false, special = false;
  bool once_special = false;  // it, or a token of the same content that stood before it in the file
  bool operator==(const AddedToken&) const = default;
};

}  // namespace fasttoken
