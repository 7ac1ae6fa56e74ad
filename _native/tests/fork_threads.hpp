// In place of OpenMP's entry: threads of the standard library.
#pragma once

#include <thread>
#include <vector>

// See prelude::cpu::Fork.
inline void fork_threads(void (*fn)(void*), void* data, unsigned threads, unsigned) {
  std::vector<std::thread> others;
  for (unsigned i = 1; i < threads; ++i) others.emplace_back(fn, data);
  fn(data);
  for (std::thread& other : others) other.join();
}
