// Bodies of oneshot_group.hpp, which has the drawing, the invariants and the contracts.
#include "prelude/oneshot_group.hpp"

namespace prelude {

OneShotGroup::Verdict OneShotGroup::admit(const RequestRow& r, int64_t deferred, Lease& lease, int64_t* skip,
                                          int64_t* publish, Result* wrong) {
  const int64_t reusable = r.cache == CacheMode::never ? 0 : r.unread;
  *wrong = pool_.attach(r.tokens, r.trunk, r.salt, reusable, &lease);
  if (!wrong->ok()) return Verdict::full;
  try {
    if (lease.on_host > 0) {
      if (!holds(r, r.num_tokens -
                        (int64_t{lease.on_host} + static_cast<int64_t>(lease.shared.size())) * pool_.block_size())) {
        *wrong = pool_.release(lease);
        return Verdict::full;
      }
      *wrong = pool_.bring_back(lease, r.tokens, r.trunk, r.salt, reusable);
    }
    return admit_attached(r, deferred, lease, skip, publish, wrong);
  } catch (...) {  // no memory: the caller knows of no lease
    *wrong = pool_.release(lease);
    throw;
  }
}

OneShotGroup::Verdict OneShotGroup::admit_attached(const RequestRow& r, int64_t deferred, Lease& lease, int64_t* skip,
                                                   int64_t* publish, Result* wrong) {
  if (must_wait(pool_, left_, lease, r.tokens, r.trunk, r.salt, deferred)) {
    *wrong = pool_.release(lease);
    return Verdict::deferred;
  }
  *skip = static_cast<int64_t>(lease.shared.size()) * pool_.block_size();
  *publish = 0;
  const int64_t uncached = r.num_tokens - *skip;
  // A fold publishes the common part alone: a request with cache="always" stays apart.
  const bool folds = left_.fold && r.cache != CacheMode::always;
  const bool borrows = lease.borrowed > 0;
  const FoldPlace place{r.salt, borrows ? -2 : lease.node, lease.shared.data(),
                        borrows ? static_cast<int64_t>(lease.shared.size()) : 0};
  FoldOffer offer{uncached, -1, 0};
  if (folds) offer = folds_.offer(place, r.tokens + *skip, r.trunk - *skip, uncached);
  if (!holds(r, offer.tokens)) {
    *wrong = pool_.release(lease);
    return Verdict::full;
  }
  left_.tokens -= offer.tokens, left_.logits_bytes -= logits_bytes(r), --left_.rows;
  if (folds) folds_.admit(offer, static_cast<int32_t>(count_), place, r.tokens + *skip, r.trunk - *skip);
  if (count_++ == 0) {
    withheld_ = std::max<int64_t>(0, left_.tokens - left_.group_tokens);
    left_.tokens -= withheld_;
  }
  if (!folds) keep(r, lease, *skip, r.trunk, r.cache == CacheMode::always, left_.seen, publish, wrong);
  return Verdict::admitted;
}

bool OneShotGroup::keep(const RequestRow& r, Lease& lease, int64_t skip, int64_t end, bool evict_promoted, bool seen,
                        int64_t* publish, Result* wrong) {
  const int64_t blocks = end / pool_.block_size() - skip / pool_.block_size();
  if (r.cache == CacheMode::never || blocks <= 0 || !pool_.caching()) return true;
  if (!pool_.take(lease, blocks, !evict_promoted).ok()) return false;
  if (seen) *wrong = pool_.promise(lease, r.tokens, end, r.salt);
  // A request with the same prompt computes the last token again, so no state behind that token is of use.
  if (pool_.keeps_states()) pool_.keep_states(lease, skip, end, std::min(end, r.num_tokens - 1), evict_promoted);
  *publish = blocks;
  return true;
}

bool must_wait(KvPool& pool, const GroupLimits& limits, Lease& lease, const int32_t* tokens, int64_t n, uint64_t salt,
               int64_t deferred) {
  if (lease.ahead == 0 || limits.retry) return false;
  if (limits.fold && pool.borrow(lease, tokens, n, salt)) return false;
  return int64_t{lease.ahead} * pool.block_size() >= limits.defer_tokens && deferred < limits.defer_steps;
}

PromptRow prompt_row(const RequestRow& r, int64_t begin, int64_t end, int64_t parent, const Lease* lease,
                     int64_t skip, int64_t publish, int32_t block_size) {
  const bool whole = end < 0 && r.starts != nullptr;
  PromptRow row{};
  row.tokens = r.tokens, row.num_tokens = r.num_tokens;
  row.positions = whole ? r.positions : nullptr;
  row.starts = whole ? r.starts : nullptr;
  row.parents = whole ? r.parents : nullptr;
  row.segments = whole ? r.segments : 1;
  row.begin = begin, row.end = end < 0 ? r.trunk : end, row.parent = parent;
  if (lease != nullptr) {
    row.context = lease->shared.data(), row.context_blocks = static_cast<int64_t>(lease->shared.size());
    row.context_len = skip;
    row.slots = lease->own.data();
    row.slot_blocks = publish > 0 ? static_cast<int64_t>(lease->own.size()) : 0;
    row.slot_count = publish * block_size;
  }
  return row;
}

}  // namespace prelude
