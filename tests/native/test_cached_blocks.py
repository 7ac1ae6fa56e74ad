"""The prefix cache is an index over the pool's blocks: it gives blocks, not text, and its reference counts and its
order of use decide together which of them may go."""

from __future__ import annotations

import numpy as np
import pytest
from prelude._native import core


def made(blocks: int) -> tuple[core.BlockAllocator, core.PrefixTrie]:
    allocator = core.BlockAllocator(blocks, 2)
    return allocator, core.PrefixTrie(allocator)


def ids(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def put(trie: core.PrefixTrie, *tokens: int) -> core.Match:
    trie.insert(ids(*tokens), trie.allocate(len(tokens) // 2))
    return trie.match(ids(*tokens))


@pytest.mark.feature("Q12")
def test_a_hit_is_physical_blocks_and_two_hits_the_same_ones() -> None:
    allocator, trie = made(6)
    first = put(trie, 1, 2, 3, 4)
    longer = put(trie, 1, 2, 3, 4, 5, 6)
    assert longer.blocks.tolist()[:2] == first.blocks.tolist()
    assert set(longer.blocks.tolist()) <= set(range(6))
    assert trie.match(ids(1, 2, 3, 9)).blocks.tolist() == first.blocks.tolist()[:1], "whole blocks of equal tokens"
    assert allocator.num_free + allocator.num_cached + allocator.num_used == 6
    trie.audit()


@pytest.mark.feature("Q18")
def test_the_coldest_goes_first_unless_a_request_reads_it() -> None:
    """Four leaves of one block, used in their order; the first two are locked. The third goes, then the fourth; of
    the locked ones the one that was let go of first."""
    _, trie = made(4)
    leaves = [put(trie, 10 * i, 10 * i + 1) for i in range(4)]
    for i in range(4):
        leaves[i] = trie.match(ids(10 * i, 10 * i + 1))
    blocks = [int(leaf.blocks[0]) for leaf in leaves]
    for leaf in leaves[:2]:
        trie.lock(leaf.node)
    taken = [int(trie.allocate(1)[0]) for _ in range(2)]
    assert taken == blocks[2:]
    with pytest.raises(core.OutOfBlocks):
        trie.allocate(1)
    trie.unlock(leaves[1].node)
    trie.unlock(leaves[0].node)
    assert int(trie.allocate(1)[0]) == blocks[1], "it was let go of first"
    assert trie.would_hit(ids(0, 1)) == 1 and trie.would_hit(ids(10, 11)) == 0
    trie.audit()
