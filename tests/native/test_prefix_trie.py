"""The trie, mechanism by mechanism; test_trie_stateful.py has the combinations."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
from prelude._native import core


def ids(*tokens: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.array(tokens, np.int32)


def make(num_blocks: int = 64, size: int = 1, **options: Any) -> tuple[core.BlockAllocator, core.PrefixTrie]:
    pool = core.BlockAllocator(num_blocks, size)
    return pool, core.PrefixTrie(pool, seed=1, **options)


def put(trie: core.PrefixTrie, tokens: Any, salt: int = 0) -> core.Inserted:
    """Computes what the trie lacks of ``tokens`` and inserts it, as a finished prefill does."""
    have = trie.match(tokens, salt, touch=False)
    need = len(tokens) // trie.alloc.block_size - have.num_blocks
    trie.lock(have.node)
    made = trie.insert(tokens, trie.allocate(need), salt, have.num_blocks)
    trie.unlock(have.node)
    assert made.num_taken == need and not len(made.duplicates)
    return made


SHARED = list(range(1, 11))
BRANCHES = ([20, 21], [30, 31], [40, 41, 42, 43])


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
    trie.audit()


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
def test_probation_goes_before_what_was_hit() -> None:
    _, trie = make(8)
    put(trie, ids(1, 2))
    trie.match(ids(1, 2))
    for unique in range(10, 20):  # unique traffic, each larger than what is free
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


@pytest.mark.feature("B3")
def test_references_of_a_shared_prefix() -> None:
    pool, trie = make()
    put(trie, ids(1, 2))
    nodes = [trie.match(ids(1, 2)).node for _ in range(2)]
    trie.lock_batch(nodes)

    def references() -> list[int]:
        return [n["references"] for n in trie.dump()]

    assert references() == [2, 2]
    trie.unlock(nodes[0])
    assert references() == [1, 1] and pool.num_cached == 0
    trie.unlock(nodes[1])
    assert references() == [0, 0] and pool.num_cached == 2
    with pytest.raises(core.NodeError, match="not locked"):
        trie.unlock(nodes[1])
    with pytest.raises(core.NodeError):
        trie.unlock_batch(nodes)


def test_locking_a_batch_is_all_or_nothing() -> None:
    pool, trie = make()
    node = put(trie, ids(1, 2)).node
    with pytest.raises(core.StaleNode):
        trie.lock_batch([node, -1, 63])
    assert pool.num_used == 0
    trie.lock_batch([node, -1, node])
    trie.unlock_batch([node, node])
    assert pool.num_used == 0


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
    """Keys that all collide: the comparison of tokens decides, so nobody gets another prompt's blocks."""
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
    # A second leader is told, and so is who computed the same for itself.
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


def test_batches_agree_with_single_calls() -> None:
    rng = np.random.default_rng(3)
    prompts = [rng.integers(0, 2, n).astype(np.int32) for n in rng.integers(0, 30, 40)]
    tokens = np.concatenate(prompts)
    indptr = np.cumsum([0, *map(len, prompts)]).astype(np.int32)
    salts = rng.integers(0, 2, 40).astype(np.uint64)
    pool, trie = make(2000, 3)
    full = [len(p) // 3 for p in prompts]
    blocks = trie.allocate(sum(full))
    block_indptr = np.cumsum([0, *full]).astype(np.int32)
    _, there, taken = trie.insert_batch(tokens, indptr, blocks, block_indptr, salts)
    assert (there + taken == full).all()
    for i in range(40):
        pool.release(blocks[block_indptr[i] :][: there[i]])
    trie.audit()
    assert pool.num_used == 0
    got = trie.match_batch(tokens, indptr, salts, 5)
    for i, p in enumerate(prompts):
        match = trie.match(p, int(salts[i]), 5)
        assert (match.node, match.num_blocks, match.promised) == tuple(int(a[i]) for a in got)
    paths, ends = trie.blocks_batch(got[0])
    for i in range(40):
        assert paths[ends[i] : ends[i + 1]].tolist() == trie.blocks(int(got[0][i])).tolist()
    for bad in ([0, 5, 3], [1, 2], [0, len(tokens) + 1], []):
        with pytest.raises(ValueError):
            trie.match_batch(tokens, np.array(bad, np.int32))
    with pytest.raises(ValueError, match="salts"):
        trie.match_batch(tokens, indptr, salts[:3])


@pytest.mark.feature("E3")
def test_a_lookup_is_linear() -> None:
    """Blocks found per block asked, at any length, and no collision makes it more."""
    for tokens in (1024, 65536):
        _, trie = make(8192, 16)
        prompt = np.arange(tokens, dtype=np.int32)
        put(trie, prompt)
        before = trie.stats()
        trie.match(prompt)
        after = trie.stats()
        assert after["hit"] - before["hit"] == after["looked_up"] - before["looked_up"] == tokens // 16
        assert after["collisions"] <= tokens // 1024


@pytest.mark.feature("E6")
def test_the_vocabulary_costs_nothing() -> None:
    _, trie = make(100, 1)
    for token in range(-50, 2**31 - 1, 2**25):
        put(trie, ids(token))
    assert trie.num_nodes == 65
    trie.audit()


def test_readers_do_not_stop_the_writer() -> None:
    """Answers from other threads while blocks come and go: never more than a prompt has, never an error."""
    _, trie = make(512, 16)
    prompts = [np.random.default_rng(i).integers(0, 9, 4096).astype(np.int32) for i in range(6)]
    kept = np.arange(1024, dtype=np.int32)
    trie.lock(put(trie, kept).node)
    stop = threading.Event()
    wrong: list[Any] = []

    def read() -> None:
        while not stop.is_set():
            if trie.would_hit(kept) != 64 or not all(0 <= trie.would_hit(p) <= 256 for p in prompts):
                wrong.append("a locked prefix was missed")
            trie.stats()

    readers = [threading.Thread(target=read) for _ in range(2)]
    for r in readers:
        r.start()
    for i in range(100):
        put(trie, prompts[i % 6][: 2048 + 16 * i])
        trie.evict(50)
    stop.set()
    for r in readers:
        r.join()
    assert not wrong
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


@pytest.mark.feature("E7")
@pytest.mark.feature("E9")
def test_a_hit_on_what_was_hit_before_makes_it_the_youngest_again() -> None:
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


@pytest.mark.feature("E4")
@pytest.mark.feature("D7")
@pytest.mark.fault(66)
def test_a_million_operations_leave_no_dangling_id_and_bounded_memory() -> None:
    """Blocks looked up, inserted and evicted at random: stale ids are refused, locked paths keep their blocks."""
    rng = np.random.default_rng(66)
    pool, trie = make(512, 4)
    locked: list[tuple[int, Any, list[int]]] = []
    seen: dict[int, None] = {}
    turn = refused = 0
    while True:
        turn += 1
        tokens = rng.integers(0, 5, 48).astype(np.int32)
        seen[int(put(trie, tokens).node)] = None
        if turn % 8 == 0:
            match = trie.match(tokens)
            trie.lock(match.node)
            locked.append((match.node, tokens, match.blocks.tolist()))
        if len(locked) > 12:
            trie.unlock(locked.pop(int(rng.integers(0, len(locked))))[0])
        if turn % 97:
            continue
        for node, path, blocks in locked:
            assert trie.match(path, touch=False).blocks.tolist() == blocks == trie.blocks(node).tolist()
        living = {int(node["node"]) for node in trie.dump()}
        for node in seen.keys() - living:
            refused += 1
            with pytest.raises(core.StaleNode):
                trie.lock(node)
        assert len(living) == trie.num_nodes <= pool.num_blocks
        seen = dict.fromkeys(list(seen)[-64:])
        stats = trie.stats()
        if stats["looked_up"] + stats["inserted"] + stats["evicted"] >= 1_000_000:
            break
    assert refused > 1000
    trie.audit()
    for node, _, _ in locked:
        trie.unlock(node)
    trie.clear()
    assert (pool.num_free, trie.num_nodes) == (pool.num_blocks, 0)


@pytest.mark.feature("E6")
def test_memory_of_a_node_is_bounded_whatever_the_vocabulary() -> None:
    """Bytes a node, measured: the same for children of few and of a great many different tokens."""
    code = (
        "import sys, numpy as np\n"
        "from prelude._native import core\n"
        "def rss(): return int(open('/proc/self/statm').read().split()[1]) * 4096\n"
        "spread = int(sys.argv[1]); before = rss()\n"
        "pool = core.BlockAllocator(200_000, 1); trie = core.PrefixTrie(pool)\n"
        "for i in range(200_000): trie.insert(np.array([i * spread], np.int32), trie.allocate(1))\n"
        "assert trie.num_nodes == 200_000; print((rss() - before) // 200_000)\n"
    )
    if not os.path.exists("/proc/self/statm"):
        pytest.skip("resident memory is read from /proc")
    dense, sparse = (
        int(subprocess.run([sys.executable, "-c", code, spread], capture_output=True, text=True, check=True).stdout)
        for spread in ("1", "10000")
    )
    assert dense < 400 and abs(dense - sparse) <= 0.2 * dense, (dense, sparse)
