"""The slowest hundredth: gaps between a chat's tokens beside decisions, and waiting times of decisions beside long
ones.

Time is the executor's own report: 3.4 ms for a step of four rows, and 0.2 ms for each token of a prompt.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from prelude.admission.prepared import Outcome
from prelude.readouts.batch import SampleOutput
from prelude.runtime.core import EngineCore
from prelude.scheduling.request import Request, State
from tests.scheduling.cores import Collect, chat, last_logprob, post, prompt
from tests.scheduling.test_contracts import PER_TOKEN, Timed
from tests.service import service_core

ALONE = 3.4e-3
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


def beside_chats(tokens: int) -> tuple[EngineCore, Timed, Clocked, list[Any]]:
    """Four chats that are past their prompt."""
    executor = Timed(num_blocks=1024)
    core = service_core(executor, running=4, chunk=64, step_tokens=512, oneshot_share=SHARE, cache=False)
    sink = Clocked(executor)
    chats = [post(core, chat(prompt(6, i), tokens), sink) for i in range(4)]
    core.step()
    return core, executor, sink, chats


def keep_waiting(core: EngineCore, count: int, length: int, seed: int) -> None:
    """``count`` decisions of ``length`` tokens wait."""
    for i in range(count - len(core.queues.oneshot) - len(core.inbox.items)):
        post(core, last_logprob(prompt(length, seed + i)), Collect())


@pytest.mark.fault(69)
@pytest.mark.parametrize("length", [5, 40, 130, 400])
def test_the_slowest_tokens_of_a_chat_wait_for_one_group_of_decisions_at_most(length: int) -> None:
    core, _, sink, chats = beside_chats(120)
    for step in range(2000):
        if all(one.state is State.FINISHED for one in chats):
            break
        keep_waiting(core, 50, length, 1000 * step)
        core.step()
    gaps = np.concatenate([np.diff(times) for times in sink.tokens.values()])
    longest = float(np.percentile(gaps, 99))
    if length * PER_TOKEN <= 0.3 * ALONE:  # short ones are taken a few in a step, within the share
        assert longest <= 1.5 * ALONE
    assert longest <= 1.01 * (ALONE + length * PER_TOKEN), "the time of one decision, which is not cut"
    assert float(gaps.mean()) <= 1.5 * ALONE, "the steps between pay it off"


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
            keep_waiting(core, 6, length, 10_000 * step)
        core.step()
    assert len(shots.took) > 110
    bound = (ALONE + length * PER_TOKEN) / SHARE + ALONE + 10 * PER_TOKEN
    assert np.percentile(shots.took, 99) <= bound
