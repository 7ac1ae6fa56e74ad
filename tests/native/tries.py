"""A trie and prompts for the tests of tries."""

from __future__ import annotations

from typing import Any

import numpy as np
from prelude._native import core

SHARED = list(range(1, 11))
BRANCHES = ([20, 21], [30, 31], [40, 41, 42, 43])


def ids(*tokens: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.array(tokens, np.int32)


def make(num_blocks: int = 64, size: int = 1, **options: Any) -> tuple[core.BlockAllocator, core.PrefixTrie]:
    pool = core.BlockAllocator(num_blocks, size)
    return pool, core.PrefixTrie(pool, seed=1, **options)


def put(trie: core.PrefixTrie, tokens: Any, salt: int = 0) -> core.Inserted:
    """Inserts the tokens that the trie lacks, as a finished prefill does."""
    have = trie.match(tokens, salt, touch=False)
    need = len(tokens) // trie.alloc.block_size - have.num_blocks
    trie.lock(have.node)
    made = trie.insert(tokens, trie.allocate(need), salt, have.num_blocks)
    trie.unlock(have.node)
    assert made.num_taken == need and not len(made.duplicates)
    return made
