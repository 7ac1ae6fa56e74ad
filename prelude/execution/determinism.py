"""A check at load time that this machine gives a row the same bits with any other rows.

Deterministic mode rests on a property of the installed library that is promised nowhere, and so not assumed: that
products of at least so many rows agree row by row with larger ones. Where that cannot be had, the mode is refused.
Norms, rotations, gates and attention have it by construction (``_native/include/prelude/cpu``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from prelude.errors import DeviceUnavailable
from prelude.models.ops import Linear

CANDIDATES = (16, 32, 64, 128)
_ROWS = 300
_OUTPUTS = 8192
"""Output columns tested of a wide weight, such as the LM head: the kernel does not change with more."""


def rows_needed(linears: Iterable[Linear]) -> int:
    """The smallest candidate from which on products of every weight shape agree row by row."""
    shapes = {(tuple(linear.weight.shape), linear.weight.dtype): linear for linear in linears}
    needed = 0
    for linear in shapes.values():
        probe = Linear(linear.weight[:_OUTPUTS])
        probe.min_rows = 2  # as in deterministic mode; the products tested have more rows
        outputs, width = probe.weight.shape

        def added(x: Tensor, probe: Linear = probe, outputs: int = outputs) -> Tensor:
            # As the residual meets it: some values of the row itself to begin with.
            residual = torch.ones(len(x), outputs).mul_(x[:, :1])
            probe.add_to(residual, x)
            return residual

        needed = max([needed, *(_rows_needed(f, width, probe.weight.dtype) for f in (probe, added))])
    return needed


def parts_agree(projections: Iterable[tuple[Linear, Linear, Linear]]) -> bool:
    """Whether each projection has the bits of its two parts, one behind the other: a long prompt makes queries apart
    from keys and values, a short one all of them in one product."""
    shapes = {(tuple(parts[1].weight.shape), whole.weight.shape[0]): (whole, parts) for whole, *parts in projections}
    for whole, parts in shapes.values():
        x = torch.randn(_ROWS, whole.weight.shape[1], generator=torch.Generator().manual_seed(0))
        x = x.to(whole.weight.dtype)
        if not torch.equal(whole(x), torch.cat([part(x) for part in parts], dim=1)):
            return False
    return True


def _rows_needed(matmul: Callable[[Tensor], Tensor], width: int, dtype: torch.dtype) -> int:
    x = torch.randn(_ROWS, width, generator=torch.Generator().manual_seed(0)).to(dtype)
    whole = matmul(x)
    for least in CANDIDATES:
        counts = {least, least + 1, least + 3, least + 7, 2 * least - 1, 3 * least // 2, 255}
        agrees = all(_agree(matmul, x, whole, count) for count in counts if count <= _ROWS - 5)
        if agrees and _alone(matmul, x, whole):
            return least
    raise DeviceUnavailable(
        f"deterministic mode is not available: on this machine a product of {CANDIDATES[-1]} rows of {width} "
        f"{str(dtype).removeprefix('torch.')} values differs from its rows in a larger product or with one thread; "
        "use deterministic=False or another dtype"
    )


def _alone(matmul: Callable[[Tensor], Tensor], x: Tensor, whole: Tensor) -> bool:
    """Whether one thread gives the bits that all threads give: how many a step uses depends on the machine's load."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return torch.equal(matmul(x), whole)
    finally:
        torch.set_num_threads(threads)


def _agree(matmul: Callable[[Tensor], Tensor], x: Tensor, whole: Tensor, count: int) -> bool:
    return all(torch.equal(matmul(x[at : at + count].clone()), whole[at : at + count]) for at in (0, 5))
