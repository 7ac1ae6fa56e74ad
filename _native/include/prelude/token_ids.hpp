// Token ids as callers give them, checked and copied in one pass.
#pragma once

#include <cstdint>

namespace prelude {

// Copies `n` ids. Whether all of them are in [0, limit); `out` is written in either case.
bool copy_below(const int32_t* in, int64_t n, int64_t limit, int32_t* out);

}  // namespace prelude
