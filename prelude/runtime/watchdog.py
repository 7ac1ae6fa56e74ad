"""Watchdog: notices a step that does not come back, and fails the waiting requests.

It sleeps while the engine is idle. While steps run it looks a few times per limit; a step costs it nothing.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from typing import Protocol

from prelude._native.core import WakeEvent
from prelude.errors import starting_thread

log = logging.getLogger("prelude.engine")

_LOOKS = 4  # per limit


class Watched(Protocol):
    began: float  # on the monotonic clock; 0 between steps

    def hung(self, seconds: float) -> None: ...


class Watchdog:
    """``stop`` may be called by a finaliser: it takes no lock."""

    def __init__(self, watched: Watched, limit: float) -> None:
        self._watched = weakref.ref(watched)
        self.limit = limit
        self._wake = WakeEvent()
        self._busy = False
        self._stopped = False
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """``ExecutionError`` if its thread cannot be started; the next call tries again."""
        if self._thread is None and not self._stopped:
            with self._starting:
                if self._thread is None:
                    thread = threading.Thread(target=self._watch, name="prelude-watchdog", daemon=True)
                    with starting_thread():
                        thread.start()
                    self._thread = thread

    def step_begins(self) -> None:
        if not self._busy:
            self.start()
            self._busy = True
            self._wake.set()

    def stop(self, wait: float = 0.0) -> None:
        """Its thread ends; that is waited for up to ``wait`` seconds."""
        self._stopped = True
        self._wake.set()
        if wait and self._thread is not None:
            self._thread.join(wait)

    def _watch(self) -> None:
        seen = -1.0
        while not self._stopped:
            self._wake.wait(self.limit / _LOOKS if self._busy else None)
            watched = self._watched()
            if watched is None:
                return
            try:
                seen = self._look(watched, seen)
            except MemoryError:
                log.warning("the watchdog found no memory to look at the step")
            del watched

    def _look(self, watched: Watched, seen: float) -> float:
        began = watched.began
        if not began and began == seen:  # idle at two looks in a row
            self._busy = False
            if watched.began:
                self._busy = True
        elif began and time.monotonic() - began > self.limit:
            watched.hung(time.monotonic() - began)
        return began
