"""Memory whose pages are taken when they are first written."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

_ALIGNMENT = 64  # bytes: a cache line, and the widest vector register


def lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros of ``shape``. torch.zeros writes to every page; numpy takes pages that the system hands out as zeros."""
    nbytes = math.prod(shape) * dtype.itemsize
    room = np.zeros(nbytes + _ALIGNMENT, np.uint8)
    first = -room.ctypes.data % _ALIGNMENT
    return torch.from_numpy(room[first : first + nbytes]).view(dtype).view(shape)
