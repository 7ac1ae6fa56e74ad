"""Ids out of lists, arrays of any layout, and large arrays."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from prelude._native.core import SameIds, join_ids

KINDS = [list, tuple, lambda ids: np.array(ids, np.int32), lambda ids: np.array(ids, np.int64)]
IDS = [0, 1, 255, 256, 99_999, 5, 6, 7] * 3


@pytest.mark.parametrize("kind", [list, tuple])
def test_a_list_that_comes_again_is_read_once_and_a_changed_one_anew(kind: object) -> None:
    reader, rng, limit = SameIds(5_000), np.random.default_rng(0), 5_000
    values = rng.permutation(limit)[:900].tolist()
    found = [reader.of(kind(values)) for _ in range(4)]  # type: ignore[operator]
    assert all(one is not None and one.tolist() == sorted(values) for one in found)
    assert found[2] is found[1] and found[3] is found[1]  # the second was held
    for at in (0, 450, 899):
        for wrong in (True, -1, limit, "1", 1.0, 1 << 80):
            assert reader.of(kind([*values[:at], wrong, *values[at + 1 :]])) is None  # type: ignore[operator]
    for _ in range(60):  # the same list object, changed in one place or in its length
        values[int(rng.integers(len(values)))] = int(rng.integers(limit))
        if rng.random() < 0.1:
            values.pop()
        for _ in range(int(rng.integers(1, 4))):
            again = reader.of(kind(values))  # type: ignore[operator]
            assert again is not None and again.tolist() == sorted(set(values))
    assert reader.of(kind([])).tolist() == []  # type: ignore[operator,union-attr]


def test_an_address_that_another_integer_takes_is_not_the_integer_before() -> None:
    """Integers of freed lists are made again at the same addresses, with other values."""
    reader = SameIds(1 << 30)
    for round in range(300):
        values = [1_000_000 + (round * 7 + i) * 3 for i in range(40)]
        for _ in range(3):
            found = reader.of(values)
            assert found is not None and found.tolist() == values
        del values


class Twofold(list):  # type: ignore[type-arg]
    """Iterates over other items than it has."""

    def __iter__(self) -> object:  # type: ignore[override]
        return iter([1, 2, 3])


def test_the_items_of_a_list_are_read_whatever_its_iterator_gives() -> None:
    reader = SameIds(100)
    for _ in range(4):
        found = reader.of(Twofold([9, 8, 7]))
        assert found is not None and found.tolist() == [7, 8, 9]


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
    "read only": read_only(TOKENS), "the other byte order": TOKENS.astype(TOKENS.dtype.newbyteorder()),
    "every second of a longer one": np.repeat(TOKENS, 2)[::2], "backwards": TOKENS[::-1].copy()[::-1],
    "misaligned": misaligned(TOKENS), "int64": TOKENS.astype(np.int64), "int16": TOKENS.astype(np.int16),
    "a subclass": TOKENS.view(Sub), "a list": TOKENS.tolist(), "a buffer": memoryview(TOKENS),
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_same_numbers_in_any_layout(layout: str) -> None:
    """The wrappers read numpy's fields without numpy's headers."""
    assert join_ids(LAYOUTS[layout]).tolist() == TOKENS.tolist()


@pytest.mark.parametrize("tokens", [TOKENS.reshape(8, 8), TOKENS.astype(np.float32), TOKENS.astype(np.int64) << 32])
def test_an_array_that_is_no_row_of_int32_is_refused(tokens: npt.NDArray[np.int32]) -> None:
    with pytest.raises((TypeError, ValueError)):
        join_ids(tokens)
