"""The prompt segments of a step in preorder: everything below a segment is one run of rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from prelude.batch import I32, PromptSlices
from prelude.execution.layout import I64


@dataclass(frozen=True, slots=True)
class Tree:
    """The prompt segments in preorder. ``start``, ``end`` are rows; ``below`` ends the rows of the whole subtree."""

    slices: PromptSlices
    order: I64  # preorder -> segment of the batch
    start: I64
    end: I64
    below: I64
    depth: I64
    parent: I64  # in preorder, -1 for a root
    base: I64  # tokens of the sequence before the segment
    groups: tuple[tuple[int, int, int, I32], ...]  # (first row, end row, context length, blocks)

    @classmethod
    def of(cls, slices: PromptSlices) -> Tree:
        count = slices.num_segments
        order, depth, last = _preorder(slices)
        index = np.empty(count, np.int64)
        index[order] = np.arange(count)
        lengths = np.diff(slices.starts).astype(np.int64)[order]
        end = np.cumsum(lengths)
        start = end - lengths
        below = end[last] if count else end
        batch_parents = slices.parents[order].astype(np.int64)
        parent = np.where(batch_parents >= 0, index[np.maximum(batch_parents, 0)], -1) if count else batch_parents
        base = slices.context_lens[order].astype(np.int64)
        if depth.any():
            for s in np.flatnonzero(parent >= 0).tolist():
                base[s] = base[parent[s]] + lengths[parent[s]]
        return cls(slices, order, start, end, below, depth, parent, base, _groups(slices, order, start, below))

    def place(self) -> I64:
        """Device row of each batch token."""
        lengths = self.end - self.start
        place = np.empty(int(lengths.sum()), np.int64)
        first = self.slices.starts[:-1].astype(np.int64)[self.order]
        place[np.repeat(first - self.start, lengths) + np.arange(len(place))] = np.arange(len(place))
        return place


def context_key(slices: PromptSlices, s: int) -> tuple[int, bytes]:
    indptr = slices.context_indptr
    return int(slices.context_lens[s]), slices.context_blocks[indptr[s] : indptr[s + 1]].tobytes()


def _preorder(slices: PromptSlices) -> tuple[I64, I64, I64]:
    """``(order, depth, last)``: segments in preorder, their depths, and the index of the last one below each."""
    count = slices.num_segments
    identity = np.arange(count, dtype=np.int64)
    parents, contexts = slices.parents, slices.context_lens
    bad = np.flatnonzero(parents >= identity)
    if len(bad):
        raise ValueError(f"segment {bad[0]} has parent {parents[bad[0]]}; parents come before children")
    if (parents < 0).all() and (contexts <= 0).sum() + 1 >= count:  # nothing to share, nothing to move
        return identity, np.zeros(count, np.int64), identity
    children: list[list[int]] = [[] for _ in range(count)]
    roots: dict[tuple[int, bytes] | int, list[int]] = {}
    for s, parent in enumerate(parents.tolist()):
        if parent >= 0:
            if contexts[s] > 0:
                raise ValueError(f"segment {s} has a parent and a context of its own")
            children[parent].append(s)
        else:
            roots.setdefault(context_key(slices, s) if contexts[s] > 0 else s, []).append(s)
    order, depth, last = list[int](), list[int](), [0] * count
    for group in roots.values():
        for root in group:
            stack = [(root, 0, -1)]
            while stack:
                s, level, done = stack.pop()
                if done >= 0:
                    last[done] = len(order) - 1
                    continue
                stack.append((s, level, len(order)))
                order.append(s)
                depth.append(level)
                stack.extend((child, level + 1, -1) for child in reversed(children[s]))
    return np.asarray(order, np.int64), np.asarray(depth, np.int64), np.asarray(last, np.int64)


def _groups(slices: PromptSlices, order: I64, start: I64, below: I64) -> tuple[tuple[int, int, int, I32], ...]:
    groups: list[tuple[int, int, int, I32]] = []
    key_before: tuple[int, bytes] | None = None
    for at in np.flatnonzero(slices.context_lens[order] > 0).tolist():
        key = context_key(slices, int(order[at]))
        first, end = int(start[at]), int(below[at])
        if key == key_before and groups[-1][1] == first:
            groups[-1] = (groups[-1][0], end, *groups[-1][2:])
        else:
            groups.append((first, end, key[0], np.frombuffer(key[1], np.int32)))
        key_before = key
    return tuple(groups)


# ------------------------------------------------------------------ levels
