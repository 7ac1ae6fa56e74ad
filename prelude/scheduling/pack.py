"""Plan -> ForwardBatch: arrays for the executor, and which part of each output belongs to whom."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from prelude._native.core import pack_decode, pack_prompt
from prelude.admission.drawing import Drawing
from prelude.admission.sampling import sample_rows
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
        row.request.trunk if end < 0 else end,
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


def _oneshot_readout(
    plan: Plan, offsets: I32, at: list[int], begin: list[int]
) -> tuple[Readout, tuple[Share, ...], tuple[int, ...]]:
    """All rows' readouts as one, each request's share of it, and the tokens each row brought (a fold's, to its first
    member)."""
    first = offsets.tolist()
    requests = [row.request for row in plan.oneshot]
    shifts = [first[place] - start for place, start in zip(at, begin)]
    computed = [r.prepared.tree.num_tokens - start for r, start in zip(requests, begin)]
    for fold in plan.folds:
        computed[fold.members[0]] += fold.tokens
    return *_join(requests, shifts), tuple(computed)


_NOTHING = LogprobRows(_EMPTY, _EMPTY, _EMPTY)


def _join(requests: list[Request], shifts: list[int]) -> tuple[Readout, tuple[Share, ...]]:
    """Readouts of one key as one. ``shifts``: what to add to each request's row numbers to get the batch's."""
    readouts = [request.prepared.readout or _NOTHING for request in requests]
    first = readouts[0]
    if isinstance(first, Drawing):
        draws = [readout for readout in readouts if isinstance(readout, Drawing)]
        rows = [draw.row + shift for draw, shift in zip(draws, shifts)]
        return sample_rows(draws, rows), _one_each(requests)
    parts = [readout for readout in readouts if not isinstance(readout, Drawing)]
    moved, starts, ends = _concatenated([part.rows for part in parts], shifts)
    match first:
        case LogprobRows():
            logprobs = [part for part in parts if isinstance(part, LogprobRows)]
            target_rows, pair_starts, pair_ends = _concatenated([part.target_rows for part in logprobs], starts)
            targets = np.concatenate([part.targets for part in logprobs])
            shares = tuple(map(Share, requests, zip(starts, ends), zip(pair_starts, pair_ends)))
            return LogprobRows(moved, target_rows, targets, first.top, first.ranks, first.raw), shares
        case PooledRows():
            return PooledRows(moved, np.array([0, *ends], dtype=np.int32), first.pooling), _one_each(requests)
        case HeadRows():
            return HeadRows(moved), _one_each(requests)


def _concatenated(parts: list[I32], shifts: list[int]) -> tuple[I32, list[int], list[int]]:
    """``parts`` in one array, each moved by its shift; where each begins in it, and where it ends."""
    lengths = [len(part) for part in parts]
    ends = list(itertools.accumulate(lengths))
    joined: I32 = np.concatenate(parts)
    joined += np.repeat(np.array(shifts, dtype=np.int32), lengths)
    return joined, [0, *ends[:-1]], ends


def _one_each(requests: Sequence[Request]) -> tuple[Share, ...]:
    return tuple([Share(request, (i, i + 1)) for i, request in enumerate(requests)])


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
        return Packed(batch, decode=_one_each(plan.decode))
    rows, at, begin = _oneshot_rows(plan, block_size)
    first_chunk = len(rows)
    rows.extend(_prefill_row(row) for row in plan.prefill)
    *_, offsets, _ = arrays = pack_prompt(rows, block_size)
    slices = PromptSlices(*arrays[:8])
    shares: tuple[Share, ...] = ()
    readouts: list[Readout] = []
    computed: tuple[int, ...] = ()
    if plan.oneshot:
        joined, shares, computed = _oneshot_readout(plan, offsets, at, begin)
        if plan.kind == "oneshot":
            return Packed(OneShotBatch(slices, joined), shares, computed=computed)
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
        _one_each([request for _, request in sampled]),
        _one_each(plan.decode),
        (0, len(readouts) - 1, len(readouts)),
        computed,
    )
