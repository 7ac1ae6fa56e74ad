"""Options out of range, deadlines, counters, clocks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from prelude import RequestOptions
from prelude.errors import DeadlineExceeded, InvalidRequest
from tests.scheduling.cores import Collect, chat, generated, last_logprob, post, prompt, text
from tests.service import Fault, FaultyExecutor, is_empty, run_steps, service_core


@pytest.mark.fault(18)
@pytest.mark.parametrize(
    "options",
    [
        {"deadline": -1}, {"deadline": math.nan}, {"deadline": math.inf}, {"deadline": 1e30}, {"deadline": "5"},
        {"deadline": True}, {"priority": 1.5}, {"priority": True}, {"priority": 1 << 40}, {"priority": math.nan},
        {"tenant": ""}, {"trace": 1},
    ],
)  # fmt: skip
def test_options_out_of_range_name_their_field(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=next(iter(options))):
        RequestOptions(**options)


@pytest.mark.fault(18)
def test_numbers_of_numpy_are_numbers() -> None:
    """A service computes them; they are plain ones from then on."""
    options = RequestOptions(priority=np.int16(-3), deadline=np.float32(0.5), trace=np.bool_(True))  # type: ignore[arg-type]
    assert options == RequestOptions(priority=-3, deadline=0.5, trace=True)
    assert [type(v) for v in (options.priority, options.deadline, options.trace)] == [int, float, bool]
    assert RequestOptions(deadline=np.int64(2)).deadline == 2.0  # type: ignore[arg-type]


def test_every_request_that_came_in_has_ended_or_is_there() -> None:
    """The counters add up for every end of a request: also for one that was cancelled before it was queued."""
    core = service_core(FaultyExecutor(Fault("raise", "wait", 0)), running=2)
    sink = Collect()
    requests = [post(core, chat(prompt(5, i), 6), sink) for i in range(6)]
    requests += [post(core, last_logprob(prompt(5, i)), sink, deadline=1000) for i in range(6)]
    core.cancel(requests[0])
    late = post(core, chat(prompt(6, 30), 6), sink, deadline=1000)
    while core.live:
        core.step()
        expire(core, late)
        if len(core.live) == 5:
            core.cancel(requests[3])
        _adds_up(core)
    seen = core.snapshot()
    assert seen["cancelled"] == 2 and seen["expired"] == 1 and seen["failed"] > 0 and seen["finished"] > 0


def _adds_up(core: Any) -> None:
    seen = core.snapshot()
    ended = sum(seen[name] for name in ("finished", "failed", "cancelled", "expired"))
    assert sum(seen["requests"].values()) == ended + len(core.queues)


@pytest.mark.fault(18)
@pytest.mark.parametrize("state", ["inbox", "queue", "prefill", "decode", "preempted", "replay"])
def test_a_deadline_that_passes_ends_the_request_wherever_it_is(state: str) -> None:
    executor = FaultyExecutor(*([Fault("raise", "wait", 2, 1)] if state == "replay" else []), num_blocks=16)
    core = service_core(executor, running=1 if state == "queue" else 4, chunk=4, step_tokens=12)
    sink = Collect()
    other = post(core, chat(prompt(6, 1), 30), sink)
    if state != "inbox":
        core.step()
    request = post(core, chat(prompt(14, 2), 12), sink, deadline=1000)
    for _ in range({"inbox": 0, "queue": 1, "prefill": 2, "decode": 6, "preempted": 6, "replay": 2}[state]):
        core.step()
    if state == "preempted":
        from prelude.scheduling.planner import preempt

        preempt(request, core.queues, core.pool)
    expected = {"inbox": "WAITING", "queue": "WAITING", "preempted": "WAITING", "decode": "DECODE"}
    assert request.state.name == expected.get(state, "PREFILL")
    expire(core, request)
    core.step()
    core.audit()
    assert isinstance(sink.ends[request.id][1], DeadlineExceeded)
    run_steps(core)
    assert text(sink, other) == generated(1, 30)
    assert core.stats.expired == 1 and is_empty(core)


def expire(core: Any, request: Any) -> None:
    """As if its time had passed."""
    request.expires = 0.0
    core.lifecycle.expiring = [(0.0, request.id, request)] if core.lifecycle.expiring else []


@pytest.mark.fault(18)
def test_an_answer_that_comes_too_late_is_a_deadline_exceeded() -> None:
    core = service_core(FaultyExecutor(Fault("delay", "wait", 0, seconds=0.05)))
    sink = Collect()
    request = post(core, last_logprob(prompt(6, 1)), sink, deadline=0.02)
    core.step()
    assert isinstance(sink.ends[request.id][1], DeadlineExceeded) and is_empty(core)


@pytest.mark.fault(18)
@pytest.mark.parametrize("before", [0, 1, 2])
def test_a_deadline_has_passed_at_its_moment(before: int) -> None:
    """The clock is asked when a request is made, when a step begins, and when its end is told."""
    core, sink = service_core(), Collect()
    times = iter([6.0] * before + [7.0] * 3)
    core.lifecycle.clock = lambda: next(times)
    try:
        request = core.request(last_logprob(prompt(5, 1)), sink, RequestOptions(deadline=5.0), expires=7.0)
    except DeadlineExceeded:
        assert before == 0 and core.snapshot()["rejected"] == {"deadline": 1}
        return
    core.lifecycle.post([request])
    core.step()
    assert before and isinstance(sink.ends[request.id][1], DeadlineExceeded)
    assert (core.stats.expired, core.stats.steps["oneshot"]) == (1, before - 1) and is_empty(core)


@pytest.mark.fault(18)
def test_many_deadlines_that_do_not_come_are_forgotten() -> None:
    core = service_core()
    sink = Collect()
    for i in range(2000):
        post(core, last_logprob(prompt(3, i)), sink, deadline=1e8)
        core.step()
    assert len(core.lifecycle.expiring) < 100


@pytest.mark.fault(63)
def test_counters_and_ids_past_two_to_the_53rd() -> None:
    core = service_core()
    for name in ("finished", "prefill_tokens", "decode_tokens"):
        setattr(core.stats, name, 1 << 53)
    core.queues.arrivals = (1 << 63) - 2
    sink = Collect()
    requests = [post(core, chat(prompt(6, i), 5), sink) for i in range(4)]
    run_steps(core)
    assert [text(sink, r) for r in requests] == [generated(i, 5) for i in range(4)]
    assert core.stats.finished == (1 << 53) + 4 and core.stats.decode_tokens == (1 << 53) + 16


@pytest.mark.fault(63)
def test_a_wall_clock_that_jumps_ends_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    core = service_core()
    assert abs(core.lifecycle.clock() - time.monotonic()) < 60  # not the wall clock: deadlines outlive its jumps
    assert 0 < RequestOptions(deadline=30.0).expires() - time.monotonic() <= 30
    sink = Collect()
    jumps = iter(range(10**9))
    monkeypatch.setattr(time, "time", lambda: (-1) ** next(jumps) * 4e9)
    requests = [post(core, chat(prompt(6, i), 5), sink, deadline=600.0) for i in range(4)]
    run_steps(core)
    assert [text(sink, r) for r in requests] == [generated(i, 5) for i in range(4)]
    assert core.stats.expired == 0 and not core.lifecycle.expiring, "nor keeps one"
