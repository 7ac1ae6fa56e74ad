// The status of a native call.
//
// Expected outcomes (too few blocks, a stale id, a double free) are values, never exceptions: a call that
// does not return Status::ok has changed nothing. The Cython layer turns them into typed Python errors.
#pragma once

#include <cstdint>

namespace prelude {

enum class Status : int32_t {
  ok = 0,
  out_of_blocks,   // free + evictable < needed; detail = available
  foreign_block,   // the id is outside the pool; detail = the id
  double_free,     // the block is free already; detail = the id
  block_in_trie,   // the block belongs to the trie: lock its node instead; detail = the id
  too_few_tokens,  // blocks are given for more tokens than there are; detail = tokens needed
  stale_node,      // the id names no node (any more); detail = the id
  not_locked,      // unlock without lock; detail = the id
  node_promised,   // the node is still being filled: fulfil or break it first; detail = the id
  not_promised,    // fulfil or break of a node that is ready; detail = the id
};

struct Result {
  Status status = Status::ok;
  int64_t detail = 0;
  bool ok() const { return status == Status::ok; }
};

// A Python wrapper lets go of the GIL where it expects more work than this. Getting the lock back beside a
// busy Python thread costs far more than a short call, so short calls keep it.
inline constexpr int64_t kReleaseGilNs = 10'000;
// The cost of a block of work in that estimate.
inline constexpr int64_t kBlockNs = 20;
constexpr bool worth_releasing_gil(int64_t blocks) { return blocks * kBlockNs > kReleaseGilNs; }

}  // namespace prelude
