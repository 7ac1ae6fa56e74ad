// Leases on KV blocks: the blocks that a request holds of a pool, given back exactly once, in one place.
//
//   prompt blocks   [0 .... locked path of the trie ....)[ borrowed )[ promised )[ own blocks ... )
//                    └──────── shared ──────────────────────────────┘└──────── own ───────────────┘
//                     read-only, a lock on `node`         a leader's  the trie's   one reference each, ours
//
// KvPool is the only code that counts blocks: it attaches cached prefixes, takes new blocks (evicting cold leaves),
// publishes computed ones into the trie and takes leases back.
//
// Promises. Blocks that a planned row is about to write are promised in the trie at once: others that want the same
// prefix see that a leader fills it, and wait for it or read it in the very same step (borrow), since executors write
// a layer's K and V before they read it. When the step is postprocessed publish() makes it ready; release() and
// withdraw() break promises that were not kept, and the next request that wants the prefix leads. Leaders of the step
// being planned are known by the first node of their promise; begin_plan() forgets them.
//
// State entries. A model with recurrent layers keeps a sequence's state in one of a fixed number of entries: a
// resource of its own unit, which a lease takes and release() gives back with its blocks. A OneShot row takes none:
// its state is gone with its step. Behind these entries are those of prefixes (prefix_states.hpp); a pool without any
// does not cache.
//
//   prompt blocks   [0 .... node with a state ....)[ known to the trie, no state )[ ... end of the prompt )
//                    └── shared, `base` blocks ───┘                            branch                  own end
//
// Where the trie knows more of a prompt than it has a state for, earlier prompts had the same beginning and another
// continuation. The step that computes these tokens again keeps a state at that branch, and one at the end of the
// prompt, for later prompts that repeat or continue it. The entries are the lease's until publish() gives them to
// nodes. Nothing is promised in such a pool: a peer could go on from the leader's last block only.
//
// Owner: leases are the callers', the pool keeps pointers to leaders only, and only while they are promised. One
// writer at a time.
//
// Host memory. Where the pool has a HostBlocks, attach() counts the blocks that are there behind the last one of the
// trie, and changes nothing: many leases are attached, refused and given back. bring_back() is for a row that starts.
// It takes blocks, has them filled, and inserts them, so that the lease and all later ones find them in the trie. A
// prefix that comes back was asked for before, so blocks that were hit longer ago are evicted for it, and go to the
// host in turn. Where no room is left, or the copy fails, these tokens are computed.
//
// Memory. Functions that are not noexcept may throw std::bad_alloc. A lease that was to be attached then holds
// nothing and is not counted; one that holds something is whole, and release(), which allocates nothing, takes all of
// it back.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "prelude/host_blocks.hpp"
#include "prelude/prefix_trie.hpp"

namespace prelude {

// A lease that cannot grow is a OneShot row's: its own blocks, if any, are those that the step publishes. `ahead`
// counts blocks of the prompt after the shared ones that a leader is filling.
struct Lease {
  bool growable = false, released = false;
  NodeId node = kNoNode, promise = kNoNode;
  int32_t promised = 0, borrowed = 0, ahead = 0;
  int32_t on_host = 0;       // blocks of the prompt behind the shared ones that bring_back() would bring
  int32_t state_index = -1;  // where the sequence's recurrent state is kept; -1: nowhere
  int32_t state_from = -1;   // the entry of the state at the end of the first `base` blocks, pinned; -1: it has none
  int32_t base = 0, branch = 0;
  struct Kept {
    int32_t entry, blocks;  // takes the state behind so many blocks
  };
  std::array<Kept, 2> kept{};  // in order; the first `num_kept`, of the step that is planned
  int32_t num_kept = 0;
  std::vector<int32_t> shared, own;

  int64_t num_blocks() const { return static_cast<int64_t>(shared.size() + own.size()); }
  // The block table: shared blocks, then own ones.
  void table(int32_t* out) const { std::copy(own.begin(), own.end(), std::copy(shared.begin(), shared.end(), out)); }
};

class KvPool {
 public:
  KvPool(PrefixTrie& trie, bool caching, int32_t running_states = 0, int32_t prefix_states = 0)
      : pool_(trie.pool()),
        trie_(trie),
        size_(trie.block_size()),
        caching_(caching && (running_states == 0 || prefix_states > 0)),
        states_(caching_ && prefix_states > 0 ? &trie.states() : nullptr) {
    if (states_ != nullptr) states_->open(running_states, prefix_states);
    for (int32_t entry = running_states; entry-- > 0;) free_running_states_.push_back(entry);
  }

  // Blocks that leave the pool are kept in `host`, which outlives this object's last call, and come back from there.
  void keep_on_host(HostBlocks& host) {
    host_ = &host;
    trie_.set_leaver(host);
  }

  bool caching() const { return caching_; }
  int32_t block_size() const { return size_; }
  int64_t live_leases() const { return live_; }
  int64_t evictions() const { return evictions_; }
  int32_t free_running_states() const { return static_cast<int32_t>(free_running_states_.size()); }
  bool keeps_states() const { return states_ != nullptr; }

  // --- attach and grow --------------------------------------------------------------------------------------

  // A lease on the longest cached prefix of the tokens that is at most `max_tokens` long.
  Result attach(const int32_t* tokens, int64_t n, uint64_t salt, int64_t max_tokens, Lease* lease);

  // The blocks behind the lease's shared ones that host memory has, as far as there is room; they are shared then.
  // The arguments are those of attach(), and the lease has had nothing else since.
  Result bring_back(Lease& lease, const int32_t* tokens, int64_t n, uint64_t salt, int64_t max_tokens);

  // `n` more blocks for the lease itself: all or nothing. `spare_protected`: blocks that were hit before stay, up to
  // three quarters of those that no lease holds. Beyond these, the ones whose last hit is the longest ago go back on
  // probation where that makes room: else a pool that is full of them would keep no other prefix ever again.
  Result take(Lease& lease, int64_t n, bool spare_protected);

  // A state entry for the lease, which has none. False: all are taken.
  bool take_running_state(Lease& lease);

  // Entries for the states of the step being planned, which computes tokens [from, to) of the lease's prompt,
  // of which a state is kept behind the last full block of `end` tokens, and at its branch. `evict_used`: also that
  // at the end may take the place of one that was gone on from.
  void keep_states(Lease& lease, int64_t from, int64_t to, int64_t end, bool evict_used) noexcept;

  // --- promises ---------------------------------------------------------------------------------------------

  // A new step: promises of earlier ones may be waited for, not borrowed.
  void begin_plan() { leaders_.clear(); }

  // The lease's own blocks of `tokens` will be written by the step that is being planned. Where another lease has
  // promised or published them nothing happens; publish() sorts it out.
  Result promise(Lease& lease, const int32_t* tokens, int64_t n, uint64_t salt);

  // The lease reads blocks that a leader of the same step writes: `ahead` of them. False: its leader runs in an
  // earlier step, or may fail alone (a OneShot row), when a Decode row would go on with nothing.
  bool borrow(Lease& lease, const int32_t* tokens, int64_t n, uint64_t salt);

  // The step never happened: the lease's promises and borrowed blocks are gone, and with them the blocks after them.
  // It keeps its locked path, all of it computed.
  Result withdraw(Lease& lease);

  // --- publish and release ----------------------------------------------------------------------------------

  // Full blocks of `tokens` whose KV is computed enter the trie, and the lease's lock moves to their end, unless the
  // lease `ends` with this step and is released next. Where another request published the same block first, ours is
  // given back and the lease reads the trie's. Blocks that the trie does not take (a leader has promised to fill that
  // place) stay the lease's own. `stale_node`: a block that a growable lease borrowed is gone.
  Result publish(Lease& lease, const int32_t* tokens, int64_t n, uint64_t salt, bool promoted, bool ends);

  // The one place where held blocks, locks and state entries are given back.
  Result release(Lease& lease) noexcept;

 private:
  struct Leader {
    uint64_t salt;
    NodeId node;
    Lease* lease;
    std::vector<int32_t> next;  // tokens of the first promised block
  };

  void forget(const Lease& lease);
  void drop_kept(Lease& lease) noexcept {
    while (lease.num_kept > 0) states_->put_back(lease.kept[static_cast<size_t>(--lease.num_kept)].entry);
  }
  // The entries that the lease keeps go to nodes on the path of `node`, the end of its prompt's.
  void give_states(Lease& lease, NodeId node, bool promoted) noexcept;
  Result give_back(Lease& lease, int32_t from);
  void make_probation(int64_t n) noexcept;
  // How many of the `found` blocks in host memory would come back behind the lease's shared ones; 0 where they are
  // fewer than the least run.
  int64_t comes_back(const Lease& lease, int64_t found) const noexcept {
    const int64_t count = std::min<int64_t>(found - static_cast<int64_t>(lease.shared.size()),
                                            int64_t{pool_.num_free()} + pool_.num_cached());
    return count < host_->least() ? 0 : count;
  }
  // The promised blocks are written. The promise's lock becomes the lease's.
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
  PrefixStates* const states_;  // the trie's; null where prefixes have none
  HostBlocks* host_ = nullptr;
  int64_t live_ = 0, evictions_ = 0;
  std::vector<Leader> leaders_;
  std::vector<int32_t> free_running_states_;  // the one given back last is taken next
};

// Detects two threads inside the writing calls of one pool, which the contract forbids (one holder of the step lock
// at a time). It never waits: the second one is told. Costs one uncontended exchange a call.
class OneWriter {
 public:
  bool enter() { return !busy_.exchange(true, std::memory_order_acquire); }
  void leave() { busy_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> busy_{false};
};

// A call that writes: it leaves with its scope.
class Writing {
 public:
  ~Writing() {
    if (writer_ != nullptr) writer_->leave();
  }
  bool enter(OneWriter& writer) {
    if (writer.enter()) writer_ = &writer;
    return writer_ != nullptr;
  }

 private:
  OneWriter* writer_ = nullptr;
};

}  // namespace prelude
