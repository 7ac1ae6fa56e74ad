"""The weights of one rank: its own part of a checkpoint's."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

import numpy as np

from prelude.models.arrays import Array, name_of
from prelude.models.checkpoint import Checkpoint
from prelude.models.gguf.blocks import Blocks
from prelude.parallel.shards import Cut, Shard


class ShardSource:
    """A checkpoint as ``load_weights`` reads one. A part of rows is a view of the file; only its pages are read. A
    part of columns is a view too, whose pages have the columns of other ranks beside it if a row is shorter than
    a page."""

    def __init__(self, checkpoint: Checkpoint, shard: Shard) -> None:
        self._checkpoint = checkpoint
        self._shard = shard

    def names(self) -> Sequence[str]:
        return self._checkpoint.names()

    def tensor(self, name: str) -> Array:
        return part_of(self._checkpoint.tensor(name), self._shard.cuts.get(name))

    def finite(self, name: str) -> Array:
        """``tensor(name)``; ``CheckpointError`` if this rank's part has a NaN or an infinity."""
        return self._checkpoint.finite(name, lambda whole: part_of(whole, self._shard.cuts.get(name)))

    def in_blocks(self, name: str) -> bool:
        return self._checkpoint.in_blocks(name)

    converted: None = None
    used: None = None

    def packed(self, names: Sequence[str]) -> None:
        """Weights are cut before they are packed; those of a converted directory are refused by ``tensor``."""
        return None

    def blocks(self, name: str) -> Blocks:
        raise TypeError(f"{name}: weights in blocks are not read in parts")

    def nbytes(self, itemsize: int, keep: bool = False) -> int:
        """Bytes of this rank's weights with ``itemsize`` bytes a value; with ``keep`` those of two bytes stay so."""
        return sum(self._bytes(name, itemsize, keep) for name in self.names())

    def _bytes(self, name: str, itemsize: int, keep: bool) -> int:
        cut, shape = self._shard.cuts.get(name), list(self._checkpoint.shape(name))
        if cut is not None:
            shape[cut.axis] = sum(last - first for first, last in cut.runs)
        stays = keep and self._checkpoint.tensor(name).itemsize == 2
        return math.prod(shape) * (2 if stays else itemsize)

    def checksum(self) -> int:
        """CRC-32 over the names, shapes and types of all weights, and over those that every rank has whole, such as
        norms, which tell one training from another."""
        found = 0
        for name in self.names():
            stored = self._checkpoint.tensor(name)
            found = zlib.crc32(f"{name} {stored.shape} {name_of(stored.dtype)}".encode(), found)
            if name not in self._shard.cuts:
                found = zlib.crc32(stored.tobytes(), found)
        return found


def part_of(whole: Array, cut: Cut | None) -> Array:
    """Return a view if the part is one run."""
    if cut is None:
        return whole
    parts = [whole[first:last] if cut.axis == 0 else whole[:, first:last] for first, last in cut.runs]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, cut.axis)
