"""Failures: after a failed step, and after an error of the engine's own.

a step fails      recover() says which of its rows run again, ``limit`` how many of them at a time
several in a row  from ``unhealthy_after`` on the requests that wait end
our own error     abandon(): all requests end, and all accounts begin anew
"""

from __future__ import annotations

import logging

from prelude.errors import ExecutionError, ExecutorLost
from prelude.runtime.events import Listeners
from prelude.runtime.in_flight import StepsInFlight
from prelude.runtime.lifecycle import Lifecycle
from prelude.runtime.sinks import Sinks
from prelude.runtime.stats import EngineStats
from prelude.scheduling.lease import KvPool
from prelude.scheduling.plan import Plan
from prelude.scheduling.queues import Queues
from prelude.scheduling.recovery import failure_of, recover, suspects_left
from prelude.scheduling.request import State

log = logging.getLogger("prelude.engine")


class Failures:
    """``limit``: rows that a step may have while rows of failed steps run again; None: there are none. ``broken``:
    the error of the engine's own that ended a step, while it was not delivered to all requests. ``last_error`` is
    text: an exception refers to the frames of the caller that ran the step, and so to the engine, which would never
    be freed."""

    def __init__(
        self,
        queues: Queues,
        pool: KvPool,
        steps: StepsInFlight,
        lifecycle: Lifecycle,
        sinks: Sinks,
        stats: EngineStats,
        events: Listeners,
        unhealthy_after: int,
    ) -> None:
        self.in_a_row = 0
        self.last_error: str | None = None
        self._hang_told = False  # and nothing else has failed since
        self.limit: int | None = None
        self.broken: BaseException | None = None
        self._unhealthy_after = unhealthy_after
        self._queues = queues
        self._pool = pool
        self._steps = steps
        self._lifecycle = lifecycle
        self._sinks = sinks
        self._stats = stats
        self._events = events

    @property
    def healthy(self) -> bool:
        return self.in_a_row < self._unhealthy_after

    def step_failed(self, plan: Plan, error: BaseException) -> None:
        """``plan``: the failed step without its void rows."""
        if plan.empty:
            return
        self._note(error)
        lost = isinstance(error, ExecutorLost)
        self.in_a_row = max(self.in_a_row + 1, self._unhealthy_after if lost else 0)
        self._stats.failed_steps += 1
        ids = [request.options.request_id for request in plan.requests() if request.options.request_id]
        log.error(
            "a step failed: %s: %s (%s)",
            type(error).__name__,
            error,
            plan,
            exc_info=error,
            extra={"event": "step_failed", "request_ids": ids[:16], "failures_in_a_row": self.in_a_row},
        )
        self._events.emit("step_failed", kind=plan.kind, rows=len(plan.requests()), error=type(error).__name__)
        before = self._stats.replays
        self.limit = recover(plan, error, self._queues, self._pool)
        again = [request for request in plan.requests() if request.failures and request.state is not State.FINISHED]
        self._stats.replays = before + len(again)
        for request in again:
            self._events.emit("replayed", request.options.request_id)
        if not self.healthy:
            self._events.emit("unhealthy", failures=self.in_a_row, error=type(error).__name__)
            self.limit = None
            said = "the engine has ended" if lost else f"the engine failed {self.in_a_row} steps in a row"
            self._lifecycle.end_waiting(failure_of(error, said))

    def step_succeeded(self) -> None:
        if self.limit is not None and not suspects_left(self._queues):
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
        request = min(self._queues, key=lambda r: r.order)
        log.error("unplannable request of %d tokens failed", request.num_known)
        self._lifecycle.end(request, ExecutionError("the request could not be planned"))
        self._sinks.flush()

    def hung(self, seconds: float) -> None:
        """The watchdog's: all callers get an error for a step that may never return."""
        if not self._hang_told:
            self._stats.hangs += 1
            log.error("a step has run for %.1f s", seconds, extra={"event": "hung", "seconds": seconds})
            self._events.emit("hung", seconds=seconds)
        error = TimeoutError(f"a step has run for {seconds:.1f} s")
        self._note(error)
        self._hang_told = True
        self._lifecycle.tell_hung(error)
        self._sinks.flush()

    def abandon(self, error: BaseException) -> None:
        """An error of the engine's own, or an interrupt in the middle of its accounts: all requests give back their
        leases and end. Where memory is missing, it raises, and goes on from there when it is called again."""
        self._note(error)
        self.in_a_row = self._unhealthy_after
        self.limit = None
        while self._steps:
            self._steps.complete(self._steps[-1], failed=False)
        self._steps.give_back_ended()
        self._queues.reset()
        self._lifecycle.abandon(error)
        self._sinks.flush_all()
        self.broken = None

    def _note(self, error: BaseException) -> None:
        self.last_error = f"{type(error).__name__}: {error}"
        self._hang_told = False
