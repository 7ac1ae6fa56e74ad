"""Plan -> ForwardBatch: arrays for the executor, and which part of each output belongs to whom."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from prelude._native.core import DrawnPacker, Maker, draws_of, pack_running, pack_step
from prelude.admission.drawing import Drawing
from prelude.admission.sampling import logit_edits, sample_rows, sampled_rows
from prelude.batch import (
    I32,
    DecodeBatch,
    DecodeRows,
    ForwardBatch,
    HeadRows,
    LogitEdits,
    LogprobRows,
    MixedBatch,
    OneShotBatch,
    PooledRows,
    PromptSlices,
    Readout,
    SampleRows,
)
from prelude.scheduling.plan import OneShotRow, Plan, PrefillRow
from prelude.scheduling.request import Request

_EMPTY: I32 = np.zeros(0, dtype=np.int32)

# One row of the native packer: tokens, positions, starts, parents, begin, end, parent row, context blocks, context
# length, blocks that get KV, where in them the first computed token stands, how many tokens are written.
PromptRow: TypeAlias = tuple[Any, Any, Any, Any, int, int, int, Any, int, Any, int, int]


@dataclass(frozen=True, slots=True)
class Packed:
    """``outputs`` says which output (index into ``StepResult.outputs``) OneShot rows, ``prefill``, ``decode`` read;
    of the latter two one row each, in order. ``row_ends`` and ``pair_ends`` say where the rows (items, for pooled
    ones) and the target pairs of each OneShot request end in it; None where each has one row."""

    batch: ForwardBatch
    prefill: tuple[Request, ...] = ()
    decode: tuple[Request, ...] = ()
    outputs: tuple[int, int, int] = (0, 0, 0)
    computed: I32 = field(default_factory=lambda: _EMPTY)  # tokens each OneShot row brought into the batch
    row_ends: I32 | None = None
    pair_ends: I32 | None = None

    @property
    def first_drawn(self) -> int:
        """Where, among all tokens that the step draws, those of ``prefill`` begin; ``decode``'s follow."""
        batch = self.batch
        if not isinstance(batch, MixedBatch) or not len(self.computed):
            return 0
        first = batch.readouts[0]
        return len(first.rows) if isinstance(first, SampleRows) else 0


# ------------------------------------------------------------------ OneShot

_NOTHING = LogprobRows(_EMPTY, _EMPTY, _EMPTY)
_slices, _draws = Maker(PromptSlices), Maker(SampleRows)


def draws_tokens(plan: Plan) -> bool:
    """Whether the OneShot rows draw a token each."""
    key = plan.oneshot[0].request.key
    return key is not None and key[0] == "sample"


Shifts: TypeAlias = tuple[I32, I32, I32]  # of ``pack_step``, one each a OneShot row


def _join(plan: Plan, shifts: Shifts) -> tuple[Readout, I32 | None, I32 | None]:
    """Readouts of one key as one, and where each request's part of it ends. ``shifts``: what to add to each request's
    row numbers to get the batch's."""
    if draws_tokens(plan):
        *values, edited = draws_of(plan.oneshot, shifts)
        return _draws(*values, _edits(plan.oneshot) if edited else None), None, None
    readouts = [row.request.prepared.readout or _NOTHING for row in plan.oneshot]
    parts = [readout for readout in readouts if not isinstance(readout, Drawing)]
    moved, lengths, ends = _concatenated([part.rows for part in parts])
    moved += _moves(moved, lengths, shifts)
    one = parts[0]
    match one:
        case LogprobRows():
            logprobs = [part for part in parts if isinstance(part, LogprobRows)]
            target_rows, pairs, pair_ends = _concatenated([part.target_rows for part in logprobs])
            target_rows += np.repeat(ends - lengths, pairs)
            targets = np.concatenate([part.targets for part in logprobs])
            return LogprobRows(moved, target_rows, targets, one.top, one.ranks, one.raw), ends, pair_ends
        case PooledRows():
            return PooledRows(moved, np.concatenate([_ZERO, ends]), one.pooling), None, None
        case _:
            return HeadRows(moved), None, None


_ZERO: I32 = np.zeros(1, dtype=np.int32)


def _edits(rows: Sequence[OneShotRow]) -> LogitEdits | None:
    readouts = [row.request.prepared.readout for row in rows]
    return logit_edits([readout for readout in readouts if isinstance(readout, Drawing)])


def _concatenated(parts: list[I32]) -> tuple[I32, I32, I32]:
    """``parts`` in one array; how long each is, and where it ends."""
    lengths = np.array([len(part) for part in parts], dtype=np.int32)
    joined: I32 = np.concatenate(parts)
    return joined, lengths, np.cumsum(lengths, dtype=np.int32)


def _moves(rows: I32, lengths: I32, shifts: Shifts) -> I32:
    """What to add to requests' row numbers, ``lengths`` of each, to get the batch's."""
    begins, before, after = shifts
    moves: I32 = np.repeat(after, lengths)
    if not np.array_equal(before, after):  # a fold has the first tokens of some
        moves = np.where(rows < np.repeat(begins, lengths), np.repeat(before, lengths), moves)
    return moves


_drawn = DrawnPacker(_slices, _draws, Maker(OneShotBatch), Maker(Packed), _edits)


# ------------------------------------------------------------------ Decode


def _prefill_row(row: PrefillRow) -> PromptRow:
    table = row.request.held.table()
    end = row.start + row.count
    return (row.request.known, None, None, None, row.start, end, -1, table, row.start, table, row.start, row.count)


def _decode_readout(requests: Sequence[Request]) -> SampleRows:
    settings = [request.sampling for request in requests if request.sampling is not None]
    if len(settings) < len(requests):
        raise RuntimeError("a Decode request has no sampling settings")
    readout = sampled_rows(
        settings,
        np.arange(len(requests), dtype=np.int32),
        lambda: [request.drawing(row) for row, request in enumerate(requests)],
    )
    readout.steps[:] = [len(request.output) + request.ahead for request in requests]
    return readout


def _slots(requests: Iterable[Request]) -> I32:
    """[rows]: where a recurrent model keeps the state of each."""
    return np.array([request.held.slot for request in requests], dtype=np.int32)


# ------------------------------------------------------------------ the whole step


def pack(plan: Plan, block_size: int, recurrent: bool = False) -> Packed:
    """``recurrent``: the batch says in which slots the states of its Decode requests are."""
    if plan.oneshot and not (plan.prefill or plan.decode) and draws_tokens(plan):
        packed: Packed = _drawn.pack(plan.oneshot, plan.folds, block_size)
        return packed
    if plan.kind == "decode":
        rows, readout = DecodeRows(*pack_running(plan.decode, block_size)), _decode_readout(plan.decode)
        batch = DecodeBatch(rows, readout, _slots(plan.decode)) if recurrent else DecodeBatch(rows, readout)
        return Packed(batch, decode=plan.decode)
    folds = [(fold.members, fold.tokens) for fold in plan.folds]
    chunks = [_prefill_row(row) for row in plan.prefill]
    arrays, offsets, shifts, computed = pack_step(plan.oneshot, folds, chunks, block_size)
    slices = _slices(*arrays)
    readouts: list[Readout] = []
    row_ends = pair_ends = None
    if plan.oneshot:
        joined, row_ends, pair_ends = _join(plan, shifts)
        if plan.kind == "oneshot":
            oneshot = OneShotBatch(slices, joined)
            return Packed(oneshot, computed=computed, row_ends=row_ends, pair_ends=pair_ends)
        readouts.append(joined)
    ends = [(offset + row.count - 1, row.request) for offset, row in zip(offsets.tolist(), plan.prefill)]
    sampled = [(token, request) for (token, request), row in zip(ends, plan.prefill) if row.samples]
    if sampled:
        readouts.append(sample_rows([request.drawing(token) for token, request in sampled]))
    prompt_slots = decode_slots = None
    if recurrent:  # chunks are the last segments, one each
        chunked = _slots([row.request for row in plan.prefill])
        prompt_slots = np.concatenate([np.full(slices.num_segments - len(chunked), -1, dtype=np.int32), chunked])
        decode_slots = _slots(plan.decode)
    mixed = MixedBatch(
        slices,
        tuple(readouts),
        DecodeRows(*pack_running(plan.decode, block_size)),
        _decode_readout(plan.decode) if plan.decode else None,
        prompt_slots,
        decode_slots,
    )
    return Packed(
        mixed,
        tuple([request for _, request in sampled]),
        plan.decode,
        (0, len(readouts) - 1, len(readouts)),
        computed,
        row_ends,
        pair_ends,
    )
