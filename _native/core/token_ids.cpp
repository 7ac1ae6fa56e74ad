#include "prelude/token_ids.hpp"

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

}  // namespace prelude
