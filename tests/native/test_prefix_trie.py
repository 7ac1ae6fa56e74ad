"""Matches, salts, references and promises of the trie. ``test_trie_eviction.py``, ``test_trie_cost.py`` and
``test_trie_stateful.py`` have eviction, cost and combinations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from prelude._native import core

from tests.native.tries import BRANCHES, SHARED, ids, make, put


@pytest.mark.feature("E1")
@pytest.mark.parametrize("options", [{}, {"hash_bits": 0}], ids=["hashed", "colliding"])
def test_a_shared_prefix_is_stored_once(options: dict[str, int]) -> None:
    _, trie = make(**options)
    for branch in BRANCHES:
        put(trie, ids(*SHARED, *branch))
    assert trie.num_nodes == 10 + 2 + 2 + 4
    dump = trie.dump()
    assert sum(not n["children"] for n in dump) == 3
    assert [len(n["children"]) for n in dump if n["depth"] == 10] == [3]
    shared = [trie.match(ids(*SHARED, *b)).blocks[:10].tolist() for b in BRANCHES]
    assert shared[0] == shared[1] == shared[2]
    again = ids(*SHARED, *BRANCHES[0])
    made = trie.insert(again, trie.allocate(12))
    assert (made.num_taken, len(made.duplicates), trie.num_nodes) == (0, 12, 10 + 2 + 2 + 4)
    trie.audit()


@pytest.mark.feature("E2")
def test_a_path_that_grows_is_younger_than_the_others() -> None:
    _, trie = make()
    for tokens in (ids(1), ids(2)):
        trie.insert(tokens, trie.allocate(1))
    trie.insert(ids(1, 3), trie.allocate(1), 0, 1)
    trie.audit()
    assert trie.evict(1) == 1
    assert trie.match(ids(2)).num_blocks == 0 and trie.match(ids(1, 3)).num_blocks == 2


@pytest.mark.feature("B3")
def test_references_of_a_shared_prefix() -> None:
    pool, trie = make()
    put(trie, ids(1, 2))
    nodes = [trie.match(ids(1, 2)).node for _ in range(2)]
    for node in nodes:
        trie.lock(node)

    def references() -> list[int]:
        return [n["references"] for n in trie.dump()]

    assert references() == [2, 2]
    trie.unlock(nodes[0])
    assert references() == [1, 1] and pool.num_cached == 0
    trie.unlock(nodes[1])
    assert references() == [0, 0] and pool.num_cached == 2
    with pytest.raises(core.NodeError, match="not locked"):
        trie.unlock(nodes[1])


@pytest.mark.feature("B1")
def test_the_dump_has_every_field() -> None:
    _, trie = make(8, 2)
    node = put(trie, ids(1, 2, 3, 4), salt=9).node
    first, second = trie.dump()
    assert (first["parent"], second["parent"], first["children"]) == (-1, first["node"], [node])
    assert (second["tokens"].tolist(), second["salt"], second["depth"]) == ([3, 4], 9, 2)
    assert (second["references"], second["locks"], second["state"]) == (0, 0, "ready")
    assert (second["rank"], first["rank"], second["protected"]) == (0, 1, False)
    assert second["block"] == trie.blocks(node)[-1]


@pytest.mark.feature("E11")
def test_only_full_blocks_are_shared() -> None:
    _, trie = make(8, 4)
    trie.insert(np.arange(11, dtype=np.int32), trie.allocate(2))
    assert trie.match(np.arange(11, dtype=np.int32)).num_tokens == 8
    assert trie.match(np.arange(7, dtype=np.int32)).num_tokens == 4
    assert trie.match(np.arange(3, dtype=np.int32)).node == -1
    with pytest.raises(ValueError):
        trie.insert(np.arange(11, dtype=np.int32), trie.allocate(3))


@pytest.mark.feature("B4")
@pytest.mark.feature("B5")
def test_the_match_can_be_capped() -> None:
    _, trie = make(8, 4)
    tokens = np.arange(16, dtype=np.int32)
    put(trie, tokens)
    assert trie.match(tokens).num_tokens == 16
    capped = trie.match(tokens, max_blocks=(16 - 1) // 4)
    assert capped.num_tokens == 12 and trie.blocks(capped.node).tolist() == trie.match(tokens).blocks[:3].tolist()


@pytest.mark.fault(64)
@pytest.mark.feature("E11")
@pytest.mark.parametrize("size", [1, 3, 16])
def test_a_constant_hash_changes_no_answer(size: int) -> None:
    """Keys that all collide: the comparison of tokens decides, so no prompt gets another prompt's blocks."""
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 3, 4 * size).astype(np.int32) for _ in range(30)]
    _, hashed = make(512, size)
    _, colliding = make(512, size, hash_bits=0)
    for trie in (hashed, colliding):
        for p in prompts:
            put(trie, p)
    seen: dict[bytes, int] = {}
    for p in prompts:
        match = colliding.match(p)
        assert match.num_blocks == hashed.match(p).num_blocks == 4
        for k, block in enumerate(match.blocks.tolist(), 1):
            assert seen.setdefault(p[: k * size].tobytes(), block) == block
        assert colliding.would_hit(p) == 4
    assert len(set(seen.values())) == len(seen)  # equal prefix, equal block, and the reverse
    assert colliding.stats()["collisions"] > 0
    colliding.audit()


@pytest.mark.fault(65)
@pytest.mark.parametrize("options", [{}, {"hash_bits": 0}], ids=["hashed", "colliding"])
def test_salts_never_meet(options: dict[str, int]) -> None:
    _, trie = make(16, 2, **options)
    tokens = ids(1, 2, 3, 4)
    put(trie, tokens, salt=1)
    assert trie.match(tokens, 2).num_blocks == trie.match(tokens).num_blocks == 0
    assert trie.would_hit(tokens, 2) == 0
    put(trie, tokens, salt=2**64 - 1)
    a, b = trie.match(tokens, 1).blocks, trie.match(tokens, 2**64 - 1).blocks
    assert not set(a.tolist()) & set(b.tolist())
    trie.audit()


@pytest.mark.feature("E14")
def test_a_finished_request_leaves_nothing_that_is_freed_twice() -> None:
    pool, trie = make(4, 2)
    a = trie.insert(ids(1, 2, 3, 4), trie.allocate(2))  # A finishes: its blocks are the trie's now
    b = trie.match(ids(1, 2, 3, 4, 5, 6))  # B starts on the same prefix
    trie.lock(b.node)
    assert b.node == a.node
    many = trie.allocate(2)  # C wants many blocks
    with pytest.raises(core.OutOfBlocks):
        trie.allocate(1)
    assert not set(many.tolist()) & set(b.blocks.tolist())
    assert pool.num_used == 4


@pytest.mark.feature("E10")
def test_the_first_pays_and_the_next_ninety_nine_benefit() -> None:
    _, trie = make(1024, 16)
    prefix = np.arange(160, dtype=np.int32)
    computed = 0
    for i in range(100):
        prompt = np.concatenate([prefix, np.full(32, 1000 + i, np.int32)])
        computed += 16 * put(trie, prompt).num_taken
    assert computed == 160 + 100 * 32


def test_duplicates_stay_with_the_caller() -> None:
    pool, trie = make()
    first = trie.insert(ids(1, 2), trie.allocate(2))
    again = trie.allocate(3)
    made = trie.insert(ids(1, 2, 3), again)
    assert made.num_taken == 1 and made.duplicates.tolist() == again[:2].tolist()
    assert trie.blocks(made.node).tolist()[:2] == trie.blocks(first.node).tolist()
    pool.release(made.duplicates)
    lost = trie.allocate(1)
    gone = trie.insert(ids(7, 8), lost, first_block=1)  # the path to attach to is not there
    assert (gone.node, gone.num_taken, len(gone.duplicates)) == (-1, 0, 0)
    pool.release(lost)
    assert (pool.num_used, pool.num_cached) == (0, 3)
    trie.audit()


@pytest.mark.feature("E4")
def test_ids_of_evicted_nodes_are_detected() -> None:
    _, trie = make(1)
    old: list[int] = []
    for token in range(1000):
        node = put(trie, ids(token)).node
        for stale in old:
            with pytest.raises(core.StaleNode):
                trie.lock(stale)
        old = [*old[-3:], node]
    assert trie.num_nodes == 1
    for wrong in (-2, 1, 2**31 - 1):
        with pytest.raises(core.StaleNode):
            trie.blocks(wrong)


def test_a_promise_is_seen_but_not_used() -> None:
    pool, trie = make()
    put(trie, ids(1))
    blocks = trie.allocate(2)
    node = trie.promise(ids(1, 2, 3), blocks, first_block=1)
    match = trie.match(ids(1, 2, 3, 4))
    assert (match.num_blocks, match.promised) == (1, 2)
    assert trie.would_hit(ids(1, 2, 3)) == 1
    assert pool.num_used == 3 and trie.evict(9) == 0  # nor can it be evicted
    # A second leader gets no promise, and neither does a request that computed the same for itself.
    assert trie.promise(ids(1, 2), trie.allocate(1), first_block=1) == -1
    mine = trie.insert(ids(1, 2, 9), trie.allocate(2), first_block=1)
    assert (mine.num_taken, len(mine.duplicates)) == (0, 0)
    trie.fulfil(node, 2)
    assert trie.match(ids(1, 2, 3)).num_blocks == 2
    trie.fulfil(node)
    match = trie.match(ids(1, 2, 3))
    assert (match.promised, match.node) == (0, node)
    assert match.blocks[1:].tolist() == blocks.tolist()
    trie.unlock(node)
    assert trie.evict(9) == 3
    trie.audit()


def test_a_broken_promise_leaves_nothing() -> None:
    pool, trie = make()
    put(trie, ids(1))
    node = trie.promise(ids(1, 2, 3), trie.allocate(2), first_block=1)
    assert trie.break_promise(node) == 2
    assert trie.match(ids(1, 2, 3)).promised == 0
    assert (pool.num_free, pool.num_cached) == (63, 1)
    with pytest.raises(core.StaleNode):
        trie.fulfil(node)
    assert trie.promise(ids(1, 2, 3), trie.allocate(2), first_block=1) >= 0  # a peer becomes leader
    trie.audit()


def test_an_audit_says_all_counts() -> None:
    error = core.AuditError("free + used + cached != total", {"free": 1, "total": 3})
    assert error.counts == {"free": 1, "total": 3} and "free=1" in str(error)


@pytest.mark.feature("E5")
def test_a_node_says_its_tokens_its_block_its_children_and_how_cold_it_is() -> None:
    _, trie = make()
    put(trie, ids(1, 2, 3))
    put(trie, ids(1, 2, 4))
    trie.match(ids(1, 2, 3))
    by_path: dict[tuple[int, ...], dict[str, Any]] = {}
    nodes = {node["node"]: node for node in trie.dump()}
    for node in nodes.values():
        path, at = [], node
        while at is not None:
            path[:0] = at["tokens"].tolist()
            at = nodes.get(at["parent"])
        by_path[tuple(path)] = node
    assert set(by_path) == {(1,), (1, 2), (1, 2, 3), (1, 2, 4)}
    assert len({node["block"] for node in nodes.values()}) == 4
    last = by_path[1, 2]
    assert sorted(last["children"]) == sorted(by_path[path]["node"] for path in ((1, 2, 3), (1, 2, 4)))
    assert [by_path[path]["depth"] for path in ((1,), (1, 2), (1, 2, 3))] == [1, 2, 3]
    assert by_path[1, 2, 4]["rank"] < by_path[1, 2, 3]["rank"], "the one that was read later goes later"
    hit = trie.match(ids(1, 2, 3))
    assert hit.blocks.tolist() == [by_path[path]["block"] for path in ((1,), (1, 2), (1, 2, 3))]
