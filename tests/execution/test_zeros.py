"""Memory of pools: a page is taken when it is first written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from prelude.execution.host_blocks import lazy_zeros
from prelude.models.arrays import BF16, FLOAT32, address


@pytest.mark.parametrize("dtype", [FLOAT32, BF16])
@pytest.mark.parametrize("shape", [(3, 5), (0, 4), (2, 1000, 7)])
def test_zeros_have_shape_and_type_and_can_be_written(shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    zeros = lazy_zeros(shape, dtype)
    assert zeros.shape == shape and zeros.dtype == dtype and zeros.flags.c_contiguous
    assert address(zeros) % 64 == 0, "a cache line, and the widest vector register"
    written = zeros.reshape(-1).view(np.uint8)
    assert not written.any()
    written += 1
    assert zeros.tobytes() == b"\1" * zeros.nbytes


@pytest.mark.parametrize("places", [1 << 58, 1 << 62])
def test_more_zeros_than_the_system_has_are_a_memory_error(places: int) -> None:
    with pytest.raises(MemoryError):
        lazy_zeros((places,), FLOAT32)
