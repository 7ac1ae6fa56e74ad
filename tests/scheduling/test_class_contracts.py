"""The contract of each execution class and of each policy, under any other load."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from prelude.admission.prepared import ExecutionClass
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
    while any(r.state is not State.DECODE for r in rows) or core.pool.num_free:
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


def chunk_of(batch: Any) -> list[int]:
    return list(batch.slices.token_ids)


@pytest.mark.feature("N5")
@pytest.mark.feature("N9")
def test_every_stage_takes_up_the_result_of_the_one_before_it() -> None:
    """Two chats over a known prefix of two blocks, one place to run in, at most 16 tokens a step."""
    executor = toy.ToyExecutor(num_blocks=32, block_size=5)
    core = service_core(executor, running=1, step_tokens=16, fold=False)
    pool = core.pool
    known = prompt(10, 1)
    sink = Collect()
    post(core, last_logprob(np.concatenate([known, prompt(1, 9)])), sink)
    run_steps(core)
    executor.batches.clear()
    first_own, second_own = prompt(19, 2), prompt(3, 3)
    first = post(core, chat(np.concatenate([known, first_own]), 4), sink)
    second = post(core, chat(np.concatenate([known, second_own]), 2), sink)

    # The queue, in the order of coming: the first takes the one place, though the second is shorter.
    core.step()
    assert first.state is State.PREFILL and second.state is State.WAITING
    # The look-up: the two known blocks are read, and computing begins behind them.
    assert executor.batches[0].slices.context_lens.tolist() == [10]
    # Blocks: those of the prompt that was not known, none for tokens that do not exist yet.
    assert pool.num_used == 2 + 4  # 29 tokens
    # Chunks: 16 of the 19 tokens, then the other 3.
    assert chunk_of(executor.batches[0]) == first_own[:16].tolist()
    core.step()
    assert chunk_of(executor.batches[1]) == first_own[16:].tolist() and first.state is State.DECODE
    # The trie has its prompt now, for others to read while its text goes on.
    assert pool.would_hit(np.concatenate([known, first_own])) == 5
    # Decode: a token a step, each batch one row, until the last.
    for _ in range(3):
        core.step()
    assert [type(batch) for batch in executor.batches[2:5]] == [DecodeBatch] * 3
    assert first.state is State.FINISHED and text(sink, first) == toy.generate([*known, *first_own], 4)
    # Its place is the second one's, which reads the same two blocks.
    assert pool.would_hit(np.concatenate([known, first_own])) == 5
    assert second.id not in sink.ends
    core.step()
    assert second.state is not State.WAITING and executor.batches[-1].slices.context_lens.tolist() == [10]
    # An end is delivered once, and nothing is kept.
    run_steps(core)
    assert text(sink, second) == toy.generate([*known, *second_own], 2)
    assert set(sink.ends) >= {first.id, second.id} and is_empty(core)


@pytest.mark.feature("Q3")
@pytest.mark.feature("N7")
@pytest.mark.parametrize("count", [2, 3, 9])
def test_the_limits_of_a_request_are_checked_for_it_alone_when_it_comes(count: int) -> None:
    """One prompt four times: as a score, as a chat of one token, as a longer chat, as a score again. The longer chat
    alone has blocks after its step and a place among those that run; the same prompt gives the others neither."""
    executor = toy.ToyExecutor(num_blocks=64, block_size=4)
    core = service_core(executor, running=4, chunk=64, cache=False, fold=False)
    sink = Collect()
    tokens = prompt(13, 5)
    score, one, many, again = (
        post(core, prepared, sink)
        for prepared in (last_logprob(tokens), chat(tokens, 1), chat(tokens, count), last_logprob(tokens))
    )
    assert [r.execution_class for r in (score, one, again)] == [ExecutionClass.ONESHOT] * 3
    assert many.execution_class is ExecutionClass.DECODE
    core.step()
    [batch] = executor.batches
    assert isinstance(batch, MixedBatch) and batch.slices.num_segments == 3
    assert set(sink.ends) == {score.id, again.id}, "one step is all they take part in"
    assert core.pool.num_used == 4, "blocks for the 13 tokens of the chat and for no others"
    core.step()
    assert one.id in sink.ends and core.pool.num_used == (4 if count > 2 else 0)
    assert list(core.queues.running) == [many] or many.id in sink.ends
    run_steps(core)
    assert all(isinstance(later, DecodeBatch) for later in executor.batches[2:])
    assert text(sink, many) == toy.generate(tokens.tolist(), count) and text(sink, one) == text(sink, many)[:1]
    assert sink.ends[score.id][0].output.logprobs[0] == pytest.approx(expected_logprob(tokens), abs=1e-12)
