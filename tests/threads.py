"""How many threads the engines of a test's process run in."""

from __future__ import annotations

from prelude._native import cpu


def use_threads(count: int) -> int:
    """For engines and executors that are made from here on, and for kernels. The number before."""
    before = cpu.threads()
    cpu.set_threads(count)
    return before
