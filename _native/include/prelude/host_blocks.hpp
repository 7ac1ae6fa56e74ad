// Blocks that left the pool, kept in host memory by choice.
//
//   pool   [A B]──▶[C D]──▶[E F]        evicted leaf first
//                            │ leaves(): copied out
//   host   [A B]──▶[C D]──▶[E F]        a trie of its own, over entries of host memory
//             └───▶[X Y]      │ fill(): copied in
//   pool   [A B]──▶[C D]──▶[E F]        for a prompt that goes on where the pool's trie ends
//
// The host's trie is a PrefixTrie as the pool's is: keys are salt and tokens of the whole path, so a tenant or an
// adapter finds its own blocks alone, and its entries are evicted by the same order. A path enters as a whole: the
// blocks before an evicted one are in the pool still, and their copies are made with it. What the host has already is
// not copied again, also when the block was brought back: of_block_ knows the host's node of a block of the pool.
//
// Order. Copies are requested in the order of the changes here, all of them before the step is submitted that they
// are made for, and an executor makes them in the order of its steps. So a block may be given away as soon as its
// copy out was requested, and an entry as soon as its copy in was: whatever overwrites one comes later. Copies out
// gather until copy_out(), which has to be called before any step is submitted, or any copy in requested.
//
// A copy that fails leaves undefined bytes in its targets. The caller then forgets the blocks, and drop() all
// entries.
//
// Invariants: no entry is locked between two calls. Links of of_block_ may be stale, since a node's id tells it; they
// spare work, and no answer depends on them.
//
// Owner: this object owns the entries' bookkeeping; the memory is the executor's. One writer at a time; the counters
// may be read from any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "prelude/prefix_trie.hpp"

namespace prelude {

// Requests copies of an executor. False: one of them was not made.
struct HostCopies {
  bool (*out)(void* owner, const int32_t* blocks, const int32_t* entries, int64_t n);
  bool (*in)(void* owner, const int32_t* entries, const int32_t* blocks, int64_t n);
  void* owner;
};

struct HostCounters {
  int64_t hits = 0;                       // prompts for which blocks came back
  int64_t copied_out = 0, copied_in = 0;  // blocks
  int64_t failed = 0;                     // requests of copies, each of any number of blocks
};

class HostBlocks final : public Leaver {
 public:
  // `least`: a shorter run of blocks is computed again. Hears of the evictions of `trie` once it is its leaver.
  HostBlocks(PrefixTrie& trie, int32_t entries, int64_t least, uint64_t seed, HostCopies copies)
      : trie_(trie),
        entries_(entries, trie.block_size()),
        host_(entries_, seed),
        least_(least),
        copies_(copies),
        of_block_(static_cast<size_t>(trie.pool().num_blocks()), kNoNode) {}
  HostBlocks(const HostBlocks&) = delete;
  HostBlocks& operator=(const HostBlocks&) = delete;

  int32_t size() const { return entries_.num_blocks(); }
  int32_t num_kept() const { return host_.num_nodes(); }
  int32_t num_locked() const { return entries_.num_used(); }
  // Blocks that gave way to others; drop() is another thing.
  int64_t num_evicted() const { return static_cast<int64_t>(host_.counters().evicted) - dropped_; }
  int64_t least() const { return least_; }
  const HostCounters& counters() const { return counters_; }

  void leaves(const int32_t* nodes, int32_t count) noexcept override;

  // The longest prefix of the prompt that is here. Not a hit.
  TrieMatch find(const int32_t* tokens, int64_t n, uint64_t salt, int64_t max_blocks) noexcept {
    return host_.match(tokens, n, salt, max_blocks, false);
  }
  // No entry on the path of `node` is evicted until let_go().
  void hold(NodeId node) noexcept { host_.lock(node); }
  void let_go(NodeId node) noexcept { host_.unlock(node); }

  // Requests the copies out that wait. False: one was not made; drop() as soon as nothing is held.
  bool copy_out() noexcept;
  // Fills `count` blocks of the pool with those behind the first `first` ones on the path of `node`, which is held.
  // False: they are not filled, and drop() has to follow.
  bool fill(NodeId node, int64_t first, const int32_t* blocks, int64_t count);
  // Forgets all entries that are not held.
  void drop() noexcept;

  TrieAudit audit() const { return host_.audit(); }

 private:
  void keep(int32_t i);
  // The entries on the path of `node`, into `path_`.
  void path_of(NodeId node);

  PrefixTrie& trie_;
  BlockAllocator entries_;
  PrefixTrie host_;
  const int64_t least_;
  const HostCopies copies_;
  std::vector<NodeId> of_block_;                   // the host's node of a block of the pool
  std::vector<int32_t> out_blocks_, out_entries_;  // copies out that wait
  std::vector<int32_t> nodes_, tokens_, fresh_, path_;
  HostCounters counters_;
  int64_t dropped_ = 0;  // of the evictions that the trie counted
};

}  // namespace prelude
