"""Plan: one step's decision as data, printable; packing and postprocessing read nothing else. ``pack`` makes its
ForwardBatch: arrays for the executor, and the request that each part of an output belongs to.

A prompt of a recurrent model goes on from a state and leaves states. A state is that at a segment's end, so that a
segment is cut where one is kept:

    packed      [ prompt ........................................ ]
    with cuts   [ to the branch )[ to the last full block )[ rest ]      each goes on from the one before it
                  state ─▶ entry   state ─▶ entry            ─▶ the sequence's own entry, of a Decode request
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from prelude._native.core import Lease, pack_running, pack_step
from prelude.readouts.batch import (
    I32,
    DecodeBatch,
    DecodeRows,
    ForwardBatch,
    LogprobRows,
    MixedBatch,
    OneShotBatch,
    PromptSlices,
    Readout,
    SampleRows,
)
from prelude.readouts.sampling import sample_rows, sampled_rows
from prelude.records import dataclass, field, replace
from prelude.scheduling.request import Request, State


@dataclass(frozen=True, slots=True)
class OneShotRow:
    """``skip`` trunk tokens come from the cache; ``publish`` blocks of the lease receive the KV of the tokens after
    them."""

    request: Request
    skip: int
    publish: int


class Fold(NamedTuple):
    """``members`` (indices of OneShot rows with the same ``skip``) share the next ``tokens`` tokens: these are
    computed once, from the first member, which also publishes for all. If members read some of these, all read the
    same place."""

    members: tuple[int, ...]
    tokens: int


@dataclass(frozen=True, slots=True)
class PrefillRow:
    """Tokens ``[start, start + count)`` of a Decode request; the chunk that ends the known tokens is sampled."""

    request: Request
    start: int
    count: int

    @property
    def samples(self) -> bool:
        return self.start + self.count == self.request.num_known


def lives(request: Request, void: Collection[int]) -> bool:
    """Whether a row of a step that was in flight still is its request's next: that has not ended meanwhile, and the
    step it goes on from did not fail."""
    return request.state is not State.FINISHED and request.id not in void


@dataclass(frozen=True, slots=True)
class Plan:
    """``postprocess_first``: nothing is planned, because a row would have to be preempted while a step in flight has
    a row of it."""

    oneshot: tuple[OneShotRow, ...] = ()
    folds: tuple[Fold, ...] = ()
    prefill: tuple[PrefillRow, ...] = ()
    decode: tuple[Request, ...] = ()
    preempted: tuple[Request, ...] = ()
    deferred: tuple[Request, ...] = ()
    postprocess_first: bool = False

    @property
    def empty(self) -> bool:
        return not (self.oneshot or self.prefill or self.decode)

    @property
    def kind(self) -> str:
        if self.oneshot and not self.prefill and not self.decode:
            return "oneshot"
        return "decode" if self.decode and not self.prefill and not self.oneshot else "mixed"

    def requests(self) -> list[Request]:
        requests = [row.request for row in self.oneshot]
        if self.prefill or self.decode:
            requests += [row.request for row in self.prefill]
            requests += self.decode
        return requests

    def without(self, void: Collection[int]) -> Plan:
        """Return the rows that are still valid: not those of Decode requests that have ended, or whose id is in
        ``void``."""
        return replace(
            self,
            prefill=tuple([row for row in self.prefill if lives(row.request, void)]),
            decode=tuple([request for request in self.decode if lives(request, void)]),
        )

    def __str__(self) -> str:
        shots = ", ".join(
            f"{row.request.prompt_tokens}t skip {row.skip} publish {row.publish}" for row in self.oneshot
        )
        folds = ", ".join(f"{len(fold.members)} rows share {fold.tokens}t" for fold in self.folds)
        chunks = ", ".join(f"[{row.start}, {row.start + row.count})" for row in self.prefill)
        return f"{self.kind}: oneshot [{shots}] folds [{folds}] prefill [{chunks}] decode {len(self.decode)}"


LOGITS_BYTES = 8  # float32 logits and their log-softmax, per vocabulary entry of a read row


@dataclass(slots=True)
class Ledger:
    """The budgets that a step still has: ``tokens`` to compute, cached ones not counted; ``rows``; bytes of logits.
    Blocks and state entries are not among them: the pool is their only account, and it refuses atomically."""

    tokens: int
    rows: int
    logits_bytes: int

    def fits(self, tokens: int) -> bool:
        """Return whether a row of so many tokens fits."""
        return tokens <= self.tokens and self.rows >= 1

    def take(self, tokens: int) -> bool:
        """Take a row of so many tokens; return False, and change nothing, if it does not fit."""
        if not self.fits(tokens):
            return False
        self.tokens -= tokens
        self.rows -= 1
        return True


_EMPTY: I32 = np.zeros(0, dtype=np.int32)

# One row of the native packer: tokens, positions, starts, parents, begin, end, parent row, context blocks, context
# length, blocks that get KV, where in them the first computed token stands, how many tokens are written.
PromptRow: TypeAlias = tuple[Any, Any, Any, Any, int, int, int, Any, int, Any, int, int]


@dataclass(frozen=True, slots=True)
class Packed:
    """``outputs`` says which output (index into ``StepResult.outputs``) OneShot rows, ``prefill``, ``decode`` read;
    of the latter two one row each, in order. ``row_ends`` and ``pair_ends`` say where the rows (items, for pooled
    ones) and the target pairs of each OneShot request end in it; None if each has one row."""

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
        return batch.readouts[0].draws


# ------------------------------------------------------------------ OneShot

_NOTHING = LogprobRows(_EMPTY, _EMPTY, _EMPTY)  # for requests that warm the prefix cache


def _readouts(rows: Sequence[OneShotRow]) -> list[Any]:
    """Join readouts of one batch key to one."""
    return [_NOTHING if row.request.readout is None else row.request.readout for row in rows]


# ------------------------------------------------------------------ Decode


def _prefill_row(row: PrefillRow) -> PromptRow:
    table = row.request.held.table()
    end = row.start + row.count
    return (row.request.known, None, None, None, row.start, end, -1, table, row.start, table, row.start, row.count)


def _decode_readout(requests: Sequence[Request]) -> SampleRows:
    return sampled_rows(
        [request.sampling for request in requests],
        np.arange(len(requests), dtype=np.int32),
        lambda: [request.sampling_state(row) for row, request in enumerate(requests)],
        [len(request.output) + request.ahead for request in requests],
    )


def _state_indices(requests: Iterable[Request]) -> I32:
    """[rows]: where a recurrent model keeps the state of each."""
    return np.array([request.held.state_index for request in requests], dtype=np.int32)


# ------------------------------------------------------------------ the whole step


def pack(plan: Plan, block_size: int, recurrent: bool = False) -> Packed:
    """``recurrent``: the batch has the state indices of its requests."""
    if plan.kind == "oneshot":
        arrays, _, tokens, ends, computed, states = pack_step(plan.oneshot, plan.folds, (), block_size, recurrent)
        slices = PromptSlices(*arrays)
        if recurrent:
            slices = with_states(slices, states, [], block_size)
        readouts = _readouts(plan.oneshot)
        joined, row_ends, pair_ends = readouts[0].join(readouts, tokens, ends)
        return Packed(OneShotBatch(slices, joined), computed=computed, row_ends=row_ends, pair_ends=pair_ends)
    return _pack_mixed(plan, block_size, recurrent)


def _pack_mixed(plan: Plan, block_size: int, recurrent: bool) -> Packed:
    """Pack a plan with rows of Decode requests, or without any row."""
    if plan.decode and not plan.prefill and not plan.oneshot:
        rows, readout = DecodeRows(*pack_running(plan.decode, block_size)), _decode_readout(plan.decode)
        batch = DecodeBatch(rows, readout, _state_indices(plan.decode)) if recurrent else DecodeBatch(rows, readout)
        return Packed(batch, decode=plan.decode)
    oneshot = plan.oneshot
    chunks = [_prefill_row(row) for row in plan.prefill] if plan.prefill else []
    arrays, offsets, tokens, ends, computed, states = pack_step(oneshot, plan.folds, chunks, block_size, recurrent)
    slices = PromptSlices(*arrays)
    if recurrent:
        slices = with_states(slices, states, list(zip(offsets.tolist(), plan.prefill)), block_size)
    readouts: list[Readout] = []
    row_ends = pair_ends = None
    if oneshot:
        of_rows = _readouts(oneshot)
        joined, row_ends, pair_ends = of_rows[0].join(of_rows, tokens, ends)
        readouts.append(joined)
    chunk_ends = [(offset + row.count - 1, row.request) for offset, row in zip(offsets.tolist(), plan.prefill)]
    sampled = [(token, request) for (token, request), row in zip(chunk_ends, plan.prefill) if row.samples]
    if sampled:
        readouts.append(sample_rows([request.sampling_state(token) for token, request in sampled]))
    mixed = MixedBatch(
        slices,
        tuple(readouts),
        DecodeRows(*pack_running(plan.decode, block_size)),
        _decode_readout(plan.decode) if plan.decode else None,
        _state_indices(plan.decode) if recurrent else None,
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


def with_states(
    slices: PromptSlices,
    rows: Sequence[tuple[int, int, Lease]],
    chunks: Sequence[tuple[int, PrefillRow]],
    block_size: int,
) -> PromptSlices:
    """``rows``: of OneShot rows the segment that they begin with, the offset from a token of the prompt to the
    batch's token, and the lease. ``chunks``: where the first token of each is; they are the last segments, one
    each."""
    count = slices.num_segments
    begins, ends = np.full(count, -1, np.int32), np.full(count, -1, np.int32)
    cuts: list[tuple[int, int]] = []  # (token behind which a state is kept, entry)
    for segment, shift, lease in rows:
        begins[segment] = lease.state_from
        cuts += [(shift + blocks * block_size, entry) for entry, blocks in lease.kept]
    for segment, (token, row) in enumerate(chunks, count - len(chunks)):
        lease = row.request.held
        if row.start:
            begins[segment] = lease.state_from if row.start == lease.base * block_size else lease.state_index
        ends[segment] = lease.state_index
        cuts += [(token - row.start + blocks * block_size, entry) for entry, blocks in lease.kept]
    if not (cuts or chunks or (begins >= 0).any()):
        return slices
    return _cut(replace(slices, state_from=begins, state_to=ends), sorted(cuts))


def _cut(slices: PromptSlices, cuts: list[tuple[int, int]]) -> PromptSlices:
    """Keep the state behind token ``cuts[i][0] - 1`` in entry ``cuts[i][1]``. If a segment ends there and has
    an entry for its own state, an empty segment behind it takes that entry."""
    begins, ends = slices.state_from, slices.state_to
    if begins is None or ends is None or not cuts:
        return slices
    tokens = np.array([token for token, _ in cuts], np.int32)
    entries = np.array([entry for _, entry in cuts], np.int32)
    where = np.searchsorted(slices.starts, tokens - 1, side="right") - 1
    at_end = (tokens == slices.starts[where + 1]) & (ends[where] < 0)
    ends[where[at_end]] = entries[at_end]
    tokens, entries, where = tokens[~at_end], entries[~at_end], where[~at_end]
    if not len(tokens):
        return slices
    count = slices.num_segments
    parts = np.bincount(where, minlength=count)
    last: I32 = (np.arange(count) + np.cumsum(parts)).astype(np.int32)
    first = last - parts
    new = where + 1 + np.arange(len(where))  # the segments behind the cuts

    def spread(values: I32, at: I32, rest: int) -> I32:
        out = np.full(count + len(new), rest, np.int32)
        out[at] = values
        return out

    parents = spread(np.where(slices.parents >= 0, last[slices.parents], -1).astype(np.int32), first, -1)
    parents[new] = new - 1
    to = spread(ends, last, -1)
    to[new - 1] = entries
    return replace(
        slices,
        starts=np.insert(slices.starts, where + 1, tokens),
        parents=parents,
        context_lens=spread(slices.context_lens, first, 0),
        context_indptr=np.insert(slices.context_indptr, where + 1, slices.context_indptr[where + 1]),
        state_from=spread(begins, first, -1),
        state_to=to,
    )
