"""The operations that other parts of a specification are made of: norms, projections, rotary positions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias

from prelude.models.rope import RopeScaling, inverse_frequencies
from prelude.records import dataclass

if TYPE_CHECKING:
    from prelude.values.arrays import C64, F64

Shapes: TypeAlias = Iterator[tuple[str, tuple[int, ...]]]
NormKind: TypeAlias = str  # "rms", or a name of NORMS in ops.py


@dataclass(frozen=True, slots=True)
class Norm:
    """Over rows of ``width`` values. ``rms``: x / sqrt(mean(x²) + eps). ``layer``: the same of x minus its mean. The
    result is multiplied by the weight plus ``offset``, and the bias is added if there is one."""

    name: str
    kind: NormKind
    width: int
    eps: float
    bias: bool = False
    offset: float = 0.0

    def tensors(self) -> Shapes:
        yield f"{self.name}.weight", (self.width,)
        if self.bias:
            yield f"{self.name}.bias", (self.width,)


@dataclass(frozen=True, slots=True)
class Projection:
    """y = W x + b. W is the weights ``names``, of ``rows`` outputs each, one under the other; so is b."""

    names: tuple[str, ...]
    rows: tuple[int, ...]
    columns: int
    bias: bool = False

    @property
    def outputs(self) -> int:
        return sum(self.rows)

    def tensors(self) -> Shapes:
        for name, rows in zip(self.names, self.rows):
            yield f"{name}.weight", (rows, self.columns)
            if self.bias:
                yield f"{name}.bias", (rows,)


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions over the first ``width`` values of a head, the second half of them paired with the first."""

    theta: float
    width: int
    scaling: RopeScaling | None = None

    def frequencies(self) -> tuple[F64, float]:
        """Inverse frequencies [width / 2], and the factor on cosine and sine."""
        return inverse_frequencies(self.theta, self.width, self.scaling)

    def turns(self, first: int, last: int) -> C64:
        """[last - first, width / 2]: ``cos + i sin`` of positions from ``first`` on, times the factor. Computed in
        float64 and rounded once."""
        import numpy as np

        frequencies, factor = self.frequencies()
        angles = np.outer(np.arange(first, last), frequencies)
        turns: C64 = ((np.cos(angles) + 1j * np.sin(angles)) * factor).astype(np.complex64)
        return turns
