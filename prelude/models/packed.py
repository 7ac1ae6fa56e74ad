"""Projections whose weights are packed for the CPU's vector units. ``_native/include/prelude/cpu/packed_matmul.hpp``
has the packings. A product has the same bits with any number of threads and any other rows of the step, and but for
"bfloat16" on every processor.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np

from prelude._native import cpu
from prelude.models.arrays import ALIGNMENT, F32, OF_BLOCKS, Array, Packing, address, aligned, name_of
from prelude.values.arrays import F64

if TYPE_CHECKING:
    from prelude.models.gguf.blocks import Blocks
    from prelude.models.packed_file import Kept

LEAST_WEIGHT = 1e-3
"""The smallest scale of float16 is 6e-8: it rounds a weight by 3e-8, a hundredth of the rounding of a weight of
1e-3."""


class Arena:
    """Large pages that weights share, since most are smaller than one. A page that none reaches takes no memory."""

    def __init__(self) -> None:
        self._left: Array = np.empty(0, np.uint8)

    def words(self, count: int) -> Array:
        """Return int32 [count], not filled."""
        if len(self._left) < 4 * count:
            self._left = aligned((max(4 * count, 64 << 20),), np.dtype(np.uint8))
            cpu.large_pages(address(self._left), len(self._left))
        found, self._left = self._left[: 4 * count], self._left[-(-4 * count // ALIGNMENT) * ALIGNMENT :]
        return found.view(np.int32)


class PackedLinear:
    """A weight [outputs, inputs] and maybe a bias, packed; float32 and bfloat16 go in and come out. ``words``: the
    packed weight, int32. ``behind``: has the last outputs if they are packed otherwise.

    ``weight`` has values side by side in a row. Whether int8 holds its values: ``fits``."""

    __slots__ = ("_at", "_packing", "behind", "bias", "inputs", "outputs", "packing", "product", "words")
    product: cpu.PackedProduct

    def __init__(self, weight: Array, bias: F32 | None = None, packing: Packing = "int8") -> None:
        outputs, inputs = weight.shape
        self._shape(outputs, inputs, bias, packing)
        self._reserve(None)
        self._fill(0, weight)

    @classmethod
    def of_parts(
        cls, parts: Iterable[Array], outputs: int, inputs: int, bias: F32 | None, packing: Packing, arena: Arena
    ) -> PackedLinear:
        """The rows of ``parts`` one under the other. A part is not needed when the next one is asked for."""
        made = object.__new__(cls)
        made._shape(outputs, inputs, bias, packing)
        made._reserve(arena)
        at = 0
        for part in parts:
            made._fill(at, part)
            at += len(part)
        if at != outputs:
            raise ValueError(f"the parts have {at} rows, not {outputs}")
        return made

    def _fill(self, first: int, weight: Array) -> None:
        outputs, inputs = weight.shape
        if inputs != self.inputs or first + outputs > self.outputs:
            raise ValueError(f"[{outputs}, {inputs}] from {first} on of [{self.outputs}, {self.inputs}]")
        types = ("float16",) if self.packing == "float16" else ("bfloat16", "float32")
        if name_of(weight.dtype) not in types or (inputs > 1 and weight.strides[1] != weight.itemsize):
            raise ValueError(
                f"rows of {weight.dtype} with strides {weight.strides} bytes; {' or '.join(types)} side by side"
            )
        stride, half = weight.strides[0] // weight.itemsize, weight.itemsize == 2
        cpu.pack_rows(address(weight), stride, half, outputs, inputs, self._packing, self._at, first)

    @classmethod
    def of_blocks(cls, parts: Sequence[Blocks], bias: F32 | None = None, arena: Arena | None = None) -> PackedLinear:
        """Return a weight of the rows of ``parts``, all of ``OF_BLOCKS``, one under the other, value for value."""
        first, count = parts[0], parts[0].shape[0]
        before, after = (None, None) if bias is None else (bias[:count], bias[count:])
        behind = cls.of_blocks(parts[1:], after, arena) if len(parts) > 1 else None
        made = object.__new__(cls)
        made._shape(*first.shape, before, OF_BLOCKS[first.kind])
        made._reserve(arena, behind)
        rows = np.ascontiguousarray(first.data)
        cpu.pack_blocks(address(rows), *first.shape, made._packing, made._at)
        return made

    @classmethod
    def of_words(cls, words: Array, kept: Kept, bias: F32 | None) -> PackedLinear:
        """A weight that was packed before, of the size that ``PackedWeights`` has compared; its words are used where
        they lie."""
        made = object.__new__(cls)
        made._shape(kept.outputs, kept.inputs, bias, kept.packing)
        made._hold(words)
        return made

    def _shape(self, outputs: int, inputs: int, bias: F32 | None, packing: Packing) -> None:
        self.outputs, self.inputs = outputs, inputs
        self.bias = bias
        self.packing: Packing = packing
        self._packing = cpu.PACKINGS[packing]

    def _reserve(self, arena: Arena | None, behind: PackedLinear | None = None) -> None:
        count = cpu.packed_words(self.outputs, self.inputs, self._packing)
        self._hold(aligned((count,), np.dtype(np.int32)) if arena is None else arena.words(count), behind)

    def _hold(self, words: Array, behind: PackedLinear | None = None) -> None:
        self.words, self._at, self.behind = words, address(words), behind
        others = None if behind is None else behind.product
        self.product = cpu.PackedProduct(words, self.bias, self.outputs, self.inputs, self._packing, others)
        self.outputs += 0 if behind is None else behind.outputs

    @staticmethod
    def fits(weights: Iterable[F32]) -> bool:
        """Whether float16 holds the scales of int8: the largest of all values is not too large, nor so small that the
        loss of scales below the range of float16 would be seen."""
        most = max(float(max(weight.max(initial=0), -weight.min(initial=0))) for weight in weights)
        return most == 0.0 or LEAST_WEIGHT <= most <= cpu.MOST_INT8_WEIGHT

    def __call__(self, x: Array) -> F32:
        """[rows, outputs] float32."""
        return self.into(x, aligned((len(x), self.outputs)))

    def into(self, x: Array, out: Array) -> Array:
        """``self(x)`` in the memory of ``out`` [rows, outputs], float32 or bfloat16, which is returned."""
        self.product(x, out)
        return out

    def add_to(self, residual: F32, x: Array) -> None:
        """``residual += self(x)``, in place; ``residual`` [rows, outputs] is float32."""
        self.product(x, residual, True)

    def rows(self, start: int, stop: int) -> PackedLinear:
        """Take some of the outputs, in this one's memory; they begin with a group of outputs."""
        own, behind = self.outputs, None
        if self.behind is not None:
            own -= self.behind.outputs
            if start >= own:
                return self.behind.rows(start - own, stop - own)
            if stop > own:
                behind = self.behind.rows(0, stop - own)
        if start % cpu.PACKED_GROUP:
            raise ValueError(f"output {start} begins within a group of {cpu.PACKED_GROUP} outputs")
        stop = min(stop, own)
        made = object.__new__(PackedLinear)
        bias = None if self.bias is None else self.bias[start:stop]
        made._shape(stop - start, self.inputs, bias, self.packing)
        made._hold(self.words[cpu.packed_words(start, self.inputs, self._packing) :], behind)
        return made

    def gather(self, outputs: Array) -> F32:
        """[n, inputs] float32: the weights of ``outputs`` [n] int64."""
        return self.product.gather(outputs)

    def of_pairs(self, x: F32, outputs: Array) -> F64:
        """[n]: output ``outputs[n]``, int64, of row n of ``x`` [n, inputs], without the bias. In int8, q4_k
        and q6_k they are the values that a whole product has, else sums in float64."""
        if self.packing in OF_BLOCKS.values():
            return self.product.integer_pairs(x, outputs)
        weights: F64 = self.gather(outputs).astype(np.float64)
        if x.shape != weights.shape:
            raise ValueError(f"{list(x.shape)} by {list(weights.shape)}")
        weights *= x
        found: F64 = weights.sum(axis=1)
        return found

    def arrays(self) -> list[Array]:
        """Return those of this packing: without those ``behind``."""
        return [self.words] if self.bias is None else [self.words, self.bias]


class Summing(Protocol):
    """The ranks that hold the parts of one model."""

    rank: int

    def sum(self, values: F32) -> None:
        """``values``, without gaps, become the sum of all ranks' values. All ranks get the same bits."""


class SummedLinear:
    """One rank's columns of a projection. The result is the sum over all ranks; rank 0 alone has the bias."""

    __slots__ = ("_ranks", "inner")

    def __init__(self, inner: PackedLinear, ranks: Summing) -> None:
        self.inner = inner
        self._ranks = ranks

    def __call__(self, x: Array) -> F32:
        """[rows, outputs] float32."""
        made = self.inner(x)
        self._ranks.sum(made)
        return made

    def add_to(self, residual: F32, x: Array) -> None:
        """``residual += self(x)``, in place; ``residual`` [rows, outputs] is float32 and the same on all ranks. Rank
        0's term is the residual with its product, so that no memory and no pass is needed beside the sum's own."""
        inner = self.inner
        if self._ranks.rank == 0:
            inner.add_to(residual, x)
        else:
            inner.into(x, residual)
        self._ranks.sum(residual)


OutLinear: TypeAlias = PackedLinear | SummedLinear
"""A projection whose result is added to the residual stream."""


def own(linear: OutLinear) -> PackedLinear:
    """Return the weights that this process has."""
    return linear.inner if isinstance(linear, SummedLinear) else linear
