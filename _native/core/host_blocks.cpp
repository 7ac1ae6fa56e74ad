// Bodies of host_blocks.hpp, which has the drawing, the invariants and the contracts.
#include "prelude/host_blocks.hpp"

#include <new>
#include <utility>

namespace prelude {

void HostBlocks::leaves(const int32_t* nodes, int32_t count) noexcept {
  for (int32_t k = 0; k < count; ++k) {
    const int32_t i = nodes[k];
    const NodeId kept = std::exchange(of_block_[static_cast<size_t>(i)], kNoNode);
    if (host_.index_of(kept) != kNil) {
      if (trie_.is_protected(i)) host_.touch(kept);
    } else if (trie_.depth_of(i) <= size()) {  // else a parent is kept when its turn comes
      try {
        keep(i);
      } catch (const std::bad_alloc&) {  // dropped, as without host memory
      }
    }
  }
}

// The path of node i, of which the host lacks the end.
void HostBlocks::keep(int32_t i) {
  const auto depth = static_cast<size_t>(trie_.depth_of(i));
  const auto size = static_cast<size_t>(trie_.block_size());
  // All memory before anything changes.
  nodes_.resize(depth), tokens_.resize(depth * size), fresh_.resize(depth), path_.resize(depth);
  out_blocks_.reserve(out_blocks_.size() + depth), out_entries_.reserve(out_entries_.size() + depth);
  int32_t at = i;
  for (size_t d = depth; d-- > 0; at = trie_.parent_of(at)) {
    nodes_[d] = at;
    trie_.tokens_of(at, &tokens_[d * size]);
  }
  const uint64_t salt = trie_.salt_of(i);
  const auto n = static_cast<int64_t>(depth * size);
  const TrieMatch there = host_.match(tokens_.data(), n, salt, -1, false);
  const auto known = static_cast<size_t>(there.blocks);
  path_of(there.node);
  if (known < depth) {
    const auto lacking = static_cast<int64_t>(depth - known);
    host_.lock(there.node);
    const Result room = host_.allocate(lacking, fresh_.data());
    host_.unlock(there.node);
    if (!room.ok()) return;  // its entries are being read
    TrieInsert made;
    const Result r =
        host_.insert(tokens_.data(), n, fresh_.data(), lacking, salt, there.blocks, trie_.is_protected(i), &made);
    if (!r.ok() || made.taken != lacking) {
      entries_.release(fresh_.data() + made.taken, lacking - made.taken);
      return;
    }
    for (size_t d = known; d < depth; ++d) {
      path_[d] = fresh_[d - known];
      out_blocks_.push_back(nodes_[d]), out_entries_.push_back(path_[d]);
    }
  }
  bool hit = trie_.is_protected(i);  // as the whole path is then
  for (size_t d = depth - 1; d-- > 0;) {
    of_block_[static_cast<size_t>(nodes_[d])] = host_.node_at(path_[d]);
    if (!hit && trie_.is_protected(nodes_[d])) host_.touch(host_.node_at(path_[d])), hit = true;
  }
}

void HostBlocks::path_of(NodeId node) {
  const auto depth = static_cast<size_t>(host_.depth(node));
  if (path_.size() < depth) path_.resize(depth);
  host_.blocks(node, path_.data());
}

bool HostBlocks::copy_out() noexcept {
  if (out_blocks_.empty()) return true;
  const auto n = static_cast<int64_t>(out_blocks_.size());
  const bool made = copies_.out(copies_.owner, out_blocks_.data(), out_entries_.data(), n);
  out_blocks_.clear(), out_entries_.clear();
  if (made) {
    counters_.copied_out += n;
  } else {
    ++counters_.failed;
  }
  return made;
}

bool HostBlocks::fill(NodeId node, int64_t first, const int32_t* blocks, int64_t count) {
  path_of(node);
  if (!copy_out()) return false;
  if (!copies_.in(copies_.owner, path_.data() + first, blocks, count)) {
    ++counters_.failed;
    return false;
  }
  for (int64_t k = 0; k < count; ++k) {
    of_block_[static_cast<size_t>(blocks[k])] = host_.node_at(path_[static_cast<size_t>(first + k)]);
  }
  host_.touch(node);
  ++counters_.hits, counters_.copied_in += count;
  return true;
}

void HostBlocks::drop() noexcept {
  out_blocks_.clear(), out_entries_.clear();
  const int64_t evicted = num_evicted();
  host_.evict(INT32_MAX);
  dropped_ += num_evicted() - evicted;
}

}  // namespace prelude
