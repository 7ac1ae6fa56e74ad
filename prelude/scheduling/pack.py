"""Plan -> ForwardBatch: arrays for the executor, and which part of each output belongs to whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from prelude._native.core import pack_decode, pack_prompt
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
from prelude.scheduling.lease import Lease
from prelude.scheduling.plan import OneShotRow, Plan, PrefillRow
from prelude.scheduling.request import Request

_EMPTY = np.zeros(0, dtype=np.int32)

# One row of the native packer: tokens, positions, starts, parents, begin, end, parent row, context blocks, context
# length, blocks that get KV, where in them the first computed token stands, how many tokens are written.
PromptRow: TypeAlias = tuple[Any, Any, Any, Any, int, int, int, Any, int, Any, int, int]


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


def _indptr(lengths: Sequence[int]) -> I32:
    out = np.zeros(len(lengths) + 1, dtype=np.int32)
    np.cumsum(lengths, out=out[1:])
    return out


# ------------------------------------------------------------------ OneShot


def _prompt_row(
    row: OneShotRow, block_size: int, begin: int, parent: int, lease: Lease | None, end: int = -1
) -> PromptRow:
    """One row for the packer: a request's tokens from ``begin`` on. ``parent`` is the row of the folded segment
    before them, -1 with none; ``end`` cuts a folded segment out of its leader's trunk. With a ``lease`` the row
    attaches the cached prefix, and writes what the plan publishes."""
    tree = row.request.prepared.tree
    single = len(tree.parents) == 1 or end >= 0
    return (
        tree.token_ids,
        None if single else tree.positions,
        None if single else tree.starts,
        None if single else tree.parents,
        begin,
        tree.trunk_tokens if end < 0 else end,
        parent,
        lease.shared if lease else None,
        row.skip if lease else 0,
        lease.own if lease and row.publish else None,
        0,
        row.publish * block_size if lease else 0,
    )


def _oneshot_rows(plan: Plan, block_size: int) -> tuple[list[PromptRow], list[int], list[int]]:
    """Packer rows; per OneShot row, which of them carries its own tokens and the first tree token in it."""
    rows: list[PromptRow] = []
    at = [0] * len(plan.oneshot)
    begin = [row.skip for row in plan.oneshot]
    folded: set[int] = set()

    def add(row: OneShotRow, start: int, parent: int, lease: Lease | None, end: int = -1) -> int:
        rows.append(_prompt_row(row, block_size, start, parent, lease, end))
        return len(rows) - 1

    for fold in plan.folds:
        folded.update(fold.members)
        leader = plan.oneshot[fold.members[0]]
        end = leader.skip + fold.tokens
        root = add(leader, leader.skip, -1, leader.request.held, end)
        for member in fold.members:
            begin[member] = end
            at[member] = add(plan.oneshot[member], end, root, None)
    for index, row in enumerate(plan.oneshot):
        if index not in folded:
            at[index] = add(row, row.skip, -1, row.request.held)
    return rows, at, begin


def _oneshot_readouts(plan: Plan, offsets: I32, at: list[int], begin: list[int]) -> tuple[list[Readout], list[int]]:
    """Every row's readout moved to batch tokens, and the tokens each row brought (a fold's, to its first member)."""
    readouts: list[Readout] = []
    computed: list[int] = []
    first = offsets.tolist()
    for index, row in enumerate(plan.oneshot):
        readout = row.request.prepared.readout
        readouts.append(_NOTHING if readout is None else _moved(readout, first[at[index]] - begin[index]))
        computed.append(row.request.prepared.tree.num_tokens - begin[index])
    for fold in plan.folds:
        computed[fold.members[0]] += fold.tokens
    return readouts, computed


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


def _prefill_row(row: PrefillRow) -> PromptRow:
    table = row.request.held.table()
    end = row.start + row.count
    return (row.request.known, None, None, None, row.start, end, -1, table, row.start, table, row.start, row.count)


def _decode_rows(requests: Sequence[Request], block_size: int) -> DecodeRows:
    leases = [request.held for request in requests]
    rows = [(r.known, r.num_known, lease.shared, lease.own) for r, lease in zip(requests, leases)]
    return DecodeRows(*pack_decode(rows, block_size))


def _decode_readout(requests: Sequence[Request]) -> SampleRows:
    return sample_rows([request.drawing(row) for row, request in enumerate(requests)])


# ------------------------------------------------------------------ the whole step


def pack(plan: Plan, block_size: int) -> Packed:
    if plan.kind == "decode":
        batch = DecodeBatch(_decode_rows(plan.decode, block_size), _decode_readout(plan.decode))
        return Packed(batch, decode=tuple(Share(r, (i, i + 1)) for i, r in enumerate(plan.decode)))
    rows, at, begin = _oneshot_rows(plan, block_size)
    first_chunk = len(rows)
    rows.extend(_prefill_row(row) for row in plan.prefill)
    *_, offsets, _ = arrays = pack_prompt(rows, block_size)
    slices = PromptSlices(*arrays[:8])
    shares: tuple[Share, ...] = ()
    readouts: list[Readout] = []
    computed: list[int] = []
    if plan.oneshot:
        moved, computed = _oneshot_readouts(plan, offsets, at, begin)
        joined, shares = _join(moved, [row.request for row in plan.oneshot])
        if plan.kind == "oneshot":
            return Packed(OneShotBatch(slices, joined), shares, computed=tuple(computed))
        readouts.append(joined)
    ends = [(int(offsets[first_chunk + i]) + row.count - 1, row.request) for i, row in enumerate(plan.prefill)]
    sampled = [(token, request) for (token, request), row in zip(ends, plan.prefill) if row.samples]
    if sampled:
        readouts.append(sample_rows([request.drawing(token) for token, request in sampled]))
    mixed = MixedBatch(
        slices,
        tuple(readouts),
        _decode_rows(plan.decode, block_size),
        _decode_readout(plan.decode) if plan.decode else None,
    )
    return Packed(
        mixed,
        shares,
        tuple(Share(r, (i, i + 1)) for i, (_, r) in enumerate(sampled)),
        tuple(Share(r, (i, i + 1)) for i, r in enumerate(plan.decode)),
        (0, len(readouts) - 1, len(readouts)),
        tuple(computed),
    )
