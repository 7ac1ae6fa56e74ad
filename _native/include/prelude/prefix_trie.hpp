// The prefix trie: which KV blocks hold which token prefixes.
//
//   salt 0 ──▶ [A B]──▶[C D]──▶[E F]          one node per full block of tokens (here of 2)
//                │       └────▶[G H]          path from the root = prefix; its blocks = the KV to attach
//                └────▶[X Y]··▶[Z W]          ··▶ promised: a leader is computing it, no row may read it
//   salt 7 ──▶ [A B]                          another tenant or adapter: no common node, ever
//
//   eviction order:   cold │ probation: inserted, not hit yet, or demoted │ protected: hit since │ hot
//
// A node is *covered* while it, or a node below it, is locked; covered nodes are in no list. All others are in
// one of the two lists, and in each a parent is hotter than its children: a touch of a node moves its
// whole uncovered path to the hot end, the root last. So
//   - the coldest node of the order is a leaf, and eviction pops it: no scan, no heap, no clock;
//   - an inner or a locked node cannot be evicted, since it is never the coldest of a list.
// Under `protect`, every ancestor is protected as well: protected nodes have no parent on probation.
//
// Invariants, checked by audit():
//   node i exists ⇔ block i is in the trie; its parent exists and is one block shorter
//   cover = own_locks + covered children; cover == 0 ⇔ listed ⇔ the block counts as cached
//   a promised node is covered; below it are promised nodes of the same leader only
//   children of one parent differ in their tokens; each node is in the table once, reachable from its home
//
// Recurrent layers. Where the pool keeps states (prefix_states.hpp), a node's state is forgotten with it.
//
// Ownership. A block enters by insert() or promise() with the caller's one reference, and leaves by eviction
// or a broken promise, straight to the free list. Blocks that the trie does not take stay with the caller.
//
// Node ids carry the block's generation above its index: an id kept after its node was evicted is detected.
//
// Threads. One writer at a time; would_hit() and the counters may be called from any thread meanwhile. Such a
// reader checks a node's generation before and after it looks and never waits; its answer is an estimate
// only in so far as the trie may change before it is used.
#pragma once

#include <atomic>
#include <bit>
#include <cstdint>
#include <cstring>
#include <vector>

#include "prelude/block_allocator.hpp"
#include "prelude/block_hash.hpp"
#include "prelude/prefix_states.hpp"
#include "prelude/status.hpp"
#include "prelude/trie_nodes.hpp"

namespace prelude {

// A node as a caller knows it: generation above index; negative for "none".
using NodeId = int32_t;
inline constexpr NodeId kNoNode = -1;

struct TrieMatch {
  NodeId node = kNoNode;  // deepest ready node
  int32_t blocks = 0;     // on its path
  int32_t promised = 0;   // further blocks of the prompt that a leader is filling
};

// Where a prompt leaves the trie. Equal hashes of other prefixes make it look moved once too often, never too seldom.
struct PromptEnd {
  NodeId node = kNoNode;  // deepest ready node
  int32_t blocks = -1;    // that a request would go on behind; -1: not looked for
  bool lacks = false;     // there is a next block, whose node the table would know by
  NodeKey next{};
};

struct TrieInsert {
  NodeId node = kNoNode;  // deepest ready node of the prompt's path now
  int32_t there = 0;      // the first blocks given: the trie had them already, they stay with the caller
  int32_t taken = 0;      // the next ones: the trie owns them from here on; the rest stays with the caller
};

struct TrieCounters {
  uint64_t lookups = 0;      // prompts matched
  uint64_t looked_up = 0;    // blocks asked for
  uint64_t hit = 0;          // blocks found
  uint64_t collisions = 0;   // equal hash, another prefix: the filter let it through
  uint64_t inserted = 0;     // blocks taken
  uint64_t duplicates = 0;   // blocks offered that were there
  uint64_t evicted = 0;      // blocks evicted, of both parts
  uint64_t evicted_hit = 0;  // of these, protected
  uint64_t promoted = 0;     // blocks that went from probation to protected
  uint64_t broken = 0;       // blocks of broken promises
};

struct TrieAudit {
  const char* broken = nullptr;
  int64_t at = -1;
  int64_t nodes = 0, promised = 0, listed = 0, in_table = 0;
  AllocatorAudit pool;

  void fail(const char* what, int64_t where) {  // the first one is kept
    if (broken == nullptr) broken = what, at = where;
  }
};

struct TrieNodeView {  // one row of dump()
  NodeId id, parent;
  int32_t block, depth;
  bool promised, is_protected;
  uint32_t locks;  // of its own: those of nodes below it hold its block as well
  int64_t rank;    // place in eviction order, 0 the coldest; -1 while covered
  uint64_t salt;
};

// Hears of nodes that eviction takes out of the trie, while their blocks still hold their keys and values.
class Leaver {
 public:
  // Children before their parents; all of them are in the trie until the call is over.
  virtual void leaves(const int32_t* nodes, int32_t count) noexcept = 0;

 protected:
  ~Leaver() = default;
};

class PrefixTrie {
 public:
  // `hash_bits` below 32 keeps only so many bits of each hash; 0 makes every key collide. For tests.
  PrefixTrie(BlockAllocator& pool, uint64_t seed, int32_t hash_bits = 32)
      : pool_(pool),
        size_(pool.block_size()),
        words_((static_cast<size_t>(size_) + 1) / 2),
        index_bits_(std::bit_width(static_cast<uint32_t>(pool.num_blocks() - 1))),
        seed_(seed),
        hash_keep_(hash_bits >= 32 ? ~uint64_t{0} : (uint64_t{1} << hash_bits) - 1),
        nodes_(pool.num_blocks()),
        salts_(pool.num_blocks()),
        tokens_(static_cast<size_t>(pool.num_blocks()) * words_),
        table_(pool.num_blocks()),
        probation_(nodes_),
        protected_(nodes_),
        states_(pool.num_blocks()) {}

  BlockAllocator& pool() { return pool_; }
  const BlockAllocator& pool() const { return pool_; }
  int32_t block_size() const { return size_; }
  int32_t num_nodes() const { return count_.load(std::memory_order_relaxed); }
  int32_t num_promised() const { return promised_.load(std::memory_order_relaxed); }
  int32_t num_probation() const { return probation_.size(); }
  int32_t num_protected() const { return protected_.size(); }
  TrieCounters counters() const;

  // --- looking ----------------------------------------------------------------------------------------------

  // The longest ready prefix of `tokens`, of at most `max_blocks` blocks (negative: no limit). Counts as a hit
  // of every node on the path, which becomes young and protected, unless `touch` is false.
  TrieMatch match(const int32_t* tokens, int64_t n, uint64_t salt, int64_t max_blocks, bool touch = true) noexcept {
    const Walk w = walk(tokens, clip(n, max_blocks), salt);
    if (touch && w.ready > 0) hit(w.tail);
    bump(stats_.lookups, 1), bump(stats_.looked_up, clip(n, max_blocks)), bump(stats_.hit, w.ready);
    return {id_of(w.tail), w.ready, w.promised};
  }

  // Whether match() may answer otherwise than `end` says: the block that the prompt lacked is ready, or the node
  // where its match ended is gone. Two reads, for prompts that wait and are looked at before every step.
  bool has_moved(const PromptEnd& end) const {
    const int32_t parent = end.node == kNoNode ? kNil : index_of(end.node);
    if (end.blocks < 0 || (end.node != kNoNode && parent == kNil)) return true;
    return end.lacks &&
           table_.find(end.next, [&](int32_t i) { return up(i) == parent && state(i) == NodeState::ready; }) != kNil;
  }
  // How often nodes became ready or went: while it stays, no prompt has moved.
  uint64_t changes() const { return changes_; }
  // match() without a hit.
  PromptEnd end_of(const int32_t* tokens, int64_t n, uint64_t salt, int64_t max_blocks);

  // States of recurrent layers at nodes. Where there are entries, a prompt goes on from a node that has a state.
  PrefixStates& states() { return states_; }
  const PrefixStates& states() const { return states_; }
  // `node` itself, or the nearest above it that has a state; kNoNode where none has.
  NodeId with_state(NodeId node) const { return id_of(state_above(index_of(node))); }
  // The node at `depth` blocks on the path of `node`, as an index; kNil where the path is shorter, or not ready
  // there.
  int32_t at_depth(NodeId node, int32_t depth) const {
    int32_t i = index_of(node);
    while (i != kNil && nodes_[i].depth > depth) i = up(i);
    return i != kNil && nodes_[i].depth == depth && state(i) == NodeState::ready ? i : kNil;
  }

  // How many blocks a prompt would go on behind. Any thread, at any time; neither waits nor changes anything.
  int32_t would_hit(const int32_t* tokens, int64_t n, uint64_t salt) const;

  // The blocks from the root to `node`; `out` has room for depth(node) of them.
  Result blocks(NodeId node, int32_t* out) const {
    if (node == kNoNode) return {};
    const int32_t i = index_of(node);
    if (i == kNil) return {Status::stale_node, node};
    int32_t left = nodes_[i].depth;
    for (int32_t at = i; at != kNil; at = up(at)) out[--left] = at;
    return {};
  }
  // Blocks on the path of `node`; -1 when the id is stale, 0 for kNoNode.
  int32_t depth(NodeId node) const {
    if (node == kNoNode) return 0;
    const int32_t i = index_of(node);
    return i == kNil ? -1 : nodes_[i].depth;
  }
  // The node's index, which is its block, or kNil when the id names no node of now.
  int32_t index_of(NodeId node) const {
    if (node < 0) return kNil;
    const int32_t i = static_cast<int32_t>(static_cast<uint32_t>(node) & index_mask());
    if (!pool_.is_block(i) || state(i) == NodeState::absent || id_of(i) != node) return kNil;
    return i;
  }

  // --- locks ------------------------------------------------------------------------------------------------

  // One reference on the path root..node: none of it can be evicted. Stops where a peer's lock already covers.
  Result lock(NodeId node) noexcept {
    if (node == kNoNode) return {};
    const int32_t i = index_of(node);
    if (i == kNil) return {Status::stale_node, node};
    if (state(i) == NodeState::promised) return {Status::node_promised, node};
    ++nodes_[i].own_locks;
    cover(i);
    return {};
  }
  Result unlock(NodeId node) noexcept {
    if (node == kNoNode) return {};
    const int32_t i = index_of(node);
    if (i == kNil) return {Status::stale_node, node};
    if (state(i) == NodeState::promised) return {Status::node_promised, node};
    if (nodes_[i].own_locks == 0) return {Status::not_locked, node};
    --nodes_[i].own_locks;
    uncover(i);
    return {};
  }

  // --- blocks in and out ------------------------------------------------------------------------------------

  // n blocks for the caller: from the free list, then by evicting from the cold end. All or nothing.
  Result allocate(int64_t n, int32_t* out, bool spare_protected = false) noexcept {
    const int64_t free = pool_.num_free();
    if (n > free) {
      const int64_t available =
          free + probation_.size() + (spare_protected ? 0 : static_cast<int64_t>(protected_.size()));
      if (n > available) return {Status::out_of_blocks, available};
      evict(n - free);
    }
    return pool_.allocate(n, out);
  }

  // Frees up to n blocks from the cold end, protected ones last; returns how many.
  int64_t evict(int64_t n) noexcept;
  // Up to n protected nodes, the coldest first, go back on probation, as its youngest; returns how many.
  int64_t demote(int64_t n) noexcept;
  // `leaver` outlives the trie's last eviction.
  void set_leaver(Leaver& leaver) { leaver_ = &leaver; }

  // Of a node that exists, by its index.
  int32_t parent_of(int32_t i) const { return up(i); }
  int32_t depth_of(int32_t i) const { return nodes_[i].depth; }
  bool is_protected(int32_t i) const { return nodes_[i].protect; }
  NodeId node_at(int32_t i) const { return id_of(i); }
  uint64_t salt_of(int32_t i) const {
    while (up(i) != kNil) i = up(i);
    return salts_[i];
  }
  // A hit of every node on the path of `node`, if it is there.
  void touch(NodeId node) noexcept {
    if (const int32_t i = index_of(node); i != kNil) hit(i);
  }

  // Extends the path of the prompt by `count` blocks that hold the KV of tokens[first * size ..]. The trie
  // takes over the caller's reference on each block it has no node for yet; earlier ones are duplicates, which
  // stay with the caller (duplicates are a hit). Where the path before `first` is gone, or a leader's promise
  // is in the way, nothing is taken. `protect`: enter as hit, not on probation.
  Result insert(const int32_t* tokens, int64_t n, const int32_t* blocks, int64_t count, uint64_t salt, int64_t first,
                bool protect, TrieInsert* out) noexcept;

  // As insert(), for blocks that are still to be computed: visible to match() as promised, locked for the
  // caller. kNoNode, and nothing taken, unless the path is ready up to `first` and ends there.
  Result promise(const int32_t* tokens, int64_t n, const int32_t* blocks, int64_t count, uint64_t salt, int64_t first,
                 NodeId* out) noexcept;
  // The first `blocks` of the path (negative: all) are computed: ready. The caller's lock stays until unlock().
  Result fulfil(NodeId node, int64_t blocks = -1) noexcept;
  // The leader failed: its promised nodes go, their blocks are freed, its lock ends. `freed` may be null.
  Result break_promise(NodeId node, int64_t* freed) noexcept;

  TrieAudit audit() const;
  // All nodes, parents before children.
  std::vector<TrieNodeView> dump() const;
  void tokens_of(int32_t index, int32_t* out) const {
    std::memcpy(out, &tokens_[static_cast<size_t>(index) * words_], sizeof(int32_t) * static_cast<size_t>(size_));
  }

 private:
  // How many blocks' memory is fetched ahead together: few where a miss would waste the hashing, many where
  // all of them are going to be touched.
  static constexpr int32_t kLookAhead = NodeTable::kRun, kAhead = 32;
  // Up to here all bookkeeping fits the CPU's second-level cache, and fetching further ahead gains nothing.
  static constexpr int32_t kSmallPool = 1 << 13;

  struct Walk {
    int32_t tail = kNil;   // deepest ready node
    int32_t ready = 0;     // blocks on its path
    int32_t promised = 0;  // promised nodes after it
    int32_t next = kNil;   // the first of them
    uint64_t chain = 0;    // hash of the path, promised part included
    uint32_t run = 0;      // key of the run in which the path ends, unless it ends with it
    int32_t ahead = 0;     // hashes after it that the walk knows already
    uint64_t chains[kLookAhead];
  };

  int64_t clip(int64_t n, int64_t max_blocks) const {
    const int64_t full = size_ == 16 ? n >> 4 : n / size_;
    return max_blocks >= 0 && max_blocks < full ? max_blocks : full;
  }
  uint64_t step(uint64_t chain, const int32_t* tokens) const {
    return chain_next(chain, content_hash(tokens, size_, seed_));
  }
  // The part of a chain hash that table and nodes keep. The high half: the low bits of a folded product are weaker.
  uint32_t key(uint64_t chain) const { return static_cast<uint32_t>((chain >> 32) & hash_keep_); }

  int32_t state_above(int32_t i) const {
    while (i != kNil && states_.state_at(i) == PrefixStates::kNone) i = up(i);
    return i;
  }
  NodeState state(int32_t i) const { return nodes_[i].state.load(std::memory_order_relaxed); }
  int32_t up(int32_t i) const { return nodes_[i].parent.load(std::memory_order_relaxed); }
  uint32_t index_mask() const { return (uint32_t{1} << index_bits_) - 1; }
  NodeId id_of(int32_t i) const {
    if (i == kNil) return kNoNode;
    const uint32_t generation = pool_.generation(i) & (0x7fffffffu >> index_bits_);
    return static_cast<NodeId>(generation << index_bits_ | static_cast<uint32_t>(i));
  }
  LruList& list_of(int32_t i) { return nodes_[i].protect ? protected_ : probation_; }

  bool same_tokens(int32_t i, const int32_t* tokens) const {
    const uint64_t* mine = &tokens_[static_cast<size_t>(i) * words_];
    if (size_ == 16) {
      uint64_t differ = 0;
      for (int k = 0; k < 8; ++k) differ |= mine[k] ^ load64(tokens + 2 * k);
      return differ == 0;
    }
    return std::memcmp(mine, tokens, sizeof(int32_t) * static_cast<size_t>(size_)) == 0;
  }
  static void write_tokens(uint64_t* words, const int32_t* tokens, int32_t size);
  // Reader side of the same: every load an acquire, so that the generation read after them is not older.
  bool same_tokens_shared(int32_t i, const int32_t* tokens) const;
  bool is_child(int32_t i, int32_t parent, const int32_t* tokens, uint64_t salt) const {
    return up(i) == parent && (parent != kNil || salts_[i] == salt) && same_tokens(i, tokens);
  }
  NodeKey key_of(int32_t i) const;
  Walk walk(const int32_t* tokens, int64_t blocks, uint64_t salt);
  int32_t grow(const Walk& from, const int32_t* tokens, const int32_t* blocks, int64_t count, uint64_t salt,
               NodeState as, bool protect);
  void remove(const int32_t* indices, int32_t count);
  uint32_t hash_of(int32_t i) const { return NodeTable::hash_of(table_.load(nodes_[i].entry)); }

  void look_ahead() const;
  std::vector<int64_t> ranks() const;
  void audit_lists(TrieAudit& a) const;
  void audit_node(int32_t i, const std::vector<int64_t>& rank, TrieAudit& a) const;
  void audit_table(TrieAudit& a) const;
  void cover(int32_t i);
  void uncover(int32_t i);
  void refresh(int32_t i);
  void hit(int32_t i);

  static void bump(std::atomic<uint64_t>& counter, int64_t by) {  // one writer: no read-modify-write
    counter.store(counter.load(std::memory_order_relaxed) + static_cast<uint64_t>(by), std::memory_order_relaxed);
  }
  static void bump(std::atomic<int32_t>& counter, int64_t by) {
    counter.store(counter.load(std::memory_order_relaxed) + static_cast<int32_t>(by), std::memory_order_relaxed);
  }

  BlockAllocator& pool_;
  const int32_t size_;
  const size_t words_;  // of 8 bytes per block of tokens
  const int32_t index_bits_;
  const uint64_t seed_, hash_keep_;
  LazyArray<Node> nodes_;
  LazyArray<uint64_t> salts_;   // by node, of first blocks only: further down the parent says it
  LazyArray<uint64_t> tokens_;  // by node, two tokens a word
  NodeTable table_;
  LruList probation_, protected_;
  PrefixStates states_;
  Leaver* leaver_ = nullptr;
  std::atomic<int32_t> count_{0}, promised_{0};
  uint64_t changes_ = 0;
  struct {
    std::atomic<uint64_t> lookups, looked_up, hit, collisions, inserted, duplicates, evicted, evicted_hit, promoted,
        broken;
  } stats_{};
};

}  // namespace prelude
