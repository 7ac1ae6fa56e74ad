// Readers beside a writer: they never wait, never see another prompt's blocks, and never miss a locked prefix.
// Under ThreadSanitizer this also shows that shared data is atomic.
//
//   test_trie_readers [rounds]
#include <atomic>
#include <thread>
#include <vector>

#include "check.hpp"
#include "prelude/prefix_trie.hpp"

using namespace prelude;

static std::vector<int32_t> prompt(int32_t from, int32_t blocks, int32_t size) {
  std::vector<int32_t> t;
  for (int32_t i = 0; i < blocks * size; ++i) t.push_back(i < size ? 1 : from + i);  // a common first block
  return t;
}

static void run(int32_t hash_bits, int32_t size, int rounds) {
  BlockAllocator pool(96, size);
  PrefixTrie trie(pool, 5, hash_bits);
  std::vector<std::vector<int32_t>> prompts;
  for (int32_t i = 0; i < 8; ++i) prompts.push_back(prompt(1000 * i, 24, size));
  const std::vector<int32_t> kept = prompt(90'000, 16, size);
  std::vector<int32_t> blocks(64);
  TrieInsert made;
  CHECK(trie.allocate(16, blocks.data()).ok());
  CHECK(trie.insert(kept.data(), static_cast<int64_t>(kept.size()), blocks.data(), 16, 0, 0, false, &made).ok());
  CHECK(trie.lock(made.node).ok());

  std::atomic<bool> stop{false};
  std::atomic<int64_t> looked{0};
  auto read = [&] {
    while (!stop.load(std::memory_order_relaxed)) {
      CHECK(trie.would_hit(kept.data(), static_cast<int64_t>(kept.size()), 0) == 16);
      for (const auto& p : prompts) {
        const int32_t hit = trie.would_hit(p.data(), static_cast<int64_t>(p.size()), 0);
        CHECK(hit >= 1 && hit <= 24);
        CHECK(trie.would_hit(p.data(), static_cast<int64_t>(p.size()), 3) == 0);
      }
      (void)trie.counters();
      (void)pool.num_free();
      looked.fetch_add(1, std::memory_order_relaxed);
    }
  };
  std::thread a(read), b(read);
  Random random{9};
  for (int i = 0; i < rounds || looked.load() < 10; ++i) {
    const auto& p = prompts[static_cast<size_t>(random.below(8))];
    const auto n = static_cast<int64_t>(p.size());
    const TrieMatch m = trie.match(p.data(), n, 0, -1);
    CHECK(trie.lock(m.node).ok());
    const int64_t need = 24 - m.blocks;
    CHECK(trie.allocate(need, blocks.data()).ok());
    if (random.chance(30) && need > 0) {
      NodeId node = kNoNode;
      CHECK(trie.promise(p.data(), n, blocks.data(), need, 0, m.blocks, &node).ok() && node != kNoNode);
      if (random.chance(50)) {
        CHECK(trie.fulfil(node).ok() && trie.unlock(node).ok());
      } else {
        CHECK(trie.break_promise(node, nullptr).ok());
      }
    } else {
      CHECK(trie.insert(p.data(), n, blocks.data(), need, 0, m.blocks, false, &made).ok());
      CHECK(made.taken == need);
    }
    CHECK(trie.unlock(m.node).ok());
    if (random.chance(20)) trie.evict(random.below(40));
  }
  stop.store(true);
  a.join(), b.join();
  CHECK(trie.audit().broken == nullptr);
}

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 3000;
  run(32, 16, rounds);
  run(2, 3, rounds);
  run(0, 1, rounds / 4);
  std::puts("readers and writer agree");
  return 0;
}
