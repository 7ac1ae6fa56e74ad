// Work cut over threads of a pool that the caller owns.
//
// torch keeps a pool of OpenMP threads which, after each of its operations, spin for a while in case there is
// more. Threads of our own would fight them for the cores; so the caller hands in the very entry point that torch
// starts its pool with (GOMP_parallel, a stable ABI), and without one everything runs in the calling thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "prelude/cpu/places.hpp"

namespace prelude::cpu {

// Runs fn(data) in `threads` threads, the caller's among them, and returns when all are done. Flags are 0.
using Fork = void (*)(void (*fn)(void*), void* data, unsigned threads, unsigned flags);

// body(i) for every i in [0, pieces), each once; body.begin(thread) before a thread's first piece.
template <class Body>
struct Pieces {
  Body* body;
  int64_t pieces;
  std::atomic<int64_t> next{0};
  std::atomic<int> arrived{0};

  static void in_fork(void* self) noexcept {
    ThreadPlaces::given_back_by_fork();
    work(self);
  }

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

// body(i, thread) with thread < threads; in the calling thread alone where `fork` is null or one thread is enough.
template <class Body>
void run_pieces(Fork fork, int threads, int64_t pieces, Body&& body) noexcept {
  using Plain = std::remove_reference_t<Body>;
  Pieces<Plain> all{&body, pieces};
  if (fork == nullptr || threads < 2 || pieces < 2) {
    Pieces<Plain>::work(&all);
  } else {
    fork(Pieces<Plain>::in_fork, &all, static_cast<unsigned>(threads), 0);
  }
}

// Linux's ids of the threads that a fork of `threads` from here runs in, in no order; empty elsewhere or without a
// fork.
inline std::vector<int64_t> thread_ids(Fork fork, int threads) {
  std::vector<int64_t> ids;
#ifdef __linux__
  if (fork == nullptr || threads < 1) return ids;
  struct Found {
    int64_t* ids;
    std::atomic<int> count{0};
    static void note(void* self) noexcept {
      auto& all = *static_cast<Found*>(self);
      all.ids[all.count.fetch_add(1, std::memory_order_relaxed)] = syscall(SYS_gettid);
    }
  };
  ids.resize(static_cast<size_t>(threads));
  Found found{ids.data()};
  fork(Found::note, &found, static_cast<unsigned>(threads), 0);
  ids.resize(static_cast<size_t>(found.count.load()));  // OpenMP may have given fewer
#else
  (void)fork;
  (void)threads;
#endif
  return ids;
}

}  // namespace prelude::cpu
