"""The ceilings that floors are reckoned with, by GPU: measured, for no program reaches the published ones."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Chip:
    name: str  # as the driver gives it
    flops: float
    """A second, of bfloat16, in a product of 8192^3 random values."""
    bytes: float
    """A second, read and written, of a copy within the device."""


H200 = Chip("NVIDIA H200", 790e12, 4.3e12)
H100 = Chip("NVIDIA H100 80GB HBM3", 798e12, 3.0e12)
CHIPS = {chip.name: chip for chip in (H200, H100)}
AIMED = H200
"""The GPU that the aims and the published figures of the table are for; other GPUs have none."""
_COPIED = 1 << 30
_SIDE = 8192
_RUNS = 10


def here() -> Chip:
    """This process's GPU; one that ``CHIPS`` does not have is measured."""
    import torch

    name = torch.cuda.get_device_name()
    return CHIPS.get(name) or measured(name)


def measured(name: str) -> Chip:
    """Takes about a second."""
    import torch

    source = torch.empty(_COPIED, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    copied = 2 * _COPIED / _seconds(lambda: target.copy_(source))
    a, b = (torch.randn(_SIDE, _SIDE, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    out = torch.empty_like(a)
    flops = 2 * _SIDE**3 / _seconds(lambda: torch.mm(a, b, out=out))
    return Chip(name, flops, copied)


def _seconds(work: Callable[[], object]) -> float:
    """Of the device: the median of runs that are all enqueued before the first ends."""
    import torch

    marks = [torch.cuda.Event(enable_timing=True) for _ in range(_RUNS + 4)]
    for mark in marks:
        mark.record()
        work()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in itertools.pairwise(marks[3:])) / 1e3
