// ThreadPlaces: which processors a thread may run on while it is kept off its waker's, and behind it.
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <thread>

#include "check.hpp"
#include "prelude/cpu/parallel.hpp"
#include "prelude/cpu/places.hpp"

#ifdef __linux__
#include <sys/wait.h>

#include <csignal>

namespace {

using prelude::cpu::ThreadPlaces;

cpu_set_t places_of(pid_t id) {
  cpu_set_t set;
  CHECK(sched_getaffinity(id, sizeof set, &set) == 0);
  return set;
}

bool may_run(pid_t id, int processor) {
  const cpu_set_t set = places_of(id);
  return CPU_ISSET(processor, &set);
}

cpu_set_t alone(int processor) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(processor, &set);
  return set;
}

// A thread that sleeps until it is told to end.
class Sleeper {
 public:
  explicit Sleeper(const cpu_set_t& places)
      : thread_([this] {
          std::unique_lock lock(mutex_);
          id_ = static_cast<pid_t>(syscall(SYS_gettid));
          changed_.notify_all();
          changed_.wait(lock, [this] { return ended_; });
        }) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return id_ != 0; });
    CHECK(sched_setaffinity(id_, sizeof places, &places) == 0);  // it has inherited those of its maker
  }
  ~Sleeper() {
    {
      std::lock_guard lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  pid_t id() const { return id_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  pid_t id_ = 0;
  bool ended_ = false;
  std::thread thread_;
};

// `first` is where this thread runs.
void check_a_thread_is_kept_off_and_comes_back(int first, const cpu_set_t& all) {
  Sleeper sleeper(all);
  ThreadPlaces places({sleeper.id()});
  places.keep_off();
  cpu_set_t without = all;
  CPU_CLR(first, &without);
  cpu_set_t now = places_of(sleeper.id());
  CHECK(CPU_EQUAL(&now, &without));
  places.keep_off();  // again, without giving back
  now = places_of(sleeper.id());
  CHECK(CPU_EQUAL(&now, &without));
  places.give_back();
  now = places_of(sleeper.id());
  CHECK(CPU_EQUAL(&now, &all));
  {
    ThreadPlaces for_a_while({sleeper.id()});
    for_a_while.keep_off();
    CHECK(!may_run(sleeper.id(), first));
  }
  CHECK(may_run(sleeper.id(), first));  // the destructor gives back
}

void check_a_call_of_the_pool_gives_back(int first, const cpu_set_t& all) {
  Sleeper sleeper(all);
  ThreadPlaces places({sleeper.id()});
  places.keep_off();
  const auto caller = std::this_thread::get_id();
  // Whether the sleeper may run here, as the caller sees it within its own part of the call.
  const auto back_within = [&](int threads, int64_t pieces) {
    std::atomic<int> seen{-1};
    prelude::cpu::run_pieces(threads, pieces, [&](int64_t, int) {
      if (std::this_thread::get_id() == caller)
        seen = may_run(sleeper.id(), first);
      else
        while (seen < 0) std::this_thread::yield();
    });
    return seen.load() == 1;
  };
  CHECK(!back_within(1, 2) && !back_within(2, 1));
  CHECK(back_within(2, 2));  // the first one that wakes another thread
}

void check_a_change_of_others_stays(int first, int second, const cpu_set_t& all) {
  Sleeper sleeper(all);
  ThreadPlaces places({sleeper.id()});
  places.keep_off();
  const cpu_set_t here = alone(first);
  CHECK(sched_setaffinity(sleeper.id(), sizeof here, &here) == 0);
  places.give_back();
  CHECK(!may_run(sleeper.id(), second));
}

void check_a_bound_thread_stays(int first) {
  Sleeper sleeper(alone(first));
  ThreadPlaces places({sleeper.id()});
  places.keep_off();
  CHECK(may_run(sleeper.id(), first));
}

void check_other_processes_are_let_alone(int first, const cpu_set_t& all) {
  const pid_t child = fork();
  if (child == 0) {
    for (;;) pause();
  }
  CHECK(child > 0);
  CHECK(sched_setaffinity(child, sizeof all, &all) == 0);
  ThreadPlaces places({child});
  places.keep_off();
  CHECK(may_run(child, first));
  CHECK(kill(child, SIGKILL) == 0 && waitpid(child, nullptr, 0) == child);
  places.keep_off();  // the id of a process that has ended
}

}  // namespace

int main() {
  const cpu_set_t all = places_of(0);
  int first = -1, second = -1;
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (!CPU_ISSET(i, &all)) continue;
    (first < 0 ? first : second) = i;
    if (second >= 0) break;
  }
  if (second < 0) {
    std::puts("places: one processor, nothing to show");
    return 0;
  }
  const cpu_set_t here = alone(first);
  CHECK(sched_setaffinity(0, sizeof here, &here) == 0);
  check_a_thread_is_kept_off_and_comes_back(first, all);
  check_a_call_of_the_pool_gives_back(first, all);
  check_a_change_of_others_stays(first, second, all);
  check_a_bound_thread_stays(first);
  check_other_processes_are_let_alone(first, all);
  std::puts("places: ok");
}
#else
int main() { std::puts("places: Linux alone has them"); }
#endif
