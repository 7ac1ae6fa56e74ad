"""Failures: after a failed step, and after an error of the engine's own.

a step fails      ``recover`` ends its rows or has them run again; out of memory, ``limit`` of them at a time
several in a row  from ``unhealthy_after`` on the requests that wait end
our own error     the engine is closed, and every caller is told
a step hangs      the watchdog ends the requests that wait
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from typing import Protocol

from prelude._native.core import KvPool
from prelude.errors import ExecutionError, ExecutorLost, is_interrupt, starting_thread
from prelude.records import dataclass
from prelude.runtime.events import Listeners
from prelude.runtime.handover import Inbox, Sinks, WakeEvent, log_failure
from prelude.runtime.lifecycle import Lifecycle
from prelude.runtime.stats import EngineStats
from prelude.scheduling.plan import Plan
from prelude.scheduling.postprocess import failure_of, out_of_memory, recover
from prelude.scheduling.queues import Queues

log = logging.getLogger("prelude.engine")


@dataclass(eq=False, repr=False)
class Failures:
    """``limit``: rows that a step may have while rows of one that ran out of memory run again; None: there are none.
    ``broken``: an error of the engine's own has closed it. ``last_error`` is text: an exception refers to the frames
    of the caller that ran the step, and so to the engine."""

    queues: Queues
    pool: KvPool
    inbox: Inbox
    lifecycle: Lifecycle
    sinks: Sinks
    stats: EngineStats
    events: Listeners
    unhealthy_after: int
    in_a_row: int = 0
    last_error: str | None = None
    limit: int | None = None
    broken: bool = False
    _hung: float = 0.0  # when the last step began that hung

    @property
    def healthy(self) -> bool:
        return not self.broken and self.in_a_row < self.unhealthy_after

    def step_failed(self, plan: Plan, error: BaseException) -> None:
        """``plan``: the failed step without its void rows."""
        if plan.empty:
            return
        if not is_interrupt(error):  # Ctrl-C is not the executor's failure
            self._count(plan, error)
        again = recover(plan, error, self.queues, self.pool)
        self.stats.replays += len(again)
        self.events.emit_each("replayed", again)
        if out_of_memory(error):
            self.limit = max(1, len(again) // 2)
        if not self.healthy:
            self.events.emit("unhealthy", failures=self.in_a_row, error=type(error).__name__)
            lost = isinstance(error, ExecutorLost)
            said = "the engine has ended" if lost else f"the engine failed {self.in_a_row} steps in a row"
            self.lifecycle.end_waiting(failure_of(error, said))

    def _count(self, plan: Plan, error: BaseException) -> None:
        self._note(error)
        self.in_a_row = max(self.in_a_row + 1, self.unhealthy_after if isinstance(error, ExecutorLost) else 0)
        self.stats.failed_steps += 1
        ids = [request.options.request_id for request in plan.requests() if request.options.request_id]
        log.error(
            "a step failed: %s: %s (%s)",
            type(error).__name__,
            error,
            plan,
            exc_info=error,
            extra={"event": "step_failed", "request_ids": ids[:16], "failures_in_a_row": self.in_a_row},
        )
        self.events.emit("step_failed", kind=plan.kind, rows=len(plan.requests()), error=type(error).__name__)

    def step_succeeded(self) -> None:
        if self.limit is not None and not any(request.failures for request in self.queues):
            self.limit = None

    def stuck(self, plan: Plan) -> None:
        """Nothing could be planned although requests wait. Preemption alone is progress, and so is the end of a
        careful retry. Anything else is a bug, which must not hang its callers: the oldest request fails, and the
        engine goes on."""
        if plan.preempted:
            return
        if self.limit is not None:
            self.limit = None
            return
        request = min(self.queues, key=lambda r: r.order)
        log.error("unplannable request of %d tokens failed", request.num_known)
        self.lifecycle.end(request, ExecutionError("the request could not be planned"))
        self.sinks.flush()

    def hung(self, began: float) -> None:
        """Give all callers an error for the step that began then and may never return. The watchdog calls it."""
        seconds = time.monotonic() - began
        if began != self._hung:
            self._hung = began
            self.stats.hangs += 1
            log.error("a step has run for %.1f s", seconds, extra={"event": "hung", "seconds": seconds})
            self.events.emit("hung", seconds=seconds)
        error = TimeoutError(f"a step has run for {seconds:.1f} s")
        self._note(error)
        self.lifecycle.tell_hung(error)
        self.sinks.flush()

    def close(self, error: BaseException) -> None:
        """Close the engine for an error of its own: no account can be trusted. It takes no request any more, and all
        callers are told. Raises if memory is missing; ``tell_all`` goes on."""
        self.broken = True
        self.inbox.close()
        self._note(error)
        self.inbox.closed_by = self.last_error
        log_failure("the engine closes after an error of its own", error)
        self.tell_all(failure_of(error, "the engine failed"))

    def tell_all(self, error: ExecutionError | None = None) -> None:
        self.lifecycle.tell_all(error or ExecutionError("the engine failed"))
        self.sinks.flush()

    def _note(self, error: BaseException) -> None:
        self.last_error = f"{type(error).__name__}: {error}"


_LOOKS = 4  # per limit


class Watched(Protocol):
    began: float  # on the monotonic clock; 0 between steps

    def hung(self, began: float) -> None: ...


class Watchdog:
    """Sleeps while the engine is idle, and looks a few times per limit while steps run (``busy``): they cost nothing.
    ``stop`` may be called by a finaliser: it takes no lock."""

    def __init__(self, watched: Watched, limit: float) -> None:
        self._watched = weakref.ref(watched)
        self.limit = limit
        self._wake = WakeEvent()
        self.busy = False
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
        """It sleeps, and looks from now on."""
        self.start()
        self.busy = True
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
            self._wake.wait(self.limit / _LOOKS if self.busy else None)
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
            self.busy = False
            if watched.began:
                self.busy = True
        elif began and time.monotonic() - began > self.limit:
            watched.hung(began)
        return began
