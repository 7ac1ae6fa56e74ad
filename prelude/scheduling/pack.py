"""Plan -> ForwardBatch: arrays for the executor, and which part of each output belongs to whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from prelude.admission.sampling import join_samples, sample_rows
from prelude.batch import (
    I32,
    DecodeBatch,
    DecodeRows,
    ForwardBatch,
    HeadRows,
    LogprobRows,
    MixedBatch,
    OneShotBatch,
    PooledRows,
    PromptSlices,
    Readout,
    SampleRows,
)
from prelude.scheduling.lease import NO_BLOCKS, Lease
from prelude.scheduling.plan import OneShotRow, Plan, PrefillRow
from prelude.scheduling.request import Request

_EMPTY = np.zeros(0, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class Share:
    """A request's part of an output: a range of the readout's rows (items, for pooled rows) and of target pairs."""

    request: Request
    rows: tuple[int, int]
    pairs: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class Packed:
    """``oneshot``, ``prefill`` and ``decode`` say which output (index into ``StepResult.outputs``) they read."""

    batch: ForwardBatch
    oneshot: tuple[Share, ...] = ()
    prefill: tuple[Share, ...] = ()
    decode: tuple[Share, ...] = ()
    outputs: tuple[int, int, int] = (0, 0, 0)
    computed: tuple[int, ...] = ()  # tokens each OneShot row brought into the batch


class _Slices:
    """Collects segments; ``add`` returns the index of the segment's first token."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.tokens: list[I32] = []
        self.positions: list[I32] = []
        self.slots: list[I32] = []
        self.lengths: list[int] = []
        self.parents: list[int] = []
        self.context_lens: list[int] = []
        self.contexts: list[I32] = []
        self.size = 0
        self.writes = False

    def add(
        self,
        tokens: I32,
        positions: I32,
        parent: int = -1,
        context: I32 = NO_BLOCKS,
        context_len: int = 0,
        slots: I32 | None = None,
    ) -> int:
        first = self.size
        self.tokens.append(tokens)
        self.positions.append(positions)
        self.lengths.append(len(tokens))
        self.parents.append(parent)
        self.contexts.append(context)
        self.context_lens.append(context_len)
        if slots is None:
            slots = np.full(len(tokens), -1, dtype=np.int32)
        else:
            self.writes = True
        self.slots.append(slots)
        self.size += len(tokens)
        return first

    @property
    def next_segment(self) -> int:
        return len(self.parents)

    def build(self) -> PromptSlices:
        if not self.parents:
            zero = np.zeros(1, dtype=np.int32)
            return PromptSlices(_EMPTY, _EMPTY, zero, _EMPTY, _EMPTY, zero, _EMPTY)
        return PromptSlices(
            np.concatenate(self.tokens),
            np.concatenate(self.positions),
            _indptr(self.lengths),
            np.array(self.parents, dtype=np.int32),
            np.array(self.context_lens, dtype=np.int32),
            _indptr([len(blocks) for blocks in self.contexts]),
            np.concatenate(self.contexts),
            np.concatenate(self.slots) if self.writes else None,
        )


def _indptr(lengths: Sequence[int]) -> I32:
    out = np.zeros(len(lengths) + 1, dtype=np.int32)
    np.cumsum(lengths, out=out[1:])
    return out


def slots_of(blocks: I32, start: int, count: int, block_size: int) -> I32:
    """Pool slots of sequence positions ``[start, start + count)`` under a block table that begins at position 0."""
    at = np.arange(start, start + count, dtype=np.int32)
    slots: I32 = blocks[at // block_size] * block_size + at % block_size
    return slots


# ------------------------------------------------------------------ OneShot


def _publish_slots(lease: Lease, row: OneShotRow, count: int, block_size: int) -> I32 | None:
    """Write slots of the ``count`` tokens after ``skip``: the first ``publish`` blocks of them are kept."""
    if not row.publish:
        return None
    slots = np.full(count, -1, dtype=np.int32)
    kept = row.publish * block_size
    slots[:kept] = slots_of(np.asarray(lease.own, dtype=np.int32), 0, kept, block_size)
    return slots


def _add_oneshot(slices: _Slices, plan: Plan) -> tuple[list[Readout], list[int]]:
    """Adds every OneShot row; returns their readouts moved to batch rows, and the tokens each row brought."""
    readouts: list[Readout] = [_NOTHING] * len(plan.oneshot)
    computed = [0] * len(plan.oneshot)
    folded = set()
    for fold in plan.folds:
        folded.update(fold.members)
        root = slices.next_segment
        leader = plan.oneshot[fold.members[0]]
        lease, tree = _lease(leader.request), leader.request.prepared.tree
        end = leader.skip + fold.tokens
        slices.add(
            tree.token_ids[leader.skip : end],
            tree.positions[leader.skip : end],
            context=lease.shared,
            context_len=leader.skip,
            slots=_publish_slots(lease, leader, fold.tokens, slices.block_size),
        )
        for place, member in enumerate(fold.members):
            row = plan.oneshot[member]
            readouts[member], computed[member] = _add_tree(slices, row, end, root, None)
            computed[member] += fold.tokens if place == 0 else 0
    for index, row in enumerate(plan.oneshot):
        if index not in folded:
            readouts[index], computed[index] = _add_tree(slices, row, row.skip, -1, _lease(row.request))
    return readouts, computed


def _add_tree(slices: _Slices, row: OneShotRow, skip: int, parent: int, lease: Lease | None) -> tuple[Readout, int]:
    """One request's tokens from ``skip`` on. ``parent`` is the folded segment before them, -1 with none."""
    tree = row.request.prepared.tree
    starts = tree.starts.tolist()
    base = slices.next_segment
    trunk_end = starts[1]
    offset = slices.add(
        tree.token_ids[skip:trunk_end],
        tree.positions[skip:trunk_end],
        parent,
        lease.shared if lease else NO_BLOCKS,
        skip if lease else 0,
        _publish_slots(lease, row, trunk_end - skip, slices.block_size) if lease else None,
    )
    for segment, above in enumerate(tree.parents.tolist()):
        if segment == 0:
            continue
        a, b = starts[segment], starts[segment + 1]
        slices.add(tree.token_ids[a:b], tree.positions[a:b], base + above if above >= 0 else -1)
    readout = row.request.prepared.readout
    return (_moved(readout, offset - skip) if readout is not None else _NOTHING), tree.num_tokens - skip


_NOTHING = LogprobRows(_EMPTY, _EMPTY, _EMPTY)


def _moved(readout: Readout, by: int) -> Readout:
    rows = readout.rows + np.int32(by)
    match readout:
        case LogprobRows():
            return LogprobRows(rows, readout.target_rows, readout.targets, readout.top, readout.ranks)
        case PooledRows():
            return PooledRows(rows, readout.indptr, readout.pooling)
        case HeadRows():
            return HeadRows(rows)
        case SampleRows():
            return replace(readout, rows=rows)


def _join(readouts: list[Readout], requests: list[Request]) -> tuple[Readout, tuple[Share, ...]]:
    """Many readouts of one key as one, and each request's share of it."""
    first = readouts[0]
    rows = np.concatenate([r.rows for r in readouts])
    row_ends = np.cumsum([len(r.rows) for r in readouts]).tolist()
    row_starts = [0, *row_ends[:-1]]
    match first:
        case LogprobRows():
            logprobs = [r for r in readouts if isinstance(r, LogprobRows)]
            pair_ends = np.cumsum([len(r.targets) for r in logprobs]).tolist()
            pair_starts = [0, *pair_ends[:-1]]
            joined: Readout = LogprobRows(
                rows,
                np.concatenate([r.target_rows + np.int32(at) for r, at in zip(logprobs, row_starts)]),
                np.concatenate([r.targets for r in logprobs]),
                first.top,
                first.ranks,
            )
            shares = tuple(
                Share(request, (a, b), (c, d))
                for request, a, b, c, d in zip(requests, row_starts, row_ends, pair_starts, pair_ends)
            )
            return joined, shares
        case PooledRows():
            pooled = [r for r in readouts if isinstance(r, PooledRows)]
            joined = PooledRows(rows, _indptr([len(r.rows) for r in pooled]), first.pooling)
            return joined, tuple(Share(request, (i, i + 1)) for i, request in enumerate(requests))
        case HeadRows():
            return HeadRows(rows), tuple(Share(request, (i, i + 1)) for i, request in enumerate(requests))
        case SampleRows():
            one_each = tuple(Share(request, (i, i + 1)) for i, request in enumerate(requests))
            return join_samples([r for r in readouts if isinstance(r, SampleRows)]), one_each


# ------------------------------------------------------------------ Decode


def _lease(request: Request) -> Lease:
    if request.lease is None:
        raise RuntimeError("a planned request holds no lease")
    return request.lease


def _add_prefill(slices: _Slices, rows: Sequence[PrefillRow]) -> tuple[list[int], list[Request]]:
    """Adds chunks; returns the last token's index and the request of every chunk that ends its prompt."""
    last: list[int] = []
    sampled: list[Request] = []
    for row in rows:
        request, start, end = row.request, row.start, row.start + row.count
        table = _lease(request).table()
        first = slices.add(
            request.known[start:end],
            np.arange(start, end, dtype=np.int32),
            context=table[: -(-start // slices.block_size)],
            context_len=start,
            slots=slots_of(table, start, row.count, slices.block_size),
        )
        if row.samples:
            last.append(first + row.count - 1)
            sampled.append(request)
    return last, sampled


def _decode_rows(requests: Sequence[Request], block_size: int) -> DecodeRows:
    tables = [_lease(request).table() for request in requests]
    positions = np.array([request.num_known - 1 for request in requests], dtype=np.int32)
    slots = [table[p // block_size] * block_size + p % block_size for table, p in zip(tables, positions.tolist())]
    return DecodeRows(
        np.array([request.known[request.num_known - 1] for request in requests], dtype=np.int32),
        positions,
        np.array(slots, dtype=np.int32),
        positions.copy(),
        _indptr([len(table) for table in tables]),
        np.concatenate(tables) if tables else _EMPTY,
    )


def _decode_readout(requests: Sequence[Request]) -> SampleRows:
    return sample_rows([request.drawing(row) for row, request in enumerate(requests)])


# ------------------------------------------------------------------ the whole step


def pack(plan: Plan, block_size: int) -> Packed:
    if plan.kind == "decode":
        batch = DecodeBatch(_decode_rows(plan.decode, block_size), _decode_readout(plan.decode))
        return Packed(batch, decode=tuple(Share(r, (i, i + 1)) for i, r in enumerate(plan.decode)))
    slices = _Slices(block_size)
    shares: tuple[Share, ...] = ()
    readouts: list[Readout] = []
    computed: list[int] = []
    if plan.oneshot:
        moved, computed = _add_oneshot(slices, plan)
        joined, shares = _join(moved, [row.request for row in plan.oneshot])
        if plan.kind == "oneshot":
            return Packed(OneShotBatch(slices.build(), joined), shares, computed=tuple(computed))
        readouts.append(joined)
    last, sampled = _add_prefill(slices, plan.prefill)
    if sampled:
        readouts.append(sample_rows([request.drawing(row) for row, request in zip(last, sampled)]))
    batch = MixedBatch(
        slices.build(),
        tuple(readouts),
        _decode_rows(plan.decode, block_size),
        _decode_readout(plan.decode) if plan.decode else None,
    )
    return Packed(
        batch,
        shares,
        tuple(Share(r, (i, i + 1)) for i, r in enumerate(sampled)),
        tuple(Share(r, (i, i + 1)) for i, r in enumerate(plan.decode)),
        (0, len(readouts) - 1, len(readouts)),
        tuple(computed),
    )
