// Leases on KV blocks: what a request holds of a pool, given back exactly once, in one place.
//
//   prompt blocks   [0 .... locked path of the trie ....)[ borrowed )[ promised )[ own blocks ... )
//                    └──────── shared ──────────────────────────────┘└──────── own ───────────────┘
//                     read-only, a lock on `node`         a leader's  the trie's   one reference each, ours
//
// KvPool is the only code that counts blocks: it attaches cached prefixes, takes new blocks (evicting cold leaves),
// publishes computed ones into the trie and takes leases back.
//
// Promises. What a planned row is about to write is promised in the trie at once: others that want the same prefix
// see that a leader fills it, and wait for it or read it in the very same step (borrow), since executors write a
// layer's K and V before they read it. When the step is settled publish() makes it ready; release() and withdraw()
// break what was not, and the next one that wants it leads. Leaders of the step being planned are known by what
// their promise begins with; begin_plan() forgets them.
//
// Owner: leases are the callers', the pool keeps pointers to leaders only, and only while they are promised. One
// writer at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "prelude/prefix_trie.hpp"

namespace prelude {

// A lease that cannot grow is a OneShot row's: its own blocks, if any, are what the step publishes. `ahead` counts
// blocks of the prompt after the shared ones that a leader is filling.
struct Lease {
  bool growable = false, released = false;
  NodeId node = kNoNode, promise = kNoNode;
  int32_t promised = 0, borrowed = 0, ahead = 0;
  std::vector<int32_t> shared, own;

  int64_t num_blocks() const { return static_cast<int64_t>(shared.size() + own.size()); }
  // The block table: shared blocks, then own ones.
  void table(int32_t* out) const { std::copy(own.begin(), own.end(), std::copy(shared.begin(), shared.end(), out)); }
};

class KvPool {
 public:
  KvPool(PrefixTrie& trie, bool caching)
      : pool_(trie.pool()), trie_(trie), size_(trie.block_size()), caching_(caching) {}

  bool caching() const { return caching_; }
  int32_t block_size() const { return size_; }
  int64_t live_leases() const { return live_; }
  int64_t evictions() const { return evictions_; }

  // --- attach and grow --------------------------------------------------------------------------------------

  // A lease on the longest cached prefix of the tokens that is at most `max_tokens` long.
  Result attach(const int32_t* tokens, int64_t n, uint64_t salt, int64_t max_tokens, Lease* lease) {
    ++live_;
    const int64_t limit = max_tokens / size_;
    if (!caching_ || limit <= 0) return {};
    const TrieMatch match = trie_.match(tokens, n, salt, limit);
    lease->ahead = match.promised;
    if (match.node == kNoNode) return {};
    const Result locked = trie_.lock(match.node);
    if (!locked.ok()) return locked;
    lease->node = match.node;
    lease->shared.resize(static_cast<size_t>(match.blocks));
    return trie_.blocks(match.node, lease->shared.data());
  }

  // `n` more blocks for the lease itself: all or nothing. `spare_protected`: what was hit before stays.
  Result take(Lease& lease, int64_t n, bool spare_protected) {
    if (n <= 0) return {};
    const int32_t cached = pool_.num_cached();
    const size_t had = lease.own.size();
    lease.own.resize(had + static_cast<size_t>(n));
    const Result taken = trie_.allocate(n, lease.own.data() + had, spare_protected);
    if (!taken.ok()) lease.own.resize(had);
    evictions_ += cached - pool_.num_cached();
    return taken;
  }

  // --- promises ---------------------------------------------------------------------------------------------

  // A new step: what earlier ones promised may be waited for, not borrowed.
  void begin_plan() { leaders_.clear(); }

  // The lease's own blocks of `tokens` will be written by the step that is being planned. Where somebody else has
  // promised or published them nothing happens; publish() sorts it out.
  Result promise(Lease& lease, const int32_t* tokens, int64_t n, uint64_t salt) {
    const auto first = static_cast<int64_t>(lease.shared.size());
    const int64_t count = std::min(n / size_, lease.num_blocks()) - first;
    if (!caching_ || count <= 0 || lease.borrowed > 0) return {};
    const Result made = trie_.promise(tokens, n, lease.own.data(), count, salt, first, &lease.promise);
    if (made.ok() && lease.promise != kNoNode) {
      lease.promised = static_cast<int32_t>(count);
      const int32_t* next = tokens + first * size_;
      leaders_.push_back({salt, lease.node, &lease, std::vector<int32_t>(next, next + size_)});
    }
    return made;
  }

  // The lease reads what a leader of the same step writes: `ahead` blocks of it. False: its leader runs in an earlier
  // step, or may fail alone (a OneShot row), when a Decode row would go on with nothing.
  bool borrow(Lease& lease, const int32_t* tokens, int64_t n, uint64_t salt) {
    const auto first = static_cast<int64_t>(lease.shared.size());
    if ((first + 1) * size_ > n) return false;
    for (const Leader& leader : leaders_) {
      if (leader.salt != salt || leader.node != lease.node ||
          !std::equal(leader.next.begin(), leader.next.end(), tokens + first * size_)) {
        continue;
      }
      if (lease.growable && !leader.lease->growable) return false;
      lease.borrowed = std::min(lease.ahead, leader.lease->promised);
      lease.shared.insert(lease.shared.end(), leader.lease->own.begin(), leader.lease->own.begin() + lease.borrowed);
      return true;
    }
    return false;
  }

  // The step never happened: what the lease promised or borrowed is gone, and with it what came after. It keeps its
  // locked path, all of it computed.
  Result withdraw(Lease& lease) {
    if (lease.promise != kNoNode) {
      forget(lease);
      const Result broken = trie_.break_promise(lease.promise, nullptr);
      if (!broken.ok()) return broken;
    }
    const Result freed = give_back(lease, lease.promised);
    lease.shared.resize(lease.shared.size() - static_cast<size_t>(lease.borrowed));
    lease.promise = kNoNode, lease.promised = lease.borrowed = 0;
    return freed;
  }

  // --- publish and release ----------------------------------------------------------------------------------

  // Full blocks of `tokens` whose KV is computed enter the trie, and the lease's lock moves to their end, unless the
  // lease `ends` with this step and is released next. Where another request published the same block first, ours is
  // given back and the lease reads the trie's. What the trie does not take (a leader has promised to fill that place)
  // stays the lease's own. `stale_node`: what a growable lease borrowed is not there.
  Result publish(Lease& lease, const int32_t* tokens, int64_t n, uint64_t salt, bool promoted, bool ends) {
    Result r;
    if (lease.promise != kNoNode) {
      r = fulfil(lease, tokens, n, salt, promoted);
    } else if (lease.borrowed > 0) {
      const TrieMatch match = trie_.match(tokens, n, salt, static_cast<int64_t>(lease.shared.size()));
      if (match.blocks < static_cast<int32_t>(lease.shared.size())) {
        // A OneShot row whose leader failed, or is settled later, ends with this step and only read what was there.
        return lease.growable ? Result{Status::stale_node, match.blocks} : Result{};
      }
      lease.borrowed = 0;
      r = move_lock(lease, match.node);
    }
    const int64_t full = std::min(n / size_, lease.num_blocks());
    const auto first = static_cast<int64_t>(lease.shared.size());
    if (!r.ok() || !caching_ || full <= first) return r;
    TrieInsert made;
    r = trie_.insert(tokens, full * size_, lease.own.data(), full - first, salt, first, promoted, &made);
    if (r.ok() && !ends) r = move_lock(lease, made.node);
    if (r.ok() && made.there > 0) r = pool_.release(lease.own.data(), made.there);
    if (r.ok()) lease.own.erase(lease.own.begin(), lease.own.begin() + made.there + made.taken);
    return r;
  }

  // The one place where held blocks and locks are given back.
  Result release(Lease& lease) {
    lease.released = true;
    --live_;
    Result r;
    if (lease.promise != kNoNode) {
      forget(lease);
      r = trie_.break_promise(lease.promise, nullptr);
    }
    if (r.ok()) r = trie_.unlock(lease.node);
    return r.ok() ? give_back(lease, lease.promised) : r;
  }

 private:
  struct Leader {
    uint64_t salt;
    NodeId node;
    Lease* lease;
    std::vector<int32_t> next;  // tokens of the first promised block
  };

  void forget(const Lease& lease) {
    std::erase_if(leaders_, [&](const Leader& leader) { return leader.lease == &lease; });
  }
  Result give_back(Lease& lease, int32_t from) {
    const auto n = static_cast<int64_t>(lease.own.size()) - from;
    const Result r = n > 0 ? pool_.release(lease.own.data() + from, n) : Result{};
    if (r.ok()) lease.own.clear();
    return r;
  }
  // What was promised is there. The promise's lock becomes the lease's.
  Result fulfil(Lease& lease, const int32_t* tokens, int64_t n, uint64_t salt, bool promoted) {
    const NodeId node = lease.promise;
    Result r = trie_.fulfil(node);
    if (r.ok()) r = trie_.unlock(lease.node);
    if (!r.ok()) return r;
    forget(lease);
    lease.promise = kNoNode;
    lease.own.erase(lease.own.begin(), lease.own.begin() + lease.promised);
    lease.promised = 0;
    r = at(lease, node);
    if (promoted) trie_.match(tokens, n, salt, static_cast<int64_t>(lease.shared.size()));  // a hit promotes
    return r;
  }
  Result move_lock(Lease& lease, NodeId node) {
    Result r = trie_.lock(node);
    if (r.ok()) r = trie_.unlock(lease.node);
    return r.ok() ? at(lease, node) : r;
  }
  Result at(Lease& lease, NodeId node) {
    lease.node = node;
    lease.shared.resize(static_cast<size_t>(trie_.depth(node)));
    return trie_.blocks(node, lease.shared.data());
  }

  BlockAllocator& pool_;
  PrefixTrie& trie_;
  const int32_t size_;
  const bool caching_;
  int64_t live_ = 0, evictions_ = 0;
  std::vector<Leader> leaders_;
};

}  // namespace prelude
