"""Raw logits of the model's classification head."""

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

    def slice(self, rows: slice, pairs: slice) -> HeadOutput:
        return HeadOutput(self.logits[rows].copy())


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
        return ("head", self.indptr is not None, self.several)

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
        return HeadOutput(logits), bad_rows(np.isfinite(logits).all(axis=1))

    def answers(self, output: object) -> bool:
        return isinstance(output, HeadOutput) and output.logits.ndim == 2 and len(output.logits) == self.items

    def not_finite(self, output: HeadOutput) -> I32:
        return bad_rows(np.isfinite(output.logits).all(axis=1))

    def blank(self) -> HeadOutput:
        return HeadOutput(np.zeros((self.items, 1), np.float32))
