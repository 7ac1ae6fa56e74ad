"""Weights of a GGUF file as blocks of a few bits; each row is a multiple of whole blocks.

    Q8_0   32 integers of 8 bits and a float16 scale: the packed form that products are computed in
    Q4_K   256 values of 4 bits, eight scales and minima of 6 bits, two float16: packed value for value too
    Q5_K   the same with values of 5 bits
    Q6_K   256 values of 6 bits, sixteen scales of 8 bits, a float16: packed value for value too

Q5_K, and numbers in a projection that has blocks, are repacked once, some rows at a time, into Q8_0, which adds a
rounding of at most half of a 127th of the largest value of 32. No weight is expanded whole to float32 for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

import numpy as np

from prelude._native import cpu
from prelude.errors import UnsupportedModel
from prelude.models.arrays import F32, OF_BLOCKS, Array, address
from prelude.records import dataclass

_CHUNK = 1 << 22
"""Values that are float32 at a time."""

_SCALES = {"Q8_0": (0, 34, 1), "Q4_K": (0, 144, 2), "Q5_K": (0, 176, 2), "Q6_K": (208, 210, 1)}
"""Where the float16 of a block lie: the first byte, the bytes of a block, how many."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """A weight [outputs, inputs]; ``data`` [outputs, bytes of a row] are its rows, uint8, side by side."""

    kind: str
    shape: tuple[int, int]
    data: Array

    @classmethod
    def of(cls, weight: F32) -> Blocks:
        """``weight`` [outputs, inputs] float32 in Q8_0; ``UnsupportedModel`` if rows are no whole blocks."""
        outputs, inputs = weight.shape
        if inputs % cpu.INT8_BLOCK:
            raise UnsupportedModel(f"unsupported: blocks beside a weight with rows of {inputs} values")
        weight = np.ascontiguousarray(weight)
        made = np.empty((outputs, inputs // cpu.INT8_BLOCK * cpu.Q8_BYTES), np.uint8)
        cpu.quantize_rows(address(weight), outputs, inputs, address(made))
        return cls("Q8_0", (outputs, inputs), made)

    def rows(self, order: Array) -> Blocks:
        """Return the rows of ``order`` [n], in that order."""
        return Blocks(self.kind, (len(order), self.shape[1]), self.data[order])

    def dense(self, first: int = 0, last: int | None = None) -> F32:
        """Return rows [first, last) as float32: the values that llama.cpp gives them."""
        part = self.data[first:last]
        found = np.empty((len(part), self.shape[1]), np.float32)
        cpu.dequantize_rows(cpu.BLOCK_KINDS[self.kind], address(part), len(part), self.shape[1], address(found))
        return found

    @classmethod
    def joined(cls, parts: Iterable[Blocks]) -> list[Blocks]:
        """Return the rows of ``parts`` one under the other, neighbours of one kind together: in Q8_0 those of a kind
        that is not packed."""
        made, packed = [], (part if part.kind in OF_BLOCKS else part.eight_bits() for part in parts)
        for kind, some in groupby(packed, lambda part: part.kind):
            run = list(some)
            data = run[0].data if len(run) == 1 else np.concatenate([part.data for part in run])
            made.append(cls(kind, (len(data), run[0].shape[1]), data))
        return made

    def eight_bits(self) -> Blocks:
        """Return the rows in Q8_0; of Q8_0 itself."""
        if self.kind == "Q8_0":
            return self
        outputs, inputs = self.shape
        made = np.empty((outputs, inputs // cpu.INT8_BLOCK * cpu.Q8_BYTES), np.uint8)
        step = max(1, _CHUNK // inputs)
        for first in range(0, outputs, step):
            rows = self.dense(first, first + step)
            if float(np.abs(rows).max()) > cpu.MOST_INT8_WEIGHT:
                raise UnsupportedModel(f"unsupported: weights of {self.kind} above {cpu.MOST_INT8_WEIGHT:g}")
            made[first : first + step] = Blocks.of(rows).data
        return Blocks("Q8_0", self.shape, made)

    def count_bad(self) -> int:
        """Return blocks with a scale that is a NaN or an infinity; the values of the others are finite."""
        first, size, count = _SCALES[self.kind]
        scales = np.ascontiguousarray(self.data.reshape(-1, size)[:, first : first + 2 * count]).view(np.float16)
        return int((~np.isfinite(scales)).any(axis=1).sum())
