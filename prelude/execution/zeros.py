"""Memory whose pages are taken when they are first written."""

from __future__ import annotations

import contextlib
import math
import mmap
import sys
from typing import Any

import numpy as np
import numpy.typing as npt


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
