// The pool of threads: every piece is computed once, by threads of the call alone; a worker that sleeps is woken;
// calls of several threads and forked processes are served. Under ThreadSanitizer this also shows that a caller sees
// all that its workers have written.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <set>
#include <thread>
#include <vector>

#include "check.hpp"
#include "prelude/cpu/parallel.hpp"

using namespace prelude::cpu;

namespace {

std::thread::id here() { return std::this_thread::get_id(); }

// A call whose `threads` threads all wait for each other: it ends only if every worker comes.
void meet(int threads) {
  std::atomic<int> come{0};
  run_pieces(threads, threads, [&](int64_t, int) {
    come.fetch_add(1);
    while (come.load() < threads) std::this_thread::yield();
  });
  CHECK(come.load() == threads);
}

void check_every_piece_is_computed_once(Random& random) {
  for (int round = 0; round < 2000; ++round) {
    const int threads = 1 + static_cast<int>(random.below(4));
    std::vector<int64_t> made(static_cast<size_t>(random.below(40)), 0);
    std::vector<int64_t> of_thread(static_cast<size_t>(threads), 0);
    run_pieces(threads, static_cast<int64_t>(made.size()), [&](int64_t i, int thread) {
      made[static_cast<size_t>(i)] += i + 1;
      of_thread[static_cast<size_t>(thread)] += 1;  // no two threads of a call have one number
    });
    int64_t all = 0;
    for (const int64_t count : of_thread) all += count;
    CHECK(all == static_cast<int64_t>(made.size()));
    for (size_t i = 0; i < made.size(); ++i) CHECK(made[i] == static_cast<int64_t>(i) + 1);
  }
}

void check_workers_that_sleep_are_woken(Random& random) {
  for (int round = 0; round < 500; ++round) {
    meet(2 + static_cast<int>(random.below(2)));
    std::this_thread::sleep_for(std::chrono::microseconds(random.below(400)));  // some of them longer than they poll
  }
}

void check_calls_of_several_threads() {
  std::vector<std::thread> callers;
  for (int me = 0; me < 4; ++me) {
    callers.emplace_back([] {
      for (int round = 0; round < 500; ++round) {
        std::vector<int> made(17, 0);
        run_pieces(3, 17, [&](int64_t i, int) { made[static_cast<size_t>(i)] += 1; });
        for (const int count : made) CHECK(count == 1);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
}

void check_a_call_within_or_beside_another_one_runs_alone() {
  const auto alone = [](std::thread::id caller) { run_pieces(2, 8, [&](int64_t, int) { CHECK(here() == caller); }); };
  const auto owner = here();
  run_pieces(2, 2, [&](int64_t, int) {
    alone(here());
    if (here() == owner) std::thread([&] { alone(here()); }).join();
  });
}

void check_counts() {
  CHECK(thread_count() == 1);
  set_thread_count(3);
  CHECK(thread_count() == 3 && give_threads(2) == 0 && thread_count() == 2);
  std::thread([] { CHECK(thread_count() == 3 && give_threads(5) == 0 && thread_count() == 5); }).join();
  CHECK(give_threads(0) == 2 && thread_count() == 3);
  set_thread_count(0);
  CHECK(thread_count() == 1);
}

void check_ids() {
#ifdef __linux__
  const std::vector<int64_t> ids = thread_ids(3);
  CHECK(ids.size() == 3 && ids[0] == syscall(SYS_gettid) && std::set(ids.begin(), ids.end()).size() == 3);
  CHECK(thread_ids(2) == std::vector(ids.begin(), ids.begin() + 2) && thread_ids(0).size() == 1);
  std::vector<int64_t> met(2);
  std::atomic<int> come{0};
  run_pieces(2, 2, [&](int64_t i, int) {
    met[static_cast<size_t>(i)] = syscall(SYS_gettid);
    come.fetch_add(1);
    while (come.load() < 2) std::this_thread::yield();
  });
  CHECK(std::set(met.begin(), met.end()) == std::set(ids.begin(), ids.begin() + 2));
#endif
}

// ThreadSanitizer refuses threads in a forked child.
#if !defined(__SANITIZE_THREAD__)
void check_forked_children_have_workers_of_their_own() {
  std::atomic<bool> ended{false};
  std::thread busy([&] {  // owns the pool in the moment of most forks
    while (!ended) meet(2);
  });
  for (int round = 0; round < 20; ++round) {
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      alarm(60);  // ends a child that hangs
      meet(3);
      _exit(0);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
  }
  ended = true;
  busy.join();
}

// In a child, whose limit goes with it. Sanitizers need memory that the limit does not leave.
void check_a_system_without_threads() {
#if defined(__linux__) && !defined(PRELUDE_SANITIZED)
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    constexpr int kMany = 200;  // more than have stacks left from before the fork
    rlimit before;
    CHECK(getrlimit(RLIMIT_AS, &before) == 0);
    const rlimit none{1 << 20, before.rlim_max};
    std::vector<int> made(2 * kMany, 0);
    CHECK(setrlimit(RLIMIT_AS, &none) == 0);
    CHECK(thread_ids(kMany).size() < kMany);
    run_pieces(kMany, 2 * kMany, [&](int64_t i, int) { made[static_cast<size_t>(i)] += 1; });
    CHECK(setrlimit(RLIMIT_AS, &before) == 0);
    for (const int count : made) CHECK(count == 1);
    CHECK(thread_ids(kMany).size() == kMany);  // a later call tries again
    _exit(0);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
#endif
}
#else
void check_forked_children_have_workers_of_their_own() {}
void check_a_system_without_threads() {}
#endif

}  // namespace

int main() {
  Random random{1};
  check_counts();
  check_every_piece_is_computed_once(random);
  check_workers_that_sleep_are_woken(random);
  check_ids();
  check_calls_of_several_threads();
  check_a_call_within_or_beside_another_one_runs_alone();
  check_forked_children_have_workers_of_their_own();
  check_a_system_without_threads();
  std::puts("thread pool: ok");
}
