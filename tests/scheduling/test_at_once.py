"""The short way of requests that find the engine idle: the plan, the counters and the pool are those of the lines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from prelude.options import RequestOptions
from prelude.runtime import stepper
from prelude.runtime.core import EngineCore
from tests.engine.test_faults import ById
from tests.scheduling.test_engine_core import chat, last_logprob, prompt
from tests.service import is_empty, run_steps, service_core

Story = list[list[Any]]  # what is posted before each run of steps


def story(seed: int) -> Story:
    """Groups of prompts, some of them shared with earlier or later ones, some never kept, some kept at any price."""
    draw = np.random.default_rng(seed)
    rubric = prompt(60, seed)
    groups: Story = []
    for _ in range(12):
        group = []
        for _ in range(int(draw.integers(1, 7))):
            head = rubric[: int(draw.integers(0, 61))]
            tokens = np.concatenate([head, prompt(int(draw.integers(1, 40)), int(draw.integers(1 << 20)))])
            cache = ["auto", "auto", "auto", "never", "always"][int(draw.integers(5))]
            group.append(last_logprob(tokens, cache=cache, salt=int(draw.integers(8) == 0)))
        groups.append(group)
    return groups


def told(core: EngineCore, groups: Story) -> tuple[Any, ...]:
    """Plans, ends, statistics and what the pool has at the end."""
    plans, sink = [], ById()
    launch = core._launch

    def launches(plan: Any) -> None:
        rows = [(row.request.order, row.request.queued_at, row.skip, row.publish) for row in plan.oneshot]
        plans.append((rows, [(fold.members, fold.tokens) for fold in plan.folds]))
        launch(plan)

    core._launch = launches  # type: ignore[method-assign]
    numbers = []
    for group in groups:
        requests = [core.request(prepared, sink) for prepared in group]
        core._post(requests)
        run_steps(core)
        for request in requests:
            outcome, error = sink.ends[request.id]
            assert error is None
            stats = outcome.stats
            counted = (stats.cached_tokens, stats.computed_tokens, stats.chunks, stats.batch_size_seen)
            numbers.append((float(outcome.output.logprobs[0]), *counted, stats.estimated_jct > 0))
    found = core.snapshot()
    clocks = {"forward_seconds", "host_seconds", "gc_pauses", "peak_activation_bytes"}
    assert is_empty(core)
    return (
        plans,
        numbers,
        {k: v for k, v in found.items() if k not in clocks},
        core.queues.served,
        core.queues.arrivals,
    )


def both_ways(monkeypatch: pytest.MonkeyPatch, make: Callable[[], EngineCore], groups: Story) -> tuple[Any, Any]:
    shortly = told(make(), groups)
    monkeypatch.setattr(stepper, "plan_at_once", lambda *_: None)
    return shortly, told(make(), groups)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("sizes", [{}, {"overlap": True}, {"step_tokens": 160}, {"fold": False}])
def test_the_plan_is_the_one_that_the_lines_give(
    seed: int, sizes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    shortly, by_lines = both_ways(monkeypatch, lambda: service_core(**sizes), story(seed))
    for one, other in zip(shortly, by_lines):
        assert one == other


def test_who_is_out_of_the_ordinary_goes_by_the_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[bool] = []
    inner = stepper.plan_at_once

    def seen(*given: Any) -> Any:
        plan = inner(*given)
        taken.append(plan is not None)
        return plan

    monkeypatch.setattr(stepper, "plan_at_once", seen)
    core, sink = service_core(), ById()

    def short(*prepared: Any, options: RequestOptions | None = None, cancel: bool = False) -> bool:
        taken.clear()
        requests = [core.request(one, sink, options or RequestOptions()) for one in prepared]
        core._post(requests)
        requests[0].cancelled = cancel
        run_steps(core)
        assert is_empty(core) and all(request.id in sink.ends for request in requests)
        return any(taken)

    one, other = last_logprob(prompt(20, 1)), last_logprob(prompt(20, 2))
    assert short(one) and short(one, other) and short(one, options=RequestOptions(priority=3, tenant="a"))
    assert not short(chat(prompt(5, 1), 2)), "it decodes"
    assert not short(one, chat(prompt(5, 1), 2)), "one of them decodes"
    assert not short(one, options=RequestOptions(deadline=60)), "it can expire"
    assert not short(one, other, cancel=True), "one was cancelled on its way"
    many = [last_logprob(prompt(20, at)) for at in range(100)]
    assert sum(p.tree.num_tokens for p in many) > core.budgets.step_tokens
    assert not short(*many), "they do not fit one step: somebody has to be put in order"
