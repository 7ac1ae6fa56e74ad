"""Sinks: requests' ends go to their sinks, and callers' event loops are woken once a step.

A sink that raises is told so with a second end: a caller waits behind it. Its error is logged and reaches no other
request.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque

from prelude.admission.prepared import Outcome
from prelude.errors import is_interrupt
from prelude.runtime.events import Listeners
from prelude.runtime.stats import EngineStats
from prelude.scheduling.recovery import failure_of
from prelude.scheduling.request import Request

log = logging.getLogger("prelude.engine")
_NOT_TOLD = "the result could not be handed over"


class LoopFlush:
    """Ends of requests for one caller's event loop, handed over by one wake-up of it."""

    def flush(self) -> None:
        raise NotImplementedError

    def closed(self) -> bool:
        """Whether the event loop is closed, and no task waits there."""
        return False


class Sinks:
    """``loops``: those of all callers. Ctrl-C that comes while a sink is told is kept in ``events``, and the sink is
    told the same again."""

    def __init__(self, stats: EngineStats, events: Listeners) -> None:
        self.loops: list[LoopFlush] = []
        self._stats = stats
        self._events = events
        self.to_wake: deque[LoopFlush] = deque()  # event loops that are flushed when the step is over

    def deliver(self, request: Request, outcome: Outcome | None, error: BaseException | None) -> None:
        """Raises ``MemoryError`` where there is no memory to tell the sink of its own error."""
        try:
            request.sink.deliver(request, outcome, error)
        except BaseException as raised:
            if self._interrupted(raised):
                self._deliver_again(request, outcome, error)
                return
            self._deliver_again(request, None, failure_of(raised, _NOT_TOLD))
            log_failure("a sink raised on its request's end", raised, request.options.request_id)

    def _interrupted(self, raised: BaseException) -> bool:
        if not is_interrupt(raised):
            return False
        self._events.interrupt = raised
        return True

    def _deliver_again(self, request: Request, outcome: Outcome | None, error: BaseException | None) -> None:
        try:
            request.sink.deliver(request, outcome, error)
        except MemoryError:
            raise
        except BaseException as again:
            if self._interrupted(again):
                return
            log_failure("a sink raised twice on its request's end; its caller is not told", again)

    # -------------------------------------------------------------- callers' event loops

    def wake_later(self, loop: LoopFlush) -> None:
        """``loop`` has ends to hand over: it is flushed when the step is over. Any thread."""
        self.to_wake.append(loop)

    def remove_closed(self) -> list[LoopFlush]:
        """Event loops that were closed since the last call."""
        closed = [loop for loop in self.loops if loop.closed()]
        for loop in closed:
            self.loops.remove(loop)
        return closed

    def flush(self) -> None:
        """One wake-up of each event loop that has ends."""
        while self.to_wake:
            try:
                loop = self.to_wake[0]
                self._stats.loop_wakeups += 1  # before: a caller that is woken may read it
                loop.flush()  # before it is removed: after an interrupt between the two it is flushed again
                self.to_wake.popleft()
            except IndexError:  # the watchdog flushed meanwhile
                return

    def flush_all(self) -> None:
        """Also loops whose ends were put without a wake-up, when a step was interrupted."""
        for loop in self.loops:
            loop.flush()
        self.flush()


def log_failure(message: str, error: BaseException, request_id: str | None = None) -> None:
    """The last thing done about an error: a record that finds no memory is dropped."""
    with contextlib.suppress(MemoryError):
        log.error(message, exc_info=error, extra={"request_id": request_id} if request_id else None)
