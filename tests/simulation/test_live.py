"""The same trace through an engine's core on its own thread and through the simulator: the same plans."""

from __future__ import annotations

import queue
import threading
from dataclasses import replace

import pytest

from prelude.execution.executor import ExecutorLimits
from prelude.readouts.batch import ForwardBatch, StepResult
from prelude.runtime.assembly import make_core
from prelude.runtime.core import EngineCore
from prelude.scheduling.plan import Plan
from prelude.simulation import Arrival, Fleet, Machine, machine
from prelude.simulation.costs import work_of
from prelude.simulation.traces import TokenSource
from prelude.simulation.workloads import cancelled, chat, merged, rubrics
from tests import toy
from tests.patience import PATIENCE
from tests.service import is_empty


def described(plan: Plan) -> tuple[object, ...]:
    """Everything in a plan, requests by the names that the trace gave them."""

    def name(request: object) -> str | None:
        return request.options.request_id  # type: ignore[attr-defined,no-any-return]

    return (
        tuple((name(row.request), row.skip, row.publish) for row in plan.oneshot), plan.folds,
        tuple((name(row.request), row.start, row.count) for row in plan.prefill), tuple(map(name, plan.decode)),
        tuple(map(name, plan.preempted)), tuple(map(name, plan.deferred)),
    )  # fmt: skip


class Steered(toy.ToyExecutor):
    """The toy model, on the engine's own thread. A step takes as long as the test lets it, and reports the cost
    model's time: while it runs, the test posts the arrivals of that time."""

    def __init__(self, chosen: Machine) -> None:
        limits = chosen.limits()
        super().__init__(num_blocks=limits.num_blocks, block_size=limits.block_size)
        self.machine = chosen
        self.began: queue.Queue[float] = queue.Queue()
        self.go: queue.Queue[None] = queue.Queue()

    def limits(self) -> ExecutorLimits:
        return self.machine.limits()

    def wait(self, handle: ForwardBatch) -> StepResult:
        seconds = self.machine.cost.seconds(work_of(handle))
        self.began.put(seconds)
        self.go.get(timeout=PATIENCE)
        return replace(super().wait(handle), seconds=seconds)


class Silent:
    streams = False

    def __init__(self) -> None:
        self.ended = threading.Event()

    def token(self, *_: object) -> bool:
        return False

    def deliver(self, *_: object) -> None:
        self.ended.set()


def simulated(chosen: Machine, trace: list[Arrival]) -> list[tuple[object, ...]]:
    fleet = Fleet(chosen)
    plans: list[tuple[object, ...]] = []
    fleet.replicas[0].on_plan = lambda plan: plans.append(described(plan))
    fleet.run(trace)
    return plans


def live(chosen: Machine, trace: list[Arrival]) -> list[tuple[object, ...]]:
    executor = Steered(chosen)
    core = make_core(EngineCore, executor, chosen.config, chosen.cost_model())
    plans: list[tuple[object, ...]] = []
    core.stepper.plan_hooks.append(lambda plan: plans.append(described(plan)))
    source = TokenSource()
    waiting = list(trace)
    leaving: list[tuple[float, Silent, object]] = []
    sinks: list[Silent] = []
    now = 0.0

    def post(until: float) -> None:
        """In the simulator's order: arrivals, then cancellations."""
        due = [arrival for arrival in waiting if arrival.at <= until]
        del waiting[: len(due)]
        requests = []
        for arrival in due:
            sink = Silent()
            request = core.request(source.prepared(arrival), sink, arrival.options())
            requests.append(request)
            sinks.append(sink)
            if arrival.cancel_after is not None:
                leaving.append((arrival.at + arrival.cancel_after, sink, request))
        if requests:
            core.submit_many(requests)
        for entry in sorted((entry for entry in leaving if entry[0] <= until), key=lambda entry: entry[0]):
            leaving.remove(entry)
            core.cancel(entry[2])  # type: ignore[arg-type]

    while waiting:
        now = max(now, waiting[0].at)
        post(now)
        while not all(sink.ended.is_set() for sink in sinks):
            try:
                seconds = executor.began.get(timeout=0.2)
            except queue.Empty:
                continue
            now += seconds
            post(now)
            executor.go.put(None)
    core.close()
    assert is_empty(core)
    return plans


@pytest.mark.feature("G12")
@pytest.mark.parametrize("settings", [{}, {"policy": "response_ratio"}, {"fold": False, "kv_blocks": 60}])
def test_a_trace_gives_the_same_plans_live_and_simulated(settings: dict[str, object]) -> None:
    """Decisions that share rubrics, chats, and callers that cancel: every step of an engine with its thread, its toy
    model that checks the tokens that each row reads, and its real clock, is the simulator's."""
    chosen = machine(
        "cpu-default", **{"kv_blocks": 120, "max_length": 256, "max_step_tokens": 300, "max_running": 4, **settings}
    )
    chosen = chosen.configured(block_size=4, chunk_tokens=16, max_step_requests=12)
    judged = rubrics(120.0, 3, requests=60, rubrics=4, rubric_tokens=40, text_tokens=(3, 30), questions=(3, 2))
    talked = chat(40.0, 3, requests=12, system_tokens=10, turn_tokens=(4, 20), max_tokens=(2, 12))
    trace = list(cancelled(merged(judged, talked), 0.15, 0.03, 3))
    plans = simulated(chosen, trace)
    assert len(plans) > 30 and any(plan[3] for plan in plans)
    assert live(chosen, trace) == plans
