"""Stepper: one step. drain -> plan -> pack -> submit -> wait -> settle, by whoever holds the baton.

Every request that was posted is in ``live`` until its end has been told, once: popping it there is the right to tell.
"""

from __future__ import annotations

import contextlib
import heapq
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from prelude._native.core import Baton, Doorbell, begin_all, claim, end_all, plain, traced
from prelude.admission.classes import ExecutionClass
from prelude.admission.prepared import Outcome
from prelude.batch import StepResult
from prelude.errors import DeadlineExceeded, EngineClosed, ExecutionError, RequestCancelled
from prelude.execution.executor import Executor
from prelude.runtime.events import Listeners, is_interrupt
from prelude.runtime.flight import Flight, Flights, make_flight
from prelude.runtime.forks import Forkable
from prelude.runtime.inbox import Inbox
from prelude.runtime.stats import EngineStats, GcPauses
from prelude.runtime.unkept import Unkept
from prelude.runtime.watchdog import Watchdog
from prelude.scheduling.check import check_result
from prelude.scheduling.cost import CostModel
from prelude.scheduling.estimates import PoolEstimates
from prelude.scheduling.lease import KvPool
from prelude.scheduling.pacing import Pacer
from prelude.scheduling.pack import pack
from prelude.scheduling.plan import Plan
from prelude.scheduling.planner import Budgets, plan_step
from prelude.scheduling.queues import Policies, Queues
from prelude.scheduling.recovery import failure_of, recover, suspects_left, withdraw_all
from prelude.scheduling.request import Request, State
from prelude.scheduling.settle import finish, settle

log = logging.getLogger("prelude.engine")


class LoopFlush:
    """Something to be flushed once at the end of a step, on behalf of a caller's event loop."""

    def flush(self) -> None:
        raise NotImplementedError

    def closed(self) -> bool:
        """The loop is gone: nobody waits there any more."""
        return False


class Stepper(Forkable):
    """Queues, pool and executor, and the turn that connects them."""

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
        super().__init__()
        self.clock = clock
        self.executor = executor
        self.pool = pool
        self.budgets = budgets
        self.limits = executor.limits()
        self.policies = policies
        self._estimates: PoolEstimates | None = None
        self.queues = self._new_queues()
        self.pacer = Pacer(oneshot_share)
        self.cost = cost or CostModel()
        self.stats = EngineStats()
        self.gc_pauses = GcPauses.shared()
        self.events = Listeners(inside=lambda: self._baton.mine)
        self.inbox = Inbox(max_queued_requests, max_queued_tokens)
        self.live: dict[int, Request] = {}
        self.unhealthy_after = unhealthy_after
        self.failures_in_a_row = 0
        self.last_error: BaseException | None = None
        self._broken: BaseException | None = None  # ended a step of ours, and some requests have not been told yet
        self.step_began = 0.0
        self.force_class: ExecutionClass | None = None  # for tests: the other path must give the same numbers
        self.on_step_end: deque[LoopFlush] = deque()
        self.loops: list[LoopFlush] = []  # those of callers' event loops, to notice one that was closed
        self._expiring: list[tuple[float, int, Request]] = []
        self._cancels: deque[Request] = deque()
        self._unsent: Plan | None = None  # it could not be submitted, and those before it are being settled
        self._limit: int | None = None  # rows a step may have while failed ones run again
        self._withdrawn = False
        self.overlap = overlap
        self._flights = Flights(pool, overlap)
        self._unkept = Unkept(pool)
        self._late: list[
            tuple[Request, Exception]
        ] = []  # ends of OneShot requests that came while these were in flight
        self._blocked = 0.0  # seconds of this turn in the executor
        self._baton = Baton()
        self._wake = Doorbell()
        self._thread: threading.Thread | None = None
        self._watchdog = Watchdog(self, hang_seconds) if math.isfinite(hang_seconds) else None
        self._abort = False
        self._closed = threading.Event()

    def _new_queues(self) -> Queues:
        if self._estimates is not None:
            self._estimates.clear()
        self._estimates = PoolEstimates(self.pool)
        return Queues(self.policies, self._estimates)

    def step(self) -> bool:
        """One turn; the caller holds the baton. False when there was nothing to do. Never raises for a request's or
        an executor's sake: what goes wrong outside a batch ends every request with the error rather than leave
        anybody waiting. It raises where memory is missing even for that; the next turn then begins with it."""
        try:
            if self._broken is not None:
                self._abandon(self._broken)
            went_on = self._step()
        except BaseException as error:
            self._broken = error  # first: where memory is missing for the lines below, the next turn abandons
            interrupted = is_interrupt(error)
            if interrupted and self._withdrawn:  # the executor was at work: every account is whole
                self._broken, self._withdrawn = None, False
                raise
            self._abandon(error)
            if interrupted:
                raise
            _log_failure("the engine's own step failed", error)
            went_on = not self.inbox.empty  # what was posted meanwhile has not been looked at
        if self.events.interrupt is not None:  # Ctrl-C that came to a listener
            interrupt, self.events.interrupt = self.events.interrupt, None
            raise interrupt
        return went_on

    def _step(self) -> bool:
        """Without overlap: plan, submit, wait, settle. With it: plan, submit, then wait for and settle the step
        before, which ran meanwhile; rows that it draws a token for are planned as if they went on. Settled before the
        next is planned is a step that comes first (penalties, half a prompt), one that runs again what failed, one
        beside which somebody would have to give way."""
        began, self._blocked = time.perf_counter(), 0.0
        self._drain()
        landed = launched = False
        if self._flights and (self._limit is not None or self._flights[-1].comes_first):
            landed = self._land_all()
        if not self.queues.empty:
            plan = self._plan()
            if plan.settle_first:
                landed = self._land_all()
                plan = self._plan()
            self._note_waiting(plan)
            if not plan.empty:
                launched = True
                self._launch(plan)
        if self._flights and (len(self._flights) > 1 or not launched or not self.overlap):
            self._land()
            landed = True
            if self._limit is not None:  # what went on from a step that failed, or beside it
                self._land_all()
        self.stats.host_seconds += time.perf_counter() - began - self._blocked
        self._flush()
        if launched or landed:
            return True
        return not self.queues.empty and self._stuck(plan)

    def _plan(self) -> Plan:
        in_flight = bool(self._flights)
        return plan_step(self.queues, self.pool, self.budgets, self.pacer, self._limit, in_flight=in_flight)

    def _drain(self) -> None:
        """The inbox into the queues; then whoever need not run any more ends: cancelled, expired, loop closed."""
        self._enter(self.inbox.take())
        for loop in [loop for loop in self.loops if loop.closed()]:
            self.loops.remove(loop)
            self._cancels.extend(request for request in self.queues if request.outbox is loop)
        while self._cancels:
            self._end(self._cancels.popleft(), RequestCancelled("cancelled"))
        now = self.clock() if self._expiring else 0.0
        while self._expiring and (self._expiring[0][0] <= now or self._expiring[0][2].state is State.FINISHED):
            request = heapq.heappop(self._expiring)[2]
            self._end(request, DeadlineExceeded(f"the deadline of {request.options.deadline:g} s passed"))
        if self._abort:
            for request in list(self.queues):
                self._end(request, EngineClosed("the engine was closed"))

    def _enter(self, came: list[Request]) -> None:
        if plain(came, ExecutionClass.ONESHOT):
            self.stats.requests["oneshot"] += len(came)
            self.queues.add_all(came)
            return
        for request in came:
            self._take_in(request)

    def _take_in(self, request: Request) -> None:
        self.stats.requests[request.execution_class.value] += 1
        if request.cancelled:
            request.move(State.FINISHED)
            self._ended(request, None, RequestCancelled("cancelled before it was queued"))
            return
        self.queues.add(request)
        self.stats.decode_state_objects += request.execution_class is ExecutionClass.DECODE
        self.stats.streaming_objects += request.sink.streams
        if request.expires < math.inf:
            heapq.heappush(self._expiring, (request.expires, request.id, request))

    def _end(self, request: Request, error: Exception) -> None:
        if self._flights.has(request):  # when its step is settled, which ends it anyway
            self._late.append((request, error))
            return
        if request.order and request.state is not State.FINISHED:
            finish(request, self.queues, self.pool, None, error)

    def _ended(self, request: Request, outcome: Outcome | None, error: BaseException | None) -> None:
        """Tells a request's end, unless it has been told: the one place that does."""
        if request.lease is not None and request.state is State.FINISHED:
            self._flights.linger(request)
        self.inbox.leave(request)
        if self.live.pop(request.id, None) is None:
            return
        try:
            self._tell_end(request, outcome, error)
        except BaseException:  # no memory: it waits to be told still
            self.live[request.id] = request
            raise

    def _tell_end(self, request: Request, outcome: Outcome | None, error: BaseException | None) -> None:
        stats = request.stats
        stats.total_ms = (time.perf_counter() - request.arrived) * 1e3
        stats.ttft_ms = (request.first_token - request.arrived) * 1e3 if request.first_token else stats.total_ms
        if request.timeline is not None and outcome is not None and outcome.output is not None:
            request.timeline.mark("append")  # a Decode request's tokens were appended one by one
        if error is None and self.clock() >= request.expires:
            outcome, error = None, DeadlineExceeded(f"the deadline of {request.options.deadline:g} s passed")
        name = _count_end(self.stats, error, 1)
        try:
            if self.events:
                self.events.emit(
                    name,
                    request.options.request_id,
                    error=type(error).__name__ if error else None,
                    stats=stats,
                    output_tokens=len(request.output),
                )
            self._deliver(request, outcome, error)
        except BaseException:
            _count_end(self.stats, error, -1)
            raise

    def _ended_well(self, requests: list[Request], outcomes: list[Outcome]) -> None:
        """``_ended`` of the requests that a step ended without an error."""
        runs, more = end_all(requests, outcomes, self.live, time.perf_counter())
        for sink, some, theirs in runs:
            if not claim(self.live, some):  # the watchdog told some of them meanwhile
                more = [*zip(some, theirs), *more]
                continue
            self.stats.finished += len(some)
            try:
                self.events.emit_finished(some)
                self._deliver_run(sink, some, theirs)
            except BaseException:  # no memory: they wait to be told still
                self.stats.finished -= len(some)
                self.live.update({request.id: request for request in some})
                raise
        for request, outcome in more:
            self._ended(request, outcome, None)

    def _deliver_run(self, sink: Any, requests: list[Request], outcomes: list[Outcome]) -> None:
        deliver_all = getattr(sink, "deliver_all", None)
        if deliver_all is None:
            for request, outcome in zip(requests, outcomes):
                self._deliver(request, outcome, None)
            return
        try:
            deliver_all(requests, outcomes)
        except BaseException as raised:
            for request in requests:
                self._deliver_again(request, raised)
            _log_failure("a sink raised on the end of its requests", raised)

    def _deliver(self, request: Request, outcome: Outcome | None, error: BaseException | None) -> None:
        try:
            request.sink.deliver(request, outcome, error)
        except BaseException as raised:
            self._deliver_again(request, raised)
            _log_failure("a sink raised on its request's end", raised, request.options.request_id)

    def _deliver_again(self, request: Request, raised: BaseException) -> None:
        """A sink that could not take an end is told of that: a caller waits behind it. Raises ``MemoryError`` where
        there is no memory for that either."""
        try:
            request.sink.deliver(request, None, failure_of(raised, "the result could not be handed over"))
        except MemoryError:
            raise
        except BaseException as again:
            _log_failure("a sink raised twice on its request's end; its caller is not told", again)

    def hung(self, seconds: float) -> None:
        """Called by the watchdog: nobody is left waiting for a step that may never come back. What the requests
        hold is given back by the step's holder, if it ever does."""
        if self.last_error is None or not isinstance(self.last_error, TimeoutError):
            self.stats.hangs += 1
            log.error("a step has run for %.1f s", seconds, extra={"event": "hung", "seconds": seconds})
            self.events.emit("hung", seconds=seconds)
        self.last_error = TimeoutError(f"a step has run for {seconds:.1f} s")
        for request in list(self.live.values()):
            request.cancelled = True
            self._cancels.append(request)
            self._ended(request, None, failure_of(self.last_error, "the engine hangs"))
        self._flush()

    def _note_waiting(self, plan: Plan) -> None:
        self.stats.deferrals += len(plan.deferred)
        self.stats.preemptions += len(plan.preempted)
        if self.events.heard:
            for request in plan.preempted:
                self.events.emit("preempted", request.options.request_id)

    def _launch(self, plan: Plan) -> None:
        """Packs and submits. Where that fails the steps before it are settled, then its own rows, and nothing is in
        flight."""
        began, requests = time.perf_counter(), plan.requests()
        self._unkept.look(plan)
        fresh = begin_all(requests, began, self.cost.fit, self.inbox)
        self.step_began = time.monotonic()
        if self._watchdog is not None:
            self._watchdog.step_begins()
        if self.events.heard or traced(fresh):
            self._scheduled(fresh, began)
        try:
            packed = pack(plan, self.pool.block_size, self.pool.num_slots > 0)
            entered = time.perf_counter() if self.overlap else 0.0
            handle = self.executor.submit(packed.batch)
        except BaseException as error:
            self._unsent = plan
            self._interrupted(error)
            self.step_began = time.monotonic() if self._flights else 0.0
            void: set[int] = set()
            self._land_all(void)
            self._unsent = None
            self._failed(plan.without(void), error)
            return
        if self.overlap:
            self._blocked += time.perf_counter() - entered
        self._flights.leave(make_flight(plan, packed, began, requests, handle, _NONE, _NONE))

    def _land_all(self, void: set[int] | None = None) -> bool:
        """Settles all that is in flight; whether anything was. ``void`` gets the ids of Decode requests in steps that
        failed."""
        landed = bool(self._flights)
        while self._flights:
            flight = self._flights[0]
            if not self._land() and void is not None:
                void.update([request.id for request in flight.rows()])
        return landed

    def _land(self) -> bool:
        """Waits for the first step in flight and settles it. Whether it succeeded."""
        flight, succeeded = self._flights[0], False
        entered = time.perf_counter() if self.overlap else 0.0
        try:
            result = self.executor.wait(flight.handle)
            check_result(flight.packed, result)
        except BaseException as error:
            self._interrupted(error)
            self._flights.arrive(flight, failed=True)
            self.step_began = time.monotonic() if self._flights else 0.0  # what is behind it may hang as well
            self._failed(flight.plan.without(flight.void), error)
        else:
            succeeded = True
            self._blocked += time.perf_counter() - entered if self.overlap else result.seconds
            self._flights.arrive(flight, failed=False)
            self.step_began = time.monotonic() if self._flights else 0.0
            for request in traced(flight.requests):
                _mark_run(request, flight.began, result)
            self._settle(flight, result)
            if self._limit is not None and not suspects_left(self.queues):
                self._limit = None
        self._flights.let_go()
        if self._late:
            late, self._late = self._late, []
            for request, ended in late:
                self._end(request, ended)
        return succeeded

    def _interrupted(self, error: BaseException) -> None:
        """Ctrl-C while the executor was at work: everybody in flight again, and those of a step that was being
        submitted. The latest step first."""
        if is_interrupt(error):
            self.step_began = 0.0
            if self._unsent is not None:
                withdraw_all(self._unsent, self.queues, self.pool)
                self._unsent = None
            while self._flights:
                flight = self._flights[-1]
                self._flights.arrive(flight, failed=False)
                withdraw_all(flight.plan, self.queues, self.pool)
            self._flights.let_go()
            self._withdrawn = True
            raise error

    def _settle(self, flight: Flight, result: StepResult) -> None:
        plan, packed = flight.plan, flight.packed
        living = self._flights.living(flight)
        if living is not plan:
            self.stats.discarded_rows += len(plan.decode) - len(living.decode)
        if living is plan or not living.empty:  # else it says nothing that the step before has not said
            self.failures_in_a_row = 0
        tokens = packed.batch.num_tokens
        self.stats.count(plan, tokens, result)
        self._measure(plan, tokens, result)
        first = [r for r in (*(row.request for row in living.prefill),) if not r.output] if self.events.heard else []
        limit = self.limits.vocab_size
        settle(plan, packed, result, self.queues, self.pool, limit, self._ended_well, flight.void)
        for request in first:
            if request.output:
                self.events.emit("first_token", request.options.request_id)

    def _scheduled(self, fresh: list[Request], now: float) -> None:
        """Requests that are planned for the first time, to their timelines and to whoever listens."""
        for request in traced(fresh):
            request.timeline.mark("schedule", end=now)
        self.events.emit_each("scheduled", fresh)

    def _measure(self, plan: Plan, tokens: int, result: StepResult) -> None:
        prefill, decode = sum([row.count for row in plan.prefill]) if plan.prefill else 0, len(plan.decode)
        shots = tokens - prefill - decode
        self.pacer.measured(decode, shots, prefill, result.seconds)
        self.cost.fit.observe(tokens, result.attended_tokens, result.lm_head_rows, result.seconds)
        if self.events.heard:
            self.events.emit(
                "step",
                kind=plan.kind,
                seconds=result.seconds,
                decode_rows=decode,
                prefill_tokens=prefill,
                oneshot_rows=len(plan.oneshot),
                oneshot_tokens=shots,
            )

    def _failed(self, plan: Plan, error: BaseException) -> None:
        if plan.empty:  # all of its rows went on from a step that has failed, or have ended
            return
        self.last_error = error
        self.failures_in_a_row += 1
        self.stats.failed_steps += 1
        ids = [request.options.request_id for request in plan.requests() if request.options.request_id]
        log.error(
            "a step failed: %s: %s (%s)",
            type(error).__name__,
            error,
            plan,
            exc_info=error,
            extra={"event": "step_failed", "request_ids": ids[:16], "failures_in_a_row": self.failures_in_a_row},
        )
        self.events.emit("step_failed", kind=plan.kind, rows=len(plan.requests()), error=type(error).__name__)
        before = self.stats.replays
        self._limit = recover(plan, error, self.queues, self.pool)
        again = [request for request in plan.requests() if request.failures and request.state is not State.FINISHED]
        self.stats.replays = before + len(again)
        for request in again:
            self.events.emit("replayed", request.options.request_id)
        if self.failures_in_a_row >= self.unhealthy_after:
            self.events.emit("unhealthy", failures=self.failures_in_a_row, error=type(error).__name__)
            self._limit = None
            for request in list(self.queues):
                self._end(request, failure_of(error, f"the engine failed {self.failures_in_a_row} steps in a row"))

    def _stuck(self, plan: Plan) -> bool:
        """Nothing could be planned although requests wait. Preemption alone is progress, and so is the end of a
        careful retry; anything else is a bug that must not hang its callers: the oldest request fails, and the engine
        goes on."""
        if plan.preempted:
            return True
        if self._limit is not None:
            self._limit = None
            return True
        request = min(self.queues, key=lambda r: r.order)
        log.error("unplannable request of %d tokens failed", request.num_known)
        self._end(request, ExecutionError("the request could not be planned"))
        self._flush()
        return True

    def _abandon(self, error: BaseException) -> None:
        """Our own fault, or an interrupt in the middle of our own accounts: everybody is told, and what they hold
        goes back. Where memory is missing for some of it, it raises, and goes on from there when called again."""
        self.last_error = error
        self.failures_in_a_row = self.unhealthy_after
        self._limit = None
        while self._flights:
            self._flights.arrive(self._flights[-1], failed=False)
        self._flights.let_go()
        self._late = []
        self.queues = self._new_queues()
        posted = set(map(id, self.inbox.items))
        for request in list(self.live.values()):
            if id(request) in posted:
                continue
            request.give_back(self.pool)
            if request.state is not State.FINISHED:
                request.move(State.FINISHED)
            self._ended(request, None, failure_of(error, "the engine failed"))
        for loop in self.loops:  # an end may have been put without its wake-up
            loop.flush()
        self._flush()
        self._broken = None

    def _flush(self) -> None:
        """Hands finished requests to their loops: one wake-up of a loop per step."""
        if len(self._expiring) > 2 * len(self.live) + 64:  # most of them ended long before their deadline
            self._expiring = [entry for entry in self._expiring if entry[2].state is not State.FINISHED]
            heapq.heapify(self._expiring)
        while self.on_step_end:
            try:
                told = self.on_step_end[0]
                self.stats.loop_wakeups += 1  # before: whoever is woken may ask
                told.flush()  # before it is struck off: an interrupt between the two tells it again
                self.on_step_end.popleft()
            except IndexError:  # the watchdog was here
                return


_NONE: frozenset[int] = frozenset()


def _count_end(stats: EngineStats, error: BaseException | None, by: int) -> str:
    """Counts an end, or takes it back (``by`` -1), and names it."""
    if error is None:
        stats.finished += by
        return "finished"
    if isinstance(error, DeadlineExceeded):
        stats.expired += by
        return "expired"
    if isinstance(error, RequestCancelled | EngineClosed):
        stats.cancelled += by
        return "cancelled"
    stats.failed += by
    return "failed"


def _log_failure(message: str, error: BaseException, request_id: str | None = None) -> None:
    """Called when all else about the error is done: a record that finds no memory is dropped."""
    with contextlib.suppress(MemoryError):
        log.error(message, exc_info=error, extra={"request_id": request_id} if request_id else None)


def _mark_run(request: Request, began: float, result: StepResult) -> None:
    """The forward, and the part of it that drew the token where the executor says how long that took."""
    if request.timeline is None:
        return
    now = time.perf_counter()
    began = max(began, request.timeline.last)
    sampled = now - min(result.extra.get("sample_seconds", 0.0), now - began)
    request.timeline.mark("run", began, sampled)
    request.timeline.mark("sample", sampled, now)
