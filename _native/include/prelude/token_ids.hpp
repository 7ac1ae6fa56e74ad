// Token ids as callers give them, checked and copied in one pass.
#pragma once

#include <cstdint>

namespace prelude {

// Whether all of `n` ids are in [0, limit).
bool all_below(const int32_t* ids, int64_t n, int64_t limit);

// Copies `n` ids. Whether all of them are in [0, limit); `out` is written in either case.
template <class Id>  // int32_t or int64_t
bool copy_below(const Id* in, int64_t n, int64_t limit, int32_t* out);

// Sorts `n` ids, all in [0, limit), and drops those that come twice: how many are left, in ascending order. Linear in
// `n` and `limit` / 64 for many ids; ids that are in order are not written.
int64_t sort_once(int32_t* ids, int64_t n, int64_t limit);

// The smallest id among those of the `n` `ids`, at least one, whose entries of `row` are the largest. No entry is
// NaN.
int32_t best_of(const float* row, const int32_t* ids, int64_t n);

}  // namespace prelude
