"""Token arrays of any layout mean the same numbers: the wrappers read numpy's fields without numpy's headers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from prelude._native.core import block_hashes

TOKENS = np.arange(-8, 56, dtype=np.int32)


def read_only(tokens: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    tokens = tokens.copy()
    tokens.flags.writeable = False
    return tokens


def misaligned(tokens: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    raw = np.zeros(tokens.nbytes + 1, np.uint8)
    raw[1:] = tokens.view(np.uint8)
    return raw[1:].view(np.int32)


class Sub(np.ndarray):  # type: ignore[type-arg]
    pass


LAYOUTS = {
    "read only": read_only(TOKENS),
    "the other byte order": TOKENS.astype(TOKENS.dtype.newbyteorder()),
    "every second of a longer one": np.repeat(TOKENS, 2)[::2],
    "backwards": TOKENS[::-1].copy()[::-1],
    "misaligned": misaligned(TOKENS),
    "int64": TOKENS.astype(np.int64),
    "int16": TOKENS.astype(np.int16),
    "a subclass": TOKENS.view(Sub),
    "a list": TOKENS.tolist(),
    "a buffer": memoryview(TOKENS),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_same_numbers_in_any_layout(layout: str) -> None:
    assert block_hashes(LAYOUTS[layout], 16).tolist() == block_hashes(TOKENS, 16).tolist()  # type: ignore[arg-type]


@pytest.mark.parametrize("tokens", [TOKENS.reshape(8, 8), TOKENS.astype(np.float32), TOKENS.astype(np.int64) << 32])
def test_an_array_that_is_no_row_of_int32_is_refused(tokens: npt.NDArray[np.int32]) -> None:
    with pytest.raises((TypeError, ValueError)):
        block_hashes(tokens, 16)
