// The bodies of prefix_trie.hpp, which has the drawing, the invariants and the contracts.
#pragma once

#include <algorithm>

#include "prelude/prefix_trie.hpp"

namespace prelude {

// --- looking ------------------------------------------------------------------------------------------------

// The child of `parent` with these tokens, from slot `at` on. The hash is a filter: identity of the parent and
// equality of tokens decide, so by induction the whole prefix is equal, whatever the hash does.
inline int32_t PrefixTrie::find(int32_t parent, uint32_t hash, const int32_t* tokens, uint64_t salt, uint32_t at) {
  for (;; at = table_.next(at)) {
    const uint64_t slot = table_.load(at);
    if (slot == 0) return kNil;
    if (NodeTable::hash_of(slot) != hash) continue;
    const int32_t i = NodeTable::index_of(slot);
    if (up(i) == parent && (parent != kNil || salts_[i] == salt) && same_tokens(i, tokens)) return i;
    bump(stats_.collisions, 1);
  }
}

// Follows the prompt from the root. In groups, so that the memory of several blocks is on its way at once:
// hash them all, then look at their slots, then compare.
inline PrefixTrie::Walk PrefixTrie::walk(const int32_t* tokens, int64_t blocks, uint64_t salt) {
  Walk w;
  w.chain = chain_start(salt, seed_);
  int32_t last = kNil;
  for (int64_t done = 0; done < blocks; done += kLookAhead) {
    const int32_t group = static_cast<int32_t>(std::min<int64_t>(kLookAhead, blocks - done));
    const int32_t* at_tokens = tokens + done * size_;
    uint32_t slots[kLookAhead];
    uint64_t chain = w.chain;
    for (int32_t j = 0; j < group; ++j) {
      w.chains[j] = chain = step(chain, at_tokens + static_cast<int64_t>(j) * size_);
      table_.prefetch(key(chain));
    }
    int32_t candidates = 0;
    for (; candidates < group; ++candidates) {
      const uint32_t hash = key(w.chains[candidates]);
      uint32_t at = table_.home(hash);
      uint64_t slot;
      while ((slot = table_.load(at)) != 0 && NodeTable::hash_of(slot) != hash) at = table_.next(at);
      if (slot == 0) break;
      slots[candidates] = at;
      const auto i = static_cast<size_t>(NodeTable::index_of(slot));
      __builtin_prefetch(&nodes_[i]);
      __builtin_prefetch(&tokens_[i * words_]);
    }
    int32_t j = 0;
    for (; j < candidates; ++j) {
      const int32_t i = find(last, key(w.chains[j]), at_tokens + static_cast<int64_t>(j) * size_, salt, slots[j]);
      if (i == kNil) break;
      last = i;
      w.chain = w.chains[j];
      if (state(i) == NodeState::promised) {
        ++w.promised;
      } else {
        w.tail = i, ++w.ready;
      }
    }
    if (j < group) {
      w.ahead = group - j;
      std::copy(w.chains + j, w.chains + group, w.chains);
      return w;
    }
  }
  return w;
}

inline bool PrefixTrie::same_tokens_shared(int32_t i, const int32_t* tokens) const {
  auto* mine = const_cast<uint64_t*>(&tokens_[static_cast<size_t>(i) * words_]);
  auto word = [mine](int32_t k) { return std::atomic_ref<uint64_t>(mine[k]).load(std::memory_order_acquire); };
  uint64_t differ = 0;
  if (size_ == 16) {
    for (int32_t k = 0; k < 8; ++k) differ |= word(k) ^ load64(tokens + 2 * k);
    return differ == 0;
  }
  for (int32_t k = 0; k < size_ / 2; ++k) differ |= word(k) ^ load64(tokens + 2 * k);
  if (size_ % 2 != 0) differ |= word(size_ / 2) ^ last_token(tokens[size_ - 1]);
  return differ == 0;
}

inline int32_t PrefixTrie::would_hit(const int32_t* tokens, int64_t n, uint64_t salt) const {
  constexpr int kTries = 16;  // entries moved behind our back so many times in a row: then we say "miss"
  const int64_t blocks = clip(n, -1);
  uint64_t chain = chain_start(salt, seed_);
  int32_t parent = kNil;
  uint32_t parent_generation = 0;
  for (int64_t b = 0; b < blocks; ++b) {
    const int32_t* block_tokens = tokens + b * size_;
    chain = step(chain, block_tokens);
    const uint32_t hash = key(chain);
    int32_t found = kNil;
    uint32_t generation = 0;
    for (int tries = 0; found == kNil && tries < kTries; ++tries) {
      const uint32_t version = table_.version();
      uint32_t at = table_.home(hash);
      for (uint32_t seen = 0; seen <= table_.mask(); ++seen, at = table_.next(at)) {
        const uint64_t slot = table_.load(at, std::memory_order_acquire);
        if (slot == 0) break;
        if (NodeTable::hash_of(slot) != hash) continue;
        const int32_t i = NodeTable::index_of(slot);
        generation = pool_.generation(i);
        if (nodes_[i].state.load(std::memory_order_acquire) != NodeState::ready) continue;
        if (nodes_[i].parent.load(std::memory_order_acquire) != parent) continue;
        if (parent == kNil &&
            std::atomic_ref<uint64_t>(const_cast<uint64_t&>(salts_[i])).load(std::memory_order_acquire) != salt) {
          continue;
        }
        if (!same_tokens_shared(i, block_tokens)) continue;
        // All of it was read between two looks at the generation: it belonged to one node.
        if (pool_.generation(i) == generation) found = i;
        break;
      }
      if (found == kNil && table_.version() == version) return static_cast<int32_t>(b);
    }
    // The parent must still be what it was when its own tokens were compared.
    if (found == kNil || (parent != kNil && pool_.generation(parent) != parent_generation)) {
      return static_cast<int32_t>(b);
    }
    parent = found, parent_generation = generation;
  }
  return static_cast<int32_t>(blocks);
}

inline TrieCounters PrefixTrie::counters() const {
  auto get = [](const std::atomic<uint64_t>& c) { return c.load(std::memory_order_relaxed); };
  TrieCounters c;
  c.lookups = get(stats_.lookups), c.looked_up = get(stats_.looked_up), c.hit = get(stats_.hit);
  c.collisions = get(stats_.collisions), c.inserted = get(stats_.inserted);
  c.duplicates = get(stats_.duplicates), c.evicted = get(stats_.evicted);
  c.evicted_hit = get(stats_.evicted_hit), c.promoted = get(stats_.promoted), c.broken = get(stats_.broken);
  return c;
}

// --- order --------------------------------------------------------------------------------------------------

// i gained a reason to be covered. What it newly covers leaves its list and counts as used.
inline void PrefixTrie::cover(int32_t i) {
  int64_t n = 0;
  for (; i != kNil && nodes_[i].cover++ == 0; i = up(i), ++n) list_of(i).remove(i);
  pool_.cached_to_used(n);
}

// The reverse: deepest first to the hot end, so that parents stay hotter than children.
inline void PrefixTrie::uncover(int32_t i) {
  int64_t n = 0;
  for (; i != kNil && --nodes_[i].cover == 0; i = up(i), ++n) list_of(i).append(i);
  pool_.used_to_cached(n);
}

// Makes the path of i the youngest of its lists.
inline void PrefixTrie::refresh(int32_t i) {
  for (; i != kNil && nodes_[i].cover == 0; i = up(i)) {
    list_of(i).remove(i);
    list_of(i).append(i);
  }
}

// As refresh(), and the path is protected from here on.
inline void PrefixTrie::hit(int32_t i) {
  int64_t promoted = 0;
  for (; i != kNil && nodes_[i].cover == 0; i = up(i)) {
    list_of(i).remove(i);
    promoted += !nodes_[i].protect;
    nodes_[i].protect = true;
    protected_.append(i);
  }
  for (; i != kNil && !nodes_[i].protect; i = up(i)) nodes_[i].protect = true, ++promoted;
  if (promoted != 0) bump(stats_.promoted, promoted);
}

// --- in and out ---------------------------------------------------------------------------------------------

inline void PrefixTrie::write_tokens(int32_t i, const int32_t* tokens) {
  uint64_t* mine = &tokens_[static_cast<size_t>(i) * words_];
  auto write = [mine](int32_t k, uint64_t word) {
    std::atomic_ref<uint64_t>(mine[k]).store(word, std::memory_order_release);
  };
  if (size_ == 16) {
    for (int32_t k = 0; k < 8; ++k) write(k, load64(tokens + 2 * k));
    return;
  }
  for (int32_t k = 0; k < size_ / 2; ++k) write(k, load64(tokens + 2 * k));
  if (size_ % 2 != 0) write(size_ / 2, last_token(tokens[size_ - 1]));
}

// Makes nodes of `count` blocks below the end of a walk; returns the last. Ready ones are linked to each other
// for append_run(), the deepest the coldest. A node's fields are written before its state, its state before
// its slot: a reader that finds the slot finds the node.
inline int32_t PrefixTrie::grow(const Walk& from, const int32_t* tokens, const int32_t* blocks, int64_t count,
                                uint64_t salt, NodeState as, bool protect) {
  const bool ready = as == NodeState::ready;
  int32_t parent = from.tail;
  int32_t depth = from.ready;
  uint64_t chain = from.chain;
  for (int64_t done = 0; done < count; done += kAhead) {
    const int64_t end = std::min<int64_t>(count, done + kAhead);
    uint32_t keys[kAhead];
    for (int64_t j = done; j < end; ++j) {
      chain = j < from.ahead ? from.chains[j] : step(chain, tokens + j * size_);
      keys[j - done] = key(chain);
      table_.prefetch(keys[j - done]);
      __builtin_prefetch(&nodes_[blocks[j]], 1);
      __builtin_prefetch(&tokens_[static_cast<size_t>(blocks[j]) * words_], 1);
    }
    for (int64_t j = done; j < end; ++j) {
      const int32_t i = blocks[j];
      Node& n = nodes_[i];
      n.hash = keys[j - done];
      n.hotter = j > 0 ? blocks[j - 1] : kNil;
      n.colder = j + 1 < count ? blocks[j + 1] : kNil;
      n.depth = ++depth;
      n.own_locks = 0;
      n.cover = ready ? 0 : 1;
      n.protect = protect;
      n.listed = ready;
      n.parent.store(parent, std::memory_order_release);
      if (parent == kNil) std::atomic_ref<uint64_t>(salts_[i]).store(salt, std::memory_order_release);
      write_tokens(i, tokens + j * size_);
      n.state.store(as, std::memory_order_release);
      table_.insert(n.hash, i);
      pool_.give_to_trie(i);
      parent = i;
    }
  }
  bump(count_, count);
  return parent;
}

// Forgets nodes that are in no list. Their blocks are the caller's to free, which ends their generation.
inline void PrefixTrie::remove(const int32_t* indices, int32_t count) {
  table_.erase(nodes_, indices, count);
  for (int32_t k = 0; k < count; ++k) {
    nodes_[indices[k]].state.store(NodeState::absent, std::memory_order_release);
  }
  bump(count_, -count);
}

inline int64_t PrefixTrie::evict(int64_t n) {
  int64_t freed = 0, hot = 0;
  int32_t victims[kAhead];
  while (freed < n) {
    const auto most = static_cast<int32_t>(std::min<int64_t>(kAhead, n - freed));
    const bool cold = probation_.size() != 0;
    const int32_t k = (cold ? probation_ : protected_).take_coldest(most, victims);
    if (k == 0) break;
    for (int32_t j = 0; j < k; ++j) table_.prefetch(nodes_[victims[j]].hash);
    remove(victims, k);
    pool_.free_cached(victims, k);
    freed += k;
    hot += cold ? 0 : k;
  }
  bump(stats_.evicted, freed), bump(stats_.evicted_hit, hot);
  if (pool_.num_blocks() > kSmallPool) look_ahead();
  return freed;
}

// The next victims are known: has their memory on its way before the next request asks for it. Their nodes were
// fetched by the look ahead before this one, so following them costs little; those after them are taken to
// lie in a row, as blocks of one prompt mostly do.
inline void PrefixTrie::look_ahead() const {
  int32_t i = (probation_.size() != 0 ? probation_ : protected_).coldest();
  for (int32_t k = 0; k < kAhead && i != kNil; ++k) {
    table_.prefetch(nodes_[i].hash);
    pool_.prefetch(i);
    i = nodes_[i].hotter;
  }
  for (int32_t k = 0; k < kAhead && i - k >= 0; k += 2) __builtin_prefetch(&nodes_[i - k], 1);
}

inline Result PrefixTrie::insert(const int32_t* tokens, int64_t n, const int32_t* blocks, int64_t count,
                                 uint64_t salt, int64_t first, bool protect, TrieInsert* out) {
  if (n / size_ < first + count) return {Status::too_few_tokens, (first + count) * size_};
  const Result marked = pool_.mark_for_trie(blocks, count);
  if (!marked.ok()) return marked;
  Walk w = walk(tokens, first + count, salt);
  const int64_t there = std::max<int64_t>(0, w.ready - first);
  const bool extends = w.ready >= first && w.promised == 0 && there < count;
  pool_.unmark(blocks, extends ? there : count);
  bump(stats_.duplicates, there);
  *out = {id_of(w.tail), static_cast<int32_t>(there), 0};
  if (extends) {
    const int64_t taken = count - there;
    const int32_t tail =
        grow(w, tokens + (first + there) * size_, blocks + there, taken, salt, NodeState::ready, protect);
    list_of(tail).append_run(tail, blocks[there], static_cast<int32_t>(taken));
    pool_.used_to_cached(taken);
    bump(stats_.inserted, taken);
    *out = {id_of(tail), static_cast<int32_t>(there), static_cast<int32_t>(taken)};
  }
  // Someone brought the same prefix a second time: that is a hit. So is what the caller says is one.
  if (there > 0 || (protect && extends)) {
    hit(w.tail);
  } else if (extends) {
    refresh(w.tail);
  }
  return {};
}

inline Result PrefixTrie::promise(const int32_t* tokens, int64_t n, const int32_t* blocks, int64_t count,
                                  uint64_t salt, int64_t first, NodeId* out) {
  if (n / size_ < first + count) return {Status::too_few_tokens, (first + count) * size_};
  *out = kNoNode;
  if (count == 0) return {};
  const Result marked = pool_.mark_for_trie(blocks, count);
  if (!marked.ok()) return marked;
  Walk w = walk(tokens, first + count, salt);
  if (w.ready != first || w.promised != 0) {
    pool_.unmark(blocks, count);
    return {};
  }
  const int32_t tail = grow(w, tokens + first * size_, blocks, count, salt, NodeState::promised, false);
  nodes_[tail].own_locks = 1;  // grow() has set the cover of the new nodes to the one reason each has
  cover(w.tail);
  bump(promised_, count);
  bump(stats_.inserted, count);
  *out = id_of(tail);
  return {};
}

inline Result PrefixTrie::fulfil(NodeId node, int64_t blocks) {
  int32_t i = index_of(node);
  if (i == kNil) return {Status::stale_node, node};
  if (state(i) != NodeState::promised) return {Status::not_promised, node};
  int64_t n = 0;
  for (; i != kNil && state(i) == NodeState::promised; i = up(i)) {
    if (blocks >= 0 && nodes_[i].depth > blocks) continue;
    nodes_[i].state.store(NodeState::ready, std::memory_order_release);
    ++n;
  }
  bump(promised_, -n);
  return {};
}

inline Result PrefixTrie::break_promise(NodeId node, int64_t* freed) {
  int32_t i = index_of(node);
  if (i == kNil) return {Status::stale_node, node};
  if (state(i) != NodeState::promised) return {Status::not_promised, node};
  if (nodes_[i].own_locks == 0) return {Status::not_locked, node};  // not the node that promise() gave
  int64_t n = 0;
  while (i != kNil && state(i) == NodeState::promised) {
    const int32_t parent = up(i);
    remove(&i, 1);
    pool_.free_used(&i, 1);
    i = parent, ++n;
  }
  uncover(i);
  bump(promised_, -n);
  bump(stats_.broken, n);
  if (freed != nullptr) *freed = n;
  return {};
}

}  // namespace prelude
