// The bodies of prefix_trie.hpp, which has the drawing, the invariants and the contracts.
#include "prelude/prefix_trie.hpp"

#include <algorithm>

namespace prelude {

// --- looking ------------------------------------------------------------------------------------------------

// Follows the prompt from the root, run by run, so that the memory of several blocks is on its way at once: hash them
// all, then look at their entries, then compare. The hash is a filter: identity of the parent and equality of tokens
// decide, so by induction the whole prefix is equal, even where hashes collide.
PrefixTrie::Walk PrefixTrie::walk(const int32_t* tokens, int64_t blocks, uint64_t salt) {
  Walk w;
  w.chain = chain_start(salt, seed_);
  int32_t last = kNil;
  for (int64_t done = 0; done < blocks; done += kLookAhead) {
    const int32_t group = static_cast<int32_t>(std::min<int64_t>(kLookAhead, blocks - done));
    const int32_t* at_tokens = tokens + done * size_;
    w.chains[0] = step(w.chain, at_tokens);
    w.run = key(w.chains[0]);
    table_.prefetch_run(w.run);
    for (int32_t j = 1; j < group; ++j) {
      w.chains[j] = step(w.chains[j - 1], at_tokens + static_cast<int64_t>(j) * size_);
    }
    int32_t likely[kLookAhead];
    int32_t candidates = 0;
    for (; candidates < group; ++candidates) {
      const NodeKey k{key(w.chains[candidates]), w.run, static_cast<uint32_t>(candidates)};
      const int32_t i = likely[candidates] = table_.find(k, [](int32_t) { return true; });
      if (i == kNil) break;
      __builtin_prefetch(&nodes_[i]);
      __builtin_prefetch(&tokens_[static_cast<size_t>(i) * words_]);
    }
    int32_t j = 0;
    for (; j < candidates; ++j) {
      const int32_t* block_tokens = at_tokens + static_cast<int64_t>(j) * size_;
      int32_t i = likely[j];
      if (!is_child(i, last, block_tokens, salt)) {
        i = table_.find({key(w.chains[j]), w.run, static_cast<uint32_t>(j)}, [&](int32_t other) {
          const bool same = is_child(other, last, block_tokens, salt);
          if (!same) bump(stats_.collisions, 1);
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

bool PrefixTrie::same_tokens_shared(int32_t i, const int32_t* tokens) const {
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

int32_t PrefixTrie::would_hit(const int32_t* tokens, int64_t n, uint64_t salt) const {
  constexpr auto kAcquire = std::memory_order_acquire;
  const int64_t blocks = clip(n, -1);
  NodeKey k{};
  uint64_t chain = chain_start(salt, seed_);
  const bool with_states = states_.any();
  int32_t parent = kNil, last_state = 0;
  uint32_t parent_generation = 0;
  for (int64_t b = 0; b < blocks; ++b) {
    const int32_t* block_tokens = tokens + b * size_;
    chain = step(chain, block_tokens);
    k.hash = key(chain), k.at = static_cast<uint32_t>(b) % NodeTable::kRun;
    if (k.at == 0) k.run = k.hash;
    uint32_t generation = 0;
    const int32_t found = table_.find(
        k,
        [&](int32_t i) {
          generation = pool_.generation(i);
          if (nodes_[i].state.load(kAcquire) != NodeState::ready || nodes_[i].parent.load(kAcquire) != parent) {
            return false;
          }
          if (parent == kNil && std::atomic_ref<uint64_t>(const_cast<uint64_t&>(salts_[i])).load(kAcquire) != salt) {
            return false;
          }
          // All of it was read between two looks at the generation: it belonged to one node.
          return same_tokens_shared(i, block_tokens) && pool_.generation(i) == generation;
        },
        kAcquire);
    // The parent must not have changed since its own tokens were compared.
    if (found == kNil || (parent != kNil && pool_.generation(parent) != parent_generation)) {
      return with_states ? last_state : static_cast<int32_t>(b);
    }
    parent = found, parent_generation = generation;
    if (with_states && states_.state_at(found) != PrefixStates::kNone) last_state = static_cast<int32_t>(b) + 1;
  }
  return with_states ? last_state : static_cast<int32_t>(blocks);
}

TrieCounters PrefixTrie::counters() const {
  auto get = [](const std::atomic<uint64_t>& c) { return c.load(std::memory_order_relaxed); };
  TrieCounters c;
  c.lookups = get(stats_.lookups), c.looked_up = get(stats_.looked_up), c.hit = get(stats_.hit);
  c.collisions = get(stats_.collisions), c.inserted = get(stats_.inserted);
  c.duplicates = get(stats_.duplicates), c.evicted = get(stats_.evicted);
  c.evicted_hit = get(stats_.evicted_hit), c.promoted = get(stats_.promoted), c.broken = get(stats_.broken);
  return c;
}

PromptEnd PrefixTrie::end_of(const int32_t* tokens, int64_t n, uint64_t salt, int64_t max_blocks) {
  const int64_t blocks = clip(n, max_blocks);
  const Walk w = walk(tokens, blocks, salt);
  PromptEnd end{id_of(w.tail), w.ready, w.ready < blocks, {}};
  if (w.promised > 0) {
    end.next = key_of(w.next);
  } else if (end.lacks) {
    end.next = {key(w.chains[0]), w.run, NodeTable::place_in_run(w.ready + 1)};
  }
  if (states_.any()) {
    const int32_t last = state_above(w.tail);
    end.blocks = last == kNil ? 0 : nodes_[last].depth;
  }
  return end;
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
  if (promoted != 0) bump(stats_.promoted, promoted);
}

// --- in and out ---------------------------------------------------------------------------------------------

// Into the words of a block: each store a release, see same_tokens_shared().
void PrefixTrie::write_tokens(uint64_t* words, const int32_t* tokens, int32_t size) {
  auto write = [words](int32_t k, uint64_t word) {
    std::atomic_ref<uint64_t>(words[k]).store(word, std::memory_order_release);
  };
  if (size == 16) {
    for (int32_t k = 0; k < 8; ++k) write(k, load64(tokens + 2 * k));
    return;
  }
  for (int32_t k = 0; k < size / 2; ++k) write(k, load64(tokens + 2 * k));
  if (size % 2 != 0) write(size / 2, last_token(tokens[size - 1]));
}

// Makes nodes of `count` blocks below the end of a walk; returns the last. Ready ones are linked to each other
// for append_run(), the deepest the coldest. A node's fields are written before its state, its state before
// its entry: a reader that finds the entry finds the node.
int32_t PrefixTrie::grow(const Walk& from, const int32_t* tokens, const int32_t* blocks, int64_t count, uint64_t salt,
                         NodeState as, bool protect) {
  const bool ready = as == NodeState::ready;
  // In locals: the compiler has to read members again after each of the ordered stores below.
  Node* const nodes = nodes_.data();
  uint64_t* const words = tokens_.data();
  const size_t stride = words_;
  const int32_t size = size_;
  const uint64_t seed = seed_;
  const uint32_t cover = ready ? 0 : 1;
  NodeTable::Writer table(table_);
  int32_t parent = from.tail;
  int32_t depth = from.ready;
  uint64_t chain = from.chain;
  uint32_t run = from.run;
  for (int64_t done = 0; done < count; done += kAhead) {
    const auto some = static_cast<int32_t>(std::min<int64_t>(count - done, kAhead));
    const int32_t* const ids = blocks + done;
    const int32_t* const text = tokens + done * size;
    const int64_t known = from.ahead - done;
    uint32_t keys[kAhead];
    for (int32_t j = 0; j < some; ++j) {
      chain =
          j < known ? from.chains[done + j] : chain_next(chain, content_hash(text + int64_t{j} * size, size, seed));
      keys[j] = key(chain);
      if (NodeTable::place_in_run(depth + j + 1) == 0) table_.prefetch_to_fill(keys[j]);
      __builtin_prefetch(&nodes[ids[j]], 1);
      __builtin_prefetch(&words[static_cast<size_t>(ids[j]) * stride], 1);
    }
    int32_t hotter = done > 0 ? ids[-1] : kNil;
    for (int32_t j = 0; j < some; ++j) {
      const int32_t i = ids[j];
      Node& n = nodes[i];
      const uint32_t at = NodeTable::place_in_run(++depth);
      if (at == 0) run = keys[j];
      n.hotter = hotter;
      n.colder = done + j + 1 < count ? ids[j + 1] : kNil;
      n.depth = depth;
      n.own_locks = 0;
      n.cover = cover;
      n.protect = protect;
      n.listed = ready;
      n.parent.store(parent, std::memory_order_release);
      if (parent == kNil) std::atomic_ref<uint64_t>(salts_[i]).store(salt, std::memory_order_release);
      write_tokens(&words[static_cast<size_t>(i) * stride], text + int64_t{j} * size, size);
      n.state.store(as, std::memory_order_release);
      table.insert({keys[j], run, at}, n, i);
      hotter = parent = i;
    }
    for (int32_t j = 0; j < some; ++j) pool_.give_to_trie(ids[j]);
  }
  bump(count_, count), ++changes_;
  return parent;
}

// The table's key of node i, from the hashes of its path.
NodeKey PrefixTrie::key_of(int32_t i) const {
  const uint32_t at = NodeTable::place_in_run(nodes_[i].depth);
  int32_t first = i;
  for (uint32_t k = 0; k < at; ++k) first = up(first);
  return {hash_of(i), hash_of(first), at};
}

// Forgets nodes that are in no list, children before their parents. Their blocks are the caller's to free, which
// ends their generation.
void PrefixTrie::remove(const int32_t* indices, int32_t count) {
  for (int32_t k = 0; k < count; ++k) {
    Node& n = nodes_[indices[k]];
    if (n.displaced) {
      const NodeKey known = key_of(indices[k]);
      table_.erase(n), table_.uncount_passed(known, n);
    } else {
      table_.erase(n);
    }
    n.state.store(NodeState::absent, std::memory_order_release);
    if (states_.any()) states_.forget(indices[k]);
  }
  bump(count_, -count), ++changes_;
}

int64_t PrefixTrie::evict(int64_t n) noexcept {
  int64_t freed = 0, hot = 0;
  int32_t victims[kAhead];
  while (freed < n) {
    const auto most = static_cast<int32_t>(std::min<int64_t>(kAhead, n - freed));
    const bool cold = probation_.size() != 0;
    const int32_t k = (cold ? probation_ : protected_).take_coldest(most, victims);
    if (k == 0) break;
    for (int32_t j = 0; j < k; ++j) table_.prefetch_entry(nodes_[victims[j]].entry);
    if (leaver_ != nullptr) leaver_->leaves(victims, k);
    remove(victims, k);
    pool_.free_cached(victims, k);
    freed += k;
    hot += cold ? 0 : k;
  }
  bump(stats_.evicted, freed), bump(stats_.evicted_hit, hot);
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
    table_.prefetch_entry(nodes_[i].entry);
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
  bump(promised_, count);
  bump(stats_.inserted, count);
  *out = id_of(tail);
  return {};
}

Result PrefixTrie::fulfil(NodeId node, int64_t blocks) noexcept {
  int32_t i = index_of(node);
  if (i == kNil) return {Status::stale_node, node};
  if (state(i) != NodeState::promised) return {Status::not_promised, node};
  int64_t n = 0;
  for (; i != kNil && state(i) == NodeState::promised; i = up(i)) {
    if (blocks >= 0 && nodes_[i].depth > blocks) continue;
    nodes_[i].state.store(NodeState::ready, std::memory_order_release);
    ++n;
  }
  bump(promised_, -n), ++changes_;
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
  bump(promised_, -n);
  bump(stats_.broken, n);
  if (freed != nullptr) *freed = n;
  return {};
}

}  // namespace prelude
