// Callers, an engine and a closing thread at once: nothing is lost, told twice or out of its caller's order, and no
// count passes its limit. Under ThreadSanitizer this also shows that shared data is atomic.
//
//   test_handover [rounds]
#include <cstdlib>
#include <mutex>
#include <thread>
#include <vector>

#include "check.hpp"
#include "prelude/handover.hpp"

using namespace prelude;

struct Item : Link {
  int producer = 0;
  int64_t number = 0;  // among its producer's
  int64_t chain = 0;   // the number of the pushed chain at its producer, and the length of the chain
  int64_t chain_size = 0;
  int64_t charged = -1;
};

static Item* item(Link* link) { return static_cast<Item*>(link); }

static void one_thread() {
  Handover queue;
  Item a, b, c;
  CHECK(queue.empty() && queue.take() == nullptr);
  CHECK(queue.push(&a, &a) == Pushed::first);
  c.next = &b;  // a chain: c is newer than b
  CHECK(queue.push(&c, &b) == Pushed::more);
  int seen = 0;
  for (const Link* link = queue.newest(); link != nullptr; link = link->next) ++seen;
  CHECK(seen == 3 && !queue.empty());
  Link* taken = queue.take();
  CHECK(taken == &a && taken->next == &b && taken->next->next == &c && c.next == nullptr);
  CHECK(queue.push(&a, &a) == Pushed::first);
  queue.close();
  CHECK(queue.closed() && queue.push(&b, &b) == Pushed::closed);
  CHECK(queue.take() == &a && queue.closed() && queue.empty());

  Bounded places(5);
  CHECK(places.take(3, true) == 3 && places.take(3, true) == 0 && places.take(3, false) == 2);
  CHECK(places.take(1, false) == 0 && places.count() == 5);
  places.give_back(5);
  CHECK(places.count() == 0);

  StepLock lock;
  CHECK(lock.try_acquire(7) && lock.holder() == 7 && !lock.try_acquire(8));
  CHECK(!lock.release());
  CHECK(lock.try_acquire_or_request(7) && !lock.try_acquire_or_request(8) && lock.holder() == 7);
  CHECK(lock.release() && lock.holder() == 0 && lock.try_acquire(8));
}

// Three callers push chains of one to four; one taker; a fifth thread closes in the middle of it.
static void queue_of_many(int64_t rounds, bool closing) {
  constexpr int kProducers = 3;
  Handover queue;
  std::vector<std::vector<Item>> items(kProducers, std::vector<Item>(static_cast<size_t>(rounds)));
  std::atomic<int64_t> accepted{0}, firsts{0};
  std::atomic<int> running{kProducers};
  auto produce = [&](int me) {
    Random random{static_cast<uint64_t>(me)};
    auto& mine = items[static_cast<size_t>(me)];
    int64_t chains = 0;
    for (int64_t at = 0; at < rounds; ++chains) {
      const int64_t n = std::min<int64_t>(1 + random.below(4), rounds - at);
      for (int64_t k = 0; k < n; ++k) {
        Item& one = mine[static_cast<size_t>(at + k)];
        one.producer = me, one.number = at + k, one.chain = chains, one.chain_size = n;
        if (k > 0) one.next = &mine[static_cast<size_t>(at + k - 1)];
      }
      const Pushed pushed = queue.push(&mine[static_cast<size_t>(at + n - 1)], &mine[static_cast<size_t>(at)]);
      if (pushed == Pushed::closed) break;
      if (pushed == Pushed::first) firsts.fetch_add(1);
      accepted.fetch_add(n);
      at += n;
    }
    running.fetch_sub(1);
  };
  std::vector<std::thread> threads;
  for (int me = 0; me < kProducers; ++me) threads.emplace_back(produce, me);
  if (closing) {
    threads.emplace_back([&] {
      while (accepted.load() < rounds && running.load() > 0) std::this_thread::yield();
      queue.close();
    });
  }
  int64_t taken = 0, next[kProducers] = {}, takes = 0;
  for (bool last = false; !last;) {
    last = running.load() == 0;  // the take below sees all earlier pushes
    Link* link = queue.take();
    takes += link != nullptr;
    int64_t left_of_chain = 0;
    while (link != nullptr) {
      Item* one = item(link);
      link = link->next;  // the item is ours: its link may be used again
      one->next = nullptr;
      CHECK(one->number == next[one->producer]++);
      if (left_of_chain == 0) left_of_chain = one->chain_size;  // a chain comes whole, in one take
      --left_of_chain;
      CHECK(link == nullptr || left_of_chain == 0 ||
            (item(link)->producer == one->producer && item(link)->chain == one->chain));
      ++taken;
    }
    CHECK(left_of_chain == 0);
  }
  for (auto& thread : threads) thread.join();
  CHECK(taken == accepted.load() && queue.take() == nullptr);
  CHECK(firsts.load() == takes);  // one wake-up for everything that was taken at once
  if (!closing) CHECK(taken == kProducers * rounds);
}

// Callers take places and are charged; two threads say that each leaves, one of them is heard.
static void admission_of_many(int64_t rounds) {
  Admission in(8, 100);
  std::atomic<int64_t> refused{0}, left{0};
  auto call = [&](int me) {
    Random random{static_cast<uint64_t>(me)};
    for (int64_t i = 0; i < rounds; ++i) {
      const int64_t want = 1 + random.below(4), granted = in.requests.take(want, random.chance(50));
      CHECK(granted >= 0 && granted <= want && in.requests.count() <= 8);
      for (int64_t k = 0; k < granted; ++k) {
        int64_t charged = random.below(40);
        if (in.tokens.take(charged, true) != charged) {
          refused.fetch_add(1);
          in.requests.give_back(1);
          continue;
        }
        CHECK(in.tokens.count() <= 100);
        std::thread other;
        if (random.chance(2)) other = std::thread([&] { left.fetch_add(in.leave(charged) >= 0); });
        left.fetch_add(in.leave(charged) >= 0);
        if (other.joinable()) other.join();
        left.fetch_sub(1);
      }
    }
  };
  std::vector<std::thread> threads;
  for (int me = 0; me < 3; ++me) threads.emplace_back(call, me);
  for (auto& thread : threads) thread.join();
  CHECK(in.requests.count() == 0 && in.tokens.count() == 0 && left.load() == 0);
}

// An engine thread that sleeps whenever it does not get the step lock, and callers that step for themselves:
// everything is done, by one at a time, and the sleeper is always woken.
static void lock_of_many(int64_t rounds) {
  StepLock lock;
  std::atomic<uint32_t> bell{0};
  std::atomic<int64_t> posted{0};
  std::atomic<bool> stop{false};
  int64_t inside = 0, done = 0;  // the step lock's: not atomic, so that the sanitizer sees a second thread
  auto step = [&] {
    CHECK(++inside == 1);
    done = posted.load();
    --inside;
  };
  auto ring = [&] {
    bell.fetch_add(1);
    bell.notify_one();
  };
  std::thread engine([&] {
    uint32_t heard = 0;
    while (!stop.load()) {
      bell.wait(heard);
      heard = bell.load();
      if (!lock.try_acquire_or_request(1)) continue;
      step();
      if (lock.release()) ring();
    }
  });
  auto call = [&](uint64_t me) {
    for (int64_t i = 0; i < rounds; ++i) {
      posted.fetch_add(1);
      if (lock.try_acquire(me)) {
        step();
        if (lock.release()) ring();
      } else {
        ring();
      }
    }
  };
  std::thread a(call, 2), b(call, 3);
  a.join(), b.join();
  for (int64_t seen = -1; seen < 2 * rounds;) {  // the last ones may be the engine thread's
    while (!lock.try_acquire(4)) std::this_thread::yield();
    seen = done;
    if (lock.release()) ring();
  }
  stop.store(true);
  ring();
  engine.join();
}

int main(int argc, char** argv) {
  const int64_t rounds = argc > 1 ? std::atoll(argv[1]) : 20'000;
  one_thread();
  queue_of_many(rounds, false);
  queue_of_many(rounds, true);
  admission_of_many(rounds / 4);
  lock_of_many(rounds / 4);
  return 0;
}
