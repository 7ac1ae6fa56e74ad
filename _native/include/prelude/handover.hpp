// Between threads without a lock: requests from callers to the engine, ends of requests back, and the step lock.
//
//   Handover    head ──▶ newest ──▶ ... ──▶ oldest      push: one compare-and-swap, for one link or a whole chain
//                 └ bit 0: closed                        take: one atomic and, for everything; then reversed round
//
//   Admission   requests <= most, tokens <= most         a place is counted before anything is made for it
//
//   StepLock    │ holder's id │ wanted │                 0: free. One writer at a time, and no thread waits for it
//
// Invariants. A link is in one chain at a time; from push to take it is the queue's, after it the taker's. A chain is
// taken whole or not at all, in the order in which its links were pushed. Every link that push() accepted will be
// taken; after close() it accepts nothing. Since takers take everything, a link that comes back while another thread
// pushes (the ABA of stacks that pop) does no harm: the links below the compared head are the ones that it links to.
//
// Counts are exact: a caller that takes a place or tokens gives back as many, once. The step lock's holder learns at
// release() whether another thread wanted it meanwhile, and wakes that one. So a thread that does not get it sleeps,
// and none spins. All of it may be called without the GIL, from any thread, but for take() and newest(), which are
// one taker's at a time.
#pragma once

#include <atomic>
#include <cstdint>

namespace prelude {

struct Link {
  Link* next = nullptr;
};

// A link with its content. The thread that pushes it keeps the content alive until it is taken.
struct Parcel : Link {
  void* content = nullptr;
};

enum class Pushed : int32_t { closed, first, more };  // first: it was empty, so the taking thread has to be woken

class Handover {
 public:
  // A chain from `newest` to `oldest`, linked by `next`; one link is both.
  Pushed push(Link* newest, Link* oldest) {
    uintptr_t head = head_.load(std::memory_order_relaxed);
    do {
      if ((head & kClosed) != 0) return Pushed::closed;
      oldest->next = reinterpret_cast<Link*>(head);
    } while (!head_.compare_exchange_weak(head, reinterpret_cast<uintptr_t>(newest), std::memory_order_acq_rel,
                                          std::memory_order_relaxed));
    return head == 0 ? Pushed::first : Pushed::more;
  }
  // Everything that was pushed until now, the oldest first.
  Link* take() {
    auto* link = reinterpret_cast<Link*>(head_.fetch_and(kClosed, std::memory_order_acq_rel) & ~kClosed);
    Link* reversed = nullptr;
    while (link != nullptr) {
      Link* const next = link->next;
      link->next = reversed;
      reversed = link;
      link = next;
    }
    return reversed;
  }
  void close() { head_.fetch_or(kClosed, std::memory_order_acq_rel); }
  bool closed() const { return (head_.load(std::memory_order_acquire) & kClosed) != 0; }
  bool empty() const { return (head_.load(std::memory_order_acquire) & ~kClosed) == 0; }
  // The links, the newest first; they stay there. For the taking thread.
  const Link* newest() const {
    return reinterpret_cast<const Link*>(head_.load(std::memory_order_acquire) & ~kClosed);
  }

 private:
  static constexpr uintptr_t kClosed = 1;
  static_assert(alignof(Link) > kClosed);

  std::atomic<uintptr_t> head_{0};
};

// A count that never passes its limit. Not for a value that has to be read together with another one.
class Bounded {
 public:
  explicit Bounded(int64_t most) : most_(most) {}
  int64_t count() const { return count_.load(std::memory_order_relaxed); }
  // As many of `want` as there are; with `all`, `want` or nothing.
  int64_t take(int64_t want, bool all) {
    int64_t count = count_.load(std::memory_order_relaxed), granted;
    do {
      granted = want < most_ - count ? want : most_ - count;
      if (granted <= 0 || (all && granted < want)) return 0;
    } while (!count_.compare_exchange_weak(count, count + granted, std::memory_order_relaxed));
    return granted;
  }
  void give_back(int64_t n) { count_.fetch_sub(n, std::memory_order_relaxed); }

 private:
  const int64_t most_;
  std::atomic<int64_t> count_{0};
};

struct Admission {
  Admission(int64_t max_requests, int64_t max_tokens) : requests(max_requests), tokens(max_tokens) {}

  Bounded requests, tokens;

  // A request that was charged `tokens` leaves, once, at the first call. -1: it was not charged, or has left.
  int64_t leave(int64_t& charged) {
    const int64_t had = std::atomic_ref<int64_t>(charged).exchange(-1, std::memory_order_acq_rel);
    if (had >= 0) requests.give_back(1), tokens.give_back(had);
    return had;
  }
};

class StepLock {
 public:
  // `me` is not 0.
  bool try_acquire(uint64_t me) {
    uint64_t unlocked = 0;
    return state_.compare_exchange_strong(unlocked, me << 1, std::memory_order_acquire, std::memory_order_relaxed);
  }
  // As try_acquire(); where another thread holds it, that thread wakes this one at its release().
  bool try_acquire_or_request(uint64_t me) {
    uint64_t state = state_.load(std::memory_order_relaxed);
    for (;;) {
      if (state == 0) {
        if (state_.compare_exchange_weak(state, me << 1, std::memory_order_acquire, std::memory_order_relaxed)) {
          return true;
        }
      } else if (state_.compare_exchange_weak(state, state | 1, std::memory_order_relaxed)) {
        return false;
      }
    }
  }
  // Whether another thread requested it meanwhile, and is to be woken.
  bool release() { return (state_.exchange(0, std::memory_order_release) & 1) != 0; }
  uint64_t holder() const { return state_.load(std::memory_order_relaxed) >> 1; }

 private:
  std::atomic<uint64_t> state_{0};
};

}  // namespace prelude
