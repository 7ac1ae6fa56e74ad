// Bodies of block_allocator.hpp, which has the drawing, the invariants and the contracts.
#include "prelude/block_allocator.hpp"

namespace prelude {

Result BlockAllocator::allocate(int64_t n, int32_t* out) {
  int32_t top = num_free();
  if (n > top) return {Status::out_of_blocks, top};
  for (int64_t i = 0; i < n; ++i) {
    const int32_t b = stack_[--top];
    blocks_[b].state = kHeld;
    out[i] = b;
  }
  add(free_, -n), add(used_, n);
  return {};
}

Result BlockAllocator::retain(const int32_t* ids, int64_t n, const uint32_t* seen) {
  for (int64_t i = 0; i < n; ++i) {
    Result r = check_held(ids[i], seen ? seen + i : nullptr);
    if (r.ok() && blocks_[ids[i]].state == UINT32_MAX) r = {Status::too_many_refs, ids[i]};
    if (!r.ok()) {
      while (i-- > 0) --blocks_[ids[i]].state;
      return r;
    }
    ++blocks_[ids[i]].state;
  }
  return {};
}

Result BlockAllocator::release(const int32_t* ids, int64_t n, const uint32_t* seen) {
  for (int64_t i = 0; i < n; ++i) {
    const Result r = check_held(ids[i], seen ? seen + i : nullptr);
    if (!r.ok()) {
      while (i-- > 0) ++blocks_[ids[i]].state;
      return r;
    }
    --blocks_[ids[i]].state;
  }
  int64_t freed = 0;
  for (int64_t i = n; i-- > 0;) {  // backwards, so that the next caller gets them in the same order
    if (blocks_[ids[i]].state == kMarked) push_free(ids + i, 1), ++freed;
  }
  add(used_, -freed);
  return {};
}

AllocatorAudit BlockAllocator::audit() const {
  AllocatorAudit a;
  a.total = num_blocks_, a.free = num_free(), a.used = num_used(), a.cached = num_cached();
  auto fail = [&a](const char* what, int64_t at) {
    if (a.broken == nullptr) a.broken = what, a.at = at;
  };
  for (int32_t b = 0; b < num_blocks_; ++b) {
    const uint32_t s = blocks_[b].state;
    if (s == kMarked) fail("a block is left marked", b);
    ++(s == kFree ? a.counted_free : s == kInTrie ? a.counted_trie : a.counted_held);
  }
  std::vector<bool> on_list(static_cast<size_t>(num_blocks_));
  for (int64_t i = 0; i < a.free && i < num_blocks_; ++i) {
    const int32_t b = stack_[i];
    if (!is_block(b) || blocks_[b].state != kFree) {
      fail("the free list holds a block that is not free", b);
    } else if (on_list[static_cast<size_t>(b)]) {
      fail("the free list holds a block twice", b);
    } else {
      on_list[static_cast<size_t>(b)] = true;
    }
  }
  if (a.free + a.used + a.cached != a.total) fail("free + used + cached != total", -1);
  if (a.free != a.counted_free) fail("free blocks are missing from the free list", -1);
  if (a.used + a.cached != a.counted_held + a.counted_trie) fail("used + cached != held + in trie", -1);
  return a;
}

}  // namespace prelude
