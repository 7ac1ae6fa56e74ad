#include "prelude/token_ids.hpp"

#include <algorithm>
#include <bit>
#include <vector>

namespace prelude {

bool copy_below(const int32_t* in, int64_t n, int64_t limit, int32_t* out) {
  const auto most = static_cast<uint32_t>(limit < 0 ? 0 : limit > INT32_MAX ? int64_t{INT32_MAX} + 1 : limit);
  uint32_t outside = 0;
  for (int64_t i = 0; i < n; ++i) {
    out[i] = in[i];
    outside |= static_cast<uint32_t>(in[i]) >= most ? 1u : 0u;
  }
  return outside == 0;
}

int64_t sort_once(int32_t* ids, int64_t n, int64_t limit) {
  constexpr int64_t kFew = 64;
  if (std::adjacent_find(ids, ids + n, [](int32_t a, int32_t b) { return a >= b; }) == ids + n) return n;
  if (n < kFew) {
    std::sort(ids, ids + n);
    return std::unique(ids, ids + n) - ids;
  }
  std::vector<uint64_t> present(static_cast<size_t>((limit + 63) / 64), 0);
  for (int64_t i = 0; i < n; ++i) present[static_cast<size_t>(ids[i] >> 6)] |= uint64_t{1} << (ids[i] & 63);
  int64_t kept = 0;
  for (size_t word = 0; word < present.size(); ++word)
    for (uint64_t left = present[word]; left != 0; left &= left - 1)
      ids[kept++] = static_cast<int32_t>(word * 64 + static_cast<size_t>(std::countr_zero(left)));
  return kept;
}

}  // namespace prelude
