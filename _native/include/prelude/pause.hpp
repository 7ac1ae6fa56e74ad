// A word to the processor that this thread looks at memory again and again.
#pragma once

namespace prelude {

inline void pause() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace prelude
