"""Logprobs of given tokens at given positions; or the logits of labels alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from prelude.readouts.base import Joined, Key, Output, Readout, RequestReadout, Rows, bad_rows, counted_rows, shape
from prelude.records import dataclass, replace
from prelude.values.arrays import F32, F64, I32


@dataclass(frozen=True, slots=True)
class LogprobOutput(Output):
    logprobs: F64  # [P], never above 0
    ranks: I32 | None  # [P]
    top_ids: I32 | None  # [R, top], best first
    top_logprobs: F32 | None  # [R, top]

    def slice(self, rows: slice, pairs: slice) -> LogprobOutput:
        return LogprobOutput(
            self.logprobs[pairs].copy(),
            None if self.ranks is None else self.ranks[pairs].copy(),
            None if self.top_ids is None else self.top_ids[rows].copy(),
            None if self.top_logprobs is None else self.top_logprobs[rows].copy(),
        )


@dataclass(frozen=True, slots=True)
class LogprobRows(Readout, RequestReadout):
    """Logprobs (float32 log-softmax over the whole vocabulary) of given tokens at given positions.

    ``rows[r]`` is a token index; its logits predict the token that follows it. Rows of requests that read the same
    place name the same token. Pair p asks for the logprob of ``targets[p]`` at row ``target_rows[p]`` (an index into
    ``rows``). ``top`` > 0 also asks for the ``top`` best tokens of every row, ``ranks`` for each target's rank.

    ``raw``: the targets' logits instead, which takes a product with their rows of the LM head alone; neither ``top``
    nor ``ranks`` can be had with it.
    """

    rows: I32  # [R]
    target_rows: I32  # [P]
    targets: I32  # [P]
    top: int = 0
    ranks: bool = False
    raw: bool = False

    # ---- of a request

    @property
    def key(self) -> Key:
        return "logprobs", self.top, self.ranks, self.raw

    @property
    def logits_rows(self) -> int:
        return 0 if self.raw else len(self.rows)

    def join(self, readouts: Sequence[LogprobRows], rows: I32, row_ends: I32) -> Joined:
        counts = [len(one.targets) for one in readouts]
        targets, target_rows = self.targets, self.target_rows
        if len(readouts) > 1:
            targets = np.concatenate([one.targets for one in readouts])
            target_rows = np.concatenate([one.target_rows for one in readouts])
            target_rows[counts[0] :] += np.repeat(row_ends[:-1], counts[1:])
        joined = LogprobRows(rows, target_rows, targets, self.top, self.ranks, self.raw)
        return Joined(joined, row_ends, np.cumsum(counts, dtype=np.int32))

    @property
    def needs_lm_head(self) -> bool:
        return True

    @property
    def result_size(self) -> int:
        return len(self.targets) * self.top

    def describe(self) -> str:
        rows = counted_rows(len(self.rows))
        if self.raw:
            return f"logits of {len(self.targets)} tokens at {rows} (none meets the vocabulary)"
        best = f", the {self.top} best tokens of each row" if self.top else ""
        return f"logprobs of {len(self.targets)} tokens at {rows} ({self.logits_rows} meet the vocabulary){best}"

    # ---- of a batch

    @property
    def vocab_rows(self) -> int:
        return self.logits_rows

    def run(self, rows: Rows) -> tuple[LogprobOutput, I32]:
        if self.raw:
            logits = rows.logits_of(self.rows, self.target_rows, self.targets)
            finite = np.ones(len(self.rows), np.bool_)
            finite[self.target_rows[~np.isfinite(logits)]] = False
            return LogprobOutput(logits, None, None, None), bad_rows(finite)
        if len(self.rows) > 1 and (np.diff(self.rows) <= 0).any():  # requests that read the same place, perhaps
            return self._run_distinct(rows)
        count, pairs = len(self.rows), len(self.targets)
        logprobs = np.empty(pairs, np.float64)
        ranks = np.empty(pairs, np.int32) if self.ranks else None
        top = min(self.top, rows.vocab_size)
        top_ids = np.empty((count, top), np.int32) if top else None
        top_logprobs = np.empty((count, top), np.float32) if top else None
        finite = np.ones(count, np.bool_)
        order = np.argsort(self.target_rows, kind="stable")
        sorted_rows = self.target_rows[order]
        for start, stop, some in rows.chunks(self.rows):
            finite[start:stop] = some.finite()
            chosen = order[slice(*np.searchsorted(sorted_rows, [start, stop]))]
            local, targets = self.target_rows[chosen] - np.int32(start), self.targets[chosen]
            logprobs[chosen] = some.logprobs(local, targets)
            if ranks is not None:
                ranks[chosen] = some.ranks(local, targets)
            if top_ids is not None and top_logprobs is not None:
                top_ids[start:stop], top_logprobs[start:stop] = some.best(top)
        return LogprobOutput(logprobs, ranks, top_ids, top_logprobs), bad_rows(finite)

    def _run_distinct(self, rows: Rows) -> tuple[LogprobOutput, I32]:
        """Run each row once, however many requests read it."""
        distinct, places = np.unique(self.rows, return_inverse=True)
        once = replace(self, rows=distinct, target_rows=places[self.target_rows].astype(np.int32))
        found, bad = once.run(rows)
        finite = ~np.isin(np.arange(len(distinct)), bad)[places]
        if found.top_ids is not None and found.top_logprobs is not None:
            found = replace(found, top_ids=found.top_ids[places], top_logprobs=found.top_logprobs[places])
        return found, bad_rows(finite)

    def answers(self, output: object) -> bool:
        pairs, rows = self.targets.shape, self.rows.shape
        if not isinstance(output, LogprobOutput) or shape(output.logprobs) != pairs:
            return False
        if self.ranks and shape(output.ranks) != pairs:
            return False
        return not self.top or shape(output.top_ids)[:1] == shape(output.top_logprobs)[:1] == rows

    def not_finite(self, output: LogprobOutput) -> I32:
        return self.target_rows[np.isnan(output.logprobs)]

    def blank(self) -> LogprobOutput:
        return LogprobOutput(np.full(len(self.targets), -1.0), None, None, None)
