#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <limits>

#include "prelude/cpu/regions.hpp"
#include "prelude/cpu/targets.hpp"

namespace prelude::cpu {

#define PRELUDE_KERNELS(label)                                                                       \
  inline void exp_rows(const float* x, int64_t count, float* out) {                                  \
    for (int64_t i = 0; i < count; i += kLanes) store(out + i, exp_of(load(x + i)));                 \
  }                                                                                                  \
  inline const Kernels kTable{label,       kLanes,     rms_norm, norm_rotate,  activate, layer_norm, \
                              attend_unit, attend_row, convolve, delta_inputs, delta,    gate,       \
                              unit_floats, exp_rows,   exp_sum,  widen,        narrow};

namespace portable {
// clang-format off: the order matters
#include "prelude/cpu/lanes_portable.hpp"
#include "prelude/cpu/body_rows.hpp"
#include "prelude/cpu/body_attention.hpp"
#include "prelude/cpu/body_paged.hpp"
#include "prelude/cpu/body_recurrent.hpp"
// clang-format on
PRELUDE_KERNELS("portable")
}  // namespace portable

#ifdef PRELUDE_X86_TARGETS

PRELUDE_REGION("avx2,fma")
namespace avx2 {
// clang-format off: the order matters
#include "prelude/cpu/lanes_avx2.hpp"
#include "prelude/cpu/body_rows.hpp"
#include "prelude/cpu/body_attention.hpp"
#include "prelude/cpu/body_paged.hpp"
#include "prelude/cpu/body_recurrent.hpp"
// clang-format on
PRELUDE_KERNELS("avx2")
}  // namespace avx2
PRELUDE_REGION_END

PRELUDE_REGION("avx512f,avx2,fma")
namespace avx512 {
// clang-format off: the order matters
#include "prelude/cpu/lanes_avx512.hpp"
#include "prelude/cpu/body_rows.hpp"
#include "prelude/cpu/body_attention.hpp"
#include "prelude/cpu/body_paged.hpp"
#include "prelude/cpu/body_recurrent.hpp"
// clang-format on
PRELUDE_KERNELS("avx512")
}  // namespace avx512
PRELUDE_REGION_END

#endif  // PRELUDE_X86_TARGETS

#ifdef PRELUDE_NEON
namespace neon {
// clang-format off: the order matters
#include "prelude/cpu/lanes_neon.hpp"
#include "prelude/cpu/body_rows.hpp"
#include "prelude/cpu/body_attention.hpp"
#include "prelude/cpu/body_paged.hpp"
#include "prelude/cpu/body_recurrent.hpp"
// clang-format on
PRELUDE_KERNELS("neon")
}  // namespace neon
#endif
#undef PRELUDE_KERNELS

const Kernels* kernels_named(const char* name) {
  if (std::strcmp(name, "portable") == 0) return &portable::kTable;
#ifdef PRELUDE_X86_TARGETS
  if (std::strcmp(name, "avx512") == 0 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx2") &&
      __builtin_cpu_supports("fma"))
    return &avx512::kTable;
  if (std::strcmp(name, "avx2") == 0 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    return &avx2::kTable;
#elif defined(PRELUDE_NEON)
  if (std::strcmp(name, "neon") == 0) return &neon::kTable;
#endif
  return nullptr;
}

const Kernels& best_kernels() {
  if (const char* chosen = std::getenv("PRELUDE_CPU_KERNELS"))
    if (const Kernels* named = kernels_named(chosen)) return *named;
  for (const char* name : {"avx512", "avx2", "neon"})
    if (const Kernels* found = kernels_named(name)) return *found;
  return portable::kTable;
}

}  // namespace prelude::cpu
