// Bodies of kv_pool.hpp, which has the drawing, the invariants and the contracts.
#include "prelude/kv_pool.hpp"

#include <new>

namespace prelude {

Result KvPool::attach(const int32_t* tokens, int64_t n, uint64_t salt, int64_t max_tokens, Lease* lease) {
  const int64_t limit = max_tokens / size_;
  if (!caching_ || limit <= 0) return ++live_, Result{};
  const TrieMatch match = trie_.match(tokens, n, salt, limit);
  const NodeId node = states_ != nullptr ? trie_.with_state(match.node) : match.node;
  lease->shared.resize(states_ != nullptr ? static_cast<size_t>(trie_.depth(node))
                                          : static_cast<size_t>(match.blocks));
  Result r = trie_.lock(node);
  if (r.ok()) r = trie_.blocks(node, lease->shared.data());
  if (!r.ok()) return r;
  ++live_, lease->node = node;
  if (states_ == nullptr) {
    lease->ahead = match.promised;
    if (host_ != nullptr && match.promised == 0) {
      lease->on_host = static_cast<int32_t>(comes_back(*lease, host_->find(tokens, n, salt, limit).blocks));
    }
    return r;
  }
  lease->base = static_cast<int32_t>(lease->shared.size()), lease->branch = match.blocks;
  if (node != kNoNode) states_->pin(lease->state_from = states_->state_at(trie_.index_of(node)));
  return r;
}

Result KvPool::bring_back(Lease& lease, const int32_t* tokens, int64_t n, uint64_t salt, int64_t max_tokens) {
  if (lease.on_host == 0) return {};
  lease.on_host = 0;
  const auto first = static_cast<int64_t>(lease.shared.size());
  const TrieMatch found = host_->find(tokens, n, salt, max_tokens / size_);
  const int64_t count = comes_back(lease, found.blocks);
  if (count == 0) return {};
  // Before anything is held: it may throw.
  std::vector<int32_t> blocks(static_cast<size_t>(count));
  lease.shared.reserve(static_cast<size_t>(first + count));
  host_->hold(found.node);  // blocks that leave for these ones do not take their entries
  const int32_t cached = pool_.num_cached();
  bool filled = true;
  Result r;
  if (trie_.allocate(count, blocks.data()).ok()) {
    evictions_ += cached - pool_.num_cached();
    try {
      filled = host_->fill(found.node, first, blocks.data(), count);
    } catch (const std::bad_alloc&) {
      filled = false;
    }
    TrieInsert in;
    if (filled && trie_.insert(tokens, (first + count) * size_, blocks.data(), count, salt, first, true, &in).ok()) {
      r = move_lock(lease, in.node);
    }
    pool_.release(blocks.data() + in.taken, count - in.taken);
  }
  host_->let_go(found.node);
  if (!filled) host_->drop();
  return r;
}

// Protected blocks beyond their share go on probation where `n` blocks find room then.
void KvPool::make_probation(int64_t n) noexcept {
  const int64_t room = int64_t{pool_.num_free()} + trie_.num_probation();
  if (room < n && n <= (room + trie_.num_protected()) / 4) trie_.demote(n - room);
}

Result KvPool::take(Lease& lease, int64_t n, bool spare_protected) {
  if (n <= 0) return {};
  if (spare_protected) make_probation(n);
  const int32_t cached = pool_.num_cached();
  const size_t had = lease.own.size();
  lease.own.resize(had + static_cast<size_t>(n));
  const Result taken = trie_.allocate(n, lease.own.data() + had, spare_protected);
  if (!taken.ok()) lease.own.resize(had);
  evictions_ += cached - pool_.num_cached();
  if (host_ != nullptr && !host_->copy_out()) host_->drop();
  return taken;
}

bool KvPool::take_running_state(Lease& lease) {
  if (free_running_states_.empty()) return false;
  lease.state_index = free_running_states_.back();
  free_running_states_.pop_back();
  return true;
}

void KvPool::keep_states(Lease& lease, int64_t from, int64_t to, int64_t end, bool evict_used) noexcept {
  if (states_ == nullptr) return;
  drop_kept(lease);
  const auto last = static_cast<int32_t>(end / size_);
  const auto keep = [&](int32_t blocks, bool spare_used) {
    if (blocks * int64_t{size_} <= from || blocks * int64_t{size_} > to || blocks > lease.num_blocks()) return;
    const int32_t entry = states_->take(spare_used);
    if (entry >= 0) lease.kept[static_cast<size_t>(lease.num_kept++)] = {entry, blocks};
  };
  if (lease.branch > lease.base && lease.branch < last) keep(lease.branch, false);
  if (last > lease.base) keep(last, !evict_used && last != lease.branch);
}

void KvPool::give_states(Lease& lease, NodeId node, bool promoted) noexcept {
  for (int32_t k = 0; k < lease.num_kept; ++k) {
    const auto [entry, blocks] = lease.kept[static_cast<size_t>(k)];
    const int32_t at = trie_.at_depth(node, blocks);
    if (at == kNil) {
      states_->put_back(entry);
    } else {
      states_->give(entry, at, promoted || blocks == lease.branch);
    }
  }
  lease.num_kept = 0;
}

Result KvPool::promise(Lease& lease, const int32_t* tokens, int64_t n, uint64_t salt) {
  const auto first = static_cast<int64_t>(lease.shared.size());
  const int64_t count = std::min(n / size_, lease.num_blocks()) - first;
  if (!caching_ || states_ != nullptr || count <= 0 || lease.borrowed > 0) return {};
  const Result made = trie_.promise(tokens, n, lease.own.data(), count, salt, first, &lease.promise);
  if (made.ok() && lease.promise != kNoNode) {
    lease.promised = static_cast<int32_t>(count);  // before any call that may throw: release() has to know of it
    const int32_t* next = tokens + first * size_;
    leaders_.push_back({salt, lease.node, &lease, std::vector<int32_t>(next, next + size_)});
  }
  return made;
}

bool KvPool::borrow(Lease& lease, const int32_t* tokens, int64_t n, uint64_t salt) {
  const auto first = static_cast<int64_t>(lease.shared.size());
  if ((first + 1) * size_ > n) return false;
  for (const Leader& leader : leaders_) {
    if (leader.salt != salt || leader.node != lease.node ||
        !std::equal(leader.next.begin(), leader.next.end(), tokens + first * size_)) {
      continue;
    }
    if (lease.growable && !leader.lease->growable) return false;
    const int32_t borrowed = std::min(lease.ahead, leader.lease->promised);
    lease.shared.insert(lease.shared.end(), leader.lease->own.begin(), leader.lease->own.begin() + borrowed);
    lease.borrowed = borrowed;
    return true;
  }
  return false;
}

Result KvPool::withdraw(Lease& lease) {
  drop_kept(lease);
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

Result KvPool::publish(Lease& lease, const int32_t* tokens, int64_t n, uint64_t salt, bool promoted, bool ends) {
  Result r;
  // All that the path may come to, before anything changes: nothing below allocates.
  if (!ends || lease.promise != kNoNode) lease.shared.reserve(static_cast<size_t>(lease.num_blocks()));
  if (lease.promise != kNoNode) {
    r = fulfil(lease, tokens, n, salt, promoted);
  } else if (lease.borrowed > 0) {
    const TrieMatch match = trie_.match(tokens, n, salt, static_cast<int64_t>(lease.shared.size()));
    if (match.blocks < static_cast<int32_t>(lease.shared.size())) {
      // A OneShot row whose leader failed, or is postprocessed later, ends with this step: it only read the blocks.
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
  if (r.ok() && lease.num_kept > 0) give_states(lease, made.node, promoted);
  if (r.ok() && !ends) r = move_lock(lease, made.node);
  if (r.ok() && made.there > 0) r = pool_.release(lease.own.data(), made.there);
  if (r.ok()) lease.own.erase(lease.own.begin(), lease.own.begin() + made.there + made.taken);
  return r;
}

Result KvPool::release(Lease& lease) noexcept {
  lease.released = true;
  --live_;
  if (lease.state_index >= 0) free_running_states_.push_back(lease.state_index), lease.state_index = -1;
  if (lease.state_from >= 0) states_->unpin(lease.state_from), lease.state_from = -1;
  drop_kept(lease);
  Result r;
  if (lease.promise != kNoNode) {
    forget(lease);
    r = trie_.break_promise(lease.promise, nullptr);
  }
  if (r.ok()) r = trie_.unlock(lease.node);
  return r.ok() ? give_back(lease, lease.promised) : r;
}

void KvPool::forget(const Lease& lease) {
  std::erase_if(leaders_, [&](const Leader& leader) { return leader.lease == &lease; });
}

Result KvPool::give_back(Lease& lease, int32_t from) {
  const auto n = static_cast<int64_t>(lease.own.size()) - from;
  const Result r = n > 0 ? pool_.release(lease.own.data() + from, n) : Result{};
  if (r.ok()) lease.own.clear();
  return r;
}

Result KvPool::fulfil(Lease& lease, const int32_t* tokens, int64_t n, uint64_t salt, bool promoted) {
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

Result KvPool::move_lock(Lease& lease, NodeId node) {
  Result r = trie_.lock(node);
  if (r.ok()) r = trie_.unlock(lease.node);
  return r.ok() ? at(lease, node) : r;
}

}  // namespace prelude
