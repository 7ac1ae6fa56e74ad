// Sleeping threads kept off the processor of the thread that is about to wake them.
//
// Linux may wake a thread on the processor of its waker though another one is idle. In a virtual machine it does so
// often: a processor that sleeps there looks to the scheduler like one that its host has taken away. The two threads
// then take turns for some milliseconds, until one is moved. A thread that may not run on
// that processor is woken on another one.
//
//     keep_off()            a thread may run on  {0, 1, 2, 3}  ->  {0, 1, 3}    where the caller runs on 2
//     a call of the pool    the thread is woken on 0, 1 or 3
//     give_back()                                {0, 1, 3}     ->  {0, 1, 2, 3}
//
// Processor 0 may take milliseconds to wake, and 2, which is idle for a moment, would take the waiting thread from
// it: so the caller gives back some operations later. From then on a thread that finds its processor taken by another
// process can move to the caller's.
//
// Threads that may run on the caller's processor alone, or on more processors than the kernel's mask of 1,024 has,
// are left as they are. So are ids of threads that have ended and of other processes' threads. A system that forbids
// the change changes nothing. On other systems than Linux there is nothing to do.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#ifdef __linux__
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace prelude::cpu {

class ThreadPlaces {
 public:
  // `ids` are threads of this process that the caller wakes.
  explicit ThreadPlaces(std::vector<int64_t> ids) : ids_(std::move(ids)), kept_(ids_.size()) {}
  ThreadPlaces(const ThreadPlaces&) = delete;
  ThreadPlaces& operator=(const ThreadPlaces&) = delete;
  ~ThreadPlaces() { give_back(); }

  // Keeps the threads off the processor that the caller runs on, until it gives back.
  void keep_off() noexcept {
    give_back();
#ifdef __linux__
    const int here = sched_getcpu();
    if (here < 0 || here >= CPU_SETSIZE) return;
    for (size_t i = 0; i < ids_.size(); ++i) {
      Kept& kept = kept_[i];
      if (!is_ours(ids_[i]) || !read(ids_[i], kept.before) || !CPU_ISSET(here, &kept.before)) continue;
      kept.meanwhile = kept.before;
      CPU_CLR(here, &kept.meanwhile);
      kept.changed = CPU_COUNT(&kept.meanwhile) > 0 && write(ids_[i], kept.meanwhile);
      any_ = any_ || kept.changed;
    }
#endif
  }

  // The threads may run where they might before; a thread whose processors were changed meanwhile keeps the change.
  void give_back() noexcept {
#ifdef __linux__
    if (!any_) return;
    any_ = false;
    for (size_t i = 0; i < ids_.size(); ++i) {
      Kept& kept = kept_[i];
      cpu_set_t now;
      if (std::exchange(kept.changed, false) && is_ours(ids_[i]) && read(ids_[i], now) &&
          CPU_EQUAL(&now, &kept.meanwhile)) {
        write(ids_[i], kept.before);
      }
    }
#endif
  }

 private:
#ifdef __linux__
  struct Kept {
    cpu_set_t before, meanwhile;
    bool changed = false;
  };

  // The kernel may have given the id of a thread that has ended to another process.
  static bool is_ours(int64_t id) noexcept { return syscall(SYS_tgkill, getpid(), static_cast<pid_t>(id), 0) == 0; }
  static bool read(int64_t id, cpu_set_t& set) noexcept {
    return sched_getaffinity(static_cast<pid_t>(id), sizeof set, &set) == 0;
  }
  static bool write(int64_t id, const cpu_set_t& set) noexcept {
    return sched_setaffinity(static_cast<pid_t>(id), sizeof set, &set) == 0;
  }
#else
  struct Kept {};
#endif

  std::vector<int64_t> ids_;
  std::vector<Kept> kept_;  // of the same length
  bool any_ = false;        // whether a thread is kept off a processor
};

}  // namespace prelude::cpu
