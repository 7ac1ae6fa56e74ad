"""The few operations a decoder is made of, written for CPU tensors.

Each is one or two passes over memory: at the sizes of small models the passes between the GEMMs cost
as much as the GEMMs do.

``Bits`` says which rows may share a kernel call. A row's bits must not depend on its company in
deterministic mode, and two things break that on a CPU (both measured):

    GEMM          a float32 product with few rows takes another kernel; padding to ``min_rows`` avoids it
    exp, complex  the vector and the scalar version of these round differently, and where a loop is cut into
                  vectors depends on where the rows are split over threads; pieces below the size
                  that torch would split are cut at rows, so the vectors fall the same way in each row
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

_GRAIN = 32_768
"""torch splits an element-wise operation over threads from this many elements on."""


@dataclass(frozen=True, slots=True)
class Bits:
    """How calls are shaped. The default is the fastest; ``fixed`` makes rows independent of their company."""

    fixed: bool = False
    min_rows: int = 1

    def pieces(self, rows: int, width: int) -> list[slice]:
        """Runs of rows of ``width`` elements that one element-wise call may take."""
        if not self.fixed:
            return [slice(0, rows)]
        step = max(1, (_GRAIN - 1) // width)
        return [slice(at, min(at + step, rows)) for at in range(0, rows, step)]


class Linear:
    """A weight [out, in] and maybe a bias. Products are in the weight's dtype, sums into ``x`` in float32."""

    __slots__ = ("bias", "bits", "transposed", "weight")

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias
        self.bits = Bits()
        self.transposed = weight.t()

    def __call__(self, x: Tensor) -> Tensor:
        rows = x.shape[0]
        if rows < self.bits.min_rows:
            x = F.pad(x, (0, 0, 0, self.bits.min_rows - rows))
        y: Tensor = torch.mm(x, self.transposed)
        if self.bias is not None:
            y.add_(self.bias)
        return y if y.shape[0] == rows else y[:rows]

    def add_to(self, residual: Tensor, x: Tensor) -> None:
        """``residual += self(x)``, in place."""
        if self.weight.dtype != residual.dtype:
            residual.add_(self(x))
            return
        rows = residual.shape[0]
        target = residual
        if rows < self.bits.min_rows:
            missing = (0, 0, 0, self.bits.min_rows - rows)
            target, x = F.pad(residual, missing), F.pad(x, missing)
        target.addmm_(x, self.transposed)
        if target is not residual:
            residual.copy_(target[:rows])
        if self.bias is not None:
            residual.add_(self.bias)

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes + (0 if self.bias is None else self.bias.nbytes)


def inverse_rms(x: Tensor, eps: float) -> Tensor:
    """``1 / sqrt(mean(x ** 2) + eps)`` over the last dimension, which is kept."""
    norm: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    norm.square_().mul_(1.0 / x.shape[-1]).add_(eps).rsqrt_()
    return norm


def rms_norm(x: Tensor, eps: float, gain: Tensor | None, dtype: torch.dtype) -> Tensor:
    """RMSNorm over the last dimension of float32 ``x``. ``gain`` is None where the next weight has it inside."""
    y = x * inverse_rms(x, eps)
    if gain is not None:
        y.mul_(gain)
    return y if dtype == torch.float32 else y.to(dtype)


def rotate_(heads: Tensor, turns: Tensor, bits: Bits) -> None:
    """Rotary embedding in place: ``heads`` [T, heads, D] float32 with the two halves of each head interleaved,
    ``turns`` [T, 1, D / 2] complex. One pass, where the split halves would take five."""
    rows, count, width = heads.shape
    pairs = torch.view_as_complex(heads.view(rows, count, width // 2, 2))
    for piece in bits.pieces(rows, count * width // 2):
        pairs[piece].mul_(turns[piece])


def silu_gate(gate_up: Tensor, inner: int, bits: Bits) -> Tensor:
    """``silu(gate) * up`` in the memory of the gate half; a strided view of ``gate_up`` [T, 2 * inner]."""
    gate, up = gate_up[:, :inner], gate_up[:, inner:]
    for piece in bits.pieces(gate.shape[0], inner):
        F.silu(gate[piece], inplace=True)
    return gate.mul_(up)


class RotaryTable:
    """``cos + i sin`` of position times frequency, grown in pages as positions are met.

    A page always has the same shape, so a position has the same bits whenever it is computed.
    """

    PAGE = 1024

    def __init__(self, inverse_frequencies: Tensor, factor: float, max_positions: int) -> None:
        self._frequencies = inverse_frequencies.to(torch.float32)
        self._factor = factor
        self._max = max_positions
        self._turns = torch.empty(0, len(inverse_frequencies), dtype=torch.complex64)

    def __call__(self, positions: Tensor, highest: int) -> Tensor:
        """[T, 1, D / 2]; raises ``IndexError`` for a position the model does not have."""
        if highest >= self._max:
            raise IndexError(f"position {highest} is past the model's last, {self._max - 1}")
        if highest >= len(self._turns):
            self._grow(highest)
        return self._turns.index_select(0, positions).unsqueeze(1)

    def _grow(self, highest: int) -> None:
        pages = [self._turns]
        for start in range(len(self._turns), highest + 1, self.PAGE):
            angles = torch.arange(start, start + self.PAGE, dtype=torch.float32)[:, None] * self._frequencies
            pages.append(torch.complex(angles.cos() * self._factor, angles.sin() * self._factor))
        self._turns = torch.cat(pages)
