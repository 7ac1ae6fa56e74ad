"""The contract of each class: budgets, rows, blocks, pace, turns, and that the load always moves on.

Time is the executor's own report, so these hold in every run and on every machine.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from prelude.readouts.batch import MixedBatch
from prelude.scheduling.request import State
from tests import toy
from tests.patience import shown, until
from tests.scheduling.cores import Collect, chat, check, expected_logprob, generated, last_logprob, post, prompt, text
from tests.service import is_empty, run_steps, service_core


# ------------------------------------------------------------------ each limit alone
@pytest.mark.feature("A13")
@pytest.mark.feature("F3")
@pytest.mark.feature("F11")
@pytest.mark.parametrize(
    "limits,length,count,most",
    [
        ({"num_blocks": 256, "running": 3}, 6, 9, 3),
        ({"num_blocks": 10}, 7, 2, 5),  # two blocks each, from admission to the end
        ({"num_blocks": 256, "step_tokens": 5}, 1, 40, 5),
        ({"num_blocks": 256, "step_requests": 4}, 3, 20, 4),
    ],
    ids=["running", "blocks", "tokens", "requests of a step"],
)
def test_each_limit_alone_can_stop_admission(limits: dict[str, int], length: int, count: int, most: int) -> None:
    sizes = {"running": 64, **limits}
    core = service_core(toy.ToyExecutor(num_blocks=sizes.pop("num_blocks")), chunk=64, cache=False, **sizes)
    sink = Collect()
    requests = [post(core, chat(prompt(length, i), count), sink) for i in range(12)]
    peak = 0
    while core.step():
        core.audit()
        peak = max(peak, len(core.queues.running))
    assert max(_rows(batch) for batch in core.executor.batches) == most
    assert peak == most or "step_requests" in limits
    assert core.stats.preemptions == 0
    check(sink, requests)


def _rows(batch: Any) -> int:
    if isinstance(batch, MixedBatch):
        return batch.decode_tokens + batch.slices.num_segments
    return batch.num_tokens


# ------------------------------------------------------------------ continuous batching
@pytest.mark.feature("F2")
@pytest.mark.feature("F16")
@pytest.mark.feature("F17")
def test_a_place_is_taken_again_in_the_step_after_it_is_left() -> None:
    core = service_core(toy.ToyExecutor(num_blocks=512), running=4, chunk=64, step_tokens=512)
    sink = Collect()
    lengths = [100, 10, 12, 10, 9, 8, 7, 6, 5, 4]
    for i, count in enumerate(lengths):
        post(core, chat(prompt(4, i), count), sink)
    while core.queues.decode or core.inbox.items:
        core.step()
        core.audit()
        waiting, running = core.queues.num_waiting, len(core.queues.running)
        assert (waiting, running) == (len(core.queues.decode), core.snapshot()["running_requests"])
        assert waiting + running + len(sink.ends) == len(lengths), "each request waits, runs or has ended"
        assert len(core.queues.running) + len(core.queues.decode) >= 4 or len(sink.ends) >= len(lengths) - 4
    used = len(core.executor.batches)
    rows = [_rows(batch) for batch in core.executor.batches]
    assert min(rows[1 : used - 1]) >= 3, "a newcomer joins in the step after the one that finished"
    run_steps(core)
    assert len(core.executor.batches) <= 101, "static batches of four would take 127"


@pytest.mark.feature("F15")
@pytest.mark.feature("F17")
def test_neither_phase_starves_the_other_under_saturation() -> None:
    core = service_core(toy.ToyExecutor(num_blocks=512), running=8, chunk=8, step_tokens=64)
    sink = Collect()
    for i in range(40):
        post(core, chat(prompt(30, i), 12), sink)
    tokens, prompts = [], []
    for _ in range(60):
        core.step()
        batch = core.executor.batches[-1]
        if isinstance(batch, MixedBatch):
            tokens.append(batch.decode_tokens)
            prompts.append(batch.prefill_tokens)
    assert sum(t > 0 for t in tokens) > 40 and sum(p > 0 for p in prompts) > 40
    run_steps(core)
    assert len(sink.ends) == 40


@pytest.mark.feature("F19")
@pytest.mark.feature("Q14")
@pytest.mark.parametrize("kind", ["decision", "chat"])
def test_no_request_is_held_back_to_make_a_larger_batch(kind: str) -> None:
    """There is no batching delay: a request that comes to an idle engine is in a step as soon as the engine's thread
    has woken up."""
    prepared = last_logprob(prompt(5, 1)) if kind == "decision" else chat(prompt(5, 1), 2)
    core = service_core()
    submitted: list[float] = []
    submit = core.executor.submit

    def submitting(batch: Any) -> Any:
        submitted.append(time.perf_counter())
        return submit(batch)

    core.executor.submit = submitting  # type: ignore[method-assign]

    def starts_soon() -> bool:
        submitted.clear()
        sink = Collect()
        request = core.request(prepared, sink)
        began = time.perf_counter()
        core.submit(request)
        until(lambda: request.id in sink.ends)
        return submitted[0] - began < 0.02

    assert shown(starts_soon)
    core.close()


@pytest.mark.feature("F17")
@pytest.mark.feature("F18")
def test_decode_rows_are_never_pushed_out_by_decisions() -> None:
    core = service_core(toy.ToyExecutor(num_blocks=12), running=4, step_tokens=40, oneshot_share=1.0)
    sink, shots = Collect(), Collect()
    chats = [post(core, chat(prompt(6, i), 5), sink) for i in range(4)]
    core.step()
    for i in range(200):
        post(core, last_logprob(prompt(30, 100 + i), cache="always"), shots)
    while any(r.state is not State.FINISHED for r in chats):
        rows = [r for r in core.queues.running if r.state is State.DECODE]
        core.step()
        core.audit()
        batch = core.executor.batches[-1]
        assert not rows or (batch.decode_tokens if isinstance(batch, MixedBatch) else batch.num_tokens) == len(rows)
    assert core.stats.preemptions == 0
    assert [text(sink, r) for r in chats] == [generated(i, 5) for i in range(4)]
    run_steps(core)
    assert len(shots.ends) == 200


# ------------------------------------------------------------------ progress
@pytest.mark.fault(53)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_rows_that_outgrow_the_pool_together_all_end(seed: int) -> None:
    """Progress: between two preemptions of the same request a request ahead of it gets a token."""
    rng = np.random.default_rng(seed)
    core = service_core(toy.ToyExecutor(num_blocks=9), running=6, chunk=16, step_tokens=40)
    sink = Collect()
    counts = {}
    for i in range(16):
        count = int(rng.integers(10, 29))
        request = post(core, chat(prompt(6, i), count), sink, priority=int(rng.integers(0, 3)))
        counts[request.id] = (i, count, request)
    steps = run_steps(core, 4000)
    assert core.stats.preemptions > 0 and steps < 16 * 40 * 4
    assert steps <= core.stats.decode_tokens + core.stats.prefill_tokens, "every step but preempting ones computes"
    for i, count, request in counts.values():
        assert text(sink, request) == generated(i, count)
    assert is_empty(core)


@pytest.mark.fault(53)
def test_a_pool_whose_every_block_is_read_waits_and_goes_on() -> None:
    core = service_core(toy.ToyExecutor(num_blocks=6), running=4, chunk=64)
    sink = Collect()
    run_one = post(core, chat(prompt(16, 1), 8), sink)
    core.step()
    others = [post(core, chat(np.concatenate([prompt(16, 1), prompt(3, 5 + i)]), 4), sink) for i in range(3)]
    run_steps(core)
    assert text(sink, run_one) == toy.generate(prompt(16, 1).tolist(), 8)
    assert all(sink.ends[r.id][1] is None for r in others) and is_empty(core)


@pytest.mark.fault(55)
@pytest.mark.parametrize(
    "blocks,size,running,step_tokens", [(1, 16, 1, 8), (1, 16, 1, 64), (16, 1, 1, 8), (16, 1, 3, 9)]
)
def test_the_smallest_engines_are_still_right(blocks: int, size: int, running: int, step_tokens: int) -> None:
    executor = toy.ToyExecutor(num_blocks=blocks, block_size=size)
    core = service_core(executor, running=running, step_tokens=step_tokens, step_requests=running, chunk=1)
    sink = Collect()
    chats = [post(core, chat(prompt(6, i), 9), sink) for i in range(4)]
    shots = [post(core, last_logprob(prompt(6, i)), sink) for i in range(4)]
    run_steps(core)
    assert [text(sink, r) for r in chats] == [generated(i, 9) for i in range(4)]
    for i, shot in enumerate(shots):
        assert sink.ends[shot.id][0].output.logprobs[0] == pytest.approx(expected_logprob(prompt(6, i)))
    assert is_empty(core)


@pytest.mark.fault(55)
def test_a_budget_of_one_token_a_step() -> None:
    core = service_core(toy.ToyExecutor(num_blocks=8), running=1, step_tokens=1, step_requests=1, chunk=1)
    sink = Collect()
    chats = [post(core, chat(prompt(6, i), 5), sink) for i in range(3)]
    run_steps(core)
    assert [text(sink, r) for r in chats] == [generated(i, 5) for i in range(3)]
    assert all(batch.num_tokens == 1 for batch in core.executor.batches)
