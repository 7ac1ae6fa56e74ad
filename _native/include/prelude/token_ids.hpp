// Token ids as callers give them, checked and copied in one pass.
#pragma once

#include <cstdint>

namespace prelude {

// Copies `n` ids. Whether all of them are in [0, limit); `out` is written in either case.
template <class Id>  // int32_t or int64_t
bool copy_below(const Id* in, int64_t n, int64_t limit, int32_t* out);

// Sorts `n` ids, all in [0, limit), and drops those that come twice: how many are left, in ascending order. Linear in
// `n` and `limit` / 64 for many ids; ids that are in order are not written.
int64_t sort_once(int32_t* ids, int64_t n, int64_t limit);

}  // namespace prelude
