"""The parts of a model beside attention: projections, norms, and the rope table.

Products of a few rows, as a step of chats has them, are native; those of more rows are torch's. Norms, rotations and
gates are native too (``prelude/models/kernels.py``): one pass each over memory that is still in the cache. At the
sizes of small models the passes between the products would cost as much as the products do.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from prelude.models.arrays import torch_of
from prelude.models.kernels import Product, layer_norm, rms_norm, wide
from prelude.models.kernels import activate as native_activate
from prelude.models.spec import NormKind, Rope

FEW_ROWS = 16
"""Products of so few rows are bound by reading the weights. Ours reads them once, where they lie; torch's are made
for many rows and take 1.4 to 3.5 times as long for the packaged model's."""
MANY_ROWS = 1 << 62
STEADY_WIDTH = 512
"""Inner values of one float32 product in deterministic mode. torch cuts wider ones by the number of rows and of
threads, so that a row's bits would depend on both (measured from 1,024 on; 512 and fewer were never cut)."""


class Linear:
    """A weight [out, in] and maybe a bias. Products are in the weight's dtype, sums into ``x`` in float32.

    ``min_rows`` above 1 is deterministic mode. A product of fewer rows is padded to so many: a float32 product of few
    rows takes another kernel than one of many, so a row's bits would depend on the other rows (measured). A wide
    float32 product becomes a sum of products of ``STEADY_WIDTH`` inner values.
    """

    __slots__ = ("_few", "_inner", "_min_rows", "_of_few", "bias", "transposed", "weight")

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias
        self.transposed = weight.t()
        self.min_rows = 1

    @property
    def outputs(self) -> int:
        return self.weight.size(0)

    @property
    def min_rows(self) -> int:
        return self._min_rows

    @min_rows.setter
    def min_rows(self, rows: int) -> None:
        self._min_rows = rows
        outputs, width = self.weight.shape
        native = self.weight.is_contiguous() and self.weight.dtype in (torch.float32, torch.bfloat16)
        self._inner = STEADY_WIDTH if rows > 1 and self.weight.dtype == torch.float32 else width
        # torch makes one output by a product of a matrix and a vector, which it cuts by the number of rows.
        always = outputs == 1 and rows > 1
        self._few = 0 if not native else MANY_ROWS if always else FEW_ROWS if rows == 1 and wide() else 0
        self._of_few = Product(self.weight) if self._few else None  # the product of so few rows

    def __call__(self, x: Tensor) -> Tensor:
        return self.into(x, torch.empty(x.size(0), self.weight.size(0), dtype=self.weight.dtype))

    def into(self, x: Tensor, out: Tensor) -> Tensor:
        """``self(x)`` in the memory of ``out``, which is returned."""
        rows = x.size(0)
        if rows <= self._few and self._of_few is not None:
            self._of_few(x, out)
        elif rows < self.min_rows:
            padded = out.new_empty(self.min_rows, out.size(1))
            out.copy_(self._matmul(F.pad(x, (0, 0, 0, self.min_rows - rows)), padded)[:rows])
        else:
            self._matmul(x, out)
        if self.bias is not None:
            out.add_(self.bias)
        return out

    def add_to(self, residual: Tensor, x: Tensor) -> None:
        """``residual += self(x)``, in place."""
        rows = residual.size(0)
        if rows <= self._few and self._of_few is not None:
            self._of_few(x, residual, True)
            if self.bias is not None:
                residual.add_(self.bias)
            return
        if self.weight.dtype != residual.dtype:
            residual.add_(self(x))
            return
        target = residual
        if rows < self.min_rows:
            missing = (0, 0, 0, self.min_rows - rows)
            target, x = F.pad(residual, missing), F.pad(x, missing)
        self._add_matmul(target, x, 0)
        if target is not residual:
            residual.copy_(target[:rows])
        if self.bias is not None:
            residual.add_(self.bias)

    def _matmul(self, x: Tensor, out: Tensor) -> Tensor:
        torch.mm(x[:, : self._inner], self.transposed[: self._inner], out=out)
        self._add_matmul(out, x, self._inner)
        return out

    def _add_matmul(self, target: Tensor, x: Tensor, first: int) -> None:
        """Adds the product of the inner values from ``first`` on."""
        for at in range(first, self.weight.size(1), self._inner):
            target.addmm_(x[:, at : at + self._inner], self.transposed[at : at + self._inner])

    def rows(self, start: int, stop: int) -> Linear:
        """A view of some of the outputs."""
        return Linear(self.weight[start:stop], None if self.bias is None else self.bias[start:stop])

    def of_pairs(self, x: Tensor, outputs: Tensor) -> Tensor:
        """[n] float64: output ``outputs[n]`` of row n of ``x`` [n, inputs], without the bias; each sum by itself."""
        wide = self.weight[outputs].to(torch.float64)
        return wide.mul_(x.to(self.weight.dtype)).sum(dim=1)

    def tensors(self) -> list[Tensor]:
        return [self.weight] if self.bias is None else [self.weight, self.bias]


NORMS: dict[str, Callable[..., Tensor]] = {"layer": layer_norm}
"""Norms beside "rms", by the ``kind`` of a ``Norm``: ``(x, eps, gain, bias, dtype, out)``, as ``layer_norm``."""

ACTIVATIONS: dict[str, Callable[[Tensor, int, bool], Tensor]] = {}
"""Activations without a native kernel, by name: ``(x, inner, gated)``, as ``activate``."""


def activate(x: Tensor, inner: int, kind: str, gated: bool) -> Tensor:
    """The activation of the first ``inner`` columns of ``x`` [T, inner], in its memory; where ``gated``, times the
    other half of ``x`` [T, 2 * inner]. A view of those columns is returned."""
    own = ACTIVATIONS.get(kind)
    return native_activate(x, inner, kind, gated) if own is None else own(x, inner, gated)


class RowNorm:
    """A norm over rows of float32. ``gain`` [width] is None where the projection behind has it in its weight."""

    __slots__ = ("bias", "eps", "gain", "kind")

    def __init__(self, kind: NormKind, eps: float, gain: Tensor | None, bias: Tensor | None = None) -> None:
        self.kind = kind
        self.eps = eps
        self.gain = gain
        self.bias = bias

    def __call__(self, x: Tensor, dtype: torch.dtype, out: Tensor | None = None) -> Tensor:
        """Rows of ``x`` [T, width] in ``dtype``; in the first rows of ``out`` where it is given."""
        if self.kind == "rms":
            found: Tensor = rms_norm(x, self.eps, self.gain, dtype, out)
            return found
        return NORMS[self.kind](x, self.eps, self.gain, self.bias, dtype, out)

    def tensors(self) -> list[Tensor]:
        return [tensor for tensor in (self.gain, self.bias) if tensor is not None]


class RotaryTable:
    """``rope.turns`` of positions, grown in pages as they are met.

    A page always has the same shape, so a position has the same bits whenever it is computed. ``pairs`` beyond those
    of the rope do not turn.
    """

    PAGE = 1024

    def __init__(self, rope: Rope, max_positions: int, pairs: int) -> None:
        self._rope = rope
        self._max = max_positions
        self._table = np.empty((0, pairs), np.complex64)

    def upto(self, highest: int) -> Tensor:
        """[more than ``highest``, D / 2] complex64; raises ``IndexError`` for a position the model does not have."""
        if highest >= self._max:
            raise IndexError(f"position {highest} is past the model's last, {self._max - 1}")
        if highest >= len(self._table):
            self._grow(highest)
        return torch_of(self._table)

    def _grow(self, highest: int) -> None:
        pages = [self._table]
        for start in range(len(self._table), highest + 1, self.PAGE):
            page = np.ones((self.PAGE, self._table.shape[1]), np.complex64)
            page[:, : self._rope.width // 2] = self._rope.turns(start, start + self.PAGE)
            pages.append(page)
        self._table = np.concatenate(pages)
