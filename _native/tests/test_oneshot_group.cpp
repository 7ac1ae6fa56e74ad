// Groups of OneShot rows beside Decode leases, at random: every account against the leases after each step.
//
//   test_oneshot_group [steps] [seed]
//
// The cost of a group is counted again from its rows and folds; a fold's members must have the same tokens. Rows of a
// step fail at random, the pool is often too small, and cached prefixes, promises and borrowed blocks of both kinds
// of leases mix.
#include <memory>
#include <set>
#include <vector>

#include "check.hpp"
#include "prelude/oneshot_group.hpp"

using namespace prelude;
using Tokens = std::vector<int32_t>;

struct Row {
  Tokens tokens;
  RequestRow row;
  Lease lease;
  int64_t skip = 0, publish = 0, deferred = 0;
};

struct Chat {
  Tokens tokens;
  uint64_t salt;
  Lease lease;
};

class Model {
 public:
  Model(Random& random, int32_t blocks, int32_t block_size)
      : r(random),
        size(block_size),
        blocks_(blocks, block_size),
        trie(blocks_, random.next()),
        pool(trie, true),
        group(pool) {}

  void step() {
    pool.begin_plan();
    std::vector<Chat*> promising = chats_grow();
    GroupLimits limits{};
    limits.tokens = 1 + r.below(80), limits.rows = 1 + r.below(12);
    limits.logits_row_bytes = 8, limits.logits_chunk_rows = 2, limits.logits_bytes = 8 * (1 + r.below(20));
    limits.group_tokens = r.chance(30) ? 1 + r.below(40) : 1000;
    limits.allowance = r.chance(20) ? 1 + r.below(30) : -1;
    limits.defer_tokens = r.below(8), limits.defer_steps = 3;
    limits.fold = r.chance(70), limits.retry = r.chance(5), limits.seen = r.chance(50);
    const GroupLimits before = limits;
    group.begin(limits);
    while (waiting.size() < 10) waiting.push_back(arrival());
    std::vector<std::unique_ptr<Row>> rows, later;
    bool full = false;
    for (auto& next : waiting) {
      if (full || group.done()) {
        later.push_back(std::move(next));
        continue;
      }
      Result wrong;
      next->lease = Lease();
      const auto verdict = group.admit(next->row, next->deferred, next->lease, &next->skip, &next->publish, &wrong);
      CHECK(wrong.ok());
      if (verdict == OneShotGroup::Verdict::admitted) {
        rows.push_back(std::move(next));
        continue;
      }
      CHECK(next->lease.released);
      if (verdict == OneShotGroup::Verdict::full) {
        full = true;
        CHECK(!rows.empty() || next->row.num_tokens > before.tokens || before.logits_bytes < 16);
      } else {
        ++next->deferred, ++deferred;
      }
      later.push_back(std::move(next));
    }
    waiting = std::move(later);
    if (full && rows.empty()) waiting.erase(waiting.begin());  // it may never fit
    const size_t by_block = group.folds().groups().size();
    group.end();
    check_costs(rows, before, by_block);
    keep(rows);
    account(rows);
    postprocess(rows, promising);
    account({});
  }

  void finish() {
    for (auto& chat : chats) CHECK(pool.release(chat->lease).ok());
    chats.clear();
    CHECK(pool.live_leases() == 0);
    trie.evict(INT32_MAX);
    CHECK(blocks_.num_free() == blocks_.num_blocks() && trie.num_nodes() == 0);
  }

  int64_t folded = 0, folded_late = 0, deferred = 0, borrowed = 0, published = 0, hits = 0;

 private:
  // Few different beginnings, so that rows share them.
  Tokens text() {
    Tokens t;
    Random shared(static_cast<uint64_t>(1 + r.below(3)));
    const int64_t common = r.below(4 * size);
    for (int64_t i = 0; i < common; ++i) t.push_back(static_cast<int32_t>(shared.below(3)));
    for (int64_t i = 1 + r.below(2 * size); i > 0; --i) t.push_back(static_cast<int32_t>(r.below(3)));
    return t;
  }

  std::unique_ptr<Row> arrival() {
    auto made = std::make_unique<Row>();
    made->tokens = text();
    RequestRow& row = made->row;
    row.tokens = made->tokens.data();
    row.num_tokens = row.trunk = static_cast<int64_t>(made->tokens.size());
    row.read = row.unread = r.chance(70) ? row.trunk - 1 : r.below(row.trunk);
    row.logits_rows = r.below(4);
    row.salt = static_cast<uint64_t>(r.below(2));
    row.cache = r.chance(70) ? CacheMode::automatic : r.chance(50) ? CacheMode::always : CacheMode::never;
    return made;
  }

  // Chats take blocks for their prompts and promise them; those that promised.
  std::vector<Chat*> chats_grow() {
    std::vector<Chat*> promising;
    if (chats.size() < 3 && r.chance(50)) {
      auto chat = std::make_unique<Chat>();
      chat->tokens = text(), chat->salt = static_cast<uint64_t>(r.below(2));
      chat->lease.growable = true;
      const auto n = static_cast<int64_t>(chat->tokens.size());
      CHECK(pool.attach(chat->tokens.data(), n, chat->salt, n - 1, &chat->lease).ok());
      if (chat->lease.ahead > 0 && pool.borrow(chat->lease, chat->tokens.data(), n, chat->salt)) ++borrowed;
      const int64_t need = (n + size - 1) / size - chat->lease.num_blocks();
      if (!pool.take(chat->lease, need, false).ok()) {
        CHECK(pool.release(chat->lease).ok());
        return promising;
      }
      CHECK(pool.promise(chat->lease, chat->tokens.data(), n, chat->salt).ok());
      chats.push_back(std::move(chat));
      promising.push_back(chats.back().get());
    }
    return promising;
  }

  // The first `by_block` folds were found while rows were admitted: they share a block or more, and their saving is
  // subtracted from the group's cost. The others were found afterwards: the group was charged in full.
  void check_costs(const std::vector<std::unique_ptr<Row>>& rows, const GroupLimits& before, size_t by_block) {
    int64_t cost = 0, bytes = 0;
    std::set<int32_t> in_folds;
    for (const auto& one : rows) {
      CHECK(one->skip == static_cast<int64_t>(one->lease.shared.size()) * size);
      CHECK(one->skip <= (one->row.cache == CacheMode::never ? 0 : one->row.unread) || one->lease.borrowed > 0);
      hits += one->skip > 0;
      borrowed += one->lease.borrowed > 0;
      cost += one->row.num_tokens - one->skip;
      bytes += std::min<int64_t>(one->row.logits_rows, 2) * 8;
    }
    const auto& folds = group.folds().groups();
    for (size_t g = 0; g < folds.size(); ++g) {
      const auto& fold = folds[g];
      if (fold.count < 2) continue;
      const bool late = g >= by_block;
      CHECK(before.fold && fold.shared >= (late ? 1 : size));
      if (!late) cost -= fold.shared * (fold.count - 1);
      (late ? folded_late : folded) += fold.count;
      const Row& first = *rows[static_cast<size_t>(fold.first)];
      for (int32_t k = 0, at = fold.first; k < fold.count; ++k, at = group.folds().next(at)) {
        const Row& member = *rows[static_cast<size_t>(at)];
        CHECK(in_folds.insert(at).second);
        CHECK(member.skip == first.skip && member.row.salt == first.row.salt);
        CHECK(member.skip + fold.shared <= member.row.trunk && member.row.cache != CacheMode::always);
        CHECK(std::equal(member.tokens.begin(), member.tokens.begin() + member.skip + fold.shared,
                         first.tokens.begin()));
      }
    }
    CHECK(group.left().tokens == before.tokens - cost && group.left().tokens >= 0);
    CHECK(group.left().logits_bytes == before.logits_bytes - bytes && group.left().logits_bytes >= 0);
    CHECK(group.left().rows == before.rows - static_cast<int64_t>(rows.size()));
  }

  void keep(std::vector<std::unique_ptr<Row>>& rows) {
    for (auto& one : rows) {
      if (one->publish > 0) continue;
      Result wrong;
      const int64_t had = static_cast<int64_t>(one->lease.own.size());
      group.keep(one->row, one->lease, one->skip, one->row.trunk, r.chance(50), r.chance(30), &one->publish, &wrong);
      CHECK(wrong.ok());
      CHECK(static_cast<int64_t>(one->lease.own.size()) == had + one->publish);
    }
  }

  // Used blocks are those that some lease holds, own ones once.
  void account(const std::vector<std::unique_ptr<Row>>& rows) {
    std::set<int32_t> held;
    std::multiset<int32_t> own;
    int64_t leases = 0;
    auto add = [&](const Lease& lease) {
      held.insert(lease.shared.begin(), lease.shared.end());
      held.insert(lease.own.begin(), lease.own.end());
      own.insert(lease.own.begin(), lease.own.end());
      ++leases;
    };
    for (const auto& one : rows) add(one->lease);
    for (const auto& chat : chats) add(chat->lease);
    CHECK(pool.live_leases() == leases);
    CHECK(own.size() == std::set<int32_t>(own.begin(), own.end()).size());
    CHECK(static_cast<int64_t>(held.size()) == blocks_.num_used());
    const TrieAudit a = trie.audit();
    if (a.broken != nullptr) std::fprintf(stderr, "audit: %s (block %lld)\n", a.broken, (long long)a.at);
    CHECK(a.broken == nullptr);
  }

  void postprocess(std::vector<std::unique_ptr<Row>>& rows, const std::vector<Chat*>& promising) {
    const bool failed = r.chance(20);  // the step as a whole, or rows of it
    for (Chat* chat : promising) {
      const auto n = static_cast<int64_t>(chat->tokens.size());
      if (failed) {
        CHECK(pool.withdraw(chat->lease).ok());
        CHECK(chat->lease.own.empty());
      } else {
        CHECK(pool.publish(chat->lease, chat->tokens.data(), n, chat->salt, r.chance(20), false).ok());
      }
    }
    for (auto& one : rows) {
      if (!failed && one->publish > 0 && r.chance(90)) {
        const int64_t end = one->skip + one->publish * size;
        CHECK(pool.publish(one->lease, one->tokens.data(), end, one->row.salt, one->row.cache == CacheMode::always,
                           r.chance(80))
                  .ok());
        ++published;
      }
      CHECK(pool.release(one->lease).ok());
    }
    for (size_t i = 0; i < chats.size();) {
      if (r.chance(failed ? 100 : 40)) {
        CHECK(pool.release(chats[i]->lease).ok());
        chats.erase(chats.begin() + static_cast<int64_t>(i));
      } else {
        ++i;
      }
    }
  }

  Random& r;
  const int32_t size;
  BlockAllocator blocks_;
  PrefixTrie trie;
  KvPool pool;
  OneShotGroup group;
  std::vector<std::unique_ptr<Row>> waiting;
  std::vector<std::unique_ptr<Chat>> chats;
};

// Blocks of one hash and other tokens: the first product of the hash is 0.
static void same_hash() {
  const Tokens one{0x7F4A7C15, static_cast<int32_t>(0x9E3779B9), 1, 2}, other{one[0], one[1], 3, 4};
  CHECK(content_hash(one.data(), 4, 0) == content_hash(other.data(), 4, 0));
  const FoldPlace place{0, kNoNode, nullptr, 0};
  FoldFinder folds(4);
  folds.admit(folds.offer(place, one.data(), 4, 4), 0, place, one.data(), 4);
  CHECK(folds.offer(place, other.data(), 4, 4).tokens == 4);
}

// A state behind the blocks that are published is no node's.
static void state_of_more() {
  BlockAllocator blocks(4, 1);
  PrefixTrie trie(blocks, 1);
  KvPool pool(trie, true, 0, 1);
  const Tokens tokens{1, 2, 3, 4};
  Lease lease;
  CHECK(pool.attach(tokens.data(), 4, 0, 3, &lease).ok() && pool.take(lease, 3, false).ok());
  pool.keep_states(lease, 0, 3, 3, false);
  CHECK(trie.states().num_free() == 0 && pool.publish(lease, tokens.data(), 2, 0, false, true).ok());
  CHECK(trie.states().num_kept() == 0 && trie.states().num_free() == 1 && pool.release(lease).ok());
}

int main(int argc, char** argv) {
  same_hash(), state_of_more();
  const int64_t steps = argc > 1 ? std::atoll(argv[1]) : 6000;
  Random random(argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1);
  int64_t folded = 0, folded_late = 0, deferred = 0, borrowed = 0, published = 0, hits = 0;
  for (int64_t done = 0; done < steps; done += 200) {
    const auto size = static_cast<int32_t>(1 + random.below(4));
    Model model(random, static_cast<int32_t>(4 + random.below(60)), size);
    for (int64_t i = 0; i < 200; ++i) model.step();
    model.finish();
    folded += model.folded, folded_late += model.folded_late, deferred += model.deferred, borrowed += model.borrowed;
    published += model.published, hits += model.hits;
  }
  CHECK(folded > 0 && folded_late > 0 && deferred > 0 && borrowed > 0 && published > 0 && hits > 0);
  std::printf(
      "%lld steps: %lld rows folded, %lld after admission, %lld deferred, %lld borrowed, %lld published, %lld hits\n",
      (long long)steps, (long long)folded, (long long)folded_late, (long long)deferred, (long long)borrowed,
      (long long)published, (long long)hits);
  return 0;
}
