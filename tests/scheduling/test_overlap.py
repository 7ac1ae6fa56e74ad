"""Overlap: the next step is planned and packed while this one runs. On or off, everybody gets the same numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from prelude import Engine, EngineConfig, Generate, Loglikelihood, SamplingParams
from prelude.readouts.batch import ForwardBatch, StepResult
from prelude.scheduling.request import State
from tests import toy
from tests.scheduling.cores import Collect, chat, check, expected_logprob, last_logprob, post, prompt, text
from tests.scheduling.test_shared_prefixes import load, played, tails
from tests.service import Fault, FaultyExecutor, is_empty, run_steps, service_core


class OverlappedExecutor(toy.ToyExecutor):
    """A device that runs beside the host, in virtual time: a step takes ``latency`` from when the one before it is
    done, and every submission finds the host ``work`` later."""

    def __init__(self, latency: float, work: float, **sizes: Any) -> None:
        super().__init__(**sizes)
        self.latency, self.work = latency, work
        self.host = self.free = 0.0
        self.order: list[str] = []

    def submit(self, batch: ForwardBatch) -> Any:
        super().submit(batch)
        self.host += self.work
        self.free = max(self.free, self.host) + self.latency
        self.order.append("submit")
        return super().wait(batch), self.free  # computed now: later writes must not be seen

    def wait(self, handle: Any) -> StepResult:
        result, done = handle
        self.host = max(self.host, done)
        self.order.append("wait")
        return replace(result, seconds=self.latency)


def decisions(core: Any, count: int = 20) -> tuple[Collect, list[Any]]:
    sink = Collect()
    return sink, [post(core, last_logprob(prompt(30, i)), sink) for i in range(count)]


@pytest.mark.feature("H13")
@pytest.mark.feature("H14")
@pytest.mark.parametrize("latency,work", [(5.0, 3.0), (3.0, 5.0), (4.0, 4.0)])
def test_a_step_takes_the_longer_of_device_and_host_not_their_sum(latency: float, work: float) -> None:
    taken, numbers = {}, {}
    for overlap in (True, False):
        executor = OverlappedExecutor(latency, work, num_blocks=512)
        core = service_core(executor, step_tokens=64, overlap=overlap)
        sink, requests = decisions(core)
        run_steps(core)
        check(sink, requests)
        assert len(executor.batches) == 10
        taken[overlap] = executor.host
        numbers[overlap] = [sink.ends[r.id][0].output.logprobs.tolist() for r in requests]
    assert taken[False] == 10 * (latency + work)
    assert taken[True] <= 10 * max(latency, work) + latency + work
    assert numbers[True] == numbers[False]


@pytest.mark.feature("H14")
def test_switched_off_every_step_is_waited_for_before_the_next() -> None:
    for overlap, expected in ((False, ["submit", "wait"] * 4), (True, ["submit", "submit", "wait"])):
        executor = OverlappedExecutor(1, 1, num_blocks=256)
        core = service_core(executor, step_tokens=64, overlap=overlap)
        decisions(core, 8)
        run_steps(core)
        assert executor.order[: len(expected)] == expected
        assert executor.order.count("wait") == executor.order.count("submit")


@pytest.mark.feature("H13")
def test_rows_that_go_on_are_without_overlap_and_no_token_comes_twice() -> None:
    executor = OverlappedExecutor(2, 1, num_blocks=256)
    core = service_core(executor, step_tokens=64, overlap=True)
    sink = Collect()
    chats = [post(core, chat(prompt(9, i), 12), sink) for i in range(5)]
    shots = [post(core, last_logprob(prompt(30, 50 + i)), sink) for i in range(12)]
    run_steps(core)
    check(sink, [*chats, *shots])
    assert [len(text(sink, r)) for r in chats] == [12] * 5
    assert is_empty(core)


@pytest.mark.feature("H13")
def test_a_request_that_is_cancelled_in_flight_keeps_its_blocks_until_the_step_lands() -> None:
    executor = OverlappedExecutor(2, 1, num_blocks=64)
    core = service_core(executor, step_tokens=64, overlap=True)
    sink, requests = decisions(core, 8)
    core.step()
    assert len(core.steps) == 1
    flying = [row.request for row in core.steps[0].plan.oneshot]
    for request in flying:
        core.cancel(request)
    core.step()
    core.audit()
    assert all(request.id in sink.ends for request in flying), "they had their turn"
    run_steps(core)
    assert set(sink.ends) == {request.id for request in requests} and is_empty(core)
    chats = [post(core, chat(prompt(9, i), 30), sink) for i in range(3)]
    core.step()
    core.step()
    for request in chats[:2]:
        core.cancel(request)
    run_steps(core)
    assert [chat.state for chat in chats] == [State.FINISHED] * 3 and is_empty(core)
    assert len(text(sink, chats[2])) == 30


@pytest.mark.feature("H13")
def test_a_request_waits_for_a_prefix_that_a_step_in_flight_computes() -> None:
    executor = OverlappedExecutor(2, 1, num_blocks=512)
    core = service_core(executor, step_tokens=1024, overlap=True)
    sink = Collect()
    first, *others = tails(5, 12, prompt(400, 8))
    leader = post(core, last_logprob(first), sink)
    core.step()
    peers = [post(core, last_logprob(tokens), sink) for tokens in others]
    run_steps(core)
    check(sink, [leader, *peers])
    assert core.stats.prefill_tokens == 400 + 5 * 12
    assert [r.stats.deferred_ticks for r in peers] == [1] * 4


@pytest.mark.parametrize(
    "site,kind",
    [("submit", "raise"), ("submit", "memory"), *(("wait", kind) for kind in ("raise", "memory", "outputs", "nan"))],
)
def test_a_step_that_fails_beside_another_takes_its_own_rows_alone(site: str, kind: str) -> None:
    executor = FaultyExecutor(Fault(kind, site=site, at=2), num_blocks=256)
    core = service_core(executor, step_tokens=64, overlap=True)
    sink, requests = decisions(core, 14)
    chats = [post(core, chat(prompt(9, i), 4), sink) for i in range(2)]
    run_steps(core)
    ended = [r for r in requests if sink.ends[r.id][1] is None]
    check(sink, [*ended, *chats])
    assert len(requests) - len(ended) <= (0 if kind == "memory" else 2)
    assert is_empty(core) and not core.steps


def test_a_caller_that_steps_itself_gets_its_answer_and_leaves_nothing_in_flight() -> None:
    core = service_core(OverlappedExecutor(1, 1, num_blocks=64), step_tokens=64, overlap=True)
    sink = Collect()
    for i in range(5):
        request = core.request(last_logprob(prompt(8, i)), sink)
        core.run_inline([request])
        assert sink.ends[request.id][0].output.logprobs[0] == pytest.approx(expected_logprob(prompt(8, i)))
    assert is_empty(core) and not core.steps
    core.close()


def test_closing_lands_the_steps_in_flight() -> None:
    for drain in (True, False):
        core = service_core(OverlappedExecutor(1, 1, num_blocks=256), step_tokens=64, overlap=True)
        sink, requests = decisions(core, 30)
        core.loop.wake()
        core.close(drain=drain)
        assert core.stopped.is_set() and len(sink.ends) == len(requests) and not core.steps


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(items=load)
@pytest.mark.feature("H13")
def test_random_loads_end_with_the_same_numbers(items: list[Any]) -> None:
    played(items, cancels=True, overlap=True)
    played(items, cancels=True, overlap=True, failing=1, fold=False)


@pytest.mark.feature("H14")
def test_a_real_model_gives_the_same_bits_with_overlap_on_and_off() -> None:
    draw = np.random.default_rng(2)
    tasks = [Loglikelihood(draw.integers(10, 400, int(n)).tolist(), [7, 8]) for n in draw.integers(5, 90, 40)]
    greedy = SamplingParams(max_tokens=5, temperature=0, ignore_eos=True)
    tasks += [Generate(draw.integers(10, 400, 20).tolist(), greedy) for _ in range(4)]
    for i, stop in enumerate((["e"], [" a", "th"], [], ["o", "i"])):
        drawn = SamplingParams(max_tokens=24, temperature=1.1, top_p=0.95, seed=i, stop=stop, logprobs=2)
        tasks.append(Generate("Two boats lay at the quay while the rain fell on the roofs " * (i + 1), drawn))
    penalised = Generate("one more", SamplingParams(max_tokens=9, seed=3, presence_penalty=0.7, min_tokens=4))
    seen, told = {}, {}
    for overlap in (True, False):
        config = EngineConfig(deterministic=True, overlap=overlap, max_length=256, max_step_tokens=512)
        with Engine.from_pretrained(None, config=config) as engine:
            results = [*engine.run_many(tasks), engine.run(penalised)]
            seen[overlap] = [getattr(r, "token_logprobs", getattr(r, "token_ids", None)) for r in results]
            told[overlap] = [repr((r.text, r.logprobs, r.stats.finish_reason)) for r in results[40:]]
            assert (engine.stats()["discarded_rows"] > 0) == overlap
    assert told[True] == told[False] and sum("'stop'" in one for one in told[True]) > 1
    for one, other in zip(seen[True], seen[False]):
        assert np.array_equal(one, other)
