// One core operation, set up off the record and then run so many times: for callgrind, and for times.
//
//   operations NAME NUM_BLOCKS REPEATS            callgrind --collect-atstart=no --toggle-collect=measured
//   operations NAME NUM_BLOCKS REPEATS --time     nanoseconds an operation: minimum, 10th percentile, median
//   operations --list
//
// An operation is one call of the scheduler for one request: 512 tokens in 32 blocks of 16, on a pool full of cached
// blocks. 64 of them make a repeat. Inputs are the same in every run.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "../tests/check.hpp"
#include "prelude/oneshot_group.hpp"
#include "prelude/packer.hpp"
#include "prelude/prefix_trie.hpp"

using namespace prelude;
using Ints = std::vector<int32_t>;

namespace {

constexpr int32_t kBlock = 16, kTokens = 512, kBlocks = kTokens / kBlock, kRows = 64, kKnown = kBlocks * 3 / 4;
constexpr int32_t kVocabulary = 150'000;

struct Prompts {
  Random random{1};
  Ints tokens = Ints(size_t{kRows} * kTokens);

  void renew(int32_t from = 0) {  // each row's tokens from `from` on
    for (int32_t r = 0; r < kRows; ++r) {
      for (int32_t k = from; k < kTokens; ++k) {
        tokens[static_cast<size_t>(r * kTokens + k)] = static_cast<int32_t>(random.below(kVocabulary));
      }
    }
  }
  const int32_t* row(int32_t r) const { return tokens.data() + static_cast<size_t>(r) * kTokens; }
};

struct World {
  BlockAllocator pool;
  PrefixTrie trie;
  Prompts prompts;
  Ints ids = Ints(size_t{kRows} * kBlocks);
  std::vector<NodeId> nodes = std::vector<NodeId>(kRows);
  uint64_t sum = 0;  // of results, so that nothing is optimized away

  explicit World(int32_t num_blocks) : pool(num_blocks, kBlock), trie(pool, 1) { fill(); }

  int32_t* blocks(int32_t r) { return ids.data() + static_cast<size_t>(r) * kBlocks; }
  void allocate(int32_t r, int32_t count) { CHECK(trie.allocate(count, blocks(r)).ok()); }
  void insert(int32_t r, int32_t first, int32_t count) {
    TrieInsert done;
    CHECK(trie.insert(prompts.row(r), kTokens, blocks(r), count, 0, first, false, &done).ok());
    nodes[static_cast<size_t>(r)] = done.node;
  }
  void insert_new(int32_t known) {  // the known tokens of each prompt enter the trie
    for (int32_t r = 0; r < kRows; ++r) allocate(r, known), insert(r, 0, known);
  }
  void fill() {
    while (pool.num_free() >= kRows * kBlocks) prompts.renew(), insert_new(kBlocks);
  }
};

// The preparation before each repeat, which is not measured, and the measured call.
struct Operation {
  const char* name;
  std::function<void(World&)> once, before, run;
};

void nothing(World&) {}

void take_all(World& w, int32_t count) {
  for (int32_t r = 0; r < kRows; ++r) w.allocate(r, count);
}

struct Packing {  // 64 rows of 128 tokens on 4 cached blocks
  Ints context = {0, 1, 2, 3}, own = {4, 5, 6, 7, 8, 9, 10, 11}, positions = Ints(128);
  Ints out = Ints(size_t{1} << 18);
  std::vector<PromptRow> prompts;
  std::vector<DecodeRow> rows;

  explicit Packing(const Prompts& from) {
    for (int32_t k = 0; k < 128; ++k) positions[static_cast<size_t>(k)] = 64 + k;
    for (int32_t r = 0; r < kRows; ++r) {
      PromptRow p{};
      p.tokens = from.row(r), p.positions = positions.data(), p.num_tokens = p.end = 128, p.segments = 1;
      p.parent = -1, p.context = context.data(), p.context_blocks = 4, p.context_len = 64;
      p.slots = own.data(), p.slot_blocks = 8, p.slot_count = 128;
      prompts.push_back(p);
      rows.push_back({from.row(r), 128, 100, context.data(), own.data(), 4, 3});
    }
  }
  void pack_prompts() {
    const PromptSizes s = measure(prompts.data(), kRows, kBlock);
    CHECK(s.reason == nullptr);
    int32_t* at = out.data();
    auto room = [&at](int64_t n) { return std::exchange(at, at + n); };
    fill(prompts.data(), kRows, kBlock,
         PromptArrays{room(s.tokens), room(s.tokens), room(kRows + 1), room(kRows), room(kRows), room(kRows + 1),
                      room(s.context), room(s.tokens), room(kRows), room(kRows)});
  }
  void pack_rows() {
    for (const DecodeRow& row : rows) CHECK(wrong_row(row, kBlock) == nullptr);
    int32_t* at = out.data();
    auto room = [&at](int64_t n) { return std::exchange(at, at + n); };
    fill(rows.data(), kRows, kBlock,
         DecodeArrays{room(kRows), room(kRows), room(kRows), room(kRows), room(kRows + 1), room(kRows * 7)});
  }
};

struct Step {  // 64 OneShot rows of 128 tokens, from the first look at them to the last block given back
  KvPool pool;
  OneShotGroup group;
  std::vector<RequestRow> rows = std::vector<RequestRow>(kRows);
  Ints out = Ints(size_t{1} << 18);

  explicit Step(World& w) : pool(w.trie, true), group(pool) {}

  void whole(World& w) {
    std::vector<Lease> leases(kRows);
    std::vector<PromptRow> packed;
    int64_t skip[kRows], publish[kRows];
    Result wrong;
    pool.begin_plan();
    group.begin({kRows * 128, kRows, int64_t{1} << 30, 4, 64, INT32_MAX, -1, 64, 8, true, false, true});
    for (size_t i = 0; i < kRows; ++i) {
      RequestRow& r = rows[i];
      r.tokens = w.prompts.row(static_cast<int32_t>(i));
      r.num_tokens = r.trunk = 128, r.read = r.unread = 127, r.logits_rows = 1;
      CHECK(group.admit(r, 0, leases[i], &skip[i], &publish[i], &wrong) == OneShotGroup::Verdict::admitted);
    }
    group.end();
    for (size_t i = 0; i < kRows; ++i) {
      CHECK(group.keep(rows[i], leases[i], skip[i], 128, false, false, &publish[i], &wrong));
      packed.push_back(prompt_row(rows[i], skip[i], -1, -1, &leases[i], skip[i], publish[i], kBlock));
    }
    const PromptSizes s = measure(packed.data(), kRows, kBlock);
    CHECK(s.reason == nullptr);
    int32_t* at = out.data();
    auto room = [&at](int64_t n) { return std::exchange(at, at + n); };
    fill(packed.data(), kRows, kBlock,
         PromptArrays{room(s.tokens), room(s.tokens), room(kRows + 1), room(kRows), room(kRows), room(kRows + 1),
                      room(s.context), room(s.tokens), room(kRows), room(kRows)});
    for (size_t i = 0; i < kRows; ++i) {
      CHECK(pool.publish(leases[i], rows[i].tokens, skip[i] + publish[i] * kBlock, 0, false, true).ok());
      CHECK(pool.release(leases[i]).ok());
    }
  }
};

std::vector<Operation> operations() {
  auto know = [](World& w) { w.prompts.renew(), w.insert_new(kKnown); };
  static Packing* packing = nullptr;
  static Step* step = nullptr;
  auto pack = [](World& w) { packing = new Packing(w.prompts); };  // lives as long as the program
  return {
      {"hash", nothing, nothing,
       [](World& w) {
         for (int32_t r = 0; r < kRows; ++r) {
           uint64_t chain = chain_start(0, 0);
           for (int32_t k = 0; k < kBlocks; ++k) {
             chain = chain_next(chain, content_hash(w.prompts.row(r) + k * kBlock, kBlock, 0));
           }
           w.sum += chain;
         }
       }},
      {"allocate_evict_free", nothing,
       [](World& w) {
         if (w.pool.num_free() != 0) w.prompts.renew(), w.insert_new(kBlocks);
       },
       [](World& w) {
         take_all(w, kBlocks);
         for (int32_t r = 0; r < kRows; ++r) CHECK(w.pool.release(w.blocks(r), kBlocks).ok());
       }},
      {"take_back", [](World& w) { w.prompts.renew(), w.insert_new(kBlocks); }, nothing,
       [](World& w) {
         for (const NodeId node : w.nodes) CHECK(w.trie.lock(node).ok());
         for (const NodeId node : w.nodes) CHECK(w.trie.unlock(node).ok());
       }},
      {"match75", know, [](World& w) { w.prompts.renew(kKnown * kBlock); },
       [](World& w) {
         for (int32_t r = 0; r < kRows; ++r) {
           w.sum += static_cast<uint64_t>(w.trie.match(w.prompts.row(r), kTokens, 0, -1).blocks);
         }
       }},
      {"would_hit75", know, [](World& w) { w.prompts.renew(kKnown * kBlock); },
       [](World& w) {
         for (int32_t r = 0; r < kRows; ++r) {
           w.sum += static_cast<uint64_t>(w.trie.would_hit(w.prompts.row(r), kTokens, 0));
         }
       }},
      {"insert25", know, [](World& w) { w.prompts.renew(kKnown * kBlock), take_all(w, kBlocks - kKnown); },
       [](World& w) {
         for (int32_t r = 0; r < kRows; ++r) w.insert(r, kKnown, kBlocks - kKnown);
       }},
      {"insert", nothing, [](World& w) { w.prompts.renew(), take_all(w, kBlocks); },
       [](World& w) {
         for (int32_t r = 0; r < kRows; ++r) w.insert(r, 0, kBlocks);
       }},
      {"evict", nothing, [](World& w) { w.fill(); },
       [](World& w) {
         for (int32_t r = 0; r < kRows; ++r) w.sum += static_cast<uint64_t>(w.trie.evict(kBlocks));
       }},
      {"pack_prompt", pack, nothing, [](World&) { packing->pack_prompts(); }},
      {"pack_decode", pack, nothing, [](World&) { packing->pack_rows(); }},
      {"oneshot_step", [](World& w) { step = new Step(w); }, [](World& w) { w.prompts.renew(); },
       [](World& w) { step->whole(w); }},
  };
}

}  // namespace

// The function that callgrind counts; never inlined, so that it has a name.
extern "C" __attribute__((noinline)) void measured(const std::function<void(World&)>* run, World* world) {
  (*run)(*world);
}

int main(int argc, char** argv) {
  const std::vector<Operation> all = operations();
  if (argc == 2 && std::strcmp(argv[1], "--list") == 0) {
    for (const Operation& o : all) std::printf("%s\n", o.name);
    return 0;
  }
  if (argc < 4) return std::fprintf(stderr, "usage: operations NAME NUM_BLOCKS REPEATS [--time]\n"), 2;
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const Operation& o) { return argv[1] == std::string(o.name); });
  const int num_blocks = std::atoi(argv[2]), repeats = std::atoi(argv[3]);
  if (found == all.end() || num_blocks < 2 * kRows * kBlocks || num_blocks > BlockAllocator::kMaxBlocks ||
      repeats < 1) {
    return std::fprintf(stderr, "operations: no such operation, or too few blocks or repeats\n"), 2;
  }
  World world(num_blocks);
  found->once(world);
  std::vector<double> taken;
  for (int i = 0; i < repeats; ++i) {
    found->before(world);
    const auto began = std::chrono::steady_clock::now();
    measured(&found->run, &world);
    taken.push_back(std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - began).count() /
                    kRows);
  }
  CHECK(world.trie.audit().broken == nullptr);
  if (argc > 4) {
    std::sort(taken.begin(), taken.end());
    const size_t n = taken.size();
    std::printf("%-20s %8d blocks  %8.1f %8.1f %8.1f ns\n", argv[1], num_blocks, taken[0], taken[n / 10],
                taken[n / 2]);
  }
  return world.sum == 1 ? 1 : 0;
}
