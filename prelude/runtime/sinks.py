"""Sinks: callers' event loops, which are woken once a step."""

from __future__ import annotations

import contextlib
import logging
from collections import deque

from prelude.runtime.stats import EngineStats

log = logging.getLogger("prelude.engine")


class LoopFlush:
    """Ends of requests for one caller's event loop, handed over by one wake-up of it."""

    def flush(self) -> None:
        raise NotImplementedError

    def closed(self) -> bool:
        """Return whether the event loop is closed, and no task waits there."""
        return False


class Sinks:
    """``loops``: those of all callers."""

    def __init__(self, stats: EngineStats) -> None:
        self.loops: list[LoopFlush] = []
        self._stats = stats
        self.to_wake: deque[LoopFlush] = deque()  # event loops that are flushed when the step is over

    def wake_later(self, loop: LoopFlush) -> None:
        """Note that ``loop`` has ends to hand over: it is flushed when the step is over. Any thread."""
        self.to_wake.append(loop)

    def remove_closed(self) -> list[LoopFlush]:
        """Event loops that were closed since the last call."""
        closed = [loop for loop in self.loops if loop.closed()]
        for loop in closed:
            self.loops.remove(loop)
        return closed

    def flush(self) -> None:
        """Wake each event loop that has ends, once."""
        while self.to_wake:
            try:
                loop = self.to_wake[0]
                self._stats.loop_wakeups += 1  # before: a caller that is woken may read it
                loop.flush()  # before it is removed: if memory is missing, it is flushed later
                self.to_wake.popleft()
            except IndexError:  # the watchdog flushed meanwhile
                return


def log_failure(message: str, error: BaseException, request_id: str | None = None) -> None:
    """Log an error as its last handling: a record that finds no memory is dropped."""
    with contextlib.suppress(MemoryError):
        log.error(message, exc_info=error, extra={"request_id": request_id} if request_id else None)
