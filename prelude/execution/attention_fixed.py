"""Attention whose bits depend on a row's own sequence alone.

A row at offset p of its sequence meets the keys ``0 … N(p) - 1`` with ``N(p) = p + 1`` rounded up to ``TILE``, keys
behind its own sequence being zeros, and a mask; always in one call of the same kernel, which walks them in blocks
of fixed size. So sums are in the same order whoever else is in the batch, wherever the keys came from (this step or
the pool) and however the prompt was cut. Rows are stacked into tiles, at least ``FEW`` of them: products of fewer
rows take another kernel. Everything is float32 here; bfloat16 keys are exact in it.

    stores   sequences that begin in this step, and decode rows: copied once per layer, padded, equal lengths side
             by side, so that one tile of all sequences of a length is one call on a view
    walks    trees: one buffer holds the path from the root, depth first; the shared part is written once and stays
             while branches come and go behind it

Zeros and not neighbours fill the padding: a mask would not keep a neighbour's NaN out of a sum.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from prelude.execution.attention import attend, negative_where
from prelude.execution.layout import I64, Forest, StepTokens, pool_rows

TILE = 64
FEW = 16


def padded(length: int) -> int:
    return -(-length // TILE) * TILE


@dataclass(frozen=True, slots=True)
class Rows:
    """Query rows of one sequence that share their number of keys."""

    queries: I64  # rows of this layer's queries
    offsets: I64  # where they stand in their sequence
    keys: int


def tiles_of(queries: I64, offsets: I64) -> Iterator[Rows]:
    """Runs of rows (sorted by offset) with the same number of keys."""
    edges = np.flatnonzero(np.diff(offsets // TILE)) + 1
    for rows, at in zip(np.split(queries, edges), np.split(offsets, edges)):
        if len(rows):
            yield Rows(rows, at, padded(int(at[-1]) + 1))


@dataclass(frozen=True, slots=True)
class Tile:
    """One call: ``count`` sequences with ``height`` query rows each."""

    first: int  # where the first sequence begins in its store
    stride: int  # and how far apart they are
    keys: int
    queries: Tensor  # [count * height], short ones padded with rows of their own
    mask: Tensor  # [1 or count, 1, height, keys], additive
    taken: Tensor | None  # rows of the output that are wanted; None for all
    targets: Tensor  # where they go
    count: int

    @classmethod
    def of(cls, members: list[Rows], first: int, stride: int) -> Tile:
        keys = members[0].keys
        longest = max(len(m.queries) for m in members)
        height = FEW if longest <= FEW else TILE
        queries = np.stack([np.resize(m.queries, height) for m in members])
        aligned = all((m.offsets == keys - TILE + np.arange(len(m.offsets))).all() for m in members)
        if aligned:  # rows that only fill up may see anything that is their own
            hidden = (np.arange(keys) > keys - TILE + np.arange(height)[:, None])[None, None]
        else:
            offsets = np.stack([np.resize(m.offsets, height) for m in members])
            hidden = np.arange(keys) > offsets[:, None, :, None]
        wanted = np.stack([np.arange(height) < len(m.queries) for m in members]).reshape(-1)
        return cls(
            first,
            stride,
            keys,
            torch.from_numpy(queries.reshape(-1)),
            negative_where(hidden, torch.float32),
            None if wanted.all() else torch.from_numpy(np.flatnonzero(wanted)),
            torch.from_numpy(queries.reshape(-1)[wanted]),
            len(members),
        )

    def run(self, q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> None:
        """``k``, ``v``: [store rows, kv_heads, D]."""
        heads, width = q.shape[1:]
        kv_heads = k.shape[1]
        row = kv_heads * width
        shape = (self.count, self.keys, kv_heads, width)
        strides = (self.stride * row, row, width, 1)
        rows = q.index_select(0, self.queries).view(self.count, -1, heads, width)
        keys, values = (x.as_strided(shape, strides, x.storage_offset() + self.first * row) for x in (k, v))
        found = attend(rows, keys, values, mask=self.mask)[0].reshape(-1, heads, width)
        out.index_copy_(0, self.targets, found if self.taken is None else found.index_select(0, self.taken))


@dataclass(slots=True)
class Store:
    """Whole sequences, each padded with zeros to a multiple of ``TILE``, sorted by that length."""

    pool: bool
    rows: Tensor
    padding: Tensor
    tiles: list[Tile]

    @classmethod
    def of(cls, pool: bool, sequences: list[tuple[I64, list[Rows]]]) -> Store:
        """``sequences``: the rows of the keys (of the step or the pool) and the queries on them."""
        sequences = sorted(sequences, key=lambda pair: len(pair[0]))
        rows, padding, at = list[I64](), list[I64](), 0
        by_tile: dict[tuple[int, int, bool], list[tuple[int, Rows]]] = defaultdict(list)
        for keys, queries in sequences:
            length = padded(len(keys))
            rows.append(np.concatenate([keys, np.full(length - len(keys), keys[0])]))
            padding.append(np.arange(at + len(keys), at + length))
            for q in queries:
                by_tile[length, q.keys, len(q.queries) <= FEW].append((at, q))
            at += length
        tiles = list[Tile]()
        for (length, _, _), members in sorted(by_tile.items()):
            for run in _evenly_spaced(members, length):
                tiles.append(Tile.of([q for _, q in run], run[0][0], length))
        return cls(pool, torch.from_numpy(np.concatenate(rows)), torch.from_numpy(np.concatenate(padding)), tiles)

    def fill(self, x: Tensor) -> Tensor:
        found = x.index_select(0, self.rows).to(torch.float32)
        return found.index_fill_(0, self.padding, 0.0)


def _evenly_spaced(members: list[tuple[int, Rows]], stride: int) -> Iterator[list[tuple[int, Rows]]]:
    """Cut where a sequence in between has no rows in this tile, so that each run is one strided view."""
    run = [members[0]]
    for member in members[1:]:
        if member[0] != run[-1][0] + stride:
            yield run
            run = []
        run.append(member)
    yield run


@dataclass(slots=True)
class Visit:
    """One segment of a walk: put its keys behind its parent's, zeros behind them, then its tiles."""

    start: int  # in the buffer
    stop: int
    tokens: slice
    tiles: list[Tile]


@dataclass(slots=True)
class Walk:
    """A tree, or all roots that continue the same context."""

    context: Tensor  # pool rows
    length: int  # of the buffer
    visits: list[Visit] = field(default_factory=list)

    def run(self, q: Tensor, k: Tensor, v: Tensor, pool_k: Tensor, pool_v: Tensor, out: Tensor) -> None:
        buffers = []
        for pool in (pool_k, pool_v):
            buffer = pool.new_zeros(self.length, *pool.shape[1:], dtype=torch.float32)
            buffer[: len(self.context)] = pool.index_select(0, self.context)
            buffers.append(buffer)
        for visit in self.visits:
            for buffer, new in zip(buffers, (k, v)):
                buffer[visit.start : visit.stop] = new[visit.tokens]
                buffer[visit.stop : padded(visit.stop)] = 0.0  # a sibling was here
            for tile in visit.tiles:
                tile.run(q, buffers[0], buffers[1], out)


class FixedPlan:
    """The plan of deterministic mode; see ``CascadePlan`` for the arguments."""

    def __init__(self, step: StepTokens, block_size: int, rows: I64 | None = None) -> None:
        self.num_queries = step.num_tokens if rows is None else len(rows)
        self.rows = rows
        self.stores: list[Store] = []
        self.walks: list[Walk] = []
        if step.forest is not None:
            self._plan_forest(step.forest, block_size)
        if step.decode is not None:
            decode, sequences = step.decode, []
            at = self._queries(step.prompt_tokens, step.num_tokens)
            for query, b in zip(*at):
                length = int(decode.context_lens[b]) + 1
                blocks = decode.block_ids[decode.block_indptr[b] : decode.block_indptr[b + 1]]
                tile = Rows(np.array([query]), np.array([length - 1]), padded(length))
                sequences.append((pool_rows(blocks, length, block_size), [tile]))
            if sequences:
                self.stores.append(Store.of(True, sequences))

    def run(self, q: Tensor, k: Tensor, v: Tensor, pool_k: Tensor, pool_v: Tensor) -> Tensor:
        dtype = q.dtype
        q = q.to(torch.float32)
        out = torch.empty(q.shape, dtype=torch.float32)
        for store in self.stores:
            keys, values = (store.fill(x) for x in ((pool_k, pool_v) if store.pool else (k, v)))
            for tile in store.tiles:
                tile.run(q, keys, values, out)
        for walk in self.walks:
            walk.run(q, k, v, pool_k, pool_v, out)
        return out.flatten(1).to(dtype)

    def _queries(self, start: int, stop: int) -> tuple[I64, I64]:
        """Wanted rows among tokens ``start … stop - 1``: as rows of this layer's queries, and from ``start`` on."""
        if self.rows is None:
            at = np.arange(start, stop)
            return at, at - start
        first, last = np.searchsorted(self.rows, [start, stop])
        return np.arange(first, last), self.rows[first:last] - start

    def _plan_forest(self, forest: Forest, block_size: int) -> None:
        starts, children = forest.starts, defaultdict[int, list[int]](list)
        for s, parent in enumerate(forest.parents):
            if parent >= 0:
                children[parent].append(s)
        alone, shared = list[tuple[I64, list[Rows]]](), defaultdict[tuple[int, bytes], list[int]](list)
        for s, parent in enumerate(forest.parents):
            if parent >= 0:
                continue
            context = int(forest.slices.context_lens[s])
            if context or s in children:
                key = (context, forest.blocks(s).tobytes()) if context else (0, s.to_bytes(8, "little"))
                shared[key].append(s)
            elif starts[s] < starts[s + 1]:
                tiles = list(tiles_of(*self._queries(starts[s], starts[s + 1])))
                if tiles:
                    alone.append((np.arange(starts[s], starts[s + 1]), tiles))
        if alone:
            self.stores.append(Store.of(False, alone))
        for (context, blocks), roots in shared.items():
            none = np.zeros(0, np.int64)
            rows = pool_rows(np.frombuffer(blocks, np.int32), context, block_size) if context else none
            self.walks.append(self._walk(forest, torch.from_numpy(rows), roots, children))

    def _walk(self, forest: Forest, context: Tensor, roots: list[int], children: dict[int, list[int]]) -> Walk:
        walk, pending = Walk(context, padded(len(context))), list(reversed(roots))
        while pending:
            s = pending.pop()
            pending.extend(reversed(children.get(s, ())))
            first, start, stop = int(forest.base[s]), forest.starts[s], forest.starts[s + 1]
            end = first + stop - start
            queries, offsets = self._queries(start, stop)
            tiles = [Tile.of([rows], 0, 0) for rows in tiles_of(queries, offsets + first)]
            if tiles or s in children:
                walk.visits.append(Visit(first, end, slice(start, stop), tiles))
            walk.length = max(walk.length, padded(end))
        return walk
