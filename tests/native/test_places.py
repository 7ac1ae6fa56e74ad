"""Which processors a thread may run on while it is kept off the one of its waker, and behind it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest
from prelude._native.cpu import ThreadPlaces

if not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2:
    pytest.skip("one processor, or a system without affinities", allow_module_level=True)

ALL = os.sched_getaffinity(0)
HERE = min(ALL)
OTHERS = ALL - {HERE}


@pytest.fixture
def sleeper() -> Iterator[int]:
    """The id of a thread that sleeps and may run on all processors; the test's own runs on one of them."""
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    os.sched_setaffinity(0, {HERE})
    assert thread.native_id is not None
    yield thread.native_id
    os.sched_setaffinity(0, ALL)
    ended.set()
    thread.join()


def test_a_thread_is_kept_off_and_comes_back(sleeper: int) -> None:
    places = ThreadPlaces([sleeper])
    for _ in range(2):  # also without giving back before
        places.keep_off()
        assert os.sched_getaffinity(sleeper) == OTHERS
    places.give_back()
    assert os.sched_getaffinity(sleeper) == ALL
    places.keep_off()
    del places
    assert os.sched_getaffinity(sleeper) == ALL


def test_a_change_of_others_stays(sleeper: int) -> None:
    places = ThreadPlaces([sleeper])
    places.keep_off()
    os.sched_setaffinity(sleeper, {HERE})
    places.give_back()
    assert os.sched_getaffinity(sleeper) == {HERE}
    places.keep_off()
    assert os.sched_getaffinity(sleeper) == {HERE}, "a thread that is bound to this processor stays"
