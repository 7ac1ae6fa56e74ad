"""A projection of which each tensor-parallel rank has some columns: its product is one term of a sum over ranks."""

from __future__ import annotations

from typing import Protocol, TypeAlias

from prelude.models.arrays import F32, Array
from prelude.models.packed import PackedLinear


class Summing(Protocol):
    """The ranks that hold the parts of one model."""

    rank: int

    def sum(self, values: F32) -> None:
        """``values``, without gaps, become the sum of all ranks' values. All ranks get the same bits."""


class SummedLinear:
    """One rank's columns of a projection. The result is the sum over all ranks; rank 0 alone has the bias."""

    __slots__ = ("_ranks", "inner")

    def __init__(self, inner: PackedLinear, ranks: Summing) -> None:
        self.inner = inner
        self._ranks = ranks

    def __call__(self, x: Array) -> F32:
        """[rows, outputs] float32."""
        made = self.inner(x)
        self._ranks.sum(made)
        return made

    def add_to(self, residual: F32, x: Array) -> None:
        """``residual += self(x)``, in place; ``residual`` [rows, outputs] is float32 and the same on all ranks. Rank
        0's term is the residual with its product, so that no memory and no pass is needed beside the sum's own."""
        inner = self.inner
        if self._ranks.rank == 0:
            inner.add_to(residual, x)
        else:
            inner.into(x, residual)
        self._ranks.sum(residual)


OutLinear: TypeAlias = PackedLinear | SummedLinear
"""A projection whose result is added to the residual stream."""


def own(linear: OutLinear) -> PackedLinear:
    """Return the weights that this process has."""
    return linear.inner if isinstance(linear, SummedLinear) else linear
