"""The cost of a request is reported: tokenising, waiting, the forward, and the host's share."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from prelude import Engine, Generate, SamplingParams
from prelude.admission.prepared import Outcome
from prelude.readouts.batch import DecodeBatch, StepResult
from prelude.scheduling.request import Request
from tests import toy
from tests.scheduling.cores import Collect, chat, last_logprob, post, prompt
from tests.service import run_steps, service_core


@pytest.mark.feature("A25")
@pytest.mark.parametrize("together", [1, 30], ids=["at_once", "queued"])
def test_host_time_is_a_steps_time_without_the_executors(together: int) -> None:
    """The host is made to take 5 ms a request, the executor 40 ms a step: each is counted where it belongs."""
    slept = 0.005

    class Slow(Collect):
        def deliver(self, request: Request, outcome: Outcome | None, error: BaseException | None) -> None:
            time.sleep(slept)
            super().deliver(request, outcome, error)

    class Sleeping(toy.ToyExecutor):
        def wait(self, handle: Any) -> StepResult:
            return replace(super().wait(handle), seconds=self.delay)

    core = service_core(Sleeping(delay=0.04), step_requests=8)
    sink = Slow()
    if together > 1:
        post(core, chat(prompt(4, 1), 2), sink)  # not a step of OneShot requests alone
    core.lifecycle.post([core.request(last_logprob(prompt(4, i)), sink) for i in range(together)])
    began = time.perf_counter()
    run_steps(core)
    wall = time.perf_counter() - began
    host = core.stats.host_seconds
    assert host >= slept * len(sink.ends)
    assert host <= wall - 0.04 * sum(core.stats.steps.values())


@pytest.mark.feature("M4")
def test_the_time_to_the_first_token_is_the_prompts_and_then_a_step_a_token() -> None:
    """A prompt's step takes 60 ms, a step that decodes 20: the first token comes after the former, every other token
    after one of the latter."""

    class Phases(toy.ToyExecutor):
        def wait(self, handle: Any) -> StepResult:
            time.sleep(0.02 if isinstance(handle, DecodeBatch) else 0.06)
            return super().wait(handle)

    core = service_core(Phases())
    sink = Collect()
    request = post(core, chat(prompt(6, 1), 5), sink)
    run_steps(core)
    stats = sink.ends[request.id][0].stats
    assert 60 <= stats.ttft_ms <= stats.total_ms - 4 * 20


@pytest.mark.feature("D10")
def test_every_result_carries_its_requests_counters(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine()
    prompt = "two boats lay at the quay that morning and nobody wanted to sail"
    done = engine.complete(prompt, SamplingParams(max_tokens=4, temperature=0, ignore_eos=True))
    n = len(engine.explain(Generate(prompt)).token_ids)
    stats = done.stats
    assert (stats.prompt_tokens, stats.cached_tokens, stats.computed_tokens) == (n, 0, n + 3)
    assert (stats.chunks, stats.preemptions, stats.deferred_ticks) == (1, 0, 0)
    assert stats.finish_reason == "length" and stats.forward_ms > 0
    assert 0 < stats.queue_ms <= stats.ttft_ms < stats.total_ms
    cut = engine.embed(prompt * 100, pooling="last", truncation="tail")
    assert cut.stats.truncated_tokens > 0 and cut.stats.prompt_tokens == 512
    assert cut.stats.ttft_ms == cut.stats.total_ms > 0, "its vector comes at once"
    assert engine.stats()["requests"] == {"oneshot": 1, "decode": 1}
