"""The driver: arrivals, cancellations and the steps of 1 to 1,000 replicas, in the order of one virtual time.

A step that begins at s and takes d is planned at s and postprocessed at once. Its results count from s + d on: the
replica's clock is set to s + d, and the router gets the results at that time.

A replica that fails loses its cache and its requests. The router is notified at once; each caller asks again
``RETRY`` seconds later, and its time counts from its first asking. After ``down`` seconds an empty replica takes its
place.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Iterable
from typing import Any, Protocol, runtime_checkable

from prelude.errors import ConfigError, TraceError
from prelude.records import dataclass, replace
from prelude.simulation.costs import Machine
from prelude.simulation.replica import Replica, SimulatedRequest
from prelude.simulation.report import Recorder, Report
from prelude.simulation.routing import Loads, router
from prelude.simulation.traces import Arrival, TokenSource

MAX_REPLICAS = 1000
RETRY = 0.1  # seconds


@dataclass(frozen=True, slots=True)
class Failure:
    """Replica ``replica`` dies ``at`` seconds and is back, empty, ``down`` seconds later."""

    at: float
    replica: int
    down: float


def failures(replicas: int, mean: float, until: float, down: float, seed: int) -> list[Failure]:
    """Random ones up to the moment ``until``: each replica lives ``mean`` seconds in the mean (exponentially)."""
    if not (0 < mean < math.inf and 0 < down < math.inf and 0 <= until < math.inf):
        raise ConfigError(f"failures have positive times, not a mean of {mean} s, {down} s down, until {until} s")
    rng = random.Random(f"failures {seed}")
    found = []
    for replica in range(replicas):
        at = rng.expovariate(1 / mean)
        while at < until:
            found.append(Failure(at, replica, down))
            at += down + rng.expovariate(1 / mean)
    return sorted(found, key=lambda failure: (failure.at, failure.replica))


@runtime_checkable
class Source(Protocol):
    """The source of arrivals. ``due`` is the time of the next one: infinity if it waits for the end of another
    request, or there is none."""

    def due(self) -> float: ...

    def pop(self) -> Arrival: ...

    def ended(self, arrival: Arrival, now: float) -> None: ...


class OpenLoop:
    """Arrivals come at the times of the trace and do not depend on the requests before them."""

    def __init__(self, arrivals: Iterable[Arrival]) -> None:
        self._arrivals = iter(arrivals)
        self._next = next(self._arrivals, None)

    def due(self) -> float:
        return math.inf if self._next is None else self._next.at

    def pop(self) -> Arrival:
        arrival, self._next = _given(self._next), next(self._arrivals, None)
        if self._next is not None and self._next.at < arrival.at:
            raise TraceError(f"an arrival at {self._next.at} follows one at {arrival.at}: sort the trace by at")
        return arrival

    def ended(self, arrival: Arrival, now: float) -> None:
        pass


class ClosedLoop:
    """``clients`` that each ask, wait for the end, think for ``think`` seconds and ask again. Of the trace only the
    order counts, not its times."""

    def __init__(self, arrivals: Iterable[Arrival], clients: int, think: float = 0.0) -> None:
        if clients < 1 or not 0 <= think < math.inf:
            raise ConfigError(f"a closed loop has at least 1 client and a time to think, not {clients} and {think}")
        self._arrivals = iter(arrivals)
        self._next = next(self._arrivals, None)
        self._ready = [0.0] * clients
        self._think = think

    def due(self) -> float:
        return self._ready[0] if self._ready and self._next is not None else math.inf

    def pop(self) -> Arrival:
        arrival, self._next = _given(self._next), next(self._arrivals, None)
        return replace(arrival, at=heapq.heappop(self._ready))

    def ended(self, arrival: Arrival, now: float) -> None:
        heapq.heappush(self._ready, now + self._think)


def _given(arrival: Arrival | None) -> Arrival:
    if arrival is None:
        raise TraceError("the trace has ended")
    return arrival


class Fleet:
    def __init__(
        self,
        machine: Machine,
        replicas: int = 1,
        *,
        routing: str = "prefix-affine",
        seed: int = 0,
        audit: int = 0,
        failures: Iterable[Failure] = (),
    ) -> None:
        """``audit``: after so many steps of a replica all its accounts are held against each other; 0: at the end."""
        if not 1 <= replicas <= MAX_REPLICAS:
            raise ConfigError(f"replicas={replicas} is out of range; it takes 1 to {MAX_REPLICAS}")
        self.tokens = TokenSource()
        self.machine = machine
        self._audit = audit
        self.replicas = [self._made(number) for number in range(replicas)]
        self.dead: list[Replica] = []
        self.retried = 0  # requests that a failure lost, each time
        self.loads = Loads(replicas)
        self._router = router(routing, replicas, seed)
        self._source: Source = OpenLoop(())
        self._recorder = Recorder(machine)
        self._steps: list[tuple[float, int]] = []  # when a replica can begin its next one
        self._turning = [False] * replicas  # in _steps
        self._cancels: list[tuple[float, int, SimulatedRequest]] = []
        self._ends: list[tuple[float, int, int, int]] = []  # when, number, replica, tokens: for the router
        self._count = 0
        self._failures: list[tuple[float, int, int, bool]] = []  # when, number, replica; it dies, or it is back
        self._dies: list[deque[Failure]] = [deque() for _ in range(replicas)]  # of each replica, to come
        self._again: list[tuple[float, int, Arrival, float]] = []  # when, number, lost request, when it came
        self._waiting: list[tuple[Arrival, float]] = []  # while no replica lives
        for failure in sorted(failures, key=lambda failure: failure.at):
            self._plan(failure)

    def _plan(self, failure: Failure) -> None:
        if not (
            0 <= failure.replica < len(self.replicas) and 0 < failure.down < math.inf and 0 <= failure.at < math.inf
        ):
            raise ConfigError(f"{failure}: replica is 0 to {len(self.replicas) - 1}, at and down are finite")
        before = self._dies[failure.replica]
        if before and failure.at <= before[-1].at + before[-1].down:
            return  # it is down
        before.append(failure)
        self._put(self._failures, failure.at, failure.replica, True)
        self._put(self._failures, failure.at + failure.down, failure.replica, False)

    def _made(self, number: int, now: float = 0.0) -> Replica:
        one = Replica(self.machine, self.tokens, number=number)
        one.clock.now = now
        one.on_end = self._ended
        one.audit = self._audit
        return one

    def _put(self, heap: list[Any], at: float, *event: Any) -> None:
        self._count += 1
        heapq.heappush(heap, (at, self._count, *event))

    def run(self, source: Source | Iterable[Arrival]) -> Report:
        """Run to the end of the trace. A fleet runs once."""
        self._source = source if isinstance(source, Source) else OpenLoop(source)
        self._run_events()
        for one in self.replicas:
            one.core.audit()
        report = self._recorder.report([*self.replicas, *self.dead], len(self.replicas))
        return replace(report, retried=self.retried)

    def _run_events(self) -> None:
        """Everything happens in order of time; if several things happen at once, failures first, then arrivals, then
        cancellations, then steps: a step sees all requests that have come by then."""
        while True:
            arrives = self._source.due()
            again = self._again[0][0] if self._again else math.inf
            leaves = self._cancels[0][0] if self._cancels else math.inf
            begins = self._steps[0][0] if self._steps else math.inf
            fails = self._failures[0][0] if self._failures else math.inf
            first = min(arrives, again, leaves, begins)
            if first == math.inf and not self._waiting:
                return
            if fails <= first:
                self._fail_or_return()
            elif arrives == first:
                arrival = self._source.pop()
                self._send(arrival, arrival.at, arrival.at)
            elif again == first:
                _, _, arrival, came = heapq.heappop(self._again)
                self._send(arrival, first, came)
            elif leaves == first:
                simulated = heapq.heappop(self._cancels)[2]
                if simulated.ended != simulated.ended:  # not ended
                    simulated.replica.cancel(simulated)
            else:
                self._step(self.replicas[heapq.heappop(self._steps)[1]])

    def _send(self, arrival: Arrival, now: float, came: float) -> None:
        while self._ends and self._ends[0][0] <= now:
            _, _, replica, tokens = heapq.heappop(self._ends)
            self.loads.add(replica, -tokens)
        if not self.loads.up:
            self._waiting.append((arrival, came))
            return
        self.loads.now = now
        number = self._router.route(arrival, self.loads)
        self.loads.add(number, arrival.prompt_tokens)
        one = self.replicas[number]
        simulated = one.submit(arrival, now)
        simulated.came = came
        if one.idle:  # refused
            return
        if not self._turning[number]:
            self._turning[number] = True
            heapq.heappush(self._steps, (one.clock.now, number))
        if arrival.cancel_after is not None:
            self._put(self._cancels, max(now, came + arrival.cancel_after), simulated)

    # -------------------------------------------------------------- failures

    def _fail_or_return(self) -> None:
        at, _, number, dies = heapq.heappop(self._failures)
        if dies:
            self._lose(number, at)
            return
        self.replicas[number].clock.now = at
        self.loads.regain(number)
        waiting, self._waiting = self._waiting, []
        for arrival, came in waiting:
            self._put(self._again, at, arrival, came)

    def _lose(self, number: int, at: float) -> None:
        one = self.replicas[number]
        self._ends = sorted([end for end in self._ends if end[2] != number])  # a heap too
        self._steps = sorted([step for step in self._steps if step[1] != number])
        self._turning[number] = False
        one.core.stats.forward_seconds -= max(0.0, one.clock.now - at)  # of the step that it interrupts
        for simulated in one.under_way():
            simulated.ended = at
            self._ask_again(simulated, at)
        self.dead.append(one)
        self.replicas[number] = self._made(number, at)
        self._dies[number].popleft()
        self.loads.lose(number)
        self._router.lost(number, self.loads)

    def _ask_again(self, simulated: SimulatedRequest, at: float) -> None:
        self.retried += 1
        self._put(self._again, at + RETRY, simulated.arrival, simulated.came)

    def _step(self, one: Replica) -> None:
        one.step()
        self._turning[one.number] = not one.idle
        if not one.idle:
            heapq.heappush(self._steps, (one.clock.now, one.number))

    def _ended(self, simulated: SimulatedRequest) -> None:
        number = simulated.replica.number
        dies = self._dies[number]
        if dies and simulated.ended > dies[0].at:  # in the step that the failure interrupts
            self._ask_again(simulated, dies[0].at)
            return
        self._put(self._ends, simulated.ended, number, simulated.arrival.prompt_tokens)
        self._recorder.ended(simulated)
        self._source.ended(simulated.arrival, simulated.ended)


def simulate(
    machine: Machine,
    source: Source | Iterable[Arrival],
    *,
    replicas: int = 1,
    routing: str = "prefix-affine",
    seed: int = 0,
    audit: int = 0,
    failures: Iterable[Failure] = (),
) -> Report:
    """Run ``source`` on a ``Fleet`` of these arguments."""
    return Fleet(machine, replicas, routing=routing, seed=seed, audit=audit, failures=failures).run(source)
