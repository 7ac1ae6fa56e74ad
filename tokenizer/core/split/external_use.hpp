// The work of a caller's matcher within one call of the tokenizer's API.
#pragma once

#include <cstddef>

namespace fasttoken {

struct ExternalUse {
  double seconds = 0;  // of the thread's time
  size_t bytes = 0;    // of all texts that it was given
};

}  // namespace fasttoken
