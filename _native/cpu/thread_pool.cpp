#include <pthread.h>
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <thread>
#include <utility>

#include "prelude/cpu/parallel.hpp"
#include "prelude/pause.hpp"

namespace prelude::cpu {
namespace {

constexpr std::chrono::microseconds kPoll{100};
constexpr std::chrono::microseconds kPollInStep{1000};  // the waits inside a step are shorter, but for the first
constexpr int kLooks = 32;                              // between two looks at the clock

constinit std::atomic<int> steps{0};  // that run now

enum : uint32_t { kNone, kOffered, kWorking };

struct alignas(64) Place {
  std::atomic<uint32_t> state{kNone};
  std::atomic<uint32_t> id{0};  // Linux's, of the worker; 0 before it runs
};

// Returns once the state of a place is not `state`. The other side changes it in sequential consistency, so that it
// sees a sleeper behind the change, or the sleeper the change.
void while_it_is(const std::atomic<uint32_t>& place, uint32_t state) noexcept {
  const auto began = std::chrono::steady_clock::now();
  const auto most = [] { return steps.load(std::memory_order_relaxed) > 0 ? kPollInStep : kPoll; };
  do {
    for (int i = 0; i < kLooks; ++i) {
      if (place.load(std::memory_order_acquire) != state) return;
      pause();
    }
  } while (std::chrono::steady_clock::now() - began < most());
  place.wait(state);
}

void change(std::atomic<uint32_t>& place, uint32_t state) noexcept {
  place.store(state);
  place.notify_one();
}

// Never destroyed: workers use it until the process ends.
class Pool {
 public:
  void run(void (*work)(void*) noexcept, void* data, int threads) noexcept {
    if (threads < 2 || owned_.exchange(true, std::memory_order_acquire)) return work(data);
    const int others = grow(threads - 1);
    work_ = work, data_ = data;
    for (int i = 0; i < others; ++i) change(places_[i].state, kOffered);
    work(data);
    for (int i = 0; i < others; ++i) {
      uint32_t offered = kOffered;
      if (!places_[i].state.compare_exchange_strong(offered, kNone)) while_it_is(places_[i].state, kWorking);
    }
    owned_.store(false, std::memory_order_release);
  }

  std::vector<int64_t> ids(int threads) {
    std::vector<int64_t> ids;
#ifdef __linux__
    ids.reserve(static_cast<size_t>(std::clamp(threads, 1, kMostThreads)));
    ids.push_back(syscall(SYS_gettid));
    while (owned_.exchange(true, std::memory_order_acquire)) std::this_thread::yield();
    const int others = grow(threads - 1);
    for (int i = 0; i < others; ++i) {
      while_it_is(places_[i].id, 0);
      ids.push_back(places_[i].id.load());
    }
    owned_.store(false, std::memory_order_release);
#else
    (void)threads;
#endif
    return ids;
  }

  // In a forked child, whose only thread calls this.
  void forget_workers() noexcept {
    for (int i = 0; i < workers_; ++i) {
      places_[i].state.store(kNone);
      places_[i].id.store(0);
    }
    workers_ = 0;
    steps.store(0);
    owned_.store(false);
  }

 private:
  // The workers that there are, of so many that are wanted. Called by the owner.
  int grow(int wanted) noexcept {
    wanted = std::min(wanted, kMostThreads - 1);
    try {
      for (; workers_ < wanted; ++workers_) std::thread(&Pool::serve, this, std::ref(places_[workers_])).detach();
    } catch (const std::exception&) {  // no thread or no memory; the next call tries again
    }
    return std::min(workers_, wanted);
  }

  void serve(Place& place) noexcept {
#ifdef __linux__
    pthread_setname_np(pthread_self(), "prelude-kernels");
    change(place.id, static_cast<uint32_t>(syscall(SYS_gettid)));
#endif
    for (;;) {
      while_it_is(place.state, kNone);
      uint32_t offered = kOffered;
      if (!place.state.compare_exchange_strong(offered, kWorking)) continue;
      work_(data_);
      change(place.state, kNone);
    }
  }

  std::atomic<bool> owned_{false};
  // The owner's; workers read the work between an offer that they took and the end of their part.
  void (*work_)(void*) noexcept = nullptr;
  void* data_ = nullptr;
  int workers_ = 0;
  Place places_[kMostThreads - 1];
};

constinit Pool pool;

[[maybe_unused]] const int kForks = pthread_atfork(nullptr, nullptr, [] { pool.forget_workers(); });

std::atomic<int> count_of_process{1};
thread_local int count_of_thread = 0;

}  // namespace

void run_in_threads(void (*work)(void*) noexcept, void* data, int threads) noexcept { pool.run(work, data, threads); }

std::vector<int64_t> thread_ids(int threads) { return pool.ids(threads); }

void in_step(bool begins) noexcept { steps.fetch_add(begins ? 1 : -1, std::memory_order_relaxed); }

int thread_count() noexcept {
  return count_of_thread > 0 ? count_of_thread : count_of_process.load(std::memory_order_relaxed);
}

void set_thread_count(int count) noexcept {
  count_of_process.store(std::clamp(count, 1, kMostThreads), std::memory_order_relaxed);
}

int give_threads(int count) noexcept { return std::exchange(count_of_thread, std::clamp(count, 0, kMostThreads)); }

}  // namespace prelude::cpu
