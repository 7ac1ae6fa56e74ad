"""Watchdog: notices a step that does not come back, and answers those who wait.

It sleeps while the engine is idle. While steps run it looks a few times per limit; a step costs it nothing.
"""

from __future__ import annotations

import threading
import time
import weakref
from typing import Protocol

_LOOKS = 4  # per limit


class Watched(Protocol):
    step_began: float  # on the monotonic clock; 0 between steps

    def hung(self, seconds: float) -> None: ...


class Watchdog:
    def __init__(self, watched: Watched, limit: float) -> None:
        self._watched = weakref.ref(watched)
        self.limit = limit
        self._busy = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def step_begins(self) -> None:
        if not self._busy.is_set():
            self._busy.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="prelude-watchdog", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._busy.set()

    def _watch(self) -> None:
        seen = -1.0
        while True:
            self._busy.wait()
            if self._stop.wait(self.limit / _LOOKS):
                return
            watched = self._watched()
            if watched is None:
                return
            began = watched.step_began
            if not began and began == seen:  # idle at two looks in a row
                self._busy.clear()
                if watched.step_began:
                    self._busy.set()
            elif began and time.monotonic() - began > self.limit:
                watched.hung(time.monotonic() - began)
            seen = began
            del watched
