"""Edits of the native core: the pool of blocks, the prefix trie, hashes and the packer."""

# ruff: noqa: E501 - the source is quoted as it is

from __future__ import annotations

from tests.mutations.edit import edit

ALLOCATOR = "_native/include/prelude/block_allocator.hpp"
TRIE = "_native/core/prefix_trie.cpp"
TRIE_CLASS = "_native/include/prelude/prefix_trie.hpp"
AUDIT = "_native/core/prefix_trie_audit.cpp"
PACKER = "_native/core/packer.cpp"
POOL = "_native/core/kv_pool.cpp"
HOST = "_native/core/host_blocks.cpp"

EDITS = (
    edit(
        "freed_blocks_are_handed_out_backwards",
        "D1",
        (
            ALLOCATOR,
            "  for (int64_t i = n; i-- > 0;) {  // backwards",
            "  for (int64_t i = 0; i < n; ++i) {  // backwards",
        ),
    ),
    edit(
        "the_last_block_is_never_given", "55", (ALLOCATOR, "  if (n > top) return", "  if (n >= top && n > 0) return")
    ),
    edit(
        "cached_blocks_are_no_room",
        "D3",
        (
            TRIE_CLASS,
            "      if (n > available) return {Status::out_of_blocks, available};\n",
            "      if (n > free) return {Status::out_of_blocks, available};\n",
        ),
    ),
    edit(
        "blocks_come_a_block_early",
        "D1 D4",
        (
            "prelude/scheduling/planner.py",
            "    return pool.grow(lease, -(-tokens // pool.block_size) - lease.num_blocks)",
            "    return pool.grow(lease, -(-tokens // pool.block_size) + 1 - lease.num_blocks)",
        ),
    ),
    edit(
        "a_lock_covers_nothing",
        "D7 66 Q18",
        (TRIE_CLASS, "    ++nodes_[i].own_locks;\n    cover(i);\n", "    ++nodes_[i].own_locks;\n"),
        (TRIE_CLASS, "    --nodes_[i].own_locks;\n    uncover(i);\n", "    --nodes_[i].own_locks;\n"),
    ),
    edit(
        "prefixes_are_stored_for_each_prompt",
        "E1",
        (
            TRIE,
            "  Walk w = walk(tokens, first + count, salt);\n  const int64_t there",
            "  Walk w = walk(tokens, first, salt);\n  const int64_t there",
        ),
    ),
    edit(
        "what_was_inserted_keeps_its_age",
        "E2",
        (TRIE, "  } else if (extends) {\n    refresh(w.tail);\n  }", "  }"),
    ),
    edit(
        "few_bits_of_a_hash_are_kept",
        "E3",
        (
            TRIE_CLASS,
            "static_cast<uint32_t>((chain >> 32) & hash_keep_)",
            "static_cast<uint32_t>((chain >> 32) & hash_keep_ & 15)",
        ),
    ),
    edit(
        "ids_of_evicted_nodes_are_taken",
        "E4",
        (
            TRIE_CLASS,
            "state(i) == NodeState::absent || id_of(i) != node) return kNil;",
            "state(i) == NodeState::absent) return kNil;",
        ),
    ),
    edit(
        "every_node_is_a_first_block",
        "B1 E5",
        (AUDIT, "    rows.push_back({id_of(i), id_of(up(i)), i,", "    rows.push_back({id_of(i), kNoNode, i,"),
    ),
    edit(
        "a_node_has_room_for_many_children",
        "E6",
        (
            "_native/include/prelude/trie_nodes.hpp",
            "  bool displaced;  // its entry is not the one its run has for it\n};\nstatic_assert(sizeof(Node) == 32);\n",
            "  bool displaced;  // its entry is not the one its run has for it\n  int32_t children[128];\n};\n",
        ),
    ),
    edit("hashes_decide", "E11 64", (TRIE_CLASS, " && same_tokens(i, tokens);\n  }\n  NodeKey", ";\n  }\n  NodeKey")),
    edit("salts_meet", "65", (TRIE_CLASS, "(parent != kNil || salts_[i] == salt) && ", "")),
    edit(
        "a_reader_holds_nothing",
        "E14",
        (
            POOL,
            "  Result r = trie_.lock(node);\n  if (r.ok()) r = trie_.blocks",
            "  Result r;\n  if (r.ok()) r = trie_.blocks",
        ),
        (
            POOL,
            "  if (r.ok()) r = trie_.unlock(lease.node);\n  return r.ok() ? give_back",
            "  return r.ok() ? give_back",
        ),
    ),
    edit(
        "blocks_of_a_path_come_backwards",
        "Q12 D5",
        (
            TRIE_CLASS,
            "    int32_t left = nodes_[i].depth;\n    for (int32_t at = i; at != kNil; at = up(at)) out[--left] = at;",
            "    int32_t next = 0;\n    for (int32_t at = i; at != kNil; at = up(at)) out[next++] = at;",
        ),
    ),
    edit(
        "a_running_text_reads_the_token_before",
        "C6",
        (
            PACKER,
            "    out.token_ids[i] = r.tokens[position];",
            "    out.token_ids[i] = r.tokens[position > 0 ? position - 1 : 0];",
        ),
    ),
    edit(
        "a_step_with_a_fold_computes_it_for_each",
        "B6",
        (
            POOL,
            "    const int32_t borrowed = std::min(lease.ahead, leader.lease->promised);",
            "    const int32_t borrowed = 0;",
        ),
    ),
    edit(
        "blocks_are_taken_for_tokens_to_come",
        "N9",
        (
            "prelude/scheduling/planner.py",
            "    if not _grow_to(pool, request.held, request.cached_len + count):",
            "    if not _grow_to(pool, request.held, request.cached_len + count + 50):",
        ),
    ),
    # ---- blocks in host memory
    edit(
        "blocks_come_back_without_their_content",
        "G10 E12",
        (
            "prelude/execution/host_blocks.py",
            "            self._pool[:, :, block * size : (block + count) * size] = source\n",
            "            assert source is not None\n",
        ),
    ),
    edit(
        "failed_copies_count_as_made",
        "G10",
        (
            "prelude/runtime/assembly.py",
            "            return False\n        finally:",
            "            return True\n        finally:",
        ),
    ),
    edit(
        "blocks_in_host_memory_are_not_looked_for",
        "G10",
        (POOL, "    if (host_ != nullptr && match.promised == 0) {", "    if (host_ != nullptr && n < 0) {"),
    ),
    edit(
        "host_memory_knows_no_salts",
        "65",
        (HOST, "  const uint64_t salt = trie_.salt_of(i);\n", "  const uint64_t salt = 0;\n"),
        (POOL, "host_->find(tokens, n, salt, limit)", "host_->find(tokens, n, 0, limit)"),
        (POOL, "host_->find(tokens, n, salt, max_tokens / size_)", "host_->find(tokens, n, 0, max_tokens / size_)"),
    ),
)
