// The threads that share a kernel's work: one pool for the process, which grows to the most that a call asked for.
//
// A call belongs to one thread, the caller; calls that come meanwhile run in their own threads alone. A thread that
// waits for work or for another polls for `kPoll`, while steps run for `kPollInStep`, and sleeps then: one that slept
// between two operations may be woken on the processor of its waker (places.hpp). A worker that has not come when the
// caller's own part is done is not waited for: its place is taken back. So the work must be such that any of the
// threads can do all of it.
//
//     place of a worker   none ── the caller ──▶ offered ── the worker ──▶ working ── the worker ──▶ none
//                           ▲                       │
//                           └────── the caller ─────┘
//
// Threads that the system does not give are done without. A forked child has none of its parent's workers and begins
// with an empty pool.
#pragma once

#include <atomic>
#include <cstdint>
#include <type_traits>
#include <vector>

namespace prelude::cpu {

inline constexpr int kMostThreads = 1024;

// work(data) in the calling thread and, at the same time, in up to `threads` - 1 workers, always the first ones.
// Returns when each that has begun is done.
void run_in_threads(void (*work)(void*) noexcept, void* data, int threads) noexcept;

// Linux's ids of the threads that a call with so many from here runs in, the caller's first; empty elsewhere.
std::vector<int64_t> thread_ids(int threads);

// A step begins or ends; the calls in between are its operations.
void in_step(bool begins) noexcept;

// How many threads the calling thread's kernels run in: what it was given, else the process's number, which is 1
// until it is set.
int thread_count() noexcept;
void set_thread_count(int count) noexcept;  // for threads that were given none

// Gives the calling thread a number of its own, or takes it away (0); the one that it had before is returned.
int give_threads(int count) noexcept;

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
