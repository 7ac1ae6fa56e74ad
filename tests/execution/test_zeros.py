"""Memory of pools: a page is taken when it is first written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from prelude.cpu.profile import resident_bytes
from prelude.execution.host_blocks import lazy_zeros
from prelude.models.arrays import BF16, FLOAT32, address
from tests.patience import shown

SIZE = 64 << 20


@pytest.mark.skipif(resident_bytes() is None, reason="the system does not count a process's memory")
def test_an_empty_pool_takes_the_pages_that_are_written_alone() -> None:
    """A value in each of 32 parts of 2 MB takes 32 pages, not 64 MB."""

    def taken() -> int:
        before = resident_bytes() or 0
        pool = lazy_zeros((32, SIZE // 128), FLOAT32)
        pool[:, 5] = 1.0
        return (resident_bytes() or 0) - before

    assert shown(lambda: taken() < SIZE // 16)


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
