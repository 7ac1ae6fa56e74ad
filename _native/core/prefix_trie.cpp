// The bodies of prefix_trie.hpp, which has the drawing, the invariants and the contracts.
#include "prelude/prefix_trie.hpp"

#include <algorithm>

namespace prelude {

// --- looking ------------------------------------------------------------------------------------------------

// Follows the prompt from the root, some blocks at a time, so that the memory of all of them is on its way at once: hash
// them, then look at their entries, then compare. The hash is a filter: identity of the parent and equality of tokens
// decide, so by induction the whole prefix is equal, even where hashes collide.
PrefixTrie::Walk PrefixTrie::walk(const int32_t* tokens, int64_t blocks, uint64_t salt) {
  Walk w;
  w.chain = chain_start(salt, seed_);
  int32_t last = kNil;
  for (int64_t done = 0; done < blocks; done += kLookAhead) {
    const int32_t group = static_cast<int32_t>(std::min<int64_t>(kLookAhead, blocks - done));
    const int32_t* at_tokens = tokens + done * size_;
    for (int32_t j = 0; j < group; ++j) {
      w.chains[j] = step(j > 0 ? w.chains[j - 1] : w.chain, at_tokens + static_cast<int64_t>(j) * size_);
      table_.prefetch(key(w.chains[j]));
    }
    int32_t likely[kLookAhead];
    int32_t candidates = 0;
    for (; candidates < group; ++candidates) {
      const int32_t i = likely[candidates] = table_.find(key(w.chains[candidates]), [](int32_t) { return true; });
      if (i == kNil) break;
      __builtin_prefetch(&nodes_[i]);
      __builtin_prefetch(text(i));
    }
    int32_t j = 0;
    for (; j < candidates; ++j) {
      const int32_t* block_tokens = at_tokens + static_cast<int64_t>(j) * size_;
      int32_t i = likely[j];
      if (!is_child(i, last, block_tokens, salt)) {
        i = table_.find(key(w.chains[j]), [&](int32_t other) {
          const bool same = is_child(other, last, block_tokens, salt);
          stats_.collisions += !same;
          return same;
        });
        if (i == kNil) break;
      }
      last = i;
      w.chain = w.chains[j];
      if (state(i) == NodeState::promised) {
        if (w.promised++ == 0) w.next = i;
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

int32_t PrefixTrie::place(int32_t id, const int32_t* tokens, int64_t n, uint64_t salt, int64_t max_blocks) {
  const int64_t blocks = clip(n, max_blocks);
  const Walk w = walk(tokens, blocks, salt);
  uint32_t hash = 0;
  const bool waits = w.ready < blocks;
  if (w.promised > 0) {
    hash = nodes_[w.next].hash;
  } else if (waits) {
    hash = key(w.ahead > 0 ? w.chains[0] : step(w.chain, tokens + int64_t{w.ready} * size_));
  }
  watches_.place(id, w.tail, waits, hash);
  return usable(w);
}

// --- order --------------------------------------------------------------------------------------------------

// i gained a reason to be covered. Nodes that it newly covers leave their list and count as used.
void PrefixTrie::cover(int32_t i) {
  int64_t n = 0;
  for (; i != kNil && nodes_[i].cover++ == 0; i = up(i), ++n) list_of(i).remove(i);
  pool_.cached_to_used(n);
}

// The reverse: deepest first to the hot end, so that parents stay hotter than children.
void PrefixTrie::uncover(int32_t i) {
  int64_t n = 0;
  for (; i != kNil && --nodes_[i].cover == 0; i = up(i), ++n) list_of(i).append(i);
  pool_.used_to_cached(n);
}

// Makes the path of i the youngest of its lists.
void PrefixTrie::refresh(int32_t i) {
  for (; i != kNil && nodes_[i].cover == 0; i = up(i)) {
    list_of(i).remove(i);
    list_of(i).append(i);
  }
}

// As refresh(), and the path is protected from here on.
void PrefixTrie::hit(int32_t i) {
  int64_t promoted = 0;
  for (; i != kNil && nodes_[i].cover == 0; i = up(i)) {
    list_of(i).remove(i);
    promoted += !nodes_[i].protect;
    nodes_[i].protect = true;
    protected_.append(i);
  }
  for (; i != kNil && !nodes_[i].protect; i = up(i)) nodes_[i].protect = true, ++promoted;
  stats_.promoted += promoted;
}

// --- in and out ---------------------------------------------------------------------------------------------

// Makes nodes of `count` blocks below the end of a walk; returns the last. Ready ones are linked to each other
// for append_run(), the deepest the coldest.
int32_t PrefixTrie::grow(const Walk& from, const int32_t* tokens, const int32_t* blocks, int64_t count, uint64_t salt,
                         NodeState as, bool protect) {
  const bool ready = as == NodeState::ready;
  int32_t parent = from.tail, depth = from.ready;
  uint64_t chain = from.chain;
  for (int64_t done = 0; done < count; done += kAhead) {
    const auto some = static_cast<int32_t>(std::min<int64_t>(count - done, kAhead));
    const int32_t* const ids = blocks + done;
    const int32_t* const written = tokens + done * size_;
    const int64_t known = from.ahead - done;
    uint32_t keys[kAhead];
    for (int32_t j = 0; j < some; ++j) {
      chain = j < known ? from.chains[done + j] : step(chain, written + int64_t{j} * size_);
      keys[j] = key(chain);
      table_.prefetch(keys[j]);
      __builtin_prefetch(&nodes_[ids[j]], 1);
      __builtin_prefetch(text(ids[j]), 1);
    }
    int32_t hotter = done > 0 ? ids[-1] : kNil;
    for (int32_t j = 0; j < some; ++j) {
      const int32_t i = ids[j];
      const int32_t colder = done + j + 1 < count ? ids[j + 1] : kNil;
      nodes_[i] = {keys[j], parent, colder, hotter, 0, ready ? 0u : 1u, ++depth, as, protect, ready};
      if (parent == kNil) salts_[i] = salt;
      std::copy_n(written + int64_t{j} * size_, size_, &tokens_[static_cast<size_t>(i) * static_cast<size_t>(size_)]);
      table_.insert(keys[j], i);
      hotter = parent = i;
      pool_.give_to_trie(i);
      if (ready && !watches_.empty()) watches_.appeared(keys[j]);
    }
  }
  count_ += static_cast<int32_t>(count);
  return parent;
}

// Forgets nodes that are in no list, children before their parents. Their blocks are the caller's to free, which
// ends their generation.
void PrefixTrie::remove(const int32_t* indices, int32_t count) {
  for (int32_t k = 0; k < count; ++k) {
    Node& n = nodes_[indices[k]];
    table_.erase(n.hash, indices[k]);
    n.state = NodeState::absent;
    if (!watches_.empty()) watches_.gone(indices[k]);
    if (states_.any()) states_.forget(indices[k]);
  }
  count_ -= count;
}

int64_t PrefixTrie::evict(int64_t n) noexcept {
  int64_t freed = 0, hot = 0;
  int32_t victims[kAhead];
  while (freed < n) {
    const auto most = static_cast<int32_t>(std::min<int64_t>(kAhead, n - freed));
    const bool cold = probation_.size() != 0;
    const int32_t k = (cold ? probation_ : protected_).take_coldest(most, victims);
    if (k == 0) break;
    for (int32_t j = 0; j < k; ++j) table_.prefetch(nodes_[victims[j]].hash);
    if (leaver_ != nullptr) leaver_->leaves(victims, k);
    remove(victims, k);
    pool_.free_cached(victims, k);
    freed += k;
    hot += cold ? 0 : k;
  }
  stats_.evicted += freed, stats_.evicted_hit += hot;
  if (pool_.num_blocks() > kSmallPool) look_ahead();
  return freed;
}

// The coldest protected node has no protected children, so all of its children are on probation already, and colder.
int64_t PrefixTrie::demote(int64_t n) noexcept {
  int64_t done = 0;
  for (int32_t i; done < n && (i = protected_.coldest()) != kNil; ++done) {
    protected_.remove(i);
    nodes_[i].protect = false;
    probation_.append(i);
  }
  return done;
}

// The next victims are known: has their memory on its way before the next request asks for it. Their nodes were
// fetched by the look ahead before this one, so following them costs little; those after them are taken to
// lie in a row, as blocks of one prompt mostly do.
void PrefixTrie::look_ahead() const {
  int32_t i = (probation_.size() != 0 ? probation_ : protected_).coldest();
  for (int32_t k = 0; k < kAhead && i != kNil; ++k) {
    table_.prefetch(nodes_[i].hash);
    pool_.prefetch(i);
    i = nodes_[i].hotter;
  }
  for (int32_t k = 0; k < kAhead && i - k >= 0; k += 2) __builtin_prefetch(&nodes_[i - k], 1);
}

Result PrefixTrie::insert(const int32_t* tokens, int64_t n, const int32_t* blocks, int64_t count, uint64_t salt,
                          int64_t first, bool protect, TrieInsert* out) noexcept {
  if (n / size_ < first + count) return {Status::too_few_tokens, (first + count) * size_};
  const Result marked = pool_.mark(blocks, count);
  if (!marked.ok()) return marked;
  Walk w = walk(tokens, first + count, salt);
  const int64_t there = std::max<int64_t>(0, w.ready - first);
  const bool extends = w.ready >= first && w.promised == 0 && there < count;
  pool_.unmark(blocks, extends ? there : count);
  stats_.duplicates += there;
  *out = {id_of(w.tail), static_cast<int32_t>(there), 0};
  if (extends) {
    const int64_t taken = count - there;
    const int32_t tail =
        grow(w, tokens + (first + there) * size_, blocks + there, taken, salt, NodeState::ready, protect);
    list_of(tail).append_run(tail, blocks[there], static_cast<int32_t>(taken));
    pool_.used_to_cached(taken);
    stats_.inserted += taken;
    *out = {id_of(tail), static_cast<int32_t>(there), static_cast<int32_t>(taken)};
  }
  // A second request brought the same prefix: that is a hit. So is a prefix that the caller marks as hit.
  if (there > 0 || (protect && extends)) {
    hit(w.tail);
  } else if (extends) {
    refresh(w.tail);
  }
  return {};
}

Result PrefixTrie::promise(const int32_t* tokens, int64_t n, const int32_t* blocks, int64_t count, uint64_t salt,
                           int64_t first, NodeId* out) noexcept {
  if (n / size_ < first + count) return {Status::too_few_tokens, (first + count) * size_};
  *out = kNoNode;
  if (count == 0) return {};
  const Result marked = pool_.mark(blocks, count);
  if (!marked.ok()) return marked;
  Walk w = walk(tokens, first + count, salt);
  if (w.ready != first || w.promised != 0) {
    pool_.unmark(blocks, count);
    return {};
  }
  const int32_t tail = grow(w, tokens + first * size_, blocks, count, salt, NodeState::promised, false);
  nodes_[tail].own_locks = 1;  // grow() has set the cover of the new nodes to the one reason each has
  cover(w.tail);
  promised_ += static_cast<int32_t>(count);
  stats_.inserted += count;
  *out = id_of(tail);
  return {};
}

Result PrefixTrie::fulfil(NodeId node, int64_t blocks) noexcept {
  int32_t i = index_of(node);
  if (i == kNil) return {Status::stale_node, node};
  if (state(i) != NodeState::promised) return {Status::not_promised, node};
  for (; i != kNil && state(i) == NodeState::promised; i = up(i)) {
    if (blocks >= 0 && nodes_[i].depth > blocks) continue;
    nodes_[i].state = NodeState::ready;
    if (!watches_.empty()) watches_.appeared(nodes_[i].hash);
    --promised_;
  }
  return {};
}

Result PrefixTrie::break_promise(NodeId node, int64_t* freed) noexcept {
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
  promised_ -= static_cast<int32_t>(n);
  stats_.broken += n;
  if (freed != nullptr) *freed = n;
  return {};
}

}  // namespace prelude
