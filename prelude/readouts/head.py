"""Raw logits of the model's classification head, and of options, by a head that reads the rows of one question
together."""

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
    indptr_of,
    means,
)
from prelude.records import dataclass
from prelude.values.arrays import F32, I32


@dataclass(frozen=True, slots=True)
class HeadOutput(Output):
    logits: F32  # [N, num_labels]


@dataclass(frozen=True, slots=True)
class HeadRows(Readout, RequestReadout):
    """Raw logits of the model's classification head, float32: at the given rows or, with ``indptr``, of the mean of
    rows ``rows[indptr[i]:indptr[i+1]]`` for item i."""

    rows: I32  # [R]
    indptr: I32 | None = None  # [N + 1]
    several: bool = False  # a request may have any number of rows

    # ---- of a request, which has one item, or with ``several`` one for each row

    @property
    def key(self) -> Key:
        return ("head",)  # a model's head reads all of its requests in one way

    def describe(self) -> str:
        return f"head at {'' if self.indptr is None else 'the mean of '}{counted_rows(len(self.rows))}"

    def join(self, readouts: Sequence[HeadRows], rows: I32, row_ends: I32) -> Joined:
        if self.indptr is None:
            return Joined(HeadRows(rows), row_ends if self.several else None, None)
        return Joined(HeadRows(rows, indptr_of(row_ends)), None, None)

    # ---- of a batch

    @property
    def items(self) -> int:
        return len(self.rows) if self.indptr is None else len(self.indptr) - 1

    def run(self, rows: Rows) -> tuple[HeadOutput, I32]:
        if self.indptr is None:
            logits = rows.scores(self.rows)
        else:
            logits = rows.scores_of(means(rows, self.rows, self.indptr))
        return HeadOutput(logits), bad_rows(np.isfinite(logits))

    def answers(self, output: object) -> bool:
        return isinstance(output, HeadOutput) and output.logits.ndim == 2 and len(output.logits) == self.items

    def not_finite(self, output: HeadOutput) -> I32:
        return bad_rows(np.isfinite(output.logits))

    def blank(self) -> HeadOutput:
        return HeadOutput(np.zeros((self.items, 1), np.float32))


@dataclass(frozen=True, slots=True)
class OptionOutput(Output):
    logits: F32  # [R], 0 at the rows of answers


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
