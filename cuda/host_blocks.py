"""Blocks in pinned host memory: a copy for each layer, keys and values, and run of neighbouring blocks, all on the
stream of the steps. The host never touches this memory, so the stream's order is all the order that copies need."""

from __future__ import annotations

from prelude.cuda.device import Device
from torch import Tensor

from prelude.execution.host_blocks import runs
from prelude.values.arrays import I32


class CudaHostBlocks:
    """``pool`` is [layers, 2, slots, kv_heads, head_dim]; so is the host's, with slots of its own."""

    def __init__(self, device: Device, pool: Tensor, entries: int, block_size: int) -> None:
        layers, two, _, *heads = pool.shape
        self._device = device
        self._size = block_size
        with device.scope():
            self._host: Tensor = device.host_memory((layers, two, entries * block_size, *heads), pool.dtype)
            self._pairs = [(pool[i, j], self._host[i, j]) for i in range(layers) for j in range(two)]

    @property
    def nbytes(self) -> int:
        return self._host.nbytes

    def copy_out(self, blocks: I32, entries: I32) -> None:
        size = self._size
        with self._device.scope():
            for block, entry, count in runs(blocks, entries):
                for pool, host in self._pairs:
                    self._device.copy(
                        pool[block * size : (block + count) * size], host[entry * size : (entry + count) * size]
                    )

    def copy_in(self, entries: I32, blocks: I32) -> None:
        size = self._size
        with self._device.scope():
            for entry, block, count in runs(entries, blocks):
                for pool, host in self._pairs:
                    self._device.copy(
                        host[entry * size : (entry + count) * size], pool[block * size : (block + count) * size]
                    )

    def close(self) -> None:
        """Lets go of the memory; the stream has run."""
        self._pairs = []
        self._host = self._device.empty((0,), self._host.dtype)
