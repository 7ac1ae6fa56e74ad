"""Lifecycle: requests from the inbox to their end. StepsInFlight: steps from submission to postprocessing.

``live`` has every request that was posted until its end has been told, once: the thread that removes it there tells
it.

With overlap two steps are in flight for a moment: step n runs, and n + 1, which goes on from tokens that n still
samples, is submitted before n is waited for.

    request.known  [ prompt | sampled and applied | -1 - j ]     the j-th token that step n samples
                    └──────────── num_known ─────┘└ ahead ┘

Rows of n + 1 whose request ended with step n are dropped when n + 1 is complete, and so are rows that go on from a
step that failed. A request that has ended keeps its lease until the last step that has a row of it is complete.
"""

from __future__ import annotations

import heapq
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Any

from prelude._native.core import KvPool
from prelude.admission.prepared import ExecutionClass, Outcome
from prelude.errors import DeadlineExceeded, EngineClosed, QueueFull, RequestCancelled
from prelude.records import dataclass, field
from prelude.runtime.events import Listeners
from prelude.runtime.handover import Inbox, Refusals, Reservation, Sinks, log_failure
from prelude.runtime.stats import EngineStats
from prelude.scheduling.plan import Packed, Plan
from prelude.scheduling.postprocess import failure_of, finish
from prelude.scheduling.queues import Queues
from prelude.scheduling.request import Request, State


@dataclass(slots=True, eq=False)
class InFlightStep:
    plan: Plan
    packed: Packed
    began: float  # perf_counter
    requests: list[Request]
    handle: Any  # the executor's
    request_ids: frozenset[int] = frozenset()  # of OneShot rows, if steps overlap
    void: frozenset[int] = frozenset()  # ids of requests that go on from a step that failed

    def rows(self) -> list[Request]:
        """Its Decode requests: chunks of prompts and running rows. Each stands there once."""
        return [*(row.request for row in self.plan.prefill), *self.plan.decode]

    def sampled(self) -> tuple[Request, ...]:
        """Return the requests that it samples a token for, in the order of their places."""
        return (*self.packed.prefill, *self.packed.decode)

    def submitted(self) -> None:
        """The next step may name the tokens that this one samples."""
        for place, request in enumerate(self.sampled(), self.packed.first_drawn):
            request.known[request.num_known + request.ahead] = -1 - place
            request.ahead += 1
        for request in self.rows():
            request.in_flight += 1

    def completed(self) -> None:
        """It has succeeded or failed, and is not postprocessed yet."""
        for request in self.sampled():
            request.ahead -= 1
        for request in self.rows():
            request.in_flight -= 1

    @property
    def comes_first(self) -> bool:
        """Whether it is postprocessed before the next step is planned. Penalties need it: the host counts the sampled
        tokens. So does a part of a prompt: other requests may read the blocks that the next part promises, and this
        step may still fail."""
        if any(not row.samples for row in self.plan.prefill):
            return True
        for request in self.sampled():
            edits = request.sampling.edits
            if edits is not None and edits.follows:
                return True
        return False


class StepsInFlight(deque[InFlightStep]):
    """The steps in flight, the oldest first: one at most, two while the first is waited for. It knows which OneShot
    requests are in them, and which Decode requests have ended and hold blocks that a step still writes. Without
    ``overlap`` no step is planned beside another, and requests are not counted."""

    def __init__(self, pool: KvPool, overlap: bool) -> None:
        self.overlap = overlap
        self._pool = pool
        self._oneshot: frozenset[int] = frozenset()
        self.holding: dict[int, Request] = {}  # that have ended and hold a lease, by id

    def has(self, request: Request) -> bool:
        """Return whether it is a OneShot row of a step in flight. It ends with that step."""
        return request.id in self._oneshot

    def add(self, step: InFlightStep) -> None:
        """Add a step that was submitted."""
        if self.overlap:
            step.request_ids = frozenset([row.request.id for row in step.plan.oneshot])
            self._oneshot |= step.request_ids
            step.submitted()
        self.append(step)

    def complete(self, step: InFlightStep, failed: bool) -> None:
        """Take a step that was waited for, and is postprocessed next. Rows that go on from a failed step are void."""
        self.remove(step)
        if self.overlap:
            self._oneshot -= step.request_ids
            step.completed()
        if failed:
            for later in self:
                later.void |= frozenset([request.id for request in step.rows()])

    def keep_lease(self, request: Request) -> None:
        """Note a request that ended while a step in flight has a row of it."""
        self.holding[request.id] = request

    def give_back_ended(self) -> None:
        """Give back leases of ended requests once no step in flight writes their blocks."""
        for request in [request for request in self.holding.values() if not request.in_flight]:
            del self.holding[request.id]
            request.give_back(self._pool)

    def valid(self, step: InFlightStep) -> Plan:
        """Return the rows of a completed step whose requests have not ended and are not void."""
        return step.plan.without(step.void) if self.holding or step.void else step.plan

    @property
    def ended(self) -> list[Request]:
        """Requests that have ended and still hold a lease."""
        return list(self.holding.values())

    def audit(self, waiting: Iterable[Request]) -> None:
        """Check the requests' counts of steps in flight against the steps; raise with the numbers."""
        rows = Counter(request.id for step in self for request in step.rows())
        sampled = Counter(request.id for step in self for request in step.sampled())
        for request in [*waiting, *self.holding.values()]:
            if (request.in_flight, request.ahead) != (rows[request.id], sampled[request.id]):
                raise RuntimeError(
                    f"request {request.id} counts {request.in_flight} steps in flight that sample {request.ahead} "
                    f"tokens; they are {rows[request.id]} and {sampled[request.id]}"
                )
        if any(not request.in_flight for request in self.holding.values()):
            raise RuntimeError("a request that ended holds blocks that no step in flight writes")


@dataclass(eq=False, repr=False)
class Lifecycle:
    """``clock``: seconds, for deadlines. ``aborting``: requests that wait end with ``EngineClosed``."""

    queues: Queues
    pool: KvPool
    steps: StepsInFlight
    inbox: Inbox
    sinks: Sinks
    stats: EngineStats
    events: Listeners
    clock: Callable[[], float]
    aborting: bool = False
    live: dict[int, Request] = field(default_factory=dict)
    expiring: list[tuple[float, int, Request]] = field(default_factory=list)  # a heap
    late: list[tuple[Request, Exception]] = field(default_factory=list)  # ends that wait for a step in flight
    _cancels: deque[Request] = field(default_factory=deque)

    # -------------------------------------------------------------- in

    def post(self, requests: list[Request], places: Reservation | None = None) -> Refusals:
        """Put requests into the inbox, with places of their own if none are given. Return the ends of those that are
        refused: their sinks are not told. Any thread."""
        if places is None:
            with self.inbox.reserve(len(requests)) as own:
                if own.left < len(requests):
                    raise self.inbox.full()
                return self.post(requests, own)
        for request in requests:
            self.live[request.id] = request
        try:
            refused = self.inbox.enter(requests, places)
        except BaseException:
            for request in requests:
                self.live.pop(request.id, None)
                self.inbox.leave(request)
            raise
        for request_id in refused:
            self.live.pop(request_id, None)
        if self.events.heard:
            self.events.emit_accepted([request for request in requests if request.id not in refused])
            if full := sum(isinstance(error, QueueFull) for _, error in refused.values()):
                self.events.emit("rejected", reason="queued_tokens", count=full)
        return refused

    def cancel(self, request: Request) -> bool:
        """End a request when the next step begins; False if it has ended. Any thread, and takes no lock."""
        request.cancelled = True
        if request.id not in self.live:
            return False
        self._cancels.append(request)
        return True

    @property
    def pending(self) -> bool:
        """Whether ``take_in`` may have requests to end."""
        return bool(self._cancels or self.expiring)

    def take_in(self) -> None:
        """Move the inbox into the queues; end requests that were cancelled, expired, or have a closed loop."""
        for request in self.inbox.take():
            self._enter(request)
        if self.sinks.loops:
            for loop in self.sinks.remove_closed():
                self._cancels.extend(request for request in self.queues if request.completions is loop)
        if self.pending or self.aborting:
            self._end_pending()

    def _end_pending(self) -> None:
        """Collect the cancelled and expired ones; all that wait or run if the engine is being closed."""
        while self._cancels:
            self.end(self._cancels.popleft(), RequestCancelled("cancelled"))
        now = self.clock()
        while self.expiring and (self.expiring[0][0] <= now or self.expiring[0][2].state is State.FINISHED):
            request = heapq.heappop(self.expiring)[2]
            self.end(request, _expired(request))
        if self.aborting:
            for request in list(self.queues):
                self.end(request, EngineClosed("the engine was closed"))

    def _enter(self, request: Request) -> None:
        self.stats.requests[request.execution_class.value] += 1
        if request.cancelled:
            request.move(State.FINISHED)
            self.ended(request, None, RequestCancelled("cancelled before it was queued"))
            return
        self.queues.add(request)
        self.stats.decode_state_objects += request.execution_class is ExecutionClass.DECODE
        self.stats.streaming_objects += request.sink.streams
        if request.expires < math.inf:
            heapq.heappush(self.expiring, (request.expires, request.id, request))

    def forget_expiring(self) -> None:
        """Remove requests from the heap that ended long before their deadline."""
        if len(self.expiring) > 2 * len(self.live) + 64:
            self.expiring = sorted(entry for entry in self.expiring if entry[2].state is not State.FINISHED)

    # -------------------------------------------------------------- out

    def end(self, request: Request, error: Exception) -> None:
        """Ends a request that waits or runs. A OneShot row in flight ends with its step."""
        if self.steps.has(request):
            self.late.append((request, error))
        elif request.order and request.state is not State.FINISHED:
            finish(request, self.queues, self.pool, None, error)

    def end_late(self) -> None:
        """Tell, after a step, the ends that waited for it."""
        late, self.late = self.late, []
        for request, error in late:
            self.end(request, error)

    def end_waiting(self, error: Exception) -> None:
        """End all that wait or run with ``error``."""
        for request in list(self.queues):
            self.end(request, error)

    def tell_all(self, error: BaseException) -> None:
        """End every request that was posted with ``error``. Its resources are not given back: no account can be
        trusted. One whose caller cannot be told for want of memory stays in ``live``."""
        for request in list(self.live.values()):
            try:
                self.ended(request, None, error)
            except MemoryError:
                raise
            except Exception as raised:
                del self.live[request.id]
                log_failure("a caller could not be told of its request's end", raised, request.options.request_id)

    def tell_hung(self, error: BaseException) -> None:
        """Tell all callers that the engine hangs. Called by the watchdog beside the step: the requests give back
        their resources in the thread that steps, if the step ever returns."""
        for request in list(self.live.values()):
            request.cancelled = True
            self._cancels.append(request)
            self.ended(request, None, failure_of(error, "the engine hangs"))

    def ended(self, request: Request, outcome: Outcome | None, error: BaseException | None) -> None:
        """Tells a request's end, unless it has been told."""
        if request.lease is not None and request.state is State.FINISHED:
            self.steps.keep_lease(request)
        if not request.planned:
            self.inbox.leave(request)
        if self.live.pop(request.id, None) is None:
            return
        try:
            self._tell(request, outcome, error)
        except BaseException:  # its caller waits, and is told that the engine failed
            self.live[request.id] = request
            raise

    def _tell(self, request: Request, outcome: Outcome | None, error: BaseException | None) -> None:
        stats = request.stats
        stats.total_ms = (time.perf_counter() - request.arrived) * 1e3
        stats.ttft_ms = (request.first_token - request.arrived) * 1e3 if request.first_token else stats.total_ms
        if request.timeline is not None and outcome is not None and outcome.output is not None:
            request.timeline.mark("append")  # a Decode request's tokens were appended one by one
        if error is None and self.clock() >= request.expires:
            outcome, error = None, _expired(request)
        name = _end_of(error)
        setattr(self.stats, name, getattr(self.stats, name) + 1)
        if self.events.heard:
            self.events.emit(
                name,
                request.options.request_id,
                error=type(error).__name__ if error else None,
                stats=stats,
                output_tokens=len(request.output),
            )
        try:
            request.sink.deliver(request, outcome, error)
        except Exception as raised:
            request.sink.deliver(request, None, failure_of(raised, "the result could not be handed over"))
            log_failure("a sink raised on its request's end", raised, request.options.request_id)


def _expired(request: Request) -> DeadlineExceeded:
    return DeadlineExceeded(f"the deadline of {request.options.deadline:g} s passed")


def _end_of(error: BaseException | None) -> str:
    """Return the name of an end, in the counters and as an event."""
    if error is None:
        return "finished"
    if isinstance(error, DeadlineExceeded):
        return "expired"
    return "cancelled" if isinstance(error, RequestCancelled | EngineClosed) else "failed"
