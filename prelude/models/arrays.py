"""Arrays of weights. bfloat16 has a dtype of its own, on which arithmetic raises: ``widen`` and ``narrow`` alone
convert its values, and nothing is assigned to an array of it but other values of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from prelude._native import cpu
from prelude._native.cpu import address as address
from prelude.models.memory import default_threads
from prelude.values.arrays import F32 as F32  # for modules that have both kinds from here

cpu.set_threads(default_threads())

Array: TypeAlias = npt.NDArray[Any]
Packing: TypeAlias = Literal["float32", "bfloat16", "int8", "widened", "float16", "q4_k", "q6_k"]
"""The types that a projection's weights are packed in (``packed.py``)."""
OF_BLOCKS: dict[str, Packing] = {"Q8_0": "int8", "Q4_K": "q4_k", "Q6_K": "q6_k"}
"""The packing that holds the values of a kind of GGUF's blocks: products of these quantize the rows of the input."""
KEPT: dict[Packing, str] = {"bfloat16": "bfloat16", "widened": "bfloat16", "float16": "float16"}
"""The type of two bytes whose values a packing keeps."""

BF16: np.dtype[Any] = np.dtype([("bfloat16", "<u2")])
FLOAT32 = np.dtype(np.float32)
ROW_TYPES = {"float32": FLOAT32, "bfloat16": BF16}
"""Types that rows are computed in, by the name that ``dtype`` has."""
ALIGNMENT = 64
"""Bytes: a vector of the kernels that begins at a multiple of it lies in one line of the cache."""
_EXPONENTS = {"bfloat16": 0x7F80, "float16": 0x7C00, "float32": 0x7F80_0000, "float64": 0x7FF0_0000_0000_0000}


def name_of(dtype: np.dtype[Any]) -> str:
    return "bfloat16" if dtype == BF16 else dtype.name


def widen(array: Array) -> F32:
    """Return the values in float32; the array itself if it has that dtype."""
    if array.dtype != BF16:
        return array.astype(np.float32, copy=False)
    array = np.ascontiguousarray(array)
    wide = np.empty(array.shape, np.float32)
    cpu.widen_values(address(array), array.size, address(wide))
    return wide


def narrow(array: Array) -> Array:
    """Return the values in bfloat16, ties to even; the array itself if it has that dtype."""
    if array.dtype == BF16:
        return array
    wide = np.ascontiguousarray(array, np.float32)
    half = np.empty(array.shape, BF16)
    cpu.narrow_values(address(wide), wide.size, address(half))
    return half


def as_type(array: Array, dtype: np.dtype[Any]) -> Array:
    """Return the values in one of ``ROW_TYPES``; the array itself if it has that dtype."""
    return widen(array) if dtype == FLOAT32 else narrow(array)


def not_finite(array: Array) -> int:
    """Return how many values are NaN or infinite."""
    array = np.ascontiguousarray(array)
    return cpu.not_finite(address(array), array.size, array.itemsize, _EXPONENTS[name_of(array.dtype)])


def aligned(shape: tuple[int, ...], dtype: np.dtype[Any] = FLOAT32) -> Array:
    """Return a new array that begins at a multiple of ``ALIGNMENT``, not filled."""
    return side_by_side([(shape, dtype)])[0]


def side_by_side(parts: Sequence[tuple[tuple[int, ...], np.dtype[Any]]]) -> list[Array]:
    """Return new arrays of these shapes and types in one piece of memory, each as ``aligned`` returns it. They are
    some lines apart: the rows of two would lie in the same few places of the cache if both began with a page."""
    ends = [0]
    for shape, dtype in parts:
        ends.append(ends[-1] + (-(-math.prod(shape) * dtype.itemsize // ALIGNMENT) + 5) * ALIGNMENT)
    room = np.empty(ends[-1] + ALIGNMENT, np.uint8)
    first = -address(room) % ALIGNMENT
    return [np.ndarray(shape, dtype, room, first + at) for (shape, dtype), at in zip(parts, ends)]


def bytes_of(arrays: Iterable[Array]) -> int:
    """Return bytes of all of them, those that are there twice counted once."""
    return sum({address(array): array.nbytes for array in arrays}.values())
