"""Requests that are preempted and run again: a token is told once, and the first request always moves on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from prelude.admission.prepared import Prepared, TokenTree
from prelude.readouts.batch import ForwardBatch, SampleOutput
from prelude.readouts.sampling import Sampling, SamplingState
from prelude.scheduling.policies import RoundRobin
from prelude.scheduling.queues import Policies
from prelude.scheduling.request import Request
from tests import toy
from tests.scheduling.cores import Collect, chat, post, prompt
from tests.service import Fault, FaultyExecutor, is_empty, run_steps, service_core


class Following(Collect):
    """Keeps every token it is told, as a stream does."""

    streams = True

    def __init__(self) -> None:
        super().__init__()
        self.told: dict[int, list[int]] = {}

    def token(self, request: Request, token_id: int, output: SampleOutput, row: int) -> bool:
        self.told.setdefault(request.id, []).append(token_id)
        return False


def sampled(tokens: np.ndarray, count: int, seed: int) -> Prepared:
    sampling = Sampling(1.0, 0, 1.0, 0.0, seed, frozenset())
    return Prepared(TokenTree.single(tokens), SamplingState(len(tokens) - 1, sampling), count, sampling)


class Seeded(toy.ToyExecutor):
    """Draws by (seed, step) from the toy's distribution, as the real executors do."""

    def _read(self, readout: Any, sequences: list[list[int]]) -> Any:
        output = super()._read(readout, sequences)
        if isinstance(output, SampleOutput) and readout.temperature[0] > 0:
            drawn = []
            for n, row in enumerate(readout.rows.tolist()):
                u = np.random.default_rng([int(readout.seeds[n]), int(readout.steps[n])]).random()
                shares = np.exp(toy.logprobs_of(sequences[row])).cumsum()
                drawn.append(min(int(np.searchsorted(shares, u)), toy.VOCAB - 1))
            return SampleOutput(np.array(drawn, np.int32))
        return output


@pytest.mark.feature("D9")
@pytest.mark.parametrize("drawn", [False, True], ids=["greedy", "seeded"])
def test_a_preempted_text_goes_on_where_it_was_and_says_no_token_twice(drawn: bool) -> None:
    def texts(blocks: int) -> tuple[list[list[int]], list[int], int]:
        core = service_core(Seeded(num_blocks=blocks), running=6, chunk=16)
        sink = Following()
        make = (lambda i: sampled(prompt(8, i), 20, i)) if drawn else (lambda i: chat(prompt(8, i), 20))
        requests = [post(core, make(i), sink) for i in range(6)]
        run_steps(core)
        ends = [sink.ends[r.id][0] for r in requests]
        assert [sink.told[r.id] for r in requests] == [list(end.token_ids) for end in ends]
        assert list(sink.ends) == [r.id for r in requests], "it goes on before those that came after it"
        assert [end.stats.cached_tokens for end in ends] == [0] * 6, "what it finds of itself is no hit"
        assert is_empty(core)
        return [list(end.token_ids) for end in ends], [end.stats.preemptions for end in ends], core.stats.preemptions

    roomy, never, none = texts(64)
    tight, times, counted = texts(10)
    assert tight == roomy and all(len(tokens) == 20 for tokens in tight)
    assert none == sum(never) == 0
    assert counted == sum(times) > 0, "each request counts its own"
    assert times[0] == 0, "the first one is never preempted"


@pytest.mark.fault(53)
def test_half_prompts_that_fill_the_pool_together_do_not_wait_for_each_other() -> None:
    """Two prompts of nine blocks have chunks in turn, in a pool of ten: when it is full neither has its prompt. The
    later one gives its blocks back, and starts again when there is room."""
    policies = Policies(decode=RoundRobin())
    core = service_core(
        toy.ToyExecutor(num_blocks=10), running=4, chunk=4, step_tokens=8, cache=False, policies=policies
    )
    sink = Collect()
    requests = [post(core, chat(prompt(36, i), 3), sink) for i in range(2)]
    run_steps(core, 200)
    assert [list(sink.ends[r.id][0].token_ids) for r in requests] == [
        toy.generate(prompt(36, i).tolist(), 3) for i in range(2)
    ]
    first, second = (r.stats.preemptions for r in requests)
    assert first == 0 < second < 9, "the first one always moves on, by a block at least between two preemptions"
    assert is_empty(core)


@pytest.mark.feature("F13")
@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_a_chunk_of_a_failed_step_is_computed_again(at: int) -> None:
    core = service_core(FaultyExecutor(Fault("raise", "wait", at), num_blocks=64), chunk=8, step_tokens=8)
    sink = Collect()
    request = post(core, chat(prompt(20, 1), 4), sink)
    run_steps(core)
    assert core.stats.failed_steps == 1
    assert list(sink.ends[request.id][0].token_ids) == toy.generate(prompt(20, 1).tolist(), 4)


@pytest.mark.fault(59)
def test_out_of_memory_each_row_of_a_step_runs_again_once_in_half_as_large_a_step() -> None:
    """None of them runs twice before all have."""
    executor = FaultyExecutor(Fault("memory", "wait", 3), num_blocks=128)
    core = service_core(executor, running=8, chunk=64)
    sink = Collect()
    requests = [post(core, chat(prompt(6, i), 12), sink) for i in range(8)]
    steps: list[set[int]] = []
    submit = executor.submit

    def submitting(batch: ForwardBatch) -> object:
        steps.append({r.id for r in requests if r.staged_len > r.cached_len})
        return submit(batch)

    executor.submit = submitting  # type: ignore[method-assign]
    run_steps(core)
    all_ids = {r.id for r in requests}
    assert steps[3] == all_ids and core.stats.failed_steps == 1
    assert [len(rows) for rows in steps[4:6]] == [4] * 2 and set.union(*steps[4:6]) == all_ids
    assert steps[6] == all_ids
    assert all(sink.ends[r.id][1] is None for r in requests)


@pytest.mark.feature("D9")
def test_the_lower_priority_gives_way_though_it_came_first() -> None:
    core, sink = service_core(toy.ToyExecutor(num_blocks=10), running=2, chunk=16), Collect()
    low = post(core, chat(prompt(8, 1), 20), sink)
    core.step()
    high = post(core, chat(prompt(8, 2), 20), sink, priority=1)
    run_steps(core)
    preempted = {request: sink.ends[request.id][0].stats.preemptions for request in (low, high)}
    assert preempted[low] > 0 == preempted[high]
