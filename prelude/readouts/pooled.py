"""One vector an item, from hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from prelude.arrays import F32, I32
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


@dataclass(frozen=True, slots=True)
class PooledOutput(Output):
    vectors: F32  # [N, hidden]

    def slice(self, rows: slice, pairs: slice) -> PooledOutput:
        return PooledOutput(self.vectors[rows].copy())


@dataclass(frozen=True, slots=True)
class PooledRows(Readout, RequestReadout):
    """One vector per item, from hidden states after the final norm, in float32.

    Item i pools tokens ``rows[indptr[i]:indptr[i+1]]``: "last" and "cls" name one row each, "mean" averages.
    """

    rows: I32  # [R]
    indptr: I32  # [N + 1]
    pooling: str = "last"  # "last" | "cls" | "mean"

    # ---- of a request, which has one item

    @property
    def key(self) -> Key:
        return ("pooled", self.pooling)

    def describe(self) -> str:
        return f"hidden states of {counted_rows(len(self.rows))}, pooling {self.pooling}"

    def join(self, readouts: Sequence[PooledRows], rows: I32, row_ends: I32) -> Joined:
        return Joined(PooledRows(rows, indptr_of(row_ends), self.pooling), None, None)

    # ---- of a batch

    @property
    def items(self) -> int:
        return len(self.indptr) - 1

    def run(self, rows: Rows) -> tuple[PooledOutput, I32]:
        if self.pooling not in ("last", "cls", "mean"):
            raise ValueError(f"pooling is {self.pooling!r}; supported: last, cls, mean")
        lengths = np.diff(self.indptr)
        if (lengths < 1).any():
            raise ValueError(f"item {int(np.argmin(lengths))} pools no token")
        if self.pooling != "mean" or (lengths == 1).all():
            vectors = rows.vectors(self.rows[self.indptr[:-1] if self.pooling != "last" else self.indptr[1:] - 1])
        else:
            vectors = means(rows, self.rows, self.indptr)
        return PooledOutput(vectors), bad_rows(np.isfinite(vectors).all(axis=1))

    def answers(self, output: object) -> bool:
        return isinstance(output, PooledOutput) and output.vectors.ndim == 2 and len(output.vectors) == self.items

    def not_finite(self, output: PooledOutput) -> I32:
        return bad_rows(np.isfinite(output.vectors).all(axis=1))

    def blank(self) -> PooledOutput:
        return PooledOutput(np.zeros((self.items, 1), np.float32))
