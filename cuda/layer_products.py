"""A layer's products with the operations behind them: one kernel where this project's was chosen, else the library's
product and kernels of their own.

The norm between two products is applied in two parts where both are this project's: the first product writes its rows
without their factors, and the second one multiplies its sums by these (``RowFactors``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prelude.cuda import kernels
from prelude.cuda.own_matmul import GATE, HEADS, NormAfter, Rest, RowFactors
from torch import Tensor

if TYPE_CHECKING:
    from prelude.cuda.device import Device


def matmul_gated(
    device: Device,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    between: Tensor,
    out: Tensor,
    factors: RowFactors | None = None,
) -> None:
    """``out = silu(gate) * up`` [rows, inner], gate and up the halves of ``x @ weight.T + bias``, for which
    ``between`` [rows, 2 inner] has room. ``factors``: of the rows of ``x``, only where ``takes_factors``."""

    def otherwise(x: Tensor, out: Tensor) -> None:
        device.matmul(x, weight, between, bias)
        kernels.silu_gate(device, between, out)

    own = device.own_matmuls
    if own is None or bias is not None or not own.run(GATE, x, weight, out, otherwise, factors=factors):
        _without_factors(factors)
        otherwise(x, out)


def matmul_heads(
    device: Device,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor,
    counts: tuple[int, int, int],
    positions: Tensor,
    rope_table: Tensor,
    gains: tuple[Tensor | None, Tensor | None],
    eps: float,
    slots: Tensor | None,
    pool: tuple[Tensor, Tensor] | None,
    factors: RowFactors | None = None,
) -> None:
    """``out`` [rows, queries + keys + values, D] = ``x @ weight.T + bias``, then ``kernels.qk_rope`` on it.
    ``factors``: of the rows of ``x``, only where ``takes_factors``."""
    head_dim = out.shape[2]

    def otherwise(x: Tensor, flat: Tensor) -> None:
        device.matmul(x, weight, flat, bias)
        heads = flat.view(out.shape)
        kernels.qk_rope(device, heads, counts, positions, rope_table, gains, eps, slots, pool)

    flat, own = out.view(out.shape[0], out.shape[1] * head_dim), device.own_matmuls
    rest: Rest = (*counts, positions, rope_table, *gains, eps, slots, *(pool or (None, None)))
    if own is None or bias is not None or not own.run(HEADS, x, weight, flat, otherwise, rest, head_dim, factors):
        _without_factors(factors)
        otherwise(x, flat)


def _without_factors(factors: RowFactors | None) -> None:
    if factors is not None:
        raise RuntimeError("rows that await their factors came to a product that applies none")


def takes_factors(
    device: Device, mode: int, x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, head_dim: int = 0
) -> bool:
    """Whether ``matmul_gated`` (GATE) or ``matmul_heads`` (HEADS) of these operands applies factors of rows."""
    own = device.own_matmuls
    return own is not None and bias is None and own.chosen(mode, x, weight, out, head_dim)


def add_over_ranks(device: Device, x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """``out += x @ weight.T + bias``. Of a divided model one rank's product goes on with the residual sum, so that
    the sum over the ranks has it once."""
    device.matmul(x, weight, out, bias, add=device.leads)
    device.all_reduce(out)


def add_and_norm(
    device: Device,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor,
    norm: NormAfter,
    leave_factors: bool,
) -> RowFactors | None:
    """``out += x @ weight.T + bias``, and ``norm`` of it. With ``leave_factors`` the factors of the rows may be left
    to the product that reads them; they are returned then."""

    def otherwise(x: Tensor, out: Tensor) -> None:
        add_over_ranks(device, x, weight, bias, out)
        kernels.rms_norm(device, out, norm.gain, norm.eps, norm.normed)

    own = device.own_matmuls
    if leave_factors and own is not None and bias is None and not device.divided:
        left = own.run_norm(x, weight, out, otherwise, norm)
        if left is not None:
            return left
    otherwise(x, out)
    return None
