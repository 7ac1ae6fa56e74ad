"""Bounded queues, deadlines, priorities, tenants and labels; cancellation from any state."""

from __future__ import annotations

import asyncio
import math
import threading
import tracemalloc
from typing import Any

import numpy as np
import pytest

from prelude import EngineConfig, RequestOptions
from prelude.errors import (
    ConfigError,
    DeadlineExceeded,
    InvalidRequest,
    QueueFull,
    RequestCancelled,
    UnknownParameter,
)
from prelude.scheduling.request import State
from tests.engine.test_faults import ById, generated, text
from tests.patience import Paced, comes, until
from tests.scheduling.test_engine_core import chat, last_logprob, prompt
from tests.service import Fault, FaultyExecutor, is_empty, run_steps, service_core, toy_service


def post(core: Any, prepared: Any, sink: ById, **options: Any) -> Any:
    request = core.request(prepared, sink, RequestOptions(**options))
    core.lifecycle.post([request])
    return request


# ------------------------------------------------------------------ the queue


@pytest.mark.fault(56)
def test_the_bound_is_exact_whatever_the_number_of_threads() -> None:
    core = service_core(queued=100)
    made: list[Any] = []
    refused = []
    start = threading.Barrier(8)

    def work() -> None:
        start.wait()
        for i in range(100):
            try:
                made.append(core.request(last_logprob(prompt(4, i)), ById()))
            except QueueFull:
                refused.append(1)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 100 and len(refused) == 700
    assert core.snapshot()["rejected"] == {"queued_requests": 700}
    core.lifecycle.post(made)
    run_steps(core)
    assert is_empty(core)


@pytest.mark.fault(56)
def test_the_bound_on_tokens_is_exact() -> None:
    core = service_core(queued_tokens=100)
    sink = ById()
    for i in range(20):
        post(core, last_logprob(prompt(5, i)), sink)
    with pytest.raises(QueueFull, match=r"100 tokens are waiting.*max_queued_tokens"):
        core.request(last_logprob(prompt(1, 1)), sink)
    core.step()
    post(core, last_logprob(prompt(5, 99)), sink)
    run_steps(core)
    assert len(sink.ends) == 21 and is_empty(core)


@pytest.mark.fault(56)
def test_a_million_refusals_leave_nothing_behind() -> None:
    core = service_core(queued=1)
    held = core.request(last_logprob(prompt(4, 1)), ById())
    tracemalloc.start()
    try:
        for count in (10_000, 1_000_000):
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(count // 1000):
                with core.reserve(1000) as places:
                    assert places.left == 0
            grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 10_000
    assert core.inbox.requests == 1 and held.state is State.WAITING


@pytest.mark.fault(56)
def test_a_full_queue_refuses_at_once_and_before_anything_is_tokenised() -> None:
    async def main() -> None:
        core = service_core(queued=3)
        engine, steps = toy_service(core), Paced.of(core)
        # A step is under way that has taken all three, or the first of them; then three more wait, or those that can.
        tasks = [asyncio.create_task(engine.run(chat(prompt(6, i), 4))) for i in range(3)]
        await comes(lambda: steps.held)
        tasks += [asyncio.create_task(engine.run(chat(prompt(6, i), 4))) for i in range(3)]
        await comes(lambda: core.inbox.requests == 3)
        prepared: list[Any] = []
        engine.engine._preparer.prepare = prepared.append
        refused = 0
        for _ in range(1000):
            try:
                await engine.run(chat(prompt(6, 9), 4))
            except QueueFull:
                refused += 1
        assert refused == 1000 and steps.held and not steps.given_up and not prepared
        steps.open()
        del engine.engine._preparer.prepare
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert sum(not isinstance(end, QueueFull) for end in ends) >= 3
        await engine.aclose()
        assert is_empty(core)

    asyncio.run(main())


def test_part_of_a_large_call_is_refused_and_the_rest_is_answered() -> None:
    async def main() -> None:
        engine = toy_service(service_core(queued=10))
        ends = await engine.run_many([last_logprob(prompt(4, i)) for i in range(15)], return_exceptions=True)
        assert [isinstance(end, QueueFull) for end in ends] == [False] * 10 + [True] * 5
        twin = engine.engine.run_many([last_logprob(prompt(4, i)) for i in range(15)], return_exceptions=True)
        assert [isinstance(end, QueueFull) for end in twin] == [False] * 10 + [True] * 5
        await engine.aclose()

    asyncio.run(main())


@pytest.mark.feature("A28")
@pytest.mark.feature("F24")
@pytest.mark.parametrize(
    "wrong",
    [
        {"max_running": 0},
        {"max_step_tokens": -1},
        {"max_step_requests": 0},
        {"kv_blocks": -1},
        {"chunk_tokens": 0},
        {"max_queued_requests": 0},
        {"max_running": 9, "max_step_requests": 8},
        {"oneshot_share": 0},
        {"oneshot_share": 1.5},
        {"oneshot_share": math.nan},
        {"hang_seconds": 0},
        {"hang_seconds": True},
        {"unhealthy_after": 0},
        {"max_running": 1.5},
        {"block_size": 4097},
    ],
)
def test_limits_that_make_no_sense_are_refused_when_they_are_made(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        EngineConfig(**wrong)


# ------------------------------------------------------------------ deadlines


@pytest.mark.fault(18)
@pytest.mark.parametrize(
    "options",
    [
        {"deadline": -1},
        {"deadline": math.nan},
        {"deadline": math.inf},
        {"deadline": 1e30},
        {"deadline": "5"},
        {"deadline": True},
        {"priority": 1.5},
        {"priority": True},
        {"priority": 1 << 40},
        {"priority": math.nan},
        {"tenant": ""},
        {"trace": 1},
    ],
)
def test_options_out_of_range_name_their_field(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=next(iter(options))):
        RequestOptions(**options)


@pytest.mark.fault(19)
def test_a_misspelt_option_names_the_nearest() -> None:
    with pytest.raises(UnknownParameter, match="deadline"):
        RequestOptions(dedline=1)  # type: ignore[call-arg]


@pytest.mark.fault(18)
def test_a_deadline_in_the_past_never_enters_the_queue() -> None:
    core = service_core()
    with pytest.raises(DeadlineExceeded):
        core.request(chat(prompt(6, 1), 4), ById(), RequestOptions(deadline=0))
    seen = core.snapshot()
    assert core.inbox.requests == 0 and seen["rejected"] == {"deadline": 1}
    assert seen["expired"] == 0 and sum(seen["requests"].values()) == 0


@pytest.mark.fault(18)
def test_numbers_of_numpy_are_numbers() -> None:
    """A service computes them; they are plain ones from then on."""
    options = RequestOptions(priority=np.int16(-3), deadline=np.float32(0.5), trace=np.bool_(True))  # type: ignore[arg-type]
    assert options == RequestOptions(priority=-3, deadline=0.5, trace=True)
    assert [type(v) for v in (options.priority, options.deadline, options.trace)] == [int, float, bool]
    assert RequestOptions(deadline=np.int64(2)).deadline == 2.0  # type: ignore[arg-type]


def test_what_came_in_has_ended_or_is_there() -> None:
    """The counters add up, whatever became of a request: also of one that was cancelled before it was queued."""
    core = service_core(FaultyExecutor(Fault("raise", "wait", 0)), running=2)
    sink = ById()
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
    sink = ById()
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
    sink = ById()
    request = post(core, last_logprob(prompt(6, 1)), sink, deadline=0.02)
    core.step()
    assert isinstance(sink.ends[request.id][1], DeadlineExceeded) and is_empty(core)


@pytest.mark.fault(18)
def test_many_deadlines_that_do_not_come_are_forgotten() -> None:
    core = service_core()
    sink = ById()
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
    sink = ById()
    requests = [post(core, chat(prompt(6, i), 5), sink) for i in range(4)]
    run_steps(core)
    assert [text(sink, r) for r in requests] == [generated(i, 5) for i in range(4)]
    assert core.stats.finished == (1 << 53) + 4 and core.stats.decode_tokens == (1 << 53) + 16


# ------------------------------------------------------------------ labels


@pytest.mark.fault(17)
def test_request_ids_are_labels_and_bounded() -> None:
    for bad in ("", "x" * 257, "x" * (1 << 20), "a\nb", "a\x00", "\x1b[31m", 5, b"x"):
        with pytest.raises(InvalidRequest, match="request_id"):
            RequestOptions(request_id=bad)  # type: ignore[arg-type]
    core = service_core()
    sink = ById()
    twins = [post(core, chat(prompt(6, i), 5), sink, request_id="the same") for i in range(3)]
    core.step()
    core.cancel(twins[1])
    run_steps(core)
    assert [text(sink, twins[i]) for i in (0, 2)] == [generated(i, 5) for i in (0, 2)]
    assert isinstance(sink.ends[twins[1].id][1], RequestCancelled)
    assert sink.ends[twins[0].id][0].stats.request_id == "the same"


# ------------------------------------------------------------------ priorities and tenants


@pytest.mark.feature("F22")
def test_higher_priorities_go_first_and_within_one_the_earlier() -> None:
    core = service_core(running=1)
    order: list[int] = []

    class Ends(ById):
        def deliver(self, request, outcome, error) -> None:  # type: ignore[no-untyped-def]
            order.append(request.options.priority * 10 + names[request.id])

    sink = Ends()
    names = {}
    for at, priority in enumerate([0, 0, 5, -3, 5, 0]):
        names[post(core, chat(prompt(6, at), 3), sink, priority=priority).id] = at
    run_steps(core)
    assert order == [52, 54, 0, 1, 5, -27]


@pytest.mark.feature("F22")
def test_a_tenant_that_floods_the_queue_does_not_keep_others_waiting() -> None:
    core = service_core(step_tokens=44, running=4)
    order: list[str] = []

    class Ends(ById):
        def deliver(self, request, outcome, error) -> None:  # type: ignore[no-untyped-def]
            order.append(request.options.tenant)

    sink = Ends()
    for i in range(100):
        post(core, last_logprob(prompt(10, i)), sink, tenant="flood")
    for i in range(10):
        post(core, last_logprob(prompt(10, 1000 + i)), sink, tenant="small")
    for i in range(5):
        post(core, last_logprob(prompt(20, 2000 + i)), sink, tenant="long")
    run_steps(core)
    first = order[:28]
    assert first.count("small") == 10, "ten of the first 28 at least: a third of the tokens each"
    assert first.count("long") >= 4
    assert len(order) == 115


@pytest.mark.feature("F22")
def test_a_tenant_that_was_away_starts_level_and_not_ahead() -> None:
    core = service_core(step_tokens=14, running=4)
    sink = ById()
    for i in range(50):
        post(core, last_logprob(prompt(10, i)), sink, tenant="a")
    for _ in range(40):
        core.step()
    for i in range(50):
        post(core, last_logprob(prompt(10, 100 + i)), sink, tenant="b")
    before = len(sink.ends)
    for _ in range(10):
        core.step()
    waiting_a = sum(r.options.tenant == "a" for r in core.queues)
    assert len(sink.ends) - before == 10 and 4 <= 10 - waiting_a <= 6, "they alternate"
    run_steps(core)


# ------------------------------------------------------------------ cancelling


@pytest.mark.fault(51)
@pytest.mark.feature("N4")
def test_cancel_in_every_state_twice_and_after_the_end() -> None:
    for steps in range(12):
        core = service_core(chunk=4)
        sink = ById()
        keep = post(core, chat(prompt(6, 1), 12), sink)
        gone = core.request(chat(prompt(18, 2), 6), sink)
        if steps == 0:
            core.cancel(gone)  # before admission: it is told when it arrives
        core.lifecycle.post([gone])
        for _ in range(steps):
            core.step()
        core.cancel(gone)
        core.cancel(gone)
        run_steps(core)
        core.cancel(gone)
        run_steps(core)
        assert text(sink, keep) == generated(1, 12)
        assert sink.ends.keys() == {keep.id, gone.id} and is_empty(core)


@pytest.mark.fault(51)
@pytest.mark.feature("N4")
@pytest.mark.parametrize("when", ["before", "preparing", "waiting", "running", "between"])
def test_cancelling_the_awaiting_task_gives_everything_back(when: str) -> None:
    async def main() -> None:
        core = service_core(running=1)
        engine, steps, prepares = toy_service(core), Paced.of(core, 5), threading.Event()
        blocker = asyncio.create_task(engine.run(chat(prompt(6, 1), 20)))
        await comes(lambda: steps.held)
        victim = chat(prompt(6, 2), 30)
        if when == "preparing":
            victim = Long(victim, "x" * 10_000)  # type: ignore[assignment]
            engine.engine._preparer.prepare = slow(engine.engine._preparer.prepare, prepares, steps)
        if when in ("running", "between"):
            steps.open()
            await blocker
            steps.allow(5)
        task = asyncio.create_task(engine.run(victim))
        if when == "preparing":
            await comes(prepares.is_set)
        elif when != "before":
            await comes(lambda: len(core.live) == 1 + (when == "waiting") and steps.held)
        if when == "between":  # finished by the engine, not yet told to the task
            steps.open()
            until(lambda: not core.live)
        task.cancel()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        steps.open()
        await blocker
        await comes(lambda: not core.live and not core.stepper.began)
        await engine.aclose()
        assert is_empty(core)

    asyncio.run(main())


class Long:
    """A task whose text is long enough for a preparing thread."""

    def __init__(self, prepared: Any, text: str) -> None:
        self.prepared, self.prompt = prepared, text


def slow(prepare: Any, begun: threading.Event, steps: Paced) -> Any:
    """Takes until the steps may go on."""

    def slower(task: Any) -> Any:
        begun.set()
        until(lambda: not steps.held)
        return prepare(task.prepared if isinstance(task, Long) else task)

    return slower


@pytest.mark.fault(50)
@pytest.mark.feature("N4")
@pytest.mark.feature("H13")
@pytest.mark.parametrize("overlap", [False, True], ids=["", "overlap"])
@pytest.mark.parametrize("seed", [11, 12, 13])
def test_a_storm_of_cancellations(seed: int, overlap: bool) -> None:
    """Requests of all kinds end by cancellation at random moments, audited after every step; the others have exactly
    their own numbers."""
    from tests.storm import ToyLoad, storm

    counts = storm(3400, seed, ToyLoad(overlap))
    assert counts["cancelled"] > 600 and counts["wrong"] == 0 and counts["finished"] > 1500
    assert counts["preemptions"] > 10 and counts["evictions"] > 100
    assert min(counts[f"cancelled_while_{state}"] for state in ("waiting", "prefill", "decode")) > 10
    assert counts["cancelled_in_flight"] > 10
    assert (counts["discarded_rows"] > 30) == overlap


@pytest.mark.fault(50)
@pytest.mark.feature("H13")
@pytest.mark.slow
@pytest.mark.parametrize("overlap", [False, True], ids=["", "overlap"])
def test_a_storm_of_cancellations_on_the_default_model(overlap: bool) -> None:
    """Survivors have the bits that they have alone. ``python -m tests.soak --storm 10000`` is the same, longer."""
    from tests.storm import ModelLoad, storm

    counts = storm(250, 1, ModelLoad(40, overlap))
    assert counts["wrong"] == 0 and counts["finished"] > 100 and counts["cancelled"] > 40
    assert counts["preemptions"] > 0 and counts["prefix_hit_tokens"] > 0
    assert (counts["discarded_rows"] > 10) == overlap


@pytest.mark.fault(63)
def test_a_wall_clock_that_jumps_ends_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    core = service_core()
    assert abs(core.lifecycle.clock() - time.monotonic()) < 60  # not the wall clock: deadlines outlive its jumps
    assert 0 < RequestOptions(deadline=30.0).expires() - time.monotonic() <= 30
    sink = ById()
    jumps = iter(range(10**9))
    monkeypatch.setattr(time, "time", lambda: (-1) ** next(jumps) * 4e9)
    requests = [post(core, chat(prompt(6, i), 5), sink, deadline=600.0) for i in range(4)]
    run_steps(core)
    assert [text(sink, r) for r in requests] == [generated(i, 5) for i in range(4)]
    assert core.stats.expired == 0
