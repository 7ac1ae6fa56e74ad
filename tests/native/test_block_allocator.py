"""The pool: conservation, atomic failure, ids that are not the caller's."""

from __future__ import annotations

import numpy as np
import pytest
from prelude._native import core


def counts(pool: core.BlockAllocator) -> tuple[int, int, int]:
    return pool.num_free, pool.num_used, pool.num_cached


@pytest.mark.feature("D2")
def test_allocate_and_release() -> None:
    pool = core.BlockAllocator(4, 16)
    assert (pool.num_blocks, pool.block_size, counts(pool)) == (4, 16, (4, 0, 0))
    got = pool.allocate(3)
    assert got.dtype == np.int32 and len(set(got.tolist())) == 3
    assert counts(pool) == (1, 3, 0)
    pool.release(got[:2])
    assert counts(pool) == (3, 1, 0)
    pool.audit()


@pytest.mark.feature("D2")
def test_failure_changes_nothing() -> None:
    pool = core.BlockAllocator(4)
    held = pool.allocate(3)
    with pytest.raises(core.OutOfBlocks) as error:
        pool.allocate(2)
    assert (error.value.needed, error.value.available) == (2, 1)
    assert counts(pool) == (1, 3, 0)
    # A list with one bad id releases none of the good ones.
    for bad in (held[0], 4, -1, int(next(b for b in range(4) if b not in held))):
        with pytest.raises(core.BlockError):
            pool.release(np.array([*held, bad], np.int32))
        with pytest.raises(core.BlockError):
            pool.retain(np.array([*held, bad] if bad != held[0] else [99], np.int32))
        assert counts(pool) == (1, 3, 0)
        assert [pool.references(b) for b in held] == [1, 1, 1]
    pool.audit()


@pytest.mark.feature("D2")
def test_double_free_and_foreign_ids() -> None:
    pool = core.BlockAllocator(4)
    (block,) = pool.allocate(1).tolist()
    pool.release([block])
    with pytest.raises(core.DoubleFree) as error:
        pool.release([block])
    assert error.value.block == block
    for foreign in (4, -1, 2**31 - 1):
        with pytest.raises(core.ForeignBlock):
            pool.release([foreign])
        with pytest.raises(core.ForeignBlock):
            pool.references(foreign)


@pytest.mark.feature("D2")
def test_a_generation_tells_a_late_release() -> None:
    pool = core.BlockAllocator(1)
    first = pool.allocate(1)
    seen = pool.generations(first)
    pool.release(first, seen)
    again = pool.allocate(1)  # the same id, another owner
    assert again.tolist() == first.tolist()
    with pytest.raises(core.DoubleFree):
        pool.release(first, seen)
    pool.release(again, pool.generations(again))


@pytest.mark.feature("D2")
def test_references_are_counted() -> None:
    pool = core.BlockAllocator(2)
    block = pool.allocate(1)
    pool.retain(block)
    assert pool.references(block[0]) == 2
    pool.release(block)
    assert counts(pool) == (1, 1, 0)
    pool.retain(block)
    pool.release(np.repeat(block, 2))  # both at once
    assert counts(pool) == (2, 0, 0)
    with pytest.raises(core.DoubleFree):
        pool.retain(block)


@pytest.mark.feature("D1")
def test_the_last_block_freed_is_handed_out_first() -> None:
    """Its bookkeeping is in the cache: a short-lived request touches no cold memory, however large the pool."""
    pool = core.BlockAllocator(1 << 20)
    first = pool.allocate(32)
    for _ in range(5):
        pool.release(first)
        assert pool.allocate(32).tolist() == first.tolist()


@pytest.mark.fault(55)
def test_a_pool_of_one_block_of_one_token() -> None:
    pool = core.BlockAllocator(1, 1)
    trie = core.PrefixTrie(pool)
    block = trie.allocate(1)
    node = trie.insert(np.array([5], np.int32), block).node
    assert counts(pool) == (0, 0, 1)
    trie.lock(node)
    with pytest.raises(core.OutOfBlocks):
        trie.allocate(1)
    trie.unlock(node)
    assert trie.allocate(1).tolist() == [0]
    assert trie.match(np.array([5], np.int32)).num_blocks == 0
    trie.audit()


def test_arguments_are_checked() -> None:
    for blocks, size in ((0, 16), (-1, 16), (1 << 24 | 1, 16), (4, 0), (4, -3)):
        with pytest.raises(ValueError):
            core.BlockAllocator(blocks, size)
    pool = core.BlockAllocator(4)
    with pytest.raises(ValueError):
        pool.allocate(-1)
    for wrong in (np.zeros((1, 1), np.int32), np.zeros(1, np.float32), np.zeros(1, bool), "ab", [0.5], [True], None):
        with pytest.raises(TypeError):
            pool.release(wrong)
    with pytest.raises(ValueError):
        pool.release([2**31])
    with pytest.raises(TypeError):
        core.PrefixTrie(None)  # type: ignore[arg-type]
    core.PrefixTrie(pool)
    with pytest.raises(ValueError, match="has a trie"):
        core.PrefixTrie(pool)


def test_blocks_in_the_trie_are_not_the_callers() -> None:
    pool = core.BlockAllocator(4, 2)
    trie = core.PrefixTrie(pool)
    blocks = pool.allocate(2)
    trie.insert(np.arange(4, dtype=np.int32), blocks)
    for operation in (pool.release, pool.retain):
        with pytest.raises(core.BlockError, match="belongs to the trie"):
            operation(blocks)
    shared = pool.allocate(1)
    pool.retain(shared)
    with pytest.raises(core.BlockError, match="more than one reference"):
        trie.insert(np.array([9, 9], np.int32), shared)
    trie.audit()
