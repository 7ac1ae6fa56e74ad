// Looking at all of the trie: audit() and dump(), for tests, idle moments and eyes.
#include <algorithm>

#include "prelude/prefix_trie.hpp"

namespace prelude {

// The place of every node in eviction order; -1 for those in no list.
std::vector<int64_t> PrefixTrie::ranks() const {
  std::vector<int64_t> rank(static_cast<size_t>(pool_.num_blocks()), -1);
  int64_t next_rank = 0;
  for (const LruList* list : {&probation_, &protected_}) {
    for (int32_t i = list->coldest(); i != kNil && next_rank < pool_.num_blocks(); i = nodes_[i].hotter) {
      rank[static_cast<size_t>(i)] = next_rank++;
    }
  }
  return rank;
}

// The lists: their links, their lengths, and that no node is in two.
void PrefixTrie::audit_lists(TrieAudit& a) const {
  std::vector<bool> seen(static_cast<size_t>(pool_.num_blocks()));
  for (const LruList* list : {&probation_, &protected_}) {
    int32_t before = kNil;
    int64_t length = 0;
    for (int32_t i = list->coldest(); i != kNil && length <= pool_.num_blocks(); i = nodes_[i].hotter, ++length) {
      if (nodes_[i].colder != before || !nodes_[i].listed) a.fail("a list's links disagree", i);
      if (nodes_[i].protect != (list == &protected_)) a.fail("a node is in the wrong list", i);
      if (seen[static_cast<size_t>(i)]) a.fail("a node is listed twice", i);
      seen[static_cast<size_t>(i)] = true;
      before = i;
    }
    if (before != list->hottest() || length != list->size()) a.fail("a list's end or length is wrong", before);
    a.listed += length;
  }
}

// One node and its parent.
void PrefixTrie::audit_node(int32_t i, const std::vector<int64_t>& rank, TrieAudit& a) const {
  const Node& n = nodes_[i];
  ++a.nodes;
  a.promised += state(i) == NodeState::promised;
  const int64_t mine = rank[static_cast<size_t>(i)];
  if ((mine >= 0) != (n.cover == 0) || (mine >= 0) != n.listed) a.fail("listed is not the same as not covered", i);
  if (state(i) == NodeState::promised && n.cover == 0) a.fail("a promised node is not covered", i);
  const int32_t p = up(i);
  if (p == kNil) {
    if (n.depth != 1) a.fail("a first block is not at depth 1", i);
    return;
  }
  if (!pool_.is_block(p) || state(p) == NodeState::absent) return a.fail("a node's parent is gone", i);
  if (nodes_[p].depth + 1 != n.depth) a.fail("a node is not one block longer than its parent", i);
  if (n.protect && !nodes_[p].protect) a.fail("a protected node has a parent on probation", i);
  if (state(p) == NodeState::promised && state(i) == NodeState::ready) a.fail("ready below promised", i);
  if (nodes_[p].cover == 0 && rank[static_cast<size_t>(p)] < mine) a.fail("a parent is colder than its child", i);
}

// The table: every node in it once, reachable from its home, and no two with one parent and equal tokens.
void PrefixTrie::audit_table(TrieAudit& a) const {
  std::vector<bool> found(static_cast<size_t>(pool_.num_blocks()));
  std::vector<uint32_t> passed(table_.size() / NodeTable::kRun);
  for (uint32_t at = 0; at < table_.size(); ++at) {
    const uint64_t entry = table_.load(at);
    if (entry == 0) continue;
    ++a.in_table;
    const int32_t i = NodeTable::index_of(entry);
    if (!pool_.is_block(i) || state(i) == NodeState::absent) {
      a.fail("the table holds a node that is gone", i);
      continue;
    }
    if (found[static_cast<size_t>(i)]) a.fail("the table holds a node twice", i);
    found[static_cast<size_t>(i)] = true;
    if (nodes_[i].entry != at) {
      a.fail("a node knows another entry than its own", i);
      continue;
    }
    const NodeKey known = key_of(i);
    if (nodes_[i].displaced == (table_.home(known) == at)) a.fail("displaced is not the same as not at home", i);
    if (nodes_[i].displaced) {
      table_.each_passed(known, at, [&](uint32_t line) { ++passed[line]; });
    }
    const auto* tokens = reinterpret_cast<const int32_t*>(&tokens_[static_cast<size_t>(i) * words_]);
    bool twin = false;
    const int32_t reached = table_.find(known, [&](int32_t other) {
      twin |= other != i && is_child(other, up(i), tokens, salts_[i]);
      return other == i;
    });
    if (reached != i) a.fail("a node cannot be reached", i);
    if (twin) a.fail("two children of one parent have the same tokens", i);
  }
  for (uint32_t l = 0; l < passed.size(); ++l) {
    const uint32_t counted = table_.overflow(l);
    if (counted != UINT8_MAX && counted != passed[l]) a.fail("a line counts other entries than had to go on", l);
  }
}

TrieAudit PrefixTrie::audit() const {
  TrieAudit a;
  a.pool = pool_.audit();
  if (a.pool.broken != nullptr) a.fail(a.pool.broken, a.pool.at);
  audit_lists(a);
  const std::vector<int64_t> rank = ranks();
  std::vector<uint32_t> covered_children(static_cast<size_t>(pool_.num_blocks()), 0);
  for (int32_t i = 0; i < pool_.num_blocks(); ++i) {
    const bool present = state(i) != NodeState::absent;
    if (present != pool_.in_trie(i)) a.fail("a node and its block disagree", i);
    if (!present) continue;
    audit_node(i, rank, a);
    if (up(i) != kNil && nodes_[i].cover != 0) ++covered_children[static_cast<size_t>(up(i))];
  }
  for (int32_t i = 0; i < pool_.num_blocks(); ++i) {
    if (state(i) == NodeState::absent) continue;
    if (nodes_[i].cover != nodes_[i].own_locks + covered_children[static_cast<size_t>(i)]) {
      a.fail("cover != own locks + covered children", i);
    }
  }
  audit_table(a);
  if (a.in_table != a.nodes || a.nodes != num_nodes()) a.fail("table, arena and counter disagree", -1);
  if (a.promised != num_promised()) a.fail("the counter of promised nodes is wrong", -1);
  if (a.listed != a.pool.cached) a.fail("listed nodes != cached blocks", -1);
  return a;
}

std::vector<TrieNodeView> PrefixTrie::dump() const {
  const std::vector<int64_t> rank = ranks();
  std::vector<TrieNodeView> rows;
  for (int32_t i = 0; i < pool_.num_blocks(); ++i) {
    if (state(i) == NodeState::absent) continue;
    const Node& n = nodes_[i];
    rows.push_back({id_of(i), id_of(up(i)), i, n.depth, state(i) == NodeState::promised, n.protect, n.own_locks,
                    rank[static_cast<size_t>(i)], salt_of(i)});
  }
  std::stable_sort(rows.begin(), rows.end(),
                   [](const TrieNodeView& a, const TrieNodeView& b) { return a.depth < b.depth; });
  return rows;
}

}  // namespace prelude
