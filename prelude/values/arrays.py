"""Names of the array types that the engine passes around, and a measure of attention over arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]
F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
C64 = npt.NDArray[np.complex64]
Mask = npt.NDArray[np.bool_]


def prompt_keys(uncached: Any, cached: Any) -> Any:
    """Return how many keys ``uncached`` tokens behind ``cached`` ones read: each all before it, and itself."""
    return uncached * (cached + (uncached + 1) / 2)
