"""Arrays of weights. bfloat16 has a dtype of its own, on which arithmetic raises: ``widen`` and ``narrow`` alone
convert its values, and nothing is assigned to an array of it but other values of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from prelude._native import cpu
from prelude.arrays import F32

if TYPE_CHECKING:
    import torch

Array: TypeAlias = npt.NDArray[Any]

BF16: np.dtype[Any] = np.dtype([("bfloat16", "<u2")])
_EXPONENTS = {"bfloat16": 0x7F80, "float16": 0x7C00, "float32": 0x7F80_0000, "float64": 0x7FF0_0000_0000_0000}


def name_of(dtype: np.dtype[Any]) -> str:
    return "bfloat16" if dtype == BF16 else dtype.name


def widen(array: Array) -> F32:
    """The values in float32; the array itself where it has that dtype."""
    if array.dtype != BF16:
        return array.astype(np.float32, copy=False)
    array = np.ascontiguousarray(array)
    wide = np.empty(array.shape, np.float32)
    cpu.widen_values(address(array), array.size, address(wide))
    return wide


def narrow(array: Array) -> Array:
    """The values in bfloat16, ties to even; the array itself where it has that dtype."""
    if array.dtype == BF16:
        return array
    wide = np.ascontiguousarray(array, np.float32)
    half = np.empty(array.shape, BF16)
    cpu.narrow_values(address(wide), wide.size, address(half))
    return half


def not_finite(array: Array) -> int:
    """How many values are NaN or infinite."""
    array = np.ascontiguousarray(array)
    return cpu.not_finite(address(array), array.size, array.itemsize, _EXPONENTS[name_of(array.dtype)])


def address(array: Array) -> int:
    return int(array.ctypes.data)


def torch_of(array: Array) -> torch.Tensor:
    """A tensor in the memory of ``array``, which is writable and stays alive with it."""
    import torch

    if array.dtype == BF16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def array_of(tensor: torch.Tensor) -> Array:
    """The array in the memory of ``tensor``."""
    import torch

    found: Array = tensor.view(torch.int16).numpy().view(BF16) if tensor.dtype == torch.bfloat16 else tensor.numpy()
    return found


__all__ = ["BF16", "F32", "Array", "address", "array_of", "name_of", "narrow", "not_finite", "torch_of", "widen"]
