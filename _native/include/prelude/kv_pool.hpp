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
// Recurrent slots. A model with recurrent layers keeps a sequence's state in one of a fixed number of slots: a
// resource of its own unit, which a lease takes and release() gives back with its blocks. A OneShot row takes none:
// its state is gone with its step. Blocks of the trie have no state to go on from, so that such a pool does not
// cache.
//
// Owner: leases are the callers', the pool keeps pointers to leaders only, and only while they are promised. One
// writer at a time.
//
// Memory. What is not noexcept may throw std::bad_alloc. A lease that was to be attached then holds nothing and is
// not counted; one that holds something is whole, and release(), which allocates nothing, takes all of it back.
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
  int32_t slot = -1;  // where the sequence's recurrent state is kept; -1: nowhere
  std::vector<int32_t> shared, own;

  int64_t num_blocks() const { return static_cast<int64_t>(shared.size() + own.size()); }
  // The block table: shared blocks, then own ones.
  void table(int32_t* out) const { std::copy(own.begin(), own.end(), std::copy(shared.begin(), shared.end(), out)); }
};

class KvPool {
 public:
  KvPool(PrefixTrie& trie, bool caching, int32_t slots = 0)
      : pool_(trie.pool()), trie_(trie), size_(trie.block_size()), caching_(caching && slots == 0), slots_(slots) {
    for (int32_t slot = slots; slot-- > 0;) free_slots_.push_back(slot);
  }

  bool caching() const { return caching_; }
  int32_t block_size() const { return size_; }
  int64_t live_leases() const { return live_; }
  int64_t evictions() const { return evictions_; }
  int32_t num_slots() const { return slots_; }
  int32_t free_slots() const { return static_cast<int32_t>(free_slots_.size()); }

  // --- attach and grow --------------------------------------------------------------------------------------

  // A lease on the longest cached prefix of the tokens that is at most `max_tokens` long.
  Result attach(const int32_t* tokens, int64_t n, uint64_t salt, int64_t max_tokens, Lease* lease);

  // `n` more blocks for the lease itself: all or nothing. `spare_protected`: what was hit before stays.
  Result take(Lease& lease, int64_t n, bool spare_protected);

  // A recurrent slot for the lease, which has none. False: all are taken.
  bool take_slot(Lease& lease);

  // --- promises ---------------------------------------------------------------------------------------------

  // A new step: what earlier ones promised may be waited for, not borrowed.
  void begin_plan() { leaders_.clear(); }

  // The lease's own blocks of `tokens` will be written by the step that is being planned. Where somebody else has
  // promised or published them nothing happens; publish() sorts it out.
  Result promise(Lease& lease, const int32_t* tokens, int64_t n, uint64_t salt);

  // The lease reads what a leader of the same step writes: `ahead` blocks of it. False: its leader runs in an earlier
  // step, or may fail alone (a OneShot row), when a Decode row would go on with nothing.
  bool borrow(Lease& lease, const int32_t* tokens, int64_t n, uint64_t salt);

  // The step never happened: what the lease promised or borrowed is gone, and with it what came after. It keeps its
  // locked path, all of it computed.
  Result withdraw(Lease& lease);

  // --- publish and release ----------------------------------------------------------------------------------

  // Full blocks of `tokens` whose KV is computed enter the trie, and the lease's lock moves to their end, unless the
  // lease `ends` with this step and is released next. Where another request published the same block first, ours is
  // given back and the lease reads the trie's. What the trie does not take (a leader has promised to fill that place)
  // stays the lease's own. `stale_node`: what a growable lease borrowed is not there.
  Result publish(Lease& lease, const int32_t* tokens, int64_t n, uint64_t salt, bool promoted, bool ends);

  // The one place where held blocks, locks and slots are given back.
  Result release(Lease& lease) noexcept;

 private:
  struct Leader {
    uint64_t salt;
    NodeId node;
    Lease* lease;
    std::vector<int32_t> next;  // tokens of the first promised block
  };

  void forget(const Lease& lease);
  Result give_back(Lease& lease, int32_t from);
  // What was promised is there. The promise's lock becomes the lease's.
  Result fulfil(Lease& lease, const int32_t* tokens, int64_t n, uint64_t salt, bool promoted);
  Result move_lock(Lease& lease, NodeId node);
  Result at(Lease& lease, NodeId node) {
    lease.node = node;
    lease.shared.resize(static_cast<size_t>(trie_.depth(node)));
    return trie_.blocks(node, lease.shared.data());
  }

  BlockAllocator& pool_;
  PrefixTrie& trie_;
  const int32_t size_;
  const bool caching_;
  const int32_t slots_;
  int64_t live_ = 0, evictions_ = 0;
  std::vector<Leader> leaders_;
  std::vector<int32_t> free_slots_;  // the one given back last is taken next
};

}  // namespace prelude
