"""The order of eviction: leaves, coldest first, probation before hits, never a lock."""

from __future__ import annotations

import pytest
from prelude._native import core

from tests.native.tries import BRANCHES, SHARED, ids, make, put


@pytest.mark.feature("E8")
def test_only_leaves_are_evicted_the_coldest_first() -> None:
    pool, trie = make(hash_bits=0)
    put(trie, ids(*SHARED, 20, 21, 22))
    put(trie, ids(*SHARED, 30, 31))
    put(trie, ids(*SHARED, 40, 41, 42, 43))
    trie.match(ids(*SHARED, 30, 31))
    trie.match(ids(*SHARED, 40, 41, 42, 43))
    assert trie.evict(3) == 3
    assert trie.match(ids(*SHARED, 20, 21, 22), touch=False).num_blocks == 10
    assert trie.match(ids(*SHARED, 30, 31), touch=False).num_blocks == 12
    assert pool.num_free == 64 - 16
    # Once its children are gone, an inner node is a leaf like any other.
    assert trie.evict(99) == 16 and trie.num_nodes == 0
    trie.audit()


@pytest.mark.feature("E7")
def test_a_match_makes_its_whole_path_the_youngest() -> None:
    _, trie = make()
    for branch in BRANCHES:
        put(trie, ids(*SHARED, *branch))
    path = trie.match(ids(*SHARED, *BRANCHES[0]))
    rank = {n["block"]: n["rank"] for n in trie.dump()}
    assert sorted(rank, key=lambda b: -rank[b])[:12] == path.blocks.tolist()  # the root the youngest


@pytest.mark.feature("E9")
def test_blocks_on_probation_go_before_those_that_were_hit() -> None:
    _, trie = make(8)
    put(trie, ids(1, 2))
    trie.match(ids(1, 2))
    for unique in range(10, 20):  # unique traffic, each larger than the free part
        put(trie, ids(unique, unique, unique, unique))
    assert trie.match(ids(1, 2)).num_blocks == 2
    assert trie.stats()["evicted_protected"] == 0


@pytest.mark.feature("E9")
def test_sparing_the_protected() -> None:
    pool, trie = make(4)
    put(trie, ids(1, 2))
    trie.match(ids(1, 2))
    put(trie, ids(3))
    with pytest.raises(core.OutOfBlocks) as error:
        trie.allocate(3, spare_protected=True)
    assert (error.value.available, trie.num_nodes) == (2, 3)
    assert len(trie.allocate(2, spare_protected=True)) == 2
    assert len(trie.allocate(2)) == 2
    assert (trie.num_nodes, pool.num_used) == (0, 4)


@pytest.mark.feature("E9")
def test_promoted_on_insert_takes_its_ancestors_along() -> None:
    _, trie = make(8)
    put(trie, ids(1, 2))
    trie.insert(ids(1, 2, 3), trie.allocate(1), 0, 2, promoted=True)
    assert all(n["protected"] for n in trie.dump())
    trie.audit()


@pytest.mark.feature("D3")
def test_a_full_pool_of_cached_leaves_admits() -> None:
    pool, trie = make(4)
    put(trie, ids(1, 2, 3, 4))
    assert (pool.num_free, pool.num_cached) == (0, 4)
    assert len(trie.allocate(3)) == 3
    assert trie.match(ids(1, 2, 3, 4)).num_blocks == 1
    with pytest.raises(core.OutOfBlocks):
        pool.allocate(1)  # the pool alone evicts nothing


@pytest.mark.feature("D7")
@pytest.mark.fault(66)
def test_nothing_locked_is_evicted() -> None:
    pool, trie = make(8)
    put(trie, ids(1, 2, 3))
    put(trie, ids(1, 2, 4, 5))
    held = trie.match(ids(1, 2, 4))
    trie.lock(held.node)
    assert (pool.num_used, pool.num_cached) == (3, 2)
    with pytest.raises(core.OutOfBlocks) as error:
        trie.allocate(6)
    assert error.value.available == 5 and trie.num_nodes == 5
    assert trie.evict(99) == 2 and trie.clear() == 0
    assert trie.match(ids(1, 2, 4)).blocks.tolist() == held.blocks.tolist()
    trie.unlock(held.node)
    assert trie.evict(99) == 3
    with pytest.raises(core.StaleNode):
        trie.unlock(held.node)
    with pytest.raises(core.StaleNode):
        held.blocks.tolist()


@pytest.mark.feature("E7")
@pytest.mark.feature("E9")
def test_a_second_hit_on_a_block_makes_it_the_youngest_again() -> None:
    """The order among protected nodes is that of the last hit, not of the first."""
    _, trie = make(8)
    for token in (1, 2, 3):
        put(trie, ids(token))
        trie.match(ids(token))  # the first hit
    trie.match(ids(1))  # the second, of the one that was hit first
    ranks = {int(node["tokens"][0]): node["rank"] for node in trie.dump()}
    assert sorted(ranks, key=ranks.__getitem__) == [2, 3, 1]
    assert trie.evict(1) == 1 and trie.match(ids(2), touch=False).num_blocks == 0
    assert trie.match(ids(1), touch=False).num_blocks == 1


@pytest.mark.feature("E7")
@pytest.mark.feature("E8")
def test_every_node_of_a_path_that_is_hit_again_is_younger_than_all_others() -> None:
    _, trie = make(16)
    for path in ((1, 2, 3), (4, 5), (6,)):
        put(trie, ids(*path))
        trie.match(ids(*path))
    trie.match(ids(1, 2, 3))
    ranks = {int(node["tokens"][0]): node["rank"] for node in trie.dump()}
    assert min(ranks[token] for token in (1, 2, 3)) > max(ranks[token] for token in (4, 5, 6))
    freed = []
    while trie.num_nodes:  # leaves only, the coldest first; inner nodes once they are leaves
        before = {int(node["tokens"][0]) for node in trie.dump()}
        assert trie.evict(1) == 1
        freed += before - {int(node["tokens"][0]) for node in trie.dump()}
    assert freed == [5, 4, 6, 3, 2, 1]
