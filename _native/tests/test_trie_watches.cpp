// Watches against the plain way: match every waiting prompt again after every operation.
//
//   test_trie_watches [operations] [seed]
//
// After each operation the reported watches are placed again; then each watch, reported or not, must have the
// answer of a fresh match. So a change that is not reported is found by the operation that made it. On a trie with
// full hashes a report without a change is rare; with short hashes (every key collides) they are many, and allowed.
#include <vector>

#include "check.hpp"
#include "prelude/prefix_trie.hpp"

using namespace prelude;
using Tokens = std::vector<int32_t>;

struct Waiting {
  Tokens prompt;
  uint64_t salt;
  int64_t most;
  int32_t watch, ready;
};

static Tokens some_prompt(Random& r, int32_t size) {
  Tokens t;
  const int64_t blocks = r.below(7);
  for (int64_t b = 0; b < blocks; ++b) {
    const auto kind = static_cast<int32_t>(r.below(3));  // few kinds of blocks: prefixes are shared
    for (int32_t k = 0; k < size; ++k) t.push_back(kind * 10 + k);
  }
  for (int64_t k = r.below(size); k > 0; --k) t.push_back(99);
  return t;
}

static void run(int64_t operations, uint64_t seed, int32_t hash_bits, int64_t* reports, int64_t* changes) {
  Random r{seed};
  const int32_t size = r.chance(50) ? 16 : 3;
  BlockAllocator pool(static_cast<int32_t>(8 + r.below(40)), size);
  PrefixTrie trie(pool, r.next(), hash_bits);
  std::vector<Waiting> waiting;
  std::vector<NodeId> promises;
  for (int64_t op = 0; op < operations; ++op) {
    const int64_t action = r.below(12);
    if (action < 3 && waiting.size() < 40) {
      Waiting w{some_prompt(r, size), r.next() % 2, r.chance(30) ? r.below(6) : -1, -1, 0};
      w.watch = trie.watch(w.prompt.data(), static_cast<int64_t>(w.prompt.size()), w.salt, w.most, &w.ready);
      waiting.push_back(w);
    } else if (action < 5 && !waiting.empty()) {
      const auto at = static_cast<size_t>(r.below(static_cast<int64_t>(waiting.size())));
      CHECK(trie.unwatch(waiting[at].watch));
      CHECK(!trie.unwatch(waiting[at].watch));
      waiting.erase(waiting.begin() + static_cast<std::ptrdiff_t>(at));
    } else if (action < 9) {
      const Tokens t = some_prompt(r, size);
      const auto n = static_cast<int64_t>(t.size());
      const uint64_t salt = r.next() % 2;
      const TrieMatch m = trie.match(t.data(), n, salt, -1);
      const int64_t count = n / size - m.blocks;
      std::vector<int32_t> blocks(static_cast<size_t>(count) + 1);
      CHECK(trie.lock(m.node).ok());
      if (trie.allocate(count, blocks.data()).ok()) {
        if (r.chance(40)) {
          NodeId node = kNoNode;
          CHECK(trie.promise(t.data(), n, blocks.data(), count, salt, m.blocks, &node).ok());
          if (node != kNoNode) promises.push_back(node);
          if (node == kNoNode && count > 0) CHECK(pool.release(blocks.data(), count).ok());
        } else {
          TrieInsert in;
          CHECK(trie.insert(t.data(), n, blocks.data(), count, salt, m.blocks, false, &in).ok());
          for (int64_t k = 0; k < count; ++k) {
            if (k < in.there || k >= in.there + in.taken)
              CHECK(pool.release(&blocks[static_cast<size_t>(k)], 1).ok());
          }
        }
      }
      CHECK(trie.unlock(m.node).ok());
    } else if (action < 11 && !promises.empty()) {
      const auto at = static_cast<size_t>(r.below(static_cast<int64_t>(promises.size())));
      if (r.chance(60)) {
        CHECK(trie.fulfil(promises[at]).ok());
        CHECK(trie.unlock(promises[at]).ok());
      } else {
        CHECK(trie.break_promise(promises[at], nullptr).ok());
      }
      promises.erase(promises.begin() + static_cast<std::ptrdiff_t>(at));
    } else {
      trie.evict(r.below(6));
    }
    std::vector<int32_t> moved(static_cast<size_t>(trie.num_moved()) + 1);
    const int32_t count = trie.take_moved(moved.data());
    for (int32_t k = 0; k < count; ++k) {
      for (Waiting& w : waiting) {
        if (w.watch != moved[static_cast<size_t>(k)]) continue;
        const int32_t now =
            trie.rewatch(w.watch, w.prompt.data(), static_cast<int64_t>(w.prompt.size()), w.salt, w.most);
        ++*reports;
        *changes += now != w.ready;
        w.ready = now;
      }
    }
    for (const Waiting& w : waiting) {
      const auto n = static_cast<int64_t>(w.prompt.size());
      CHECK(w.ready == trie.match(w.prompt.data(), n, w.salt, w.most, false).blocks);
    }
    CHECK(trie.num_watches() == static_cast<int32_t>(waiting.size()));
    CHECK(trie.audit().broken == nullptr);
  }
}

int main(int argc, char** argv) {
  const int64_t operations = argc > 1 ? std::atoll(argv[1]) : 4000;
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  int64_t reports = 0, changes = 0, collided = 0, collided_changes = 0;
  for (uint64_t round = 0; round < 6; ++round) {
    run(operations, seed + round, 32, &reports, &changes);
    run(operations / 4, seed + 100 + round, 2, &collided, &collided_changes);
  }
  CHECK(changes > operations / 10);
  CHECK(reports < changes + changes / 20 + 10);  // events are precise: no second look without a change
  CHECK(collided > collided_changes);
  std::printf("%lld reports, %lld changes\n", (long long)reports, (long long)changes);
  return 0;
}
