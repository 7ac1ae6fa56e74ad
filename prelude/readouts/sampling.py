"""The sampling state of a request: settings with every default resolved, and the tokens sampled so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from prelude.readouts.base import Joined, Key, RequestReadout
from prelude.readouts.draw import LogitEdits
from prelude.readouts.sample import SampleRows
from prelude.records import dataclass
from prelude.values.arrays import F32, I32

if TYPE_CHECKING:
    from prelude.streaming.text import Stops

_NO_IDS: I32 = np.zeros(0, dtype=np.int32)

Choose: TypeAlias = Callable[[list[int], bool], I32]  # (output so far, before min_tokens) -> allowed ids, none: all


@dataclass(frozen=True, slots=True)
class RowEdits:
    """The edits of a request's logits. ``banned_early`` is ``banned`` and the stop ids, for the steps before
    ``min_tokens``; an empty ``allowed`` allows every id. ``choose`` returns the allowed ids after the first token,
    for which ``allowed`` has been chosen already."""

    repetition: float
    presence: float
    frequency: float
    bias_ids: I32
    bias_values: F32
    allowed: I32
    banned: I32
    banned_early: I32
    choose: Choose | None = None

    @property
    def weighs(self) -> bool:
        """Whether it has penalties."""
        return self.repetition != 1.0 or self.presence != 0.0 or self.frequency != 0.0

    @property
    def follows(self) -> bool:
        """Whether the edits depend on the text so far."""
        return self.weighs or self.choose is not None


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling settings with every default resolved. ``stop_ids`` end the text; they and the stop string are part of
    it only with ``include_stop``."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    stop_ids: frozenset[int]
    edits: RowEdits | None = None  # None: the logits are sampled as they are
    min_tokens: int = 0
    logprobs: int | None = None
    stops: Stops | None = None
    include_stop: bool = False


class History:
    """The ids that a request's penalties weigh, each once, with how often it was drawn; and ``allowed``, the ids that
    its ``choose`` allows for the next token, ``None`` if it was not asked. ``weighs``: there are penalties."""

    __slots__ = ("_counts", "_ids", "_place", "allowed", "choose", "size", "weighs")

    def __init__(self, prompt: I32, weighs: bool, choose: Choose | None) -> None:
        self.weighs, self.choose = weighs, choose
        self.allowed: I32 | None = None
        ids = np.unique(prompt)
        self.size = len(ids)
        self._ids = np.empty(self.size + 64, dtype=np.int32)
        self._counts = np.zeros(self.size + 64, dtype=np.int32)
        self._ids[: self.size] = ids
        self._place = dict(zip(ids.tolist(), range(self.size)))

    @classmethod
    def of(cls, edits: RowEdits, prompt: I32) -> History:
        """Count the prompt's ids if there is a repetition penalty: no other one looks at the prompt."""
        return cls(prompt if edits.repetition != 1.0 else _NO_IDS, edits.weighs, edits.choose)

    def add(self, token_id: int) -> None:
        at = self._place.get(token_id)
        if at is None:
            at = self._place[token_id] = self.size
            if at == len(self._ids):
                self._ids = np.concatenate([self._ids, np.empty_like(self._ids)])
                self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
            self._ids[at] = token_id
            self.size += 1
        self._counts[at] += 1

    def ids(self) -> I32:
        return self._ids[: self.size]

    def counts(self) -> I32:
        return self._counts[: self.size]


@dataclass(frozen=True, slots=True)
class SamplingState(RequestReadout):
    """One row that is about to be sampled: ``row`` among its request's tokens, or in its batch; ``step`` tokens were
    drawn before."""

    row: int
    sampling: Sampling
    step: int = 0
    history: History | None = None

    @property
    def rows(self) -> I32:  # type: ignore[override]
        return np.array([self.row], dtype=np.int32)

    @property
    def key(self) -> Key:
        return _KEY

    @property
    def logits_rows(self) -> int:
        return 1

    @property
    def needs_lm_head(self) -> bool:
        return True

    def describe(self) -> str:
        return "sample at 1 row"

    def join(self, readouts: Sequence[SamplingState], rows: I32, row_ends: I32) -> Joined:
        return Joined(sampled_rows([one.sampling for one in readouts], rows, lambda: readouts), None, None)


_KEY: Key = ("sample",)  # rows that ask for fewer numbers read their part of the wider result

# ------------------------------------------------------------------ arrays


def sample_rows(states: Sequence[SamplingState]) -> SampleRows:
    """Return the arrays of one step."""
    at = np.array([state.row for state in states], dtype=np.int32)
    return sampled_rows([s.sampling for s in states], at, lambda: states, [s.step for s in states])


def sampled_rows(
    settings: list[Sampling],
    rows: I32,
    states: Callable[[], Sequence[SamplingState]],
    steps: Sequence[int] | None = None,
) -> SampleRows:
    """Return the same by settings. ``states`` is asked only if logits are edited; ``steps``: 0 by default."""
    wanted = [one.logprobs for one in settings if one.logprobs is not None]
    return SampleRows(
        rows,
        np.array([one.temperature for one in settings], dtype=np.float32),
        np.array([one.top_k for one in settings], dtype=np.int32),
        np.array([one.top_p for one in settings], dtype=np.float32),
        np.array([one.min_p for one in settings], dtype=np.float32),
        np.array([one.seed for one in settings], dtype=np.uint64),
        np.zeros(len(settings), dtype=np.int32) if steps is None else np.array(steps, dtype=np.int32),
        max(wanted, default=0),
        bool(wanted),
        logit_edits(states()) if any([one.edits is not None for one in settings]) else None,
    )


def logit_edits(states: Sequence[SamplingState]) -> LogitEdits | None:
    """Tables for every row, None if no row has anything done to it. Called at every step of a text: a table that
    no row has an entry in is one array for all steps, and ids that one row alone has are not copied."""
    edits: list[RowEdits] = []
    allowed: list[I32] = []
    banned: list[I32] = []
    weighed = biased = barred = False
    for state in states:
        sampling, history = state.sampling, state.history
        one = sampling.edits or NO_EDITS
        edits.append(one)
        weighed = weighed or one.weighs
        biased = biased or len(one.bias_ids) > 0
        allowed.append(one.allowed if history is None or history.allowed is None else history.allowed)
        banned.append(one.banned_early if state.step < sampling.min_tokens else one.banned)
        barred = barred or len(banned[-1]) > 0
    if all([one is NO_EDITS for one in edits]):
        return None
    none = empty_edits(len(edits))
    weights = (none.repetition, none.presence, none.frequency)
    seen_indptr, seen_ids, seen_counts = none.seen_indptr, _NO_IDS, _NO_IDS
    if weighed:
        seen = [state.history if e.weighs else None for e, state in zip(edits, states)]
        weights = (
            np.array([e.repetition for e in edits], dtype=np.float32),
            np.array([e.presence for e in edits], dtype=np.float32),
            np.array([e.frequency for e in edits], dtype=np.float32),
        )
        seen_indptr = _indptr([0 if h is None else h.size for h in seen])
        seen_ids = np.concatenate([_NO_IDS if h is None else h.ids() for h in seen])  # histories grow
        seen_counts = np.concatenate([_NO_IDS if h is None else h.counts() for h in seen])
    bias_indptr, bias_ids, bias_values = none.bias_indptr, _NO_IDS, none.bias_values
    if biased:
        bias_indptr, bias_ids = _table([e.bias_ids for e in edits], none.bias_indptr)
        bias_values = _joined([e.bias_values for e in edits])
    tables = (
        *_table(allowed, none.allowed_indptr),
        *(_table(banned, none.banned_indptr) if barred else (none.banned_indptr, _NO_IDS)),
    )
    return LogitEdits(*weights, seen_indptr, seen_ids, seen_counts, bias_indptr, bias_ids, bias_values, *tables)


@lru_cache
def empty_edits(count: int) -> LogitEdits:
    """Make edits of ``count`` rows that change nothing. Many batches share its arrays, which cannot be written."""
    one, zero = np.ones(count, dtype=np.float32), np.zeros(count, dtype=np.float32)
    starts, numbers = np.zeros(count + 1, dtype=np.int32), np.zeros(0, dtype=np.float32)
    for array in (one, zero, starts, numbers):
        array.flags.writeable = False
    ids = _NO_IDS
    return LogitEdits(one, zero, zero, starts, ids, ids, starts, ids, numbers, starts, ids, starts, ids)


NO_EDITS = RowEdits(1.0, 0.0, 0.0, _NO_IDS, np.zeros(0, dtype=np.float32), _NO_IDS, _NO_IDS, _NO_IDS)


def _table(parts: Sequence[I32], empty: I32) -> tuple[I32, I32]:
    """Where each row's entries begin and end, and all rows' entries; ``empty`` is the former if there are none."""
    lengths = list(map(len, parts))
    if not any(lengths):
        return empty, _NO_IDS
    return _indptr(lengths), _joined(parts)


def _indptr(lengths: Sequence[int]) -> I32:
    return np.array([0, *accumulate(lengths)], dtype=np.int32)


def _joined(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
