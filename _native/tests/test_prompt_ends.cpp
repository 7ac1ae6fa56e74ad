// Where waiting prompts leave the trie, against the plain way: match every one of them again after every operation.
//
//   test_prompt_ends [operations] [seed]
//
// After each operation the prompts that have moved are matched again; then each of them, moved or not, must have the
// answer of a fresh match. So a change that is not seen is found by the operation that made it. On a trie with full
// hashes a move without a change is rare; with short hashes (every key collides) they are many, and allowed.
#include <vector>

#include "check.hpp"
#include "prelude/prefix_trie.hpp"

using namespace prelude;
using Tokens = std::vector<int32_t>;

struct Waiting {
  Tokens prompt;
  uint64_t salt;
  int64_t most;
  PromptEnd end;
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
    const uint64_t changes_before = trie.changes();
    if (action < 3 && waiting.size() < 40) {
      waiting.push_back({some_prompt(r, size), r.next() % 2, r.chance(30) ? r.below(6) : -1, {}});
      CHECK(trie.has_moved(waiting.back().end));
    } else if (action < 5 && !waiting.empty()) {
      const auto at = static_cast<size_t>(r.below(static_cast<int64_t>(waiting.size())));
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
    for (Waiting& w : waiting) {
      const auto n = static_cast<int64_t>(w.prompt.size());
      if (trie.has_moved(w.end)) {
        CHECK(w.end.blocks < 0 || hash_bits < 32 || trie.changes() != changes_before);
        const int32_t before = w.end.blocks;
        w.end = trie.end_of(w.prompt.data(), n, w.salt, w.most);
        if (before >= 0) ++*reports, *changes += w.end.blocks != before;
      }
      CHECK(w.end.blocks == trie.match(w.prompt.data(), n, w.salt, w.most, false).blocks);
    }
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
  CHECK(reports < changes + changes / 20 + 10);  // precise: hardly a second look without a change
  CHECK(collided > collided_changes);
  std::printf("%lld moves, %lld changes\n", (long long)reports, (long long)changes);
  return 0;
}
