"""A replica: the engine's own core on a clock that only its executor advances.

    Arrival ──TokenSource──▶ Prepared ──core.request──▶ inbox ──core.step──▶ drain, plan, pack, postprocess   all real
                                                                   └─ CostedExecutor: clock += cost of the batch

Nothing here plans: queues, trie, allocator, ledger, policies and postprocessing are the engine's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from prelude.admission.prepared import ExecutionClass, Outcome
from prelude.errors import DeadlineExceeded, QueueFull, RequestTooLarge
from prelude.execution.executor import ExecutorLimits
from prelude.execution.layout import prompt_keys
from prelude.readouts.batch import ForwardBatch, SampleOutput, StepResult, readouts_of
from prelude.records import dataclass, replace
from prelude.runtime.assembly import make_core
from prelude.runtime.core import EngineCore
from prelude.scheduling.plan import Plan
from prelude.scheduling.policies import FairTenants, Priority, ShortestPrefillFirst
from prelude.scheduling.request import Request
from prelude.simulation.costs import Machine, StepCost, work_of
from prelude.simulation.traces import Arrival, TokenSource
from prelude.values.policy import Policy

_NO_ROWS = np.zeros(0, dtype=np.int32)


@dataclass(slots=True)
class Clock:
    now: float = 0.0


class CostedExecutor:
    """Takes time and nothing else. Every logprob is -1, every vector 0, every token 0."""

    def __init__(self, cost: StepCost, limits: ExecutorLimits, clock: Clock) -> None:
        self.cost = cost
        self.clock = clock
        self._limits = limits

    def limits(self) -> ExecutorLimits:
        return self._limits

    def submit(self, batch: ForwardBatch) -> ForwardBatch:
        return batch

    def wait(self, handle: ForwardBatch) -> StepResult:
        work = work_of(handle)
        seconds = self.cost.seconds(work)
        self.clock.now += seconds
        outputs = tuple(readout.blank() for readout in readouts_of(handle))
        return StepResult(
            outputs, (_NO_ROWS,) * len(outputs), seconds, lm_head_rows=work.lm_rows, attended_tokens=int(work.keys)
        )

    def close(self) -> None:
        pass


class SimulatedRequest:
    """One arrival on its way through a replica: the request's sink, and its times on the virtual clock."""

    __slots__ = ("arrival", "came", "ended", "error", "first", "replica", "request", "started", "streams")

    def __init__(self, arrival: Arrival, replica: Replica, came: float) -> None:
        self.arrival = arrival
        self.replica = replica
        self.came = came
        self.started = self.first = self.ended = math.nan
        self.error: BaseException | None = None
        self.request: Request | None = None
        self.streams = arrival.task == "generate"

    def token(self, request: Request, token_id: int, output: SampleOutput, row: int) -> bool:
        if len(request.output) == 1:
            self.first = self.replica.clock.now
        return False

    def deliver(self, request: Request, outcome: Outcome | None, error: BaseException | None) -> None:
        self.ended = self.replica.clock.now
        self.error = error
        self.replica.on_end(self)


def _bound(policy: Policy) -> Callable[[int], float] | None:
    """Tokens served after which no later request goes before a request of so many tokens; ``None`` if the order
    inside the layers states no bound."""
    while isinstance(policy, Priority | FairTenants):
        policy = policy.inner
    if not isinstance(policy, ShortestPrefillFirst) or policy.half_life == math.inf:
        return None
    half_life, curvature = policy.half_life, policy.curvature
    return lambda tokens: half_life * math.log2(max(2.0, tokens + curvature * prompt_keys(tokens, 0)))


class Replica:
    """``on_end(simulated)`` is called once for every request that was taken; ``on_plan(plan)`` before each step."""

    def __init__(self, machine: Machine, tokens: TokenSource, *, number: int) -> None:
        config = machine.config
        self.number = number
        self.clock = Clock()
        self.on_end: Callable[[SimulatedRequest], None] = lambda simulated: None
        self.on_plan: Callable[[Plan], None] | None = None
        self.overtaken = 0  # the most tokens between its arrival and that of a request that started before it
        self.starvation = math.nan  # the same over the bound that the policy states, if any
        self.audit = 0  # after how many steps all accounts are held against each other; 0: never
        self.steps = 0
        self._tokens = tokens
        self._probation = machine.probation
        self._latest = dict.fromkeys(ExecutionClass, 0)  # when, in tokens served, the latest of the started ones came
        limits = machine.limits()
        self.executor = CostedExecutor(machine.cost, limits, self.clock)
        self.core = make_core(EngineCore, self.executor, config, machine.cost_model(), clock=lambda: self.clock.now)
        for queue in (self.core.queues.oneshot, self.core.queues.decode):
            queue.match_again = machine.reestimate
        self.core.stepper.plan_hooks.append(self.begins)
        self._bound = _bound(self.core.queues.oneshot.policy)

    @property
    def idle(self) -> bool:
        """Do nothing before an arrival or a cancellation."""
        return not self.core.live

    def under_way(self) -> list[SimulatedRequest]:
        """Taken and not ended, in the order in which they came."""
        found = [request.sink for request in self.core.live.values() if isinstance(request.sink, SimulatedRequest)]
        return sorted(found, key=lambda simulated: (simulated.came, simulated.arrival.id or ""))

    def submit(self, arrival: Arrival, now: float) -> SimulatedRequest:
        """Take it, or end it at once if the engine would refuse it: too large, or the queue is full."""
        ready = max(self.clock.now, now)  # later than now while a step is under way
        self.clock.now = now
        simulated = SimulatedRequest(arrival, self, now)
        if arrival.tenant is not None or arrival.priority:
            self._bound = None  # an order's bound is one within a priority and a tenant
            self.starvation = math.nan
        expires = math.inf if arrival.deadline is None else now + arrival.deadline
        try:
            if not self._probation and arrival.cache == "auto":
                arrival = replace(arrival, cache="always")
            prepared = self._tokens.prepared(arrival)
            simulated.request = self.core.request(prepared, simulated, arrival.options(), expires)
            for _, error in self.core.lifecycle.post([simulated.request]).values():
                raise error
        except (QueueFull, RequestTooLarge, DeadlineExceeded) as refused:
            simulated.ended = now
            simulated.error = refused
            self.on_end(simulated)
        self.clock.now = ready
        return simulated

    def cancel(self, simulated: SimulatedRequest) -> None:
        if simulated.request is not None:
            self.core.cancel(simulated.request)

    def step(self) -> None:
        """Run one turn of the core, from ``clock.now`` on."""
        self.core.step()
        if self.core.failures.last_error is not None:
            raise RuntimeError(self.core.failures.last_error)  # nothing fails here but our own code
        self.steps += 1
        if self.audit and self.steps % self.audit == 0:
            self.core.audit()

    def begins(self, plan: Plan) -> None:
        if self.on_plan is not None:
            self.on_plan(plan)
        before = self._latest.copy()
        for request in plan.requests():
            simulated = request.sink
            if not isinstance(simulated, SimulatedRequest) or simulated.started == simulated.started:
                continue
            simulated.started = self.clock.now
            kind = request.execution_class
            self._latest[kind] = max(self._latest[kind], request.queued_at)
            overtaken = before[kind] - request.queued_at
            self.overtaken = max(self.overtaken, overtaken)
            if self._bound is not None and kind is ExecutionClass.ONESHOT:
                share = max(0, overtaken) / self._bound(request.num_known)
                self.starvation = share if math.isnan(self.starvation) else max(self.starvation, share)
