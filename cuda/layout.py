"""ForwardBatch -> the place of each token on the device and the keys that it reads. Plain numpy, no device.

Tokens are put in preorder, so that everything below a segment is one run of rows, and roots that continue the same
blocks stand side by side:

    batch     state, q1, q1.label, q2 ...            any order with parents before children
    device    [ root | child | grandchild | child | root ... ][ decode rows ]

Attention is then a list of *levels*, each one call over all prompt rows; their outputs are joined by log-sum-exp:

    own        ragged, causal: each segment reads itself up to the row
    ancestor   paged with pages of one token, over this step's K and V: the rows below a segment read that segment;
               one level per depth
    context    paged over the pool: all roots (and the segments below them) that continue the same blocks
    decode     paged over the pool, one query a row

Rows that read nothing in a level stand in a request without keys, which yields zeros and a log-sum-exp of -inf.
The last layer asks for the rows that are read; where each segment has at most its last one, its queries are cut to
them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from prelude.cuda.prompt_tree import Tree

from prelude.batch import I32, DecodeBatch, DecodeRows, ForwardBatch, MixedBatch, OneShotBatch, PromptSlices, Readout
from prelude.execution.layout import I64, causal_pairs

EMPTY = np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True)
class Ragged:
    """Queries and keys of this step: request r's are rows ``qo[r]:qo[r+1]`` and ``kv[r]:kv[r+1]``."""

    qo: I32  # [requests + 1]
    kv: I32  # [requests + 1]
    causal: bool

    @property
    def requests(self) -> int:
        return len(self.qo) - 1

    def lengths(self) -> bytes:
        """All that an attention plan depends on."""
        return self.qo.tobytes() + self.kv.tobytes()


@dataclass(frozen=True, slots=True)
class Paged:
    """Queries of this step, keys in pages: request r reads ``pages[indptr[r]:indptr[r+1]]``, all of them full but
    the last, which has ``last[r]`` keys (0 where there are no pages)."""

    qo: I32  # [requests + 1]
    indptr: I32  # [requests + 1]
    pages: I32  # [indptr[-1]]
    last: I32  # [requests]
    page_size: int
    pool: bool  # pages of the pool; otherwise of this step's K and V

    @property
    def requests(self) -> int:
        return len(self.qo) - 1

    def lengths(self) -> bytes:
        return self.qo.tobytes() + self.indptr.tobytes() + self.last.tobytes()


@dataclass(frozen=True, slots=True)
class Levels:
    own: Ragged | None
    more: tuple[Paged, ...]
    decode: Paged | None


@dataclass(frozen=True, slots=True)
class Read:
    """A readout and, per row of it, an index into ``StepLayout.read``."""

    readout: Readout
    at: I32


@dataclass(frozen=True, slots=True)
class StepLayout:
    """``place[t]`` is the device row of batch token t. Prompt rows come first; decode rows begin at ``prompts``."""

    prompts: int
    decoding: int
    token_ids: I32  # [rows]; below 0: token -1 - id of those the step before has drawn
    positions: I32  # [rows]
    slots: I32  # [rows], -1 not written
    read: I32  # [R] rows that are read, sorted
    reads: tuple[Read, ...]
    body: Levels
    last: Levels | None  # None: the last layer's attention is the body's
    attended: int  # (query, key) pairs of one head
    tree: Tree | None
    decode_rows: DecodeRows | None

    @property
    def rows(self) -> int:
        return self.prompts + self.decoding

    @property
    def read_prompts(self) -> int:
        """How many of the read rows are prompt rows; they come first."""
        return int(np.searchsorted(self.read, self.prompts))

    def attended_within(self, window: int | None) -> int:
        """(query, key) pairs of one head of a layer with this window."""
        if window is None:
            return self.attended
        pairs = 0
        if self.tree is not None:
            pairs += causal_pairs(self.tree.base, self.tree.end - self.tree.start, window)
        if self.decode_rows is not None:
            before = self.decode_rows.context_lens.astype(np.int64)
            pairs += causal_pairs(before, np.ones_like(before), window)
        return pairs


def _indptr(lengths: I64) -> I32:
    out = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=out[1:])
    return out


def _covering(ranges: list[tuple[int, int, I32, int]], rows: int, page_size: int, pool: bool) -> Paged:
    """A level over rows 0..rows out of ``(first row, end row, pages, keys in the last)``, ascending and disjoint."""
    qo, counts, last, pages = [0], list[int](), list[int](), list[I32]()
    for first, end, own, keys in ranges:
        if first > qo[-1]:
            qo.append(first)
            counts.append(0)
            last.append(0)
        qo.append(end)
        counts.append(len(own))
        last.append(keys)
        pages.append(own)
    if rows > qo[-1]:
        qo.append(rows)
        counts.append(0)
        last.append(0)
    return Paged(
        np.asarray(qo, np.int32),
        _indptr(np.asarray(counts, np.int64)),
        np.concatenate(pages).astype(np.int32) if pages else EMPTY,
        np.asarray(last, np.int32),
        page_size,
        pool,
    )


def _prompt_levels(tree: Tree, block_size: int) -> tuple[Ragged, tuple[Paged, ...]]:
    lengths = tree.end - tree.start
    rows = int(lengths.sum())
    edges = _indptr(lengths[lengths > 0])
    more: list[Paged] = []
    reads = (tree.below > tree.end) & (lengths > 0)
    for depth in range(int(tree.depth.max(initial=0))):
        ranges = [
            (int(tree.end[s]), int(tree.below[s]), np.arange(tree.start[s], tree.end[s], dtype=np.int32), 1)
            for s in np.flatnonzero(reads & (tree.depth == depth)).tolist()
        ]
        if ranges:
            more.append(_covering(ranges, rows, 1, pool=False))
    contexts = []
    for first, end, length, blocks in tree.groups:
        if end > first:
            need = -(-length // block_size)
            if need > len(blocks):
                raise ValueError(f"{length} tokens do not lie in {len(blocks)} blocks of {block_size}")
            contexts.append((first, end, blocks[:need], (length - 1) % block_size + 1))
    if contexts:
        more.append(_covering(contexts, rows, block_size, pool=True))
    return Ragged(edges, edges, causal=True), tuple(more)


def _decode_level(decode: DecodeRows, block_size: int) -> Paged:
    lengths = decode.context_lens.astype(np.int64) + 1
    need = -(-lengths // block_size)
    held = np.diff(decode.block_indptr).astype(np.int64)
    short = np.flatnonzero(need > held)
    if len(short):
        raise ValueError(f"{lengths[short[0]]} tokens do not lie in {held[short[0]]} blocks of {block_size}")
    indptr = _indptr(need)
    pages = decode.block_ids
    if (need != held).any():  # tables may run ahead of the written blocks
        within = np.arange(indptr[-1]) - np.repeat(indptr[:-1], need)
        pages = pages[np.repeat(decode.block_indptr[:-1].astype(np.int64), need) + within]
    qo = np.arange(len(lengths) + 1, dtype=np.int32)
    last = ((lengths - 1) % block_size + 1).astype(np.int32)
    return Paged(qo, indptr, pages[: indptr[-1]], last, block_size, pool=True)


def cut_levels(body: Levels, read: I32, prompts: int, decoding: int) -> Levels | None:
    """The levels of the last layer where its queries are the read rows only. None where that cannot be said in this
    form: a row in the middle of a segment, two of one segment, or a decode row that is not read."""
    wanted = read[read < prompts]
    if len(read) - len(wanted) != decoding:
        return None
    own = body.own
    if own is None:
        return body if decoding else None
    qo = np.searchsorted(wanted, own.qo).astype(np.int32)
    counts = np.diff(qo)
    if counts.max(initial=0) > 1 or not np.isin(wanted, own.qo[1:] - 1).all():
        return None
    more = tuple(
        Paged(
            np.searchsorted(wanted, level.qo).astype(np.int32),
            level.indptr,
            level.pages,
            level.last,
            level.page_size,
            level.pool,
        )
        for level in body.more
    )
    return Levels(Ragged(qo, own.kv, causal=False), more, body.decode)


# ------------------------------------------------------------------ the step


def _parts(batch: ForwardBatch) -> tuple[PromptSlices | None, DecodeRows | None, list[tuple[Readout, bool]]]:
    """Prompts, decode rows and ``(readout, of decode rows)``."""
    if isinstance(batch, OneShotBatch):
        return batch.slices, None, [(batch.readout, False)]
    if isinstance(batch, DecodeBatch):
        return None, batch.rows, [(batch.readout, True)]
    if isinstance(batch, MixedBatch):
        readouts: list[tuple[Readout, bool]] = [(readout, False) for readout in batch.readouts]
        if batch.decode_readout is not None:
            readouts.append((batch.decode_readout, True))
        return batch.slices, batch.decode, readouts
    raise TypeError(f"an executor runs OneShotBatch, DecodeBatch and MixedBatch, not {type(batch).__name__}")


def lay_out(batch: ForwardBatch, block_size: int, *, cut: bool = True) -> StepLayout:
    """``cut`` allows a last layer with fewer queries."""
    slices, decode, readouts = _parts(batch)
    tree = Tree.of(slices) if slices is not None and slices.num_tokens else None
    if decode is not None and not decode.num_rows:
        decode = None
    prompts = 0 if tree is None else tree.slices.num_tokens
    decoding = 0 if decode is None else decode.num_rows
    place = np.zeros(0, np.int64) if tree is None else tree.place()
    ids, positions, slots = (np.empty(prompts + decoding, np.int32) for _ in range(3))
    own: Ragged | None = None
    more: tuple[Paged, ...] = ()
    attended = 0
    if tree is not None:
        own, more = _prompt_levels(tree, block_size)
        ids[place] = tree.slices.token_ids
        positions[place] = tree.slices.positions
        slots[place] = -1 if tree.slices.write_slots is None else tree.slices.write_slots
        lengths = tree.end - tree.start
        attended += int((lengths * tree.base + lengths * (lengths + 1) // 2).sum())
    if decode is not None:
        ids[prompts:], positions[prompts:], slots[prompts:] = decode.token_ids, decode.positions, decode.write_slots
        attended += int(decode.context_lens.sum(dtype=np.int64)) + decoding
    rows = [(readout.rows + prompts if late else place[readout.rows]) for readout, late in readouts]
    read = np.unique(np.concatenate(rows)).astype(np.int32) if rows else EMPTY
    reads = tuple(
        Read(readout, np.searchsorted(read, own_rows).astype(np.int32))
        for (readout, _), own_rows in zip(readouts, rows)
    )
    body = Levels(own, more, None if decode is None else _decode_level(decode, block_size))
    last = cut_levels(body, read, prompts, decoding) if cut and 0 < len(read) < prompts + decoding else None
    return StepLayout(prompts, decoding, ids, positions, slots, read, reads, body, last, attended, tree, decode)
