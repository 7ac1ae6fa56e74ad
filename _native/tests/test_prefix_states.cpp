// States of prefixes: the order in which they give way, those that stay, and a pool whose prompts keep states at
// random.
#include <cstring>
#include <vector>

#include "check.hpp"
#include "prelude/kv_pool.hpp"

using namespace prelude;

static void order() {
  PrefixStates states(8);
  CHECK(!states.any());
  states.open(5, 3);
  CHECK(states.any() && states.size() == 3 && states.num_free() == 3);
  const int32_t a = states.take(true), b = states.take(true), c = states.take(true);
  CHECK(a == 5 && b == 6 && c == 7 && states.take(true) == PrefixStates::kNone);
  states.give(a, 0, true), states.give(b, 1, false), states.give(c, 2, false);
  CHECK(states.state_at(1) == b && states.state_at(3) == PrefixStates::kNone && states.num_kept() == 3);
  states.pin(b);  // the oldest that was never gone on from, and now it is
  CHECK(states.take(true) == c && states.take(true) == PrefixStates::kNone);
  CHECK(states.take(false) == a && states.take(false) == PrefixStates::kNone);
  CHECK(states.evicted() == 2 && states.audit() == nullptr);
  states.give(c, 1, false);  // node 1 has one already
  CHECK(states.state_at(1) == b && states.num_free() == 1);
  states.unpin(b), states.put_back(a), states.forget(1), states.forget(1);
  CHECK(states.num_free() == 3 && states.num_kept() == 0 && states.audit() == nullptr);
}

// Prompts of a few families: a lease goes on from a node of its own tokens with a state that was kept there.
static void random_prompts() {
  constexpr int32_t kSize = 4, kEntries = 6;
  BlockAllocator blocks(40, kSize);
  PrefixTrie trie(blocks, 7);
  KvPool pool(trie, true, 2, kEntries);
  Random random{3};
  std::vector<uint64_t> held(2 + kEntries, 0);  // by entry: a number of the tokens before the state
  const auto number = [](const std::vector<int32_t>& tokens, int64_t n) {
    uint64_t found = static_cast<uint64_t>(n);
    for (int64_t i = 0; i < n; ++i) found = found * 31 + static_cast<uint64_t>(tokens[static_cast<size_t>(i)]) + 1;
    return found;
  };
  int64_t reused = 0;
  for (int round = 0; round < 4000; ++round) {
    std::vector<int32_t> tokens(static_cast<size_t>(1 + random.below(30)));
    for (int32_t& token : tokens) token = static_cast<int32_t>(random.below(random.chance(90) ? 1 : 2));
    const auto n = static_cast<int64_t>(tokens.size());
    Lease lease;
    lease.growable = true;
    CHECK(pool.attach(tokens.data(), n, 0, n - 1, &lease).ok());
    const int64_t cached = int64_t{lease.base} * kSize;
    CHECK((lease.state_from >= 0) == (cached > 0));
    if (cached > 0) CHECK(held[static_cast<size_t>(lease.state_from)] == number(tokens, cached));
    reused += cached;
    if (!pool.take(lease, (n + kSize - 1) / kSize - lease.base, false).ok()) {
      CHECK(pool.release(lease).ok());
      continue;
    }
    pool.keep_states(lease, cached, n, n - 1, random.chance(20));
    for (int32_t k = 0; k < lease.num_kept; ++k) {
      const auto [entry, at] = lease.kept[static_cast<size_t>(k)];
      CHECK(entry >= 2 && entry < 2 + kEntries && entry != lease.state_from && int64_t{at} * kSize < n);
      held[static_cast<size_t>(entry)] = number(tokens, int64_t{at} * kSize);
    }
    if (random.chance(90)) CHECK(pool.publish(lease, tokens.data(), n, 0, false, random.chance(50)).ok());
    CHECK(pool.release(lease).ok());
    CHECK(trie.states().num_free() + trie.states().num_kept() == kEntries && trie.states().audit() == nullptr);
    if (random.chance(2)) trie.evict(INT32_MAX);
  }
  CHECK(reused > 1000 && trie.states().evicted() > 10 && trie.audit().broken == nullptr);
  trie.evict(INT32_MAX);
  CHECK(trie.states().num_kept() == 0 && blocks.num_free() == 40);
}

int main() {
  order();
  random_prompts();
  return 0;
}
