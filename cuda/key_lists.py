"""The keys of every row, listed: for attention where FlashInfer does not serve, and for steps that a window cuts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from prelude.cuda.layout import EMPTY, StepLayout
from prelude.cuda.prompt_tree import Tree, context_key

from prelude.batch import I32


@dataclass(frozen=True, slots=True)
class KeyLists:
    """Every row's keys in order of position: ``keys[first[r]:first[r] + count[r]]``. A key is a row of this step, or
    -1 - slot of the pool. Rows of a segment share its list."""

    keys: I32
    first: I32  # [rows]
    count: I32  # [rows]


def key_lists(layout: StepLayout, block_size: int) -> KeyLists:
    lists: list[I32] = []
    firsts, counts = np.zeros(layout.rows, np.int32), np.zeros(layout.rows, np.int32)
    at = 0
    tree = layout.tree
    if tree is not None:
        context = _context_slots(tree, block_size)
        chains: list[I32] = []
        for s in range(len(tree.order)):
            parent = int(tree.parent[s])
            before = context.get(s, EMPTY) if parent < 0 else chains[parent]
            start, end = int(tree.start[s]), int(tree.end[s])
            chain = np.concatenate([before, np.arange(start, end, dtype=np.int32)])
            chains.append(chain)
            firsts[start:end] = at
            counts[start:end] = len(before) + 1 + np.arange(end - start)
            lists.append(chain)
            at += len(chain)
    if layout.decode_rows is not None and layout.body.decode is not None:
        level = layout.body.decode
        lengths = layout.decode_rows.context_lens.astype(np.int64) + 1
        for b, length in enumerate(lengths.tolist()):
            blocks = level.pages[level.indptr[b] : level.indptr[b + 1]]
            lists.append(_pool_keys(blocks, length, block_size))
            firsts[layout.prompts + b], counts[layout.prompts + b] = at, length
            at += length
    keys = np.concatenate(lists).astype(np.int32) if lists else EMPTY
    return KeyLists(keys, firsts, counts)


def _pool_keys(blocks: I32, length: int, block_size: int) -> I32:
    slots = (blocks.astype(np.int64)[:, None] * block_size + np.arange(block_size)).reshape(-1)[:length]
    keys: I32 = (-1 - slots).astype(np.int32)
    return keys


def _context_slots(tree: Tree, block_size: int) -> dict[int, I32]:
    """Pool keys of each root that continues a context, by preorder index."""
    found: dict[int, I32] = {}
    for s in np.flatnonzero(tree.slices.context_lens[tree.order] > 0).tolist():
        length, blocks = context_key(tree.slices, int(tree.order[s]))
        found[s] = _pool_keys(np.frombuffer(blocks, np.int32), length, block_size)
    return found
