"""The parts of a step beside its rows: instances without their ``__init__``, ids out of lists, large arrays."""

from __future__ import annotations

import gc
import weakref
from dataclasses import FrozenInstanceError, dataclass, replace

import numpy as np
import pytest
from prelude._native.core import Maker, ids_below, ids_once


@dataclass(frozen=True, slots=True)
class Three:
    a: int
    b: str
    c: object = None


def test_a_maker_makes_what_the_class_itself_makes() -> None:
    make = Maker(Three)
    thing = object()
    made = make(1, "b", thing)
    assert type(made) is Three and made == Three(1, "b", thing) and hash(made) == hash(Three(1, "b", thing))
    assert replace(made, a=2).a == 2
    with pytest.raises(FrozenInstanceError):
        made.a = 2
    assert make(1, "b") == Three(1, "b")
    for wrong in ((1,), (1, "b", None, 4)):
        with pytest.raises(TypeError, match="not a value for each of its 3 fields"):
            make(*wrong)


IDS = [0, 1, 255, 256, 99_999, 5, 6, 7] * 3


@pytest.mark.parametrize("kind", [list, tuple, lambda ids: np.array(ids, np.int32)])
def test_ids_are_copied_and_every_one_of_them_is_checked(kind: object) -> None:
    given = kind(IDS)  # type: ignore[operator]
    found = ids_below(given, 100_000)
    assert found is not None and found.dtype == np.int32 and found.tolist() == IDS
    assert found is not given and not np.shares_memory(found, np.asarray(given))
    for at in (0, 11, len(IDS) - 1):
        for wrong in (-1, 100_000, (1 << 31) - 1, -(1 << 31)):
            assert ids_below(kind([*IDS[:at], wrong, *IDS[at + 1 :]]), 100_000) is None  # type: ignore[operator]


@pytest.mark.parametrize("wrong", [True, 1.0, "1", None, 1 << 31, 1 << 40, 1 << 80, -(1 << 80), np.int32(3)])
def test_what_is_no_plain_int_or_too_large_is_not_taken(wrong: object) -> None:
    assert ids_below([1, 2, wrong, 3], 1 << 40) is None
    assert ids_below([1, 2, (1 << 31) - 1], 1 << 40) is not None


@pytest.mark.parametrize("count", [0, 1, 2, 63, 64, 65, 500, 3_000])
@pytest.mark.parametrize("kind", [list, tuple, lambda ids: np.array(ids, np.int32)])
def test_ids_are_sorted_and_each_is_there_once(kind: object, count: int) -> None:
    limit = 4_003  # no multiple of 64
    rng = np.random.default_rng(count)
    for ids in (rng.integers(0, limit, count).tolist(), list(range(count)), [limit - 1, *range(count - 1)][:count]):
        given = kind(ids)  # type: ignore[operator]
        found = ids_once(given, limit)
        assert found is not None and found.dtype == np.int32 and found.tolist() == sorted(set(ids))
        assert list(given) == ids and not np.shares_memory(found, np.asarray(given))
    if count:
        for wrong in (-1, limit):
            assert ids_once(kind([*ids[:-1], wrong]), limit) is None  # type: ignore[operator]
    assert ids_once([1] * limit, limit) is not None and ids_once([1] * (limit + 1), limit) is None


def test_large_arrays_are_their_holders_until_the_last_view_is_gone() -> None:
    """Memory that is used again is never two arrays' at a time."""
    rng = np.random.default_rng(1)
    kept: list[tuple[np.ndarray, np.ndarray]] = []
    for round in range(200):
        prompt = rng.integers(0, 1000, int(rng.integers(9_000, 60_000))).astype(np.int32)
        ids = ids_below(prompt, 1000)
        assert ids is not None
        part = ids[10:20]  # a view alone keeps the memory
        kept.append((part, prompt[10:20].copy()))
        if round % 3:
            kept.pop(int(rng.integers(len(kept))))
        assert all((view == expected).all() for view, expected in kept)
    ids = ids_below(np.zeros(50_000, np.int32), 10)
    assert ids is not None and ids.base is not None
    gone = weakref.ref(ids)
    del ids
    gc.collect()
    assert gone() is None
