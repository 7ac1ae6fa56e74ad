"""The contract of each execution class and of each policy, under any other load."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from prelude.readouts.batch import DecodeBatch, MixedBatch, OneShotBatch
from prelude.scheduling.policies import POLICIES, FairTenants, Priority, policy_named
from prelude.scheduling.queues import Policies
from prelude.scheduling.request import State
from tests import toy
from tests.scheduling.cores import Collect, chat, expected_logprob, generated, last_logprob, post, prompt, text
from tests.service import is_empty, run_steps, service_core


@pytest.mark.feature("A6")
def test_a_prompt_that_would_need_a_running_rows_blocks_waits_holding_nothing() -> None:
    """Three rows fill the pool to their end; a prompt that needs two blocks more comes in when a row has left."""
    core = service_core(toy.ToyExecutor(num_blocks=12), running=8, chunk=64, cache=False)
    sink = Collect()
    rows = [post(core, chat(prompt(6, i), 10 + i), sink) for i in range(3)]
    while any(r.state is not State.DECODE for r in rows) or core.pool.allocator.num_free:
        core.step()
    late = post(core, chat(prompt(8, 9), 4), sink)
    shot = post(core, last_logprob(prompt(9, 4)), sink)
    mixed = 0
    while not any(r.state is State.FINISHED for r in rows):
        core.step()
        core.audit()
        assert late.state is State.WAITING and late.lease is None and not late.stats.chunks
        mixed += isinstance(core.executor.batches[-1], MixedBatch)
    assert shot.id in sink.ends and mixed == 1, "a OneShot request needs no blocks, and shares a step with the rows"
    run_steps(core)
    assert core.stats.preemptions == 0
    assert [text(sink, r) for r in rows] == [generated(i, 10 + i) for i in range(3)]
    assert list(sink.ends[late.id][0].token_ids) == toy.generate(prompt(8, 9).tolist(), 4)


@pytest.mark.feature("A6")
@pytest.mark.feature("F15")
@pytest.mark.feature("F17")
@pytest.mark.feature("F18")
def test_an_older_prompt_starts_before_decisions_that_keep_coming() -> None:
    """Decisions fill a step by themselves, and new ones come all the time. A chat that came first goes first."""
    core = service_core(toy.ToyExecutor(num_blocks=128), step_tokens=40, running=4, chunk=64, cache=False)
    sink, shots = Collect(), Collect()
    request = post(core, chat(prompt(36, 1), 3), sink)
    made = 0
    for _ in range(3):
        for _ in range(8):
            made += 1
            post(core, last_logprob(prompt(30, 100 + made)), shots)
        core.step()
    assert request.state is State.FINISHED, "one step for the prompt, and one for each token after the first"
    run_steps(core)
    assert list(sink.ends[request.id][0].token_ids) == toy.generate(prompt(36, 1).tolist(), 3)
    assert len(shots.ends) == made


@pytest.mark.feature("A16")
@pytest.mark.feature("A15")
def test_a_thousand_oneshot_requests_make_no_state_of_texts() -> None:
    core = service_core(step_tokens=512)
    sink = Collect()
    for i in range(20):  # each alone, on an idle engine
        post(core, last_logprob(prompt(20, i)), sink)
        run_steps(core)
    core.lifecycle.post([core.request(last_logprob(prompt(20, 20 + i)), sink) for i in range(490)])
    run_steps(core)
    post(core, chat(prompt(6, 1), 30), sink)  # beside a text that runs
    core.step()
    for i in range(490):
        post(core, last_logprob(prompt(20, 600 + i)), sink)
    run_steps(core)
    stats = core.snapshot()
    assert stats["requests"] == {"oneshot": 1000, "decode": 1}
    assert stats["decode_state_objects"] == 1 and stats["streaming_objects"] == 0
    assert is_empty(core)


ORDERS = [*sorted(POLICIES), "priority and tenants"]


@pytest.mark.feature("A26")
@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("seed", [0, 1])
def test_every_policy_keeps_the_contracts(name: str, seed: int) -> None:
    """Budgets, rows, accounts and answers are those of the load, not of the order in which it is served."""
    rng = np.random.default_rng(seed)
    order = (
        Priority(FairTenants(policy_named("shortest_prefill_first"))) if name == ORDERS[-1] else policy_named(name)
    )
    step_tokens = int(rng.integers(36, 70))
    core = service_core(
        toy.ToyExecutor(num_blocks=40),
        running=4,
        chunk=9,
        step_tokens=step_tokens,
        step_requests=6,
        policies=Policies(oneshot=order, decode=order),
    )
    sink = Collect()
    wanted: dict[int, Any] = {}
    for i in range(50):
        length = int(rng.integers(1, 30))
        options = {
            "priority": int(rng.integers(0, 3)),
            "tenant": str(rng.integers(0, 3)),
            "deadline": float(rng.integers(1000, 2000)),
        }
        if rng.random() < 0.5:
            request = post(core, chat(prompt(length, i), 5), sink, **options)
            wanted[request.id] = toy.generate(prompt(length, i).tolist(), 5)
        else:
            request = post(core, last_logprob(prompt(length, i)), sink, **options)
            wanted[request.id] = pytest.approx(expected_logprob(prompt(length, i)))
        if rng.random() < 0.3:
            core.step()
            core.audit()
            assert len(core.queues.running) <= 4
    run_steps(core)
    for batch in core.executor.batches:
        assert batch.num_tokens <= step_tokens and len(_rows(batch)) <= 6
    for request_id, value in wanted.items():
        outcome, error = sink.ends[request_id]
        assert error is None
        assert (list(outcome.token_ids) if isinstance(value, list) else outcome.output.logprobs[0]) == value
    assert is_empty(core)


def _rows(batch: Any) -> list[int]:
    """One entry a request of the step."""
    if isinstance(batch, OneShotBatch):
        return batch.readout.rows.tolist()
    if isinstance(batch, DecodeBatch):
        return batch.rows.token_ids.tolist()
    return [*batch.decode.token_ids.tolist(), *range(batch.slices.num_segments)]


@pytest.mark.feature("A26")
@pytest.mark.feature("F22")
@pytest.mark.parametrize(
    ("policy", "order"),
    [
        (policy_named("first_come_first_served"), "abcd"),
        (policy_named("shortest_prefill_first"), "dcba"),
        (policy_named("earliest_deadline"), "cbda"),
        (Priority(policy_named("first_come_first_served")), "bacd"),
        (FairTenants(policy_named("first_come_first_served")), "acdb"),
    ],
    ids=["arrival", "shortest", "deadline", "priority", "tenants"],
)
def test_each_policy_serves_in_its_own_order(policy: Any, order: str) -> None:
    """One at a time. ``a`` comes first and is the longest; ``a`` and ``b`` are of one tenant."""
    core = service_core(step_requests=1, policies=Policies(oneshot=policy))
    served: list[str] = []

    class Ends(Collect):
        def deliver(self, request: Any, outcome: Any, error: Any) -> None:
            super().deliver(request, outcome, error)
            served.append(request.options.request_id)

    sink = Ends()
    for name, length, priority, deadline, tenant in (
        ("a", 40, 1, None, "x"),
        ("b", 30, 2, 2000.0, "x"),
        ("c", 20, 0, 1000.0, "y"),
        ("d", 10, 0, 3000.0, "z"),
    ):
        options = {"request_id": name, "priority": priority, "tenant": tenant, "deadline": deadline}
        if not isinstance(policy, Priority):
            options["priority"] = 0
        if not isinstance(policy, FairTenants):
            options["tenant"] = None
        post(core, last_logprob(prompt(length, length)), sink, **options)
    run_steps(core)
    assert "".join(served) == order


@pytest.mark.feature("A15")
def test_oneshot_load_does_not_lower_decode_capacity() -> None:
    def capacity(shots: int) -> int:
        core = service_core(toy.ToyExecutor(num_blocks=24), running=64, step_tokens=512, chunk=64)
        sink = Collect()
        core.lifecycle.post([core.request(chat(prompt(8, i), 8), sink) for i in range(12)])
        most = 0
        for step in range(200):
            if shots:
                core.lifecycle.post(
                    [core.request(last_logprob(prompt(20, 1000 * step + i)), sink) for i in range(shots)]
                )
            if not core.step():
                break
            most = max(most, len(core.queues.running))
            core.audit()
            if all(r.state is State.FINISHED for r in core.queues.running) and not core.queues.decode:
                break
        return most

    assert capacity(0) == capacity(6)
