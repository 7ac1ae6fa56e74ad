"""One vector an item, from hidden states."""

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

_ONE_ROW = ("cls", "last")
_RUN = 256  # rows of an item that are in memory at a time


@dataclass(frozen=True, slots=True)
class PooledOutput(Output):
    vectors: F32  # [N, modes * hidden]


@dataclass(frozen=True, slots=True)
class PooledRows(Readout, RequestReadout):
    """One vector per item, from hidden states after the final norm, in float32.

    Item i pools tokens ``rows[indptr[i]:indptr[i+1]]``. ``pooling``: one mode, or several joined by "+", whose
    vectors stand one behind the other. "cls" and "last" take the item's first and last row, "mean" averages, "max"
    takes the largest value of each component, "mean_sqrt_len_tokens" divides the sum by the root of the number of
    rows, and "weightedmean" weighs row j of the item by ``before[i] + j + 1``.
    """

    rows: I32  # [R]
    indptr: I32  # [N + 1]
    pooling: str = "last"
    before: I32 | None = None  # [N]: tokens of the prompt in front of the item's rows; None: none

    @property
    def modes(self) -> list[str]:
        return self.pooling.split("+")

    # ---- of a request, which has one item

    @property
    def key(self) -> Key:
        return ("pooled", self.pooling, self.before is not None)

    def describe(self) -> str:
        return f"hidden states of {counted_rows(len(self.rows))}, pooling {self.pooling}"

    def join(self, readouts: Sequence[PooledRows], rows: I32, row_ends: I32) -> Joined:
        before = [one.before for one in readouts if one.before is not None]
        joined = np.concatenate(before) if before else None
        return Joined(PooledRows(rows, indptr_of(row_ends), self.pooling, joined), None, None)

    # ---- of a batch

    @property
    def items(self) -> int:
        return len(self.indptr) - 1

    def run(self, rows: Rows) -> tuple[PooledOutput, I32]:
        parts = [self._pooled(mode, rows) for mode in self.modes]
        vectors = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
        return PooledOutput(vectors), bad_rows(np.isfinite(vectors))

    def _pooled(self, mode: str, rows: Rows) -> F32:
        """[N, hidden]. Item by item if an item has several rows: the order of a sum must not depend on the
        neighbours."""
        if mode == "last":
            return rows.vectors(self.rows[self.indptr[1:] - 1])
        if mode == "cls" or len(self.rows) == self.items:  # each has a row at least
            return rows.vectors(self.rows[self.indptr[:-1]])
        if mode == "mean":
            return means(rows, self.rows, self.indptr)
        if mode == "mean_sqrt_len_tokens":
            roots = np.sqrt((self.indptr[1:] - self.indptr[:-1]).astype(np.float64))[:, None]
            return np.asarray(means(rows, self.rows, self.indptr) * roots, np.float32)
        found: F32 = np.empty((self.items, rows.hidden_size), np.float32)
        for i, (start, stop) in enumerate(zip(self.indptr[:-1].tolist(), self.indptr[1:].tolist())):
            runs = [slice(at, min(at + _RUN, stop)) for at in range(start, stop, _RUN)]
            if mode == "max":
                found[i] = np.max([rows.vectors(self.rows[run]).max(axis=0) for run in runs], axis=0)
            else:
                first = 1 if self.before is None else 1 + int(self.before[i])
                total = np.zeros(rows.hidden_size, np.float64)
                for run in runs:
                    weights = np.arange(first + run.start - start, first + run.stop - start, dtype=np.float64)
                    total += (rows.vectors(self.rows[run]) * weights[:, None]).sum(axis=0)
                count = stop - start
                found[i] = total / (count * first + count * (count - 1) // 2)
        return found

    def answers(self, output: object) -> bool:
        return isinstance(output, PooledOutput) and output.vectors.ndim == 2 and len(output.vectors) == self.items

    def not_finite(self, output: PooledOutput) -> I32:
        return bad_rows(np.isfinite(output.vectors))

    def blank(self) -> PooledOutput:
        return PooledOutput(np.zeros((self.items, 1), np.float32))
