"""The contract of each class: budgets, rows, blocks, pace, turns, and that the load always moves on.

Time is the executor's own report, so these hold in every run and on every machine.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from prelude.readouts.batch import DecodeBatch, MixedBatch, OneShotBatch, StepResult
from prelude.scheduling.pacing import Pacer
from prelude.scheduling.request import State
from tests import toy
from tests.patience import shown, until
from tests.scheduling.cores import Collect, chat, expected_logprob, generated, last_logprob, post, prompt, text
from tests.service import is_empty, run_steps, service_core

BASE, PER_ROW, PER_TOKEN = 3e-3, 1e-4, 2e-4  # seconds


class Timed(toy.ToyExecutor):
    """Says that a step takes a base, something per row and something per prompt token."""

    now = 0.0

    def wait(self, handle: Any) -> StepResult:
        result = super().wait(handle)
        rows = prefill = 0
        match handle:
            case OneShotBatch(slices=slices):
                prefill = slices.num_tokens
            case DecodeBatch() as batch:
                rows = batch.num_tokens
            case MixedBatch() as batch:
                rows, prefill = batch.decode_tokens, batch.prefill_tokens
        seconds = BASE + PER_ROW * rows + PER_TOKEN * prefill
        self.now += seconds
        return replace(result, seconds=seconds)


def longest_running(core: Any, most: int = 500) -> int:
    peak = 0
    for _ in range(most):
        if not core.step():
            return peak
        core.audit()
        peak = max(peak, len(core.queues.running))
    return peak


# ------------------------------------------------------------------ each limit alone


@pytest.mark.feature("A13")
@pytest.mark.feature("F3")
def test_rows_alone_can_stop_admission() -> None:
    core = service_core(toy.ToyExecutor(num_blocks=256), running=3, chunk=64)
    sink = Collect()
    requests = [post(core, chat(prompt(6, i), 9), sink) for i in range(8)]
    assert longest_running(core) == 3
    assert [text(sink, r) for r in requests] == [generated(i, 9) for i in range(8)]


@pytest.mark.feature("A13")
def test_blocks_alone_can_stop_admission() -> None:
    # 7 tokens and 1 more are two blocks of 4 each, from admission to the end.
    core = service_core(toy.ToyExecutor(num_blocks=10), running=64, chunk=64, cache=False)
    sink = Collect()
    for i in range(12):
        post(core, chat(prompt(7, i), 2), sink)
    assert longest_running(core) == 5
    assert core.stats.preemptions == 0 and len(sink.ends) == 12


@pytest.mark.feature("A13")
def test_tokens_alone_can_stop_admission() -> None:
    core = service_core(toy.ToyExecutor(num_blocks=256), running=64, chunk=64, step_tokens=5)
    sink = Collect()
    for i in range(12):
        post(core, chat(prompt(1, i), 40), sink)
    assert longest_running(core, 700) == 5
    assert all(batch.num_tokens <= 5 for batch in core.executor.batches)
    assert len(sink.ends) == 12


@pytest.mark.feature("A13")
def test_rows_of_a_step_alone_can_stop_admission() -> None:
    core = service_core(toy.ToyExecutor(num_blocks=256), running=64, chunk=64, step_requests=4)
    sink = Collect()
    for i in range(9):
        post(core, chat(prompt(3, i), 20), sink)
    run_steps(core)
    assert max(_rows(batch) for batch in core.executor.batches) == 4
    assert len(sink.ends) == 9 and all(error is None for _, error in sink.ends.values())


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
def test_a_lone_request_starts_in_the_first_step() -> None:
    for prepared in (last_logprob(prompt(5, 1)), chat(prompt(5, 1), 4)):
        core = service_core()
        request = post(core, prepared, Collect())
        core.step()
        assert request.planned and request.state is not State.WAITING


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


# ------------------------------------------------------------------ chats beside decisions


def pace(share: float, *, load: int, length: int) -> tuple[float, Timed, Any]:
    """The worst chat's mean time per token, with ``load`` OneShot requests of ``length`` waiting at any time."""
    executor = Timed(num_blocks=512)
    core = service_core(executor, running=4, chunk=64, step_tokens=512, oneshot_share=share, cache=False)
    stamps: dict[int, list[float]] = {}

    class Stamps(Collect):
        streams = True

        def token(self, request, token_id, output, row) -> bool:  # type: ignore[no-untyped-def]
            stamps.setdefault(request.id, []).append(executor.now)
            return False

    chats = [post(core, chat(prompt(6, i), 60), Stamps()) for i in range(4)]
    core.step()  # before there are rows decisions are not held back
    shots = Collect()
    made = 0
    for _ in range(2000):
        while len(core.queues.oneshot) + len(core.inbox.items) < load:
            made += 1
            post(core, last_logprob(prompt(length, made)), shots)
        core.step()
        if all(chat.state is State.FINISHED for chat in chats):
            break
    worst = max((times[-1] - times[0]) / (len(times) - 1) for times in stamps.values())
    return worst, executor, shots


@pytest.mark.fault(69)
@pytest.mark.parametrize("length", [5, 40, 130, 400])
def test_a_chats_pace_beside_saturating_decisions_is_within_the_stated_factor(length: int) -> None:
    alone, _, _ = pace(0.2, load=0, length=length)
    beside, _, shots = pace(0.2, load=50, length=length)
    assert beside <= 1.5 * alone
    assert len(shots.ends) > 0, "and decisions go on, however long"
    unbounded, _, _ = pace(1.0, load=50, length=length)
    assert unbounded > 3 * alone, "the gap without the bound"


@pytest.mark.fault(69)
@pytest.mark.feature("F18")
def test_decisions_get_the_time_that_chats_leave_them() -> None:
    _, executor, shots = pace(0.2, load=50, length=40)
    spent = len(shots.ends) * 40 * PER_TOKEN
    assert 0.1 * executor.now < spent < 0.3 * executor.now


def test_without_chats_decisions_have_the_whole_step() -> None:
    pacer = Pacer(0.2)
    assert pacer.allowance(0) is None
    assert pacer.allowance(3) == 0, "the rows' own pace is measured first"
    pacer.measured(3, 0, 0, 0.01)
    pacer.measured(0, 100, 0, 0.02)
    assert pacer.allowance(3) == int(0.01 * 0.25 / 0.0002)
    pacer.measured(3, 400, 0, 0.09)
    assert pacer.allowance(3) == 0, "a debt"
    for _ in range(31):
        pacer.measured(3, 0, 0, 0.01)
    assert pacer.allowance(3), "paid off"


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


@pytest.mark.feature("F18")
def test_a_long_decision_behind_short_ones_is_not_starved_by_chats() -> None:
    core = service_core(Timed(num_blocks=512), running=4, step_tokens=512, chunk=64, oneshot_share=0.2, cache=False)
    sink, shots = Collect(), Collect()
    for i in range(4):
        post(core, chat(prompt(6, i), 200), sink)
    for i in range(5):
        post(core, last_logprob(prompt(10, i)), shots)
    long = post(core, last_logprob(prompt(500, 7)), shots)
    steps = 0
    while long.id not in shots.ends:
        core.step()
        steps += 1
        assert steps < 60
    assert not sink.ends, "while all the chats are running"
    assert shots.ends[long.id][0].output.logprobs[0] == pytest.approx(expected_logprob(prompt(500, 7)))


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
def test_prompts_that_hold_each_others_blocks_do_not_wait_for_ever() -> None:
    """A low priority has half its prompt in the pool when a higher one comes that needs more than the rest."""
    core = service_core(toy.ToyExecutor(num_blocks=10), running=4, chunk=12, step_tokens=12, cache=False)
    sink = Collect()
    low = post(core, chat(prompt(36, 1), 3), sink)
    core.step()
    core.step()
    high = post(core, chat(prompt(36, 2), 3), sink, priority=1)
    run_steps(core, 200)
    assert [list(sink.ends[r.id][0].token_ids) for r in (low, high)] == [
        toy.generate(prompt(36, seed).tolist(), 3) for seed in (1, 2)
    ]


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
