// Waiting for a word that a device writes into host memory behind a step's results.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "prelude/pause.hpp"

namespace prelude::gpu {

constexpr int kNotReady = 600;  // CUDA_ERROR_NOT_READY

// Whether `word` has come to `number`; both wrap around. The device's writes before the word are visible then.
inline bool reached(const uint32_t* word, uint32_t number) {
  const uint32_t seen = __atomic_load_n(word, __ATOMIC_ACQUIRE);
  return static_cast<int32_t>(seen - number) >= 0;
}

// 0 once the word is there. Looks again at once for `spin_ns`, then between sleeps of 20 us. A device that fails
// never writes the word, so the stream is asked now and then: its code where it failed, -1 where it is done without
// the word.
inline int64_t await_word(const uint32_t* word, uint32_t number, int (*query)(void*), void* stream, int64_t spin_ns) {
  using clock = std::chrono::steady_clock;
  constexpr auto ask = std::chrono::milliseconds(2);
  const auto began = clock::now();
  auto asked = began;
  for (;;) {
    for (int i = 0; i < 64; ++i) {
      if (reached(word, number)) return 0;
      pause();
    }
    const auto now = clock::now();
    if (now - began > std::chrono::nanoseconds(spin_ns)) std::this_thread::sleep_for(std::chrono::microseconds(20));
    if (now - asked < ask) continue;
    asked = now;
    const int code = query(stream);
    if (code == kNotReady) continue;
    if (reached(word, number)) return 0;
    return code == 0 ? -1 : code;
  }
}

}  // namespace prelude::gpu
