// Detects two threads inside the writing calls of one pool, which the contract forbids (one holder of the
// step lock at a time). It never waits: the second one is told. Costs one uncontended exchange a call.
#pragma once

#include <atomic>

namespace prelude {

class OneWriter {
 public:
  bool enter() { return !busy_.exchange(true, std::memory_order_acquire); }
  void leave() { busy_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> busy_{false};
};

}  // namespace prelude
