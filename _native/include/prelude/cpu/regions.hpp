// Regions of a source that are compiled for other processors than the build's, by GCC and Clang. Nothing of a region
// is called before the processor was asked. Elsewhere, and on other machines, there is the portable version alone.
#pragma once

#if (defined(__x86_64__) || defined(__i386__)) && (defined(__GNUC__) || defined(__clang__))
#define PRELUDE_X86_TARGETS 1
#include <immintrin.h>
#elif defined(__aarch64__) && defined(__GNUC__)
#define PRELUDE_NEON 1
#include <arm_neon.h>
#endif

#define PRELUDE_PRAGMA(words) _Pragma(#words)
#if defined(__clang__)
#define PRELUDE_REGION(names) \
  PRELUDE_PRAGMA(clang attribute push(__attribute__((target(names))), apply_to = function))
#define PRELUDE_REGION_END PRELUDE_PRAGMA(clang attribute pop)
#else
// GCC 12 takes the undefined vectors of its own intrinsics for a mistake.
#define PRELUDE_REGION(names)                                    \
  PRELUDE_PRAGMA(GCC diagnostic push)                            \
  PRELUDE_PRAGMA(GCC diagnostic ignored "-Wmaybe-uninitialized") \
  PRELUDE_PRAGMA(GCC diagnostic ignored "-Wuninitialized")       \
  PRELUDE_PRAGMA(GCC push_options)                               \
  PRELUDE_PRAGMA(GCC target(names))
#define PRELUDE_REGION_END PRELUDE_PRAGMA(GCC pop_options) PRELUDE_PRAGMA(GCC diagnostic pop)
#endif
