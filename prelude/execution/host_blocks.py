"""Blocks in host memory: where an executor copies KV blocks that the prefix cache evicts, and brings them back from.

    submit n-1 ── copy_out(blocks, entries) ── copy_in(entries, blocks) ── submit n

The control plane requests copies while it plans a step. An executor makes them in the order of the requests and the
steps, so that a block may be written by step n as soon as its copy out was requested before it.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import sys
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from prelude.values.arrays import I32


class HostBlocks(Protocol):
    """``blocks`` are numbers of the pool's blocks, ``entries`` of blocks in host memory, as many of each. A call may
    return before the copy is made; when it raises, the content of its targets is undefined. One thread at a time."""

    @property
    def nbytes(self) -> int: ...

    def copy_out(self, blocks: I32, entries: I32) -> None: ...

    def copy_in(self, entries: I32, blocks: I32) -> None: ...


def runs(first: I32, second: I32) -> Iterator[tuple[int, int, int]]:
    """(first, second, count): pairs of the two arrays that go up by one together are one run."""
    breaks = np.flatnonzero((np.diff(first) != 1) | (np.diff(second) != 1)) + 1
    begins = [0, *breaks.tolist()] if len(first) else []
    for begin, end in zip(begins, [*begins[1:], len(first)]):
        yield int(first[begin]), int(second[begin]), end - begin


class CpuHostBlocks:
    """Beside a pool that is host memory itself: the mechanism is the GPU's, the gain is not. ``pool`` is
    [layers, 2, slots, kv_heads, head_dim]; a page of the copies takes memory from its first write on."""

    def __init__(self, pool: npt.NDArray[Any], entries: int, block_size: int) -> None:
        layers, two, _, *heads = pool.shape
        self._pool = pool
        self._host = lazy_zeros((layers, two, entries * block_size, *heads), pool.dtype)
        self._size = block_size

    @property
    def nbytes(self) -> int:
        return self._host.nbytes

    def copy_out(self, blocks: I32, entries: I32) -> None:
        size = self._size
        for block, entry, count in runs(blocks, entries):
            source = self._pool[:, :, block * size : (block + count) * size]
            self._host[:, :, entry * size : (entry + count) * size] = source

    def copy_in(self, entries: I32, blocks: I32) -> None:
        size = self._size
        for entry, block, count in runs(entries, blocks):
            source = self._host[:, :, entry * size : (entry + count) * size]
            self._pool[:, :, block * size : (block + count) * size] = source

    def close(self) -> None:
        """Lets go of pool and copies."""
        self._pool = self._host = lazy_zeros((0, 2, 0, 0, 0), self._pool.dtype)


def lazy_zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Zeros of ``shape``. numpy's own ask for pages of 2 MB, and the first written value takes one.
    ``MemoryError`` if the system does not promise so much."""
    nbytes = math.prod(shape) * dtype.itemsize
    room = np.frombuffer(_pages(max(1, nbytes)), np.uint8)
    return room[:nbytes].view(dtype).reshape(shape)


def _pages(nbytes: int) -> mmap.mmap:
    try:
        if sys.platform == "win32":
            return mmap.mmap(-1, nbytes)
        pages = mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"{nbytes} bytes of zeros") from error
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel that was built without large pages
            pages.madvise(mmap.MADV_NOHUGEPAGE)
    return pages
