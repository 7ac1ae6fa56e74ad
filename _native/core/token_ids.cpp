#include "prelude/token_ids.hpp"

#include <algorithm>
#include <bit>
#include <type_traits>
#include <vector>

namespace prelude {

namespace {

// The number that no id reaches: at most the first that is no int32.
uint32_t bounded(int64_t limit) {
  return static_cast<uint32_t>(limit < 0 ? 0 : limit > INT32_MAX ? int64_t{INT32_MAX} + 1 : limit);
}

// All of them are looked at, since a loop without an early end runs in vectors.
bool ascending(const int32_t* ids, int64_t n) {
  uint32_t wrong = 0;
  for (int64_t i = 1; i < n; ++i) wrong |= ids[i - 1] >= ids[i] ? 1u : 0u;
  return wrong == 0;
}

}  // namespace

template <class Id>
bool copy_below(const Id* in, int64_t n, int64_t limit, int32_t* out) {
  using Word = std::make_unsigned_t<Id>;
  const Word most = bounded(limit);
  Word outside = 0;
  for (int64_t i = 0; i < n; ++i) {
    out[i] = static_cast<int32_t>(in[i]);
    outside |= static_cast<Word>(in[i]) >= most ? 1u : 0u;
  }
  return outside == 0;
}
template bool copy_below(const int32_t*, int64_t, int64_t, int32_t*);
template bool copy_below(const int64_t*, int64_t, int64_t, int32_t*);

int64_t sort_once(int32_t* ids, int64_t n, int64_t limit) {
  constexpr int64_t kFew = 64;
  if (ascending(ids, n)) return n;
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
