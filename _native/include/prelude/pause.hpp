// A word to the processor that this thread looks at memory again and again.
#pragma once

#if defined(_M_X64) || defined(_M_ARM64)
#include <intrin.h>
#endif

namespace prelude {

inline void pause() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#elif defined(_M_X64)
  _mm_pause();
#elif defined(_M_ARM64)
  __yield();
#endif
}

}  // namespace prelude
