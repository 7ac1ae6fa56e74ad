"""Logits of options, by a head that reads the rows of one question together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from prelude.readouts.base import (
    Joined,
    Key,
    Output,
    Readout,
    RequestReadout,
    Rows,
    bad_rows,
    counted_rows,
)
from prelude.records import dataclass
from prelude.values.arrays import F32, I32


@dataclass(frozen=True, slots=True)
class OptionOutput(Output):
    logits: F32  # [R], 0 at the rows of answers

    def slice(self, rows: slice, pairs: slice) -> OptionOutput:
        return OptionOutput(self.logits[rows].copy())


@dataclass(frozen=True, slots=True)
class OptionRows(Readout, RequestReadout):
    """Question i reads ``rows[indptr[i]:indptr[i+1]]``: a row for each option, and last the row of the answer.
    ``kinds`` are the numbers of the questions' types."""

    rows: I32  # [R]
    indptr: I32  # [N + 1]
    kinds: I32  # [N]

    # ---- of a request, which has one or more questions

    @property
    def key(self) -> Key:
        return ("options",)

    def describe(self) -> str:
        return f"logits of options at {counted_rows(len(self.rows))}"

    def join(self, readouts: Sequence[OptionRows], rows: I32, row_ends: I32) -> Joined:
        before = np.concatenate([np.zeros(1, np.int32), row_ends[:-1]])
        ends = [one.indptr[1:] + first for one, first in zip(readouts, before)]
        indptr = np.concatenate([np.zeros(1, np.int32), *ends]).astype(np.int32)
        return Joined(OptionRows(rows, indptr, np.concatenate([one.kinds for one in readouts])), row_ends, None)

    # ---- of a batch

    def run(self, rows: Rows) -> tuple[OptionOutput, I32]:
        vectors = rows.vectors(self.rows)
        logits = np.zeros(len(self.rows), np.float32)
        starts = self.indptr.tolist()
        for start, stop, kind in zip(starts, starts[1:], self.kinds.tolist()):
            logits[start : stop - 1] = rows.options_of(vectors[start:stop], kind)
        return OptionOutput(logits), bad_rows(np.isfinite(logits))

    def answers(self, output: object) -> bool:
        return isinstance(output, OptionOutput) and output.logits.shape == (len(self.rows),)

    def not_finite(self, output: OptionOutput) -> I32:
        return bad_rows(np.isfinite(output.logits))

    def blank(self) -> OptionOutput:
        return OptionOutput(np.zeros(len(self.rows), np.float32))
