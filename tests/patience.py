"""Waiting in tests, on a machine that others use as well and that may stand still for seconds.

An event that must come is waited for (``until``, ``comes``), for as long as it takes; ``PATIENCE`` only ends a test
whose event never comes. Where a test looks at the engine in the middle of something it holds the steps there
(``Paced``) rather than hope to be quick enough. A claim that only a clock can show is made again until it is seen
(``shown``): it is false of code that is wrong however often it is tried.
"""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from collections.abc import Callable
from typing import Any

PATIENCE = 150.0  # seconds; importing torch alone takes 80 on two processors with a load of 25
_LOOK = 0.002


def until(condition: Callable[[], object], what: str = "it does not come") -> None:
    """Blocks until it holds."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(_LOOK)


async def comes(condition: Callable[[], object], what: str = "it does not come") -> None:
    """``until``, with the loop running."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, what
        await asyncio.sleep(_LOOK)


def shown(attempt: Callable[[], object], tries: int = 50) -> bool:
    """Whether one of so many attempts shows it, within a patience's time and at least in three of them."""
    end = time.monotonic() + PATIENCE
    for made in range(tries):
        if attempt():
            return True
        if made >= 2 and time.monotonic() > end:
            break
    return False


def open_files() -> list[str]:
    """The targets of this process's descriptors, sorted. Engines of earlier tests that are garbage close theirs
    first, so that none of them is counted and then missed."""
    gc.collect()
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:  # the one of this listing
            continue
    return sorted(found)


class Paced:
    """An executor that starts as many steps as it was allowed, and holds the thread that submits another.

    A core is given it in its executor's place: ``steps = Paced.of(core)``. ``given_up``: a step was held for as long
    as patience has it, and let go.
    """

    def __init__(self, inner: Any, steps: int = 0) -> None:
        self._inner = inner
        self._left: float = steps
        self._changed = threading.Condition()
        self.begun = 0
        self.held = False
        self.given_up = False

    @classmethod
    def of(cls, core: Any, steps: int = 0) -> Paced:
        paced = core.stepper.executor = cls(core.executor, steps)
        return paced

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def allow(self, steps: float) -> None:
        """So many from now on, in place of the number that was left."""
        with self._changed:
            self._left = steps
            self.held = self.held and steps <= 0
            self._changed.notify_all()

    def open(self) -> None:
        self.allow(float("inf"))

    def submit(self, batch: Any) -> Any:
        with self._changed:
            self.held = self._left <= 0
            if not self._changed.wait_for(lambda: self._left > 0, PATIENCE):
                self.given_up = True
            self.held = False
            self._left -= 1
            self.begun += 1
        return self._inner.submit(batch)
