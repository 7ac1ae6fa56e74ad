"""Arrays of weights against torch's conversions, and the rule that bfloat16 is converted in one place."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from prelude.models.arrays import BF16, narrow, not_finite, widen
from tests.tensors import array_of, torch_of


def every_half() -> np.ndarray:
    return np.arange(1 << 16, dtype=np.uint16).view(BF16)


def test_every_bfloat16_widens_to_its_value() -> None:
    halves = every_half()
    assert widen(halves).tobytes() == torch_of(halves).float().numpy().tobytes()


def test_floats_are_rounded_to_bfloat16_as_torch_rounds_them() -> None:
    generator = np.random.default_rng(0)
    values = generator.integers(0, 1 << 32, 200_000, np.uint32).view(np.float32)
    ties = (np.arange(1 << 16, dtype=np.uint32) << 16 | 0x8000).view(np.float32)
    for wide in (values, ties):
        wide = wide[~np.isnan(wide)]
        assert torch.equal(torch_of(narrow(wide)), torch.from_numpy(wide).bfloat16())
    assert np.isnan(widen(narrow(np.array([np.nan, -np.nan], np.float32)))).all()


def test_arithmetic_on_bfloat16_raises() -> None:
    halves = every_half()
    for wrong in (lambda: halves + halves, lambda: halves * 2, lambda: halves @ halves, lambda: np.isfinite(halves)):
        with pytest.raises(TypeError):
            wrong()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_values_that_are_not_finite_are_counted(dtype: str) -> None:
    values = torch.full((5, 7), float(torch.finfo(getattr(torch, dtype)).max), dtype=getattr(torch, dtype))
    whole = array_of(values)
    assert not_finite(whole) == not_finite(whole[:, :3]) == not_finite(whole[:0]) == 0
    for at, value in enumerate((float("nan"), float("inf"), float("-inf"))):
        values[at, 2] = value
    assert not_finite(whole) == not_finite(whole[:, 2:3]) == 3 and not_finite(whole[:, :2]) == 0


def test_strided_arrays_are_converted_row_by_row() -> None:
    halves = every_half().reshape(256, 256)
    assert widen(halves[:, ::3]).tobytes() == widen(halves)[:, ::3].tobytes()
    finite = widen(halves[:8, 10:20])
    assert narrow(finite[:, ::2]).tobytes() == np.ascontiguousarray(halves[:8, 10:20:2]).tobytes()
