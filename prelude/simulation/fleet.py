"""The driver: arrivals, cancellations and the steps of 1 to 1,000 replicas, in the order of one virtual time.

A step that begins at s and takes d is planned at s and postprocessed at once; what came of it counts from s + d on:
the replica's clock stands there, and the router hears of it when that moment has come.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Protocol, runtime_checkable

from prelude.errors import ConfigError, TraceError
from prelude.simulation.machines import Machine
from prelude.simulation.replica import Replica, SimulatedRequest
from prelude.simulation.report import Recorder, Report
from prelude.simulation.routing import Loads, router
from prelude.simulation.traces import Arrival, TokenSource

MAX_REPLICAS = 1000


@runtime_checkable
class Source(Protocol):
    """Where arrivals come from. ``due`` is when the next one comes: infinity where that takes somebody's end, or
    there is none."""

    def due(self) -> float: ...

    def pop(self) -> Arrival: ...

    def ended(self, arrival: Arrival, now: float) -> None: ...


class OpenLoop:
    """Arrivals come when the trace says, whatever becomes of those before them."""

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
    ) -> None:
        """``audit``: after so many steps of a replica all its accounts are held against each other; 0: at the end."""
        if not 1 <= replicas <= MAX_REPLICAS:
            raise ConfigError(f"replicas={replicas} is out of range; it takes 1 to {MAX_REPLICAS}")
        self.tokens = TokenSource()
        self.machine = machine
        self.replicas = [Replica(machine, self.tokens, number=number) for number in range(replicas)]
        for one in self.replicas:
            one.on_end = self._ended
            one.audit = audit
        self.loads = Loads(replicas)
        self._router = router(routing, replicas, seed)
        self._source: Source = OpenLoop(())
        self._recorder = Recorder(machine)
        self._steps: list[tuple[float, int]] = []  # when a replica can begin its next one
        self._turning = [False] * replicas  # in _steps
        self._cancels: list[tuple[float, int, SimulatedRequest]] = []
        self._ends: list[tuple[float, int, int, int]] = []  # when, number, replica, tokens: for the router
        self._count = 0

    def run(self, source: Source | Iterable[Arrival]) -> Report:
        """To the end of the trace. A fleet runs once."""
        self._source = source if isinstance(source, Source) else OpenLoop(source)
        for arrival in self._until_done():
            self._arrive(arrival)
        for one in self.replicas:
            one.core.audit()
        return self._recorder.report(self.replicas)

    def _until_done(self) -> Iterator[Arrival]:
        """Everything in order of time; where several things happen at once, arrivals first, then those who go, then
        steps: a step sees whoever has come by then."""
        while True:
            arrives = self._source.due()
            leaves = self._cancels[0][0] if self._cancels else math.inf
            begins = self._steps[0][0] if self._steps else math.inf
            if arrives <= leaves and arrives <= begins:
                if arrives == math.inf:
                    return
                yield self._source.pop()
            elif leaves <= begins:
                simulated = heapq.heappop(self._cancels)[2]
                if simulated.ended != simulated.ended:  # not ended
                    simulated.replica.cancel(simulated)
            else:
                self._step(self.replicas[heapq.heappop(self._steps)[1]])

    def _arrive(self, arrival: Arrival) -> None:
        while self._ends and self._ends[0][0] <= arrival.at:
            _, _, number, tokens = heapq.heappop(self._ends)
            self.loads.add(number, -tokens)
        number = self._router.route(arrival, self.loads) if len(self.replicas) > 1 else 0
        self.loads.add(number, arrival.prompt_tokens)
        one = self.replicas[number]
        simulated = one.submit(arrival, arrival.at)
        if one.idle:  # refused
            return
        if not self._turning[number]:
            self._turning[number] = True
            heapq.heappush(self._steps, (one.clock.now, number))
        if arrival.cancel_after is not None:
            self._count += 1
            heapq.heappush(self._cancels, (arrival.at + arrival.cancel_after, self._count, simulated))

    def _step(self, one: Replica) -> None:
        one.step()
        self._turning[one.number] = not one.idle
        if not one.idle:
            heapq.heappush(self._steps, (one.clock.now, one.number))

    def _ended(self, simulated: SimulatedRequest) -> None:
        self._count += 1
        number = simulated.replica.number
        heapq.heappush(self._ends, (simulated.ended, self._count, number, simulated.arrival.prompt_tokens))
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
) -> Report:
    return Fleet(machine, replicas, routing=routing, seed=seed, audit=audit).run(source)
