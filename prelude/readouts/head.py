"""Raw logits of the model's classification head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from prelude.arrays import F32, I32
from prelude.readouts.base import Joined, Key, Output, Readout, RequestReadout, Rows, bad_rows, counted_rows


@dataclass(frozen=True, slots=True)
class HeadOutput(Output):
    logits: F32  # [N, num_labels]

    def slice(self, rows: slice, pairs: slice) -> HeadOutput:
        return HeadOutput(self.logits[rows].copy())


@dataclass(frozen=True, slots=True)
class HeadRows(Readout, RequestReadout):
    """Raw logits of the model's classification head at the given rows, float32."""

    rows: I32  # [N]

    # ---- of a request, which has one row

    @property
    def key(self) -> Key:
        return ("head",)

    def describe(self) -> str:
        return f"head at {counted_rows(len(self.rows))}"

    def join(self, readouts: Sequence[HeadRows], rows: I32, row_ends: I32) -> Joined:
        return Joined(HeadRows(rows), None, None)

    # ---- of a batch

    def run(self, rows: Rows) -> tuple[HeadOutput, I32]:
        logits = rows.scores(self.rows)
        return HeadOutput(logits), bad_rows(np.isfinite(logits).all(axis=1))

    def answers(self, output: object) -> bool:
        return isinstance(output, HeadOutput) and output.logits.ndim == 2 and len(output.logits) == len(self.rows)

    def not_finite(self, output: HeadOutput) -> I32:
        return bad_rows(np.isfinite(output.logits).all(axis=1))

    def blank(self) -> HeadOutput:
        return HeadOutput(np.zeros((len(self.rows), 1), np.float32))
