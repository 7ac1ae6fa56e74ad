"""How many threads the engines of a test's process run in."""

from __future__ import annotations

import torch

from prelude.models.kernels import cpu


def use_threads(count: int) -> int:
    """For engines and executors that are made from here on, for kernels, and for torch. The number before."""
    before = cpu.threads()
    cpu.set_threads(count)
    torch.set_num_threads(count)
    return before
