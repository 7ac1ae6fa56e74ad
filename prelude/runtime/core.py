"""EngineCore: the engine without text. It makes the parts of a running engine and has the calls of other threads.

    inbox ──▶ Lifecycle ──▶ Queues ──▶ Stepper ──▶ StepsInFlight ──▶ postprocess ──▶ Lifecycle ──▶ Sinks
                                          │ a step that fails: Failures
              StepLoop: the step lock and the engine thread, which calls the Stepper

A part is given the parts that it uses, and calls their public methods alone.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from prelude._native.core import KvPool, StepLock
from prelude.admission.prepared import Admitted, ExecutionClass, Prepared
from prelude.errors import (
    DeadlineExceeded,
    EngineForked,
    ExecutionError,
    ExecutorLost,
    InvalidRequest,
    RequestTooLarge,
)
from prelude.execution.executor import Executor
from prelude.records import asdict, dataclass
from prelude.runtime.events import Listeners
from prelude.runtime.failures import Failures, Watchdog
from prelude.runtime.handover import CompletionQueue, Completions, Inbox, Refusals, Reservation, Sinks, watching
from prelude.runtime.lifecycle import Lifecycle, StepsInFlight
from prelude.runtime.stats import EngineStats, GcPauses
from prelude.runtime.stepper import StepLoop, Stepper
from prelude.scheduling.cost import CostModel, Pacer
from prelude.scheduling.planner import Budgets
from prelude.scheduling.queues import Policies, Queues
from prelude.scheduling.request import Request, Sink
from prelude.scheduling.timeline import Timeline
from prelude.values.options import NO_OPTIONS, RequestOptions, merge_options

log = logging.getLogger("prelude.engine")

_CLOSE_LOOKS = 0.05
_WARM_UP_SECONDS = 0.001  # between two looks whether a step is under way
_EXIT_SECONDS = 5.0  # how long the interpreter's exit waits for a step under way


Options: TypeAlias = RequestOptions | Sequence[RequestOptions] | None


@dataclass(slots=True, eq=False)
class Call:
    options: RequestOptions
    expires: float  # on the monotonic clock
    timeline: Timeline | None

    def mark(self, name: str) -> None:
        if self.timeline is not None:
            self.timeline.mark(name)


PLAIN = Call(NO_OPTIONS, math.inf, None)  # of all calls without options


def make_calls(count: int, options: Options, keywords: Mapping[str, Any]) -> list[Call]:
    """One a task: the same options for all, or one for each. Tasks with the same options share a call, unless each
    has a timeline."""
    if options is None and not keywords:
        return [PLAIN] * count
    if isinstance(options, Sequence):
        if keywords or len(options) != count:
            raise InvalidRequest(f"{len(options)} for {count} tasks; give one for all or one each", field="options")
        return [_call(merge_options(one, {}, f"options[{at}]")) for at, one in enumerate(options)]
    one = merge_options(options, keywords)
    return [_call(one) for _ in range(count)] if one.trace else [_call(one)] * count


def _call(options: RequestOptions) -> Call:
    return Call(options, options.expires(), Timeline() if options.trace else None)


def mark_all(calls: Sequence[Call], name: str) -> None:
    for call in calls:
        if call.timeline is not None:  # without a call of Python for each of the others
            call.timeline.mark(name)


def finish_all(
    admitted: Sequence[Any], calls: Sequence[Call], requests: Sequence[Request | Exception], ends: Completions
) -> list[Any]:
    """Return the caller's results, in order; errors are values. Runs in the caller's thread, or in its loop."""
    results: list[Any] = []
    for item, call, request in zip(admitted, calls, requests):
        if not isinstance(request, Request):
            results.append(request)
            continue
        outcome, error = ends[request.id]
        try:
            results.append(error if outcome is None else item.result(outcome, call.timeline))
        except Exception as raised:
            results.append(raised)
    return results


class EngineCore:
    """``submit``, ``cancel``, ``run_inline`` and ``close`` may be called from any thread."""

    def __init__(
        self,
        executor: Executor,
        pool: KvPool,
        budgets: Budgets,
        *,
        max_queued_requests: int,
        max_queued_tokens: int,
        unhealthy_after: int,
        hang_seconds: float = math.inf,
        oneshot_share: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
        overlap: bool = False,
        policies: Policies | None = None,
        cost: CostModel | None = None,
    ) -> None:
        """``clock``: seconds, for deadlines; a simulator has its own."""
        self.forked = False  # since it was made
        self.pool = pool
        self.budgets = budgets
        self.limits = executor.limits()
        self.stats = EngineStats()
        self.gc_pauses = GcPauses.shared()
        self.cost = cost or CostModel()
        self.pacer = Pacer(oneshot_share)
        self.inbox = Inbox(max_queued_requests, max_queued_tokens)
        self.queues = Queues(policies, pool)
        self.stopped = threading.Event()  # closed, and nothing runs any more
        self.events = events = Listeners()
        self.sinks = Sinks(self.stats)
        self.steps = StepsInFlight(pool, overlap)
        self.lifecycle = Lifecycle(self.queues, pool, self.steps, self.inbox, self.sinks, self.stats, events, clock)
        self.live = self.lifecycle.live
        self.failures = Failures(
            self.queues, pool, self.inbox, self.lifecycle, self.sinks, self.stats, events, unhealthy_after
        )
        parts = self.queues, self.steps, self.inbox, self.lifecycle, self.failures, self.sinks, self.stats, events
        self.stepper = Stepper(executor, pool, budgets, *parts, self.pacer, self.cost)
        self.watchdog: Watchdog | None = None
        if math.isfinite(hang_seconds):
            self.watchdog = self.stepper.watchdog = Watchdog(self.stepper, hang_seconds)
        self.loop = StepLoop(self.stepper, StepLock(), self._close_when_idle)
        self.step = self.stepper.step
        _ALIVE.add(self)

    @property
    def healthy(self) -> bool:
        return self.failures.healthy and self.hanging == 0.0 and self.lost is None

    @property
    def lost(self) -> ExecutorLost | None:
        """The error after which the executor runs no step any more; found out while it is idle too."""
        found: ExecutorLost | None = getattr(self.executor, "lost", None)
        return found

    @property
    def hanging(self) -> float:
        """Seconds that the step under way has taken, if that is past the watchdog's limit; else 0."""
        began = self.stepper.began
        seconds = time.monotonic() - began if began else 0.0
        return seconds if self.watchdog is not None and seconds > self.watchdog.limit else 0.0

    @property
    def executor(self) -> Executor:
        return self.stepper.executor

    @property
    def closed(self) -> bool:
        return self.inbox.closed

    # -------------------------------------------------------------- any thread

    def check_process(self) -> None:
        """Raise in a child that was forked after the engine was made: it has the engine's memory, none of its threads
        and locks in an unknown state."""
        if self.forked:
            raise EngineForked(
                "this process was forked after the engine was made, and the engine's threads stayed behind; make an "
                "engine in the child, or start processes with the 'forkserver' or 'spawn' method"
            )

    def reserve(self, count: int) -> Reservation:
        """Take places in the queue before anything is tokenised; use them in a ``with`` block around ``requests`` and
        the posting of them."""
        self.check_process()
        places = self.inbox.reserve(count)
        if places.left < count:
            self.events.emit("rejected", reason="queued_requests", count=count - places.left)
        return places

    def requests(
        self,
        admitted: Sequence[Admitted | Exception],
        calls: Sequence[Call],
        sink: Sink,
        completions: CompletionQueue | None = None,
    ) -> list[Request | Exception]:
        """Return the request of each admitted task, or the error of one that was not admitted, or is refused. They
        hold nothing. ``calls``: of the task at the same place. ``completions``: of the loop that waits for them."""
        found: list[Request | Exception] = []
        for item, call in zip(admitted, calls):
            if isinstance(item, BaseException):
                found.append(item)
                continue
            try:
                request = self.request(item.prepared, watching(item, sink), call.options, call.expires)
            except Exception as error:
                found.append(error)
                continue
            request.completions, request.timeline = completions, call.timeline
            found.append(request)
        return found

    def request(
        self, prepared: Prepared, sink: Sink, options: RequestOptions = NO_OPTIONS, expires: float | None = None
    ) -> Request:
        """Make one request, which holds nothing; raise the error of a bad one. ``expires``: the moment of its
        deadline, on the monotonic clock."""
        request = Request(prepared, sink, options)
        request.ending = self.lifecycle.ended
        request.expires = options.expires() if expires is None else expires
        self._check_fits(request)
        if request.expires < math.inf and self.lifecycle.clock() >= request.expires:
            self.inbox.refused("deadline")
            self.events.emit("rejected", options.request_id, reason="deadline", count=1)
            raise DeadlineExceeded(f"the deadline of {options.deadline:g} s passed before the request was queued")
        return request

    def _check_fits(self, request: Request) -> None:
        oneshot, tokens = request.execution_class is ExecutionClass.ONESHOT, request.num_known
        most = self.budgets.step_tokens - self.budgets.running
        if oneshot and tokens > most:
            raise RequestTooLarge(
                f"the request has {tokens} tokens with all its branches, a step computes at most {most} "
                "beside running rows; ask fewer questions at a time or raise max_step_tokens",
                field=None,
            )
        if not oneshot:
            if self.limits.bytes_per_state and not self.pool.num_running_states:
                raise RequestTooLarge(
                    "a request for more than one token takes a recurrent state, the executor has room for none; ask "
                    "for one token (max_tokens=1), or give it room for states",
                    field=None,
                )
            blocks = -(-(request.max_device_len - 1) // self.pool.block_size)  # the last token is never written
            if blocks > self.pool.num_blocks:
                raise RequestTooLarge(
                    f"{request.max_device_len} tokens (prompt and max_tokens) need {blocks} KV blocks, the pool has "
                    f"{self.pool.num_blocks}; lower max_tokens or raise kv_blocks",
                    field=None,
                )

    def submit(self, request: Request) -> None:
        """Puts a request in the inbox and wakes the engine thread. ``QueueFull`` if there is no room for it."""
        self.check_process()
        for _, error in self.submit_many([request]).values():
            raise error

    def submit_many(self, requests: list[Request], places: Reservation | None = None) -> Refusals:
        """Submit all for one step, as far as the budgets go: they arrive together. Return the ends of those that are
        refused. ``ExecutionError`` if no thread can be started: nothing is posted then."""
        refused = self.post(requests, places)
        self.loop.wake_if_started()
        return refused

    def post(self, requests: list[Request], places: Reservation | None = None) -> Refusals:
        """As ``submit_many``, but leave a sleeping engine thread asleep."""
        if self.loop.thread is None:
            self._start_watchdog()
            self.loop.start()
        return self.lifecycle.post(requests, places)

    def cancel(self, request: Request) -> None:
        """End a request when the next step begins. In any state, any number of times; one that has ended is left
        alone. Takes no lock: a finaliser may call it."""
        if not self.forked and self.lifecycle.cancel(request):
            self.loop.wake_if_started()  # a request without an engine thread is stepped by its own caller

    def let_go(self) -> None:
        """Nothing can be submitted any more (the engine was garbage-collected): requests under way end, then the
        threads do. Takes no lock."""
        if not self.forked:
            self.inbox.close()
            self.loop.wake_if_started()
            if self.loop.thread is None and self.watchdog is not None:  # else the engine thread stops it when it ends
                self.watchdog.stop()

    def run_inline(
        self, requests: list[Request], places: Reservation | None = None, after_step: Callable[[], None] | None = None
    ) -> Refusals:
        """The direct path: on an idle engine the caller takes the steps itself, and calls ``after_step`` after each;
        else it waits as all others do. Return the ends of requests that are refused."""
        lock = self.loop.lock
        self._start_watchdog()
        if not lock.try_acquire():
            self.check_may_wait()
            return self.submit_many(requests, places)
        try:
            refused = self.lifecycle.post(requests, places)
            while self.step() and any(request.id in self.live for request in reversed(requests)):
                if after_step is not None:
                    after_step()
        finally:
            wants = self.loop.idle.wanted  # asked under the lock: a step of another thread changes the list of shapes
            wanted = lock.release()
            if wanted or self.stepper.busy or self.inbox.closed or wants:
                self._wake_for_others()  # their work, or the rest after an interrupt, or the executor's own
        return refused

    def warm_up(self) -> None:
        """Run the executor's own preparations, if it has any, between two steps."""
        prepare = getattr(self.executor, "warm_up", None)
        if prepare is None or self.closed or self.forked:
            return
        self.check_may_wait()
        while not self.loop.lock.try_acquire():
            time.sleep(_WARM_UP_SECONDS)
        try:
            if not self.closed:  # another thread may have closed the engine, and its executor, meanwhile
                prepare()
        finally:
            if self.loop.lock.release() or self.stepper.busy:
                self._wake_for_others()

    def _start_watchdog(self) -> None:
        if self.watchdog is not None:
            self.watchdog.start()

    def _wake_for_others(self) -> None:
        """Wake the thread. Without one no other caller waits: each starts it before it posts requests."""
        with suppress(ExecutionError):
            self.loop.wake()

    def check_may_wait(self) -> None:
        """Raise ``ExecutionError`` if this thread is in the middle of a step: it would wait for itself."""
        if self.loop.lock.held:
            raise ExecutionError("an event listener or a sink must not wait for the engine that calls it")

    # -------------------------------------------------------------- closing

    def _close_when_idle(self) -> bool:
        """Tell the engine thread, when nothing is left to do, whether it is to end."""
        if not self.closed or self.live:
            return False
        if self.watchdog is not None:
            self.watchdog.stop()
        try:
            self.executor.close()
        finally:
            self.events.emit("closed")
            self.stopped.set()
        return True

    def close(self, *, drain: bool = True, timeout: float = math.inf) -> None:
        """Stops taking requests; waits for admitted requests (``drain``) or fails them with ``EngineClosed``. Any
        number of times, from any thread; a later ``drain=False`` cuts an earlier draining short. Gives up waiting for
        a step that hangs, or after ``timeout`` seconds: the engine thread is a daemon. In a forked child it does
        nothing."""
        if self.forked or self.stopped.is_set():
            return
        self.lifecycle.aborting = self.lifecycle.aborting or not drain
        self.inbox.close()
        self.loop.wake_to_end()
        if self.loop.lock.held or threading.current_thread() is self.loop.thread:
            return  # called back from a step: the engine closes when the step is over
        began = time.monotonic()
        while not self.stopped.wait(_CLOSE_LOOKS):
            self.loop.wake_to_end()
            if self.hanging:
                log.error("closing without waiting for a step that has run for %.1f s", self.hanging)
                return
            if time.monotonic() - began > timeout:
                log.warning("closing was given up after %.1f s; %d requests are left", timeout, len(self.live))
                return

    # -------------------------------------------------------------- seen from outside

    def snapshot(self) -> dict[str, Any]:
        """Return the counters, and the values at the moment of the call."""
        stats = self.stats
        live = list(self.live.values())
        leases = [lease for lease in (request.lease for request in live) if lease is not None]
        stats.rejected = self.inbox.rejected
        stats.eager_reasons = getattr(self.executor, "eager_reasons", {})
        stats.queued_requests, stats.queued_tokens = self.inbox.requests, self.inbox.tokens
        stats.running_requests = len(self.queues.running)
        stats.live_futures = len(live)
        stats.live_streams = sum(request.sink.streams for request in live)
        stats.evictions = self.pool.evictions
        stats.prefixes_not_kept = self.queues.not_kept
        stats.callback_errors = self.events.errors
        stats.blocks_free, stats.blocks_used = self.pool.num_free, self.pool.num_used
        stats.blocks_cached = self.pool.num_cached
        stats.states_free, stats.states_used = (
            self.pool.free_running_states,
            self.pool.num_running_states - self.pool.free_running_states,
        )
        stats.prefix_states = self.pool.prefix_states
        for name, value in self.pool.host_counts().items():
            setattr(stats, f"host_kv_{name}", value)
        stats.blocks_locked = len({block for lease in leases for block in lease.shared.tolist()})
        return {**asdict(stats), "gc_pauses": self.gc_pauses.numbers()}

    def audit(self) -> None:
        """Check every account against every other; raise with the numbers. For tests and debugging, between steps."""
        self.queues.audit()
        in_flight = [row.request for step in self.steps for row in step.plan.oneshot]
        holders = [*self.queues, *in_flight, *self.steps.ended]
        self.pool.audit([request.lease for request in holders if request.lease is not None])
        self.steps.audit(self.queues)
        known = {request.id for request in [*self.queues, *self.inbox.items, *in_flight]}
        if known != self.live.keys():
            raise RuntimeError(f"{len(self.live)} requests are to be answered, {len(known)} are in the queues")
        counted = [r.queued_tokens for r in [*self.queues, *self.inbox.items] if r.queued_tokens >= 0]
        if len(counted) > self.inbox.requests or sum(counted) > self.inbox.tokens:
            raise RuntimeError(f"{len(counted)} requests wait, the inbox counts {self.inbox.requests}")


_ALIVE: weakref.WeakSet[EngineCore] = weakref.WeakSet()


def _in_child() -> None:
    for core in list(_ALIVE):
        core.forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


@atexit.register
def _at_exit() -> None:
    """Engines that were not closed: no thread of ours may be inside native code while the interpreter shuts down."""
    for core in list(_ALIVE):
        if core.forked:
            continue
        if core.loop.thread is not None:
            core.close(drain=False, timeout=_EXIT_SECONDS)
        if core.watchdog is not None:
            core.watchdog.stop(wait=_EXIT_SECONDS)
