// Allocations that fail anywhere in the trie, its pool and a group's admission: only functions that may throw raise
// std::bad_alloc, nothing is lost by it, and everything can be given back while no memory is left.
//
//   test_no_memory [steps] [seed]
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "check.hpp"
#include "prelude/oneshot_group.hpp"

static int64_t allocations_left = -1;  // -1: any number

void* operator new(size_t bytes) {
  if (allocations_left == 0) throw std::bad_alloc();
  if (allocations_left > 0) --allocations_left;
  void* const p = std::malloc(bytes);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }

using namespace prelude;
using Tokens = std::vector<int32_t>;

struct Held {
  Tokens tokens;
  Lease lease;
};

class Model {
 public:
  explicit Model(Random& random)
      : r(random),
        blocks_(static_cast<int32_t>(6 + r.below(30)), 2),
        trie(blocks_, r.next()),
        pool(trie, true),
        group(pool) {}

  void step() {
    pool.begin_plan();
    chat();
    admit();
    account();
    while (!held.empty() && (held.size() > 6 || r.chance(40))) {
      const auto at = static_cast<size_t>(r.below(static_cast<int64_t>(held.size())));
      Held& one = *held[at];
      failing([&] {
        if (!one.tokens.empty() && r.chance(70)) {
          CHECK(pool.publish(one.lease, one.tokens.data(), static_cast<int64_t>(one.tokens.size()), 0, r.chance(20),
                             r.chance(50))
                    .ok());
        } else if (r.chance(30)) {
          CHECK(pool.withdraw(one.lease).ok());
        }
      });
      give_back(at);
      account();
    }
  }

  // With no memory at all: leases and blocks go back.
  void finish() {
    allocations_left = 0;
    while (!held.empty()) give_back(held.size() - 1);
    trie.evict(INT32_MAX);
    allocations_left = -1;
    account();
    CHECK(blocks_.num_free() == blocks_.num_blocks());
  }

  int64_t failures = 0, done = 0;

 private:
  template <class F>
  bool failing(F f) {
    allocations_left = r.chance(50) ? r.below(5) : -1;
    try {
      f();
      allocations_left = -1;
      return ++done, true;
    } catch (const std::bad_alloc&) {
      allocations_left = -1;
      return ++failures, false;
    }
  }

  Tokens text() {
    Tokens t(static_cast<size_t>(1 + r.below(12)));
    for (int32_t& id : t) id = static_cast<int32_t>(r.below(2));
    return t;
  }

  void give_back(size_t at) {
    CHECK(pool.release(held[at]->lease).ok());
    held[at] = std::move(held.back());
    held.pop_back();
  }

  void chat() {
    auto one = std::make_unique<Held>();
    one->tokens = text(), one->lease.growable = true;
    const auto n = static_cast<int64_t>(one->tokens.size());
    const int64_t live = pool.live_leases();
    if (!failing([&] { CHECK(pool.attach(one->tokens.data(), n, 0, n - 1, &one->lease).ok()); })) {
      CHECK(pool.live_leases() == live && one->lease.node == kNoNode);
      return;
    }
    Lease& lease = one->lease;
    held.push_back(std::move(one));
    const int64_t need = (n + 1) / 2 - lease.num_blocks();
    failing([&] {
      if (lease.ahead > 0) pool.borrow(lease, held.back()->tokens.data(), n, 0);
      if (lease.borrowed == 0 && pool.take(lease, need, false).ok()) {
        CHECK(pool.promise(lease, held.back()->tokens.data(), n, 0).ok());
      }
    });
    if (lease.borrowed == 0 && static_cast<int64_t>(lease.own.size()) < need) held.back()->tokens.clear();
  }

  void admit() {
    const GroupLimits limits{1000, 100, 1000, 1, 1, 1000, -1, 4, 2, r.chance(70), false, r.chance(50)};
    if (!failing([&] { group.begin(limits); })) return;
    bool whole = true;
    std::vector<std::unique_ptr<Held>> rows, refused;  // the group borrows the tokens of both
    for (int64_t k = r.below(5); k > 0; --k) {
      auto one = std::make_unique<Held>();
      one->tokens = text();
      RequestRow row;
      row.tokens = one->tokens.data(), row.num_tokens = row.trunk = static_cast<int64_t>(one->tokens.size());
      row.read = row.unread = row.trunk - 1, row.logits_rows = 1;
      if (r.chance(20)) row.cache = CacheMode::always;
      int64_t skip = 0, publish = 0;
      Result wrong;
      const int64_t live = pool.live_leases();
      auto verdict = OneShotGroup::Verdict::full;
      whole = failing([&] { verdict = group.admit(row, 9, one->lease, &skip, &publish, &wrong); });
      CHECK(wrong.ok());
      if (!whole || verdict != OneShotGroup::Verdict::admitted) {
        CHECK(pool.live_leases() == live);
        refused.push_back(std::move(one));
        if (!whole) break;
        continue;
      }
      if (publish == 0 &&
          !failing([&] { group.keep(row, one->lease, skip, row.trunk, true, true, &publish, &wrong); })) {
        one->tokens.clear();
      }
      CHECK(wrong.ok());
      if (publish == 0) one->tokens.clear();
      rows.push_back(std::move(one));
    }
    if (whole) failing([&] { group.end(); });
    for (auto& one : rows) held.push_back(std::move(one));
  }

  void account() {
    CHECK(pool.live_leases() == static_cast<int64_t>(held.size()));
    const TrieAudit a = trie.audit();
    if (a.broken != nullptr) std::fprintf(stderr, "audit: %s (block %lld)\n", a.broken, (long long)a.at);
    CHECK(a.broken == nullptr);
    if (held.empty()) CHECK(blocks_.num_used() == 0);
  }

  Random& r;
  BlockAllocator blocks_;
  PrefixTrie trie;
  KvPool pool;
  OneShotGroup group;
  std::vector<std::unique_ptr<Held>> held;
};

int main(int argc, char** argv) {
  const int64_t steps = argc > 1 ? std::atoll(argv[1]) : 6000;
  Random random{argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1};
  int64_t failures = 0, done = 0;
  for (int64_t k = 0; k < steps; k += 100) {
    Model model(random);
    for (int64_t i = 0; i < 100; ++i) model.step();
    model.finish();
    failures += model.failures, done += model.done;
  }
  CHECK(failures > steps / 4 && done > steps);
  std::printf("%lld calls, %lld of them without memory\n", (long long)(done + failures), (long long)failures);
  return 0;
}
