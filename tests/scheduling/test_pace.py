"""The slowest hundredth: gaps between a chat's tokens beside decisions, and waiting times of decisions beside long
ones.

Time is the executor's own report: 3.4 ms for a step of four rows, and 0.2 ms for each token of a prompt.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from prelude.admission.prepared import Outcome
from prelude.readouts.batch import DecodeBatch, MixedBatch, OneShotBatch, SampleOutput, StepResult
from prelude.runtime.core import EngineCore
from prelude.scheduling.cost import Pacer
from prelude.scheduling.request import Request, State
from tests import toy
from tests.scheduling.cores import Collect, chat, expected_logprob, last_logprob, post, prompt
from tests.service import service_core

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


ALONE = BASE + 4 * PER_ROW
SHARE = 0.2


class Clocked(Collect):
    """When each token and each end came, on the executor's clock."""

    streams = True

    def __init__(self, executor: Timed) -> None:
        super().__init__()
        self.executor = executor
        self.tokens: dict[int, list[float]] = {}
        self.came: dict[int, float] = {}
        self.took: list[float] = []

    def token(self, request: Request, token_id: int, output: SampleOutput, row: int) -> bool:
        self.tokens.setdefault(request.id, []).append(self.executor.now)
        return False

    def deliver(self, request: Request, outcome: Outcome | None, error: BaseException | None) -> None:
        super().deliver(request, outcome, error)
        if request.id in self.came:
            self.took.append(self.executor.now - self.came[request.id])


def beside_chats(tokens: int, share: float = SHARE) -> tuple[EngineCore, Timed, Clocked, list[Any]]:
    """Four chats that are past their prompt."""
    executor = Timed(num_blocks=1024)
    core = service_core(executor, running=4, chunk=64, step_tokens=512, oneshot_share=share, cache=False)
    sink = Clocked(executor)
    chats = [post(core, chat(prompt(6, i), tokens), sink) for i in range(4)]
    core.step()
    return core, executor, sink, chats


def keep_waiting(core: EngineCore, count: int, length: int, seed: int, sink: Collect) -> None:
    """``count`` decisions of ``length`` tokens wait."""
    for i in range(count - len(core.queues.oneshot) - len(core.inbox.items)):
        post(core, last_logprob(prompt(length, seed + i)), sink)


@pytest.mark.fault(69)
@pytest.mark.feature("F18")
@pytest.mark.parametrize("length", [5, 40, 130, 400])
def test_the_slowest_tokens_of_a_chat_wait_for_one_group_of_decisions_at_most(length: int) -> None:
    def gaps(share: float) -> tuple[np.ndarray, float]:
        core, executor, sink, chats = beside_chats(120, share)
        shots = Collect()
        for step in range(2000):
            if all(one.state is State.FINISHED for one in chats):
                break
            keep_waiting(core, 50, length, 1000 * step, shots)
            core.step()
        spent = len(shots.ends) * length * PER_TOKEN
        return np.concatenate([np.diff(times) for times in sink.tokens.values()]), spent / executor.now

    bounded, spent = gaps(SHARE)
    longest = float(np.percentile(bounded, 99))
    if length * PER_TOKEN <= 0.3 * ALONE:  # short ones are taken a few in a step, within the share
        assert longest <= 1.5 * ALONE
    assert longest <= 1.01 * (ALONE + length * PER_TOKEN), "the time of one decision, which is not cut"
    assert float(bounded.mean()) <= 1.5 * ALONE, "the steps between pay it off"
    assert 0.5 * SHARE < spent < 1.5 * SHARE, "decisions get the time that chats leave them"
    assert float(gaps(1.0)[0].mean()) > 3 * ALONE, "the gap without the bound"


@pytest.mark.fault(69)
@pytest.mark.parametrize("length", [0, 100, 400])
def test_the_slowest_short_decisions_wait_until_one_long_one_is_paid_off(length: int) -> None:
    core, executor, _, _ = beside_chats(400)
    shots = Clocked(executor)
    for step in range(380):
        if step % 3 == 0:
            request = post(core, last_logprob(prompt(10, step)), shots)
            shots.came[request.id] = executor.now
        if length:
            keep_waiting(core, 6, length, 10_000 * step, Collect())
        core.step()
    assert len(shots.took) > 110
    bound = (ALONE + length * PER_TOKEN) / SHARE + ALONE + 10 * PER_TOKEN
    assert np.percentile(shots.took, 99) <= bound


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
    pacer.measured(3, 4000, 0, 0.9)
    pacer.measured(0, 100, 0, 0.02)  # no row ran beside it, so none waits for what is left of the debt
    assert pacer.allowance(3) == 0
    pacer.measured(3, 0, 0, 0.01)
    assert pacer.allowance(3)


def test_an_allowance_follows_the_pace_of_rows_and_of_tokens() -> None:
    pacer = Pacer(0.2)
    assert pacer.allowance(1) == 0
    pacer.measured(1, 0, 0, 0.01)
    assert pacer.allowance(1) is None, "the time of a token is not known yet"
    pacer.measured(0, 1, 0, 0.01)
    assert pacer.allowance(1) == 1, "a quarter of a token lets one request go"
    for pace, tokens in (
        (0.005, 4750),
        (0.02, 5062),
    ):  # a faster step moves the pace by a fifth, a slower by a fortieth
        pacer = Pacer(0.2)
        pacer.measured(3, 0, 0, 0.01)
        pacer.measured(0, 1000, 0, 0.001)
        pacer.measured(2, 0, 0, pace)
        assert pacer.allowance(3) == pytest.approx(tokens, abs=1)
        assert pacer.allowance(4) == 0, "the pace of twice as many rows is another one"


def test_one_slow_step_and_steps_without_a_step_of_rows_alone() -> None:
    pacer = Pacer(0.2)
    pacer.measured(3, 0, 0, 0.01)
    pacer.measured(0, 100, 0, 0.02)
    pacer.measured(3, 0, 0, 10.0)
    assert pacer.allowance(3) == 25, "the machine was busy: the pace is hardly another one"
    for _ in range(40):
        pacer.measured(3, 0, 10, 0.012)
    assert pacer.allowance(3), "prompts of running rows are no OneShot work"
    for left in range(31, -1, -1):
        pacer.measured(3, 1, 0, 0.0102)
        assert bool(pacer.allowance(3)) == bool(left), "after 32 steps the rows' own pace is measured again"
    pacer.measured(3, 0, 0, 0.01)
    assert pacer.allowance(3)


def test_a_step_earns_a_quarter_of_the_rows_own_pace_and_eight_are_saved() -> None:
    alone = (3, 0, 0, 0.01)  # it earns 2.5 ms: 12.5 tokens of 0.2 ms
    for steps, tokens in (
        ([alone], 12.5), ([alone] * 7, 87.5), ([alone] * 9, 100), ([alone] * 40, 100),
        ([alone, (3, 10, 0, 0.012)], 25 - 10), ([alone, (3, 5, 5, 0.012)], 25 - 5),
        ([(0, 100, 0, 10.0), alone], 12.5 / 1.4),  # a fifth of the way to three times the time of a token
    ):  # fmt: skip
        pacer = Pacer(0.2)
        for step in ((0, 100, 0, 0.02), *steps):
            pacer.measured(*step)
        assert pacer.allowance(3) == pytest.approx(tokens, abs=1)
    pacer = Pacer(1.0)
    pacer.measured(*alone)
    assert pacer.allowance(3) is None, "rows that may lose all of their pace"


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
