"""The operations of a device that a step uses, as one protocol. ``cuda_device.py`` has the real device.

Everything is ordered on one stream. ``copy``, ``launch``, ``matmul`` and attention calls return at once; ``mark`` is
the only way to learn that something is done. Tensors are torch's in both directions: the caller keeps them alive
until a mark behind their last use is done. A captured ``Graph`` bakes in addresses, never contents.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from prelude.cuda.kernels import Argument, Kernel

if TYPE_CHECKING:
    import torch
    from prelude.cuda.staging import Area
    from torch import Tensor

FIXED_ROWS = 256
"""Deterministic mode multiplies exactly so many rows at a time: one GEMM kernel per weight, for every batch."""


class Mark(Protocol):
    """A point in the stream."""

    def wait(self) -> None: ...

    def done(self) -> bool: ...

    def seconds_since(self, earlier: Any) -> float:
        """Device time between two marks; both are done."""
        ...


class Graph(Protocol):
    def launch(self) -> None: ...

    def close(self) -> None: ...


class Device(Protocol):
    element: torch.dtype
    deterministic: bool
    skinny_gemm: bool
    """Whether this project's kernels serve skinny products, those of few rows (``kernels/skinny_gemm.cu``)."""
    divided: bool
    """Whether the device computes one rank's part of each layer; ``all_reduce`` adds the parts."""
    leads: bool
    """False on the ranks of a divided model whose residual sum another one has."""

    @property
    def processors(self) -> int:
        """Multiprocessors."""
        ...

    def scope(self) -> AbstractContextManager[None]:
        """Entered by every thread around its calls."""
        ...

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor: ...

    def zeros(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor: ...

    def pinned(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Host memory that copies may run from and to behind the host's back."""
        ...

    def host_memory(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Pinned memory of exactly these bytes, whose content is undefined. The system has them back when the last
        tensor over them is gone; by then the stream has run."""
        ...

    def mapped(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Pinned memory that kernels may also write, at the address that the host has for it."""
        ...

    def copy(self, source: Tensor, target: Tensor) -> None:
        """Contiguous, of one size in bytes; between pinned and device memory or within the device."""
        ...

    def launch(self, kernel: Kernel, grid: tuple[int, ...], args: Sequence[Argument], shared: int = 0) -> None: ...

    def matmul(self, x: Tensor, weight: Tensor, out: Tensor, bias: Tensor | None = None, add: bool = False) -> None:
        """``out = x @ weight.T + bias``; with ``add`` ``out += ...`` for a float32 ``out``."""
        ...

    def all_reduce(self, x: Tensor) -> None:
        """``x`` becomes the sum of the ranks' tensors; nothing happens if the model is not divided."""
        ...

    def mark(self) -> Mark: ...

    def replay(self, graph: Any, area: Area, nbytes: int, target: Tensor) -> None:
        """The first ``nbytes`` of a host area to ``target``, then the graph. Needs no ``scope``."""
        ...

    def await_word(self, word: int, number: int) -> None:
        """Wait until ``publish`` has written ``number``, or a later one, to the address ``word``. Needs no ``scope``.
        Raises the device's error."""
        ...

    def warm(self, work: Callable[[], object], *, search: bool) -> None:
        """Runs ``work``, which only enqueues, before it is captured. With ``search`` the algorithms of its matmuls
        are searched first, if they are not known."""
        ...

    def capture(self, work: Callable[[], object]) -> Graph:
        """Capture ``work``, on fixed addresses, as a graph."""
        ...

    def memory(self) -> tuple[int, int]:
        """``(free, total)`` bytes; memory that an allocator keeps for later peaks is not free."""
        ...

    def close(self) -> None: ...
