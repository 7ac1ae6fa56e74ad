"""A simulated device whose kernels take time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from prelude.cuda import kernels

from tests.cuda.simulated import SimulatedDevice


class TimedDevice(SimulatedDevice):
    """Runs each operation at once, in the time that ``cost(name)`` states. A kernel that ``is_wrong`` writes
    nothing."""

    def __init__(self, cost: Callable[[str], float]) -> None:
        super().__init__(torch.bfloat16)
        self.cost, self.elapsed = cost, 0.0

    def is_wrong(self, kernel: kernels.Kernel) -> bool:
        return False

    def enqueue(self, name: str, operation: Callable[[], None]) -> None:
        super().enqueue(name, operation)
        self.elapsed += self.cost(name)
        self.close()

    def launch(self, kernel: kernels.Kernel, grid: Any, args: Any, shared: int = 0) -> None:
        if self.is_wrong(kernel):
            self.enqueue("wrong", lambda: None)
        else:
            super().launch(kernel, grid, args, shared)

    def capture(self, work: Callable[[], None], *, search: bool = True) -> Any:
        """Attention is searched whether matmuls are or not, as on the real device."""
        own = self.own_attention
        if own is None:
            return super().capture(work, search=search)
        own.searching = True
        try:
            return super().capture(work, search=search)
        finally:
            own.searching = False

    def seconds(self, work: Callable[[], object]) -> float:
        before = self.elapsed
        work()
        return self.elapsed - before
