// Work cut into pieces over the threads of the pool.
#pragma once

#include <atomic>
#include <cstdint>
#include <type_traits>

#include "prelude/cpu/thread_pool.hpp"

namespace prelude::cpu {

// body(i, thread) for every i in [0, pieces), each once, with thread < threads.
template <class Body>
struct Pieces {
  Body* body;
  int64_t pieces;
  std::atomic<int64_t> next{0};
  std::atomic<int> arrived{0};

  static void work(void* self) noexcept {
    auto& all = *static_cast<Pieces*>(self);
    const int thread = all.arrived.fetch_add(1, std::memory_order_relaxed);
    for (;;) {
      const int64_t i = all.next.fetch_add(1, std::memory_order_relaxed);
      if (i >= all.pieces) return;
      (*all.body)(i, thread);
    }
  }
};

template <class Body>
void run_pieces(int threads, int64_t pieces, Body&& body) noexcept {
  using Plain = std::remove_reference_t<Body>;
  Pieces<Plain> all{&body, pieces};
  if (threads < 2 || pieces < 2) return Pieces<Plain>::work(&all);
  run_in_threads(Pieces<Plain>::work, &all, threads);
}

}  // namespace prelude::cpu
