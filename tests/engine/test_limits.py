"""Bounded queues, priorities, tenants and labels."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from prelude import EngineConfig, ExpertConfig, RequestOptions
from prelude.errors import ConfigError, InvalidRequest, QueueFull, RequestCancelled, UnknownParameter
from prelude.runtime.events import Event
from prelude.scheduling.request import State
from tests.patience import Paced, comes, shown
from tests.scheduling.cores import Collect, chat, generated, last_logprob, post, prompt, text
from tests.service import is_empty, run_steps, service_core, toy_service


# ------------------------------------------------------------------ the queue
@pytest.mark.fault(56)
def test_the_bound_is_exact_whatever_the_number_of_threads() -> None:
    core = service_core(queued=100)
    start = threading.Barrier(8)

    def refused(_: int) -> int:
        start.wait()
        count = 0
        for i in range(100):
            try:
                post(core, last_logprob(prompt(4, i)), Collect())
            except QueueFull:
                count += 1
        return count

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(refused, range(8))) == 700 and core.inbox.requests == len(core.live) == 100
    assert core.snapshot()["rejected"] == {"queued_requests": 700}
    run_steps(core)
    assert is_empty(core)


@pytest.mark.fault(56)
def test_the_bound_on_tokens_is_exact() -> None:
    core = service_core(queued_tokens=100)
    sink = Collect()
    for i in range(20):
        post(core, last_logprob(prompt(5, i)), sink)
    with pytest.raises(QueueFull, match=r"100 tokens are waiting.*max_queued_tokens"):
        text(sink, post(core, last_logprob(prompt(1, 1)), sink))
    core.step()
    post(core, last_logprob(prompt(5, 99)), sink)
    run_steps(core)
    assert len(sink.ends) == 22 and is_empty(core)


@pytest.mark.fault(56)
def test_a_million_refusals_leave_nothing_behind() -> None:
    core = service_core(queued=1)
    held = post(core, last_logprob(prompt(4, 1)), Collect())

    def grown(count: int) -> int:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(count // 1000):
            with core.reserve(1000) as places:
                assert places.left == 0
        return tracemalloc.get_traced_memory()[0] - before

    tracemalloc.start()
    try:
        grown(10_000)
        assert shown(lambda: grown(1_000_000) < 10_000, 5)  # threads of earlier tests may keep something meanwhile
    finally:
        tracemalloc.stop()
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


@pytest.mark.parametrize("limits", [{"queued": 10}, {"queued_tokens": 40}, {"queued_tokens": 3}])
def test_part_of_a_large_call_is_refused_and_the_rest_is_answered(limits: dict[str, int]) -> None:
    async def main() -> None:
        core, told, events = service_core(**limits), [], list[Event]()
        core.events.add(events.append)
        engine, answered = toy_service(core), limits.get("queued", limits.get("queued_tokens", 0) // 4)
        tasks = [last_logprob(prompt(4, i)) for i in range(15)]
        for run in (engine.run_many, partial(asyncio.to_thread, engine.engine.run_many)):
            ends = await run(tasks, return_exceptions=True, progress=lambda *done: told.append(done))
            assert [isinstance(end, QueueFull) for end in ends] == [False] * answered + [True] * (15 - answered)
            assert told[-1] == (15, 15) and is_empty(core)
        refused = ("queued_requests" if "queued" in limits else "queued_tokens", 15 - answered)
        assert [(*event.data.values(),) for event in events if event.name == "rejected"] == [refused] * 2
        assert sum(event.name == "accepted" for event in events) == 2 * answered
        await engine.aclose()

    asyncio.run(main())


@pytest.mark.feature("A28")
@pytest.mark.feature("F24")
@pytest.mark.parametrize(
    ("name", "wrong", "right"),
    [
        ("max_running", (0, 1.5, 513), (1, 512)), ("max_step_requests", (0, 63), (64,)),
        ("max_step_tokens", (-1, 0), (1,)), ("kv_blocks", (-1, 0, 1 << 62), (1, (1 << 62) - 1)),
        *((name, (0,), (1,)) for name in ("chunk_tokens", "max_queued_requests", "unhealthy_after")),
        ("block_size", (0, 4097), (1, 4096)), ("threads", (0, 1025, 2.0, True), (1, 1024)),
        ("oneshot_share", (0, 0.0009, 1.5, math.nan), (0.001, 1)),
        ("max_memory", (0, True, 0.0009, 1.1, math.nan), (0.001, 1.0, 1)),
        ("hang_seconds", (0, 0.009, 2e9, 10**400, True, math.nan), (0.01, 1e9)),
        *((name, (-1,), (0,)) for name in ("defer_steps", "question_plan_bytes", "prefix_states", "host_kv_bytes")),
    ],
)  # fmt: skip
def test_limits_that_make_no_sense_are_refused_when_they_are_made(name: str, wrong: Any, right: Any) -> None:
    for value in wrong:
        with pytest.raises(ConfigError, match=name):
            EngineConfig().changed(**{name: value})
    for value in right:
        EngineConfig().changed(**{name: value})


def test_a_field_of_expert_is_refused_at_the_top_by_a_sentence_that_names_it() -> None:
    told = r"EngineConfig has no parameter 'kv_blocks': it is a field of ExpertConfig; give expert=ExpertConfig\(kv"
    with pytest.raises(UnknownParameter, match="'max_runing'; did you mean 'max_running'"):
        EngineConfig(max_runing=2)  # type: ignore[call-arg]
    with pytest.raises(UnknownParameter, match=told):
        EngineConfig(kv_blocks=8)  # type: ignore[call-arg]
    assert len(dataclasses.fields(EngineConfig)) <= 20
    assert EngineConfig(expert=ExpertConfig(kv_blocks=8)) == EngineConfig().changed(kv_blocks=8)
    with pytest.raises(ConfigError, match="expert"):
        EngineConfig(expert={"kv_blocks": 8})  # type: ignore[arg-type]


# ------------------------------------------------------------------ labels
@pytest.mark.parametrize(
    "name", [one.name for kind in (EngineConfig, ExpertConfig) for one in dataclasses.fields(kind)]
)
def test_a_value_of_another_kind_is_refused_by_its_name(name: str) -> None:
    for value in (["wrong"], "wrong", 1.5j):
        if value != "wrong" or name not in ("cost_model", "attention", "policy", "decode_policy"):  # looked up later
            with pytest.raises(ConfigError, match=name):
                EngineConfig().changed(**{name: value})  # type: ignore[arg-type]


@pytest.mark.fault(17)
def test_request_ids_are_labels_and_bounded() -> None:
    for bad in ("", "x" * 257, "x" * (1 << 20), "a\nb", "a\x00", "\x1b[31m", 5, b"x"):
        with pytest.raises(InvalidRequest, match="request_id"):
            RequestOptions(request_id=bad)  # type: ignore[arg-type]
    core = service_core()
    sink = Collect()
    twins = [post(core, chat(prompt(6, i), 5), sink, request_id="the same") for i in range(3)]
    core.step()
    core.cancel(twins[1])
    run_steps(core)
    assert [text(sink, twins[i]) for i in (0, 2)] == [generated(i, 5) for i in (0, 2)]
    assert isinstance(sink.ends[twins[1].id][1], RequestCancelled)
    assert sink.ends[twins[0].id][0].stats.request_id == "the same"
