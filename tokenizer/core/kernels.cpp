// The kernels of kernel.hpp for each set of instructions, and the one for this machine.
#include "kernels.hpp"

#include <bit>
#include <cstdint>
#include <cstring>

namespace fasttoken {

// One bit for each of 64 bytes; a byte beyond ASCII has the class of its character. inside: not its first.
struct Masks {
  uint64_t letter, number, space, newline, blank, quote, upper, special, high, inside;
};

// Where characters of two and of three bytes begin that are letters, as their first byte or two say; upper: those of
// three that are not letters but class_upper.
struct Leads {
  uint64_t two, three, upper;
};

}  // namespace fasttoken

#define FASTTOKEN_KERNEL scalar
#define FASTTOKEN_LEVEL 0
#include "class_masks.hpp"
#include "kernel.hpp"
#undef FASTTOKEN_KERNEL
#undef FASTTOKEN_LEVEL

#ifdef FASTTOKEN_X86
#include <immintrin.h>

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,bmi,bmi2,lzcnt,popcnt"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,bmi,bmi2,lzcnt,popcnt")
#endif
#define FASTTOKEN_KERNEL avx2
#define FASTTOKEN_LEVEL 1
#include "class_masks.hpp"
#include "kernel.hpp"
#undef FASTTOKEN_KERNEL
#undef FASTTOKEN_LEVEL
#ifdef __clang__
#pragma clang attribute pop
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi,bmi,bmi2,lzcnt,popcnt"))), \
                             apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512vbmi,bmi,bmi2,lzcnt,popcnt")
#endif
#define FASTTOKEN_KERNEL avx512
#define FASTTOKEN_LEVEL 2
#include "class_masks.hpp"
#include "kernel.hpp"
#undef FASTTOKEN_KERNEL
#undef FASTTOKEN_LEVEL
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif  // FASTTOKEN_X86

namespace fasttoken {

CutWords cutter(Isa isa) {
#ifdef FASTTOKEN_X86
  if (isa == Isa::avx512) return avx512::cut_any;
  if (isa == Isa::avx2) return avx2::cut_any;
#endif
  (void)isa;
  return scalar::cut_any;
}

}  // namespace fasttoken
