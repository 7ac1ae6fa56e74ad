"""The parts of a model beside attention and projections: norms, activations, and the rope table.
They are native (``_native/kernels.pxi``): one pass each over memory that is still in the cache.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from prelude._native.cpu import activate as native_activate
from prelude._native.cpu import layer_norm, rms_norm
from prelude.models.arrays import F32, Array
from prelude.models.spec import NormKind, Rope

NORMS: dict[str, Callable[..., Array]] = {"layer": layer_norm}
"""Norms beside "rms", by the ``kind`` of a ``Norm``: ``(x, eps, gain, bias, out)``, as ``layer_norm``."""

ACTIVATIONS: dict[str, Callable[[Array, int, bool], Array]] = {}
"""Activations without a native kernel, by name: ``(x, inner, gated)``, as ``activate``."""


def activate(x: Array, inner: int, kind: str, gated: bool) -> Array:
    """The activation of the first ``inner`` columns of ``x`` [T, inner], in its memory; if ``gated``, times the
    other half of ``x`` [T, 2 * inner]. A view of those columns is returned."""
    own = ACTIVATIONS.get(kind)
    return native_activate(x, inner, kind, gated) if own is None else own(x, inner, gated)


class RowNorm:
    """A norm over rows of float32. ``gain`` [width] is None if the projection behind has it in its weight."""

    __slots__ = ("bias", "eps", "gain", "kind")

    def __init__(self, kind: NormKind, eps: float, gain: F32 | None, bias: F32 | None = None) -> None:
        self.kind = kind
        self.eps = eps
        self.gain = gain
        self.bias = bias

    def __call__(self, x: F32, out: Array | None = None) -> Array:
        """Rows of ``x`` [T, width] in the first rows of ``out``, float32 or bfloat16; else new ones of float32."""
        if self.kind == "rms":
            return rms_norm(x, self.eps, self.gain, out)
        return NORMS[self.kind](x, self.eps, self.gain, self.bias, out)

    def arrays(self) -> list[Array]:
        return [array for array in (self.gain, self.bias) if array is not None]


class Weights:
    """A part of a model: its fields are arrays, norms, projections, and other parts."""

    __slots__ = ()


class RotaryTable:
    """``rope.turns`` of positions, grown in pages as they are met.

    A page always has the same shape, so a position has the same bits whenever it is computed. ``pairs`` beyond those
    of the rope do not turn.
    """

    PAGE = 1024

    def __init__(self, rope: Rope, max_positions: int, pairs: int) -> None:
        self._rope = rope
        self._max = max_positions
        self._table: Array = np.empty((0, pairs), np.complex64)

    def upto(self, highest: int) -> Array:
        """[more than ``highest``, D / 2] complex64; raises ``IndexError`` for a position the model does not have."""
        if highest >= self._max:
            raise IndexError(f"position {highest} is past the model's last, {self._max - 1}")
        if highest >= len(self._table):
            self._grow(highest)
        return self._table

    def _grow(self, highest: int) -> None:
        pages = [self._table]
        for start in range(len(self._table), highest + 1, self.PAGE):
            page = np.ones((self.PAGE, self._table.shape[1]), np.complex64)
            page[:, : self._rope.width // 2] = self._rope.turns(start, start + self.PAGE)
            pages.append(page)
        self._table = np.concatenate(pages)
