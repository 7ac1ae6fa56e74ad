"""A prompt is matched with the prefix cache before anything is taken for it, and charged with the rest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prelude._native.core import KvPool, Lease

from prelude.readouts.batch import DecodeBatch, MixedBatch
from prelude.scheduling.postprocess import recover
from prelude.scheduling.request import Request, State
from prelude.scheduling.waiting_queue import WaitingQueue
from tests import toy
from tests.engine.test_faults import ById
from tests.engine.test_limits import post
from tests.scheduling.cores import chat, expected_logprob, last_logprob, prompt
from tests.scheduling.test_contracts import Timed
from tests.service import Pool, is_empty, run_steps, service_core

SHARED = prompt(24, 1)


def behind(shared: np.ndarray, own: int, seed: int) -> np.ndarray:
    return np.concatenate([shared, prompt(own, seed)])


@pytest.mark.feature("A24")
@pytest.mark.feature("B2")
def test_a_text_is_charged_for_the_tokens_that_the_cache_does_not_have() -> None:
    """A prompt of 27 tokens, of which 24 are cached: a step of eight tokens has room for the rest of it."""
    core = service_core(toy.ToyExecutor(num_blocks=64), step_tokens=8, running=1, chunk=64)
    sink = ById()
    post(core, chat(SHARED, 2, cache="always"), sink)
    run_steps(core)
    request = post(core, chat(behind(SHARED, 3, 5), 4), sink)
    core.step()
    assert core.executor.batches[-1].num_tokens == 3 and request.cached_len == 27
    run_steps(core)
    assert list(sink.ends[request.id][0].token_ids) == toy.generate(behind(SHARED, 3, 5).tolist(), 4)


@pytest.mark.feature("A24")
@pytest.mark.feature("B2")
def test_the_trace_of_a_plan_has_each_match_before_its_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planner's calls of the pool, in order: a match takes no block, and the take after it is the rest."""
    core = service_core(toy.ToyExecutor(num_blocks=64), step_tokens=256, running=4)
    sink = ById()
    post(core, last_logprob(behind(SHARED, 2, 5), cache="always"), sink)
    run_steps(core)
    trace: list[tuple[str, int]] = []
    attach, grow, in_order = KvPool.attach, KvPool.grow, WaitingQueue.in_order
    allocator = core.pool.allocator

    def attaching(pool: KvPool, *given: Any, **more: Any) -> Lease:
        free = allocator.num_free
        lease = attach(pool, *given, **more)
        assert allocator.num_free == free
        trace.append(("match", lease.num_shared))
        return lease

    def growing(pool: KvPool, lease: Lease, blocks: int) -> bool:
        trace.append(("allocate", blocks))
        return grow(pool, lease, blocks)

    def ordered(queue: WaitingQueue, *given: Any, **more: Any) -> Iterator[Any]:
        free = allocator.num_free
        for request in in_order(queue, *given, **more):
            yield request
            if queue is core.queues.oneshot:
                assert allocator.num_free == free
                trace.append(("match", request.held.num_shared))

    monkeypatch.setattr(Pool, "attach", attaching)
    monkeypatch.setattr(Pool, "grow", growing)
    monkeypatch.setattr(WaitingQueue, "in_order", ordered)
    post(core, chat(behind(SHARED, 10, 6), 2), sink)
    core.step()
    assert trace == [("match", 6), ("allocate", 3)], "34 tokens, 24 of them cached, in blocks of 4"
    trace.clear()
    for i in (7, 8):
        post(core, last_logprob(behind(SHARED, 9, i)), sink)
    post(core, last_logprob(prompt(245, 9)), sink)  # a step of 256 tokens has no room for it beside the others
    core.lifecycle.take_in()
    free = allocator.num_free
    plan = core.stepper.plan()
    trace.append(("allocate", free - allocator.num_free))
    assert trace == [("match", 6), ("match", 6), ("allocate", 4)], "33 tokens each: two whole blocks more"
    recover(plan, MemoryError(), core.queues, core.pool)
    run_steps(core)
    assert is_empty(core)


@pytest.mark.feature("A24")
@pytest.mark.feature("B2")
@pytest.mark.parametrize("text", [False, True], ids=["decision", "chat"])
def test_the_blocks_of_a_prompt_never_evict_the_prefix_that_it_matches(text: bool) -> None:
    """The pool is full, and the coldest blocks in it are the prompt's own prefix. Blocks of other prompts
    are evicted."""
    core = service_core(toy.ToyExecutor(num_blocks=16), step_tokens=256, running=4)
    sink = ById()
    post(core, last_logprob(behind(SHARED, 1, 5), cache="always"), sink)
    run_steps(core)
    post(core, last_logprob(prompt(41, 6), cache="always"), sink)
    run_steps(core)
    assert core.pool.allocator.num_cached == 16 and not core.stats.evictions
    tokens = behind(SHARED, 13, 7)
    request = post(core, chat(tokens, 4) if text else last_logprob(tokens, cache="always"), sink)
    run_steps(core)
    outcome, error = sink.ends[request.id]
    assert error is None and outcome.stats.cached_tokens == 24
    assert core.snapshot()["evictions"] >= 3 and core.pool.trie.would_hit(SHARED) == 6
    if text:
        assert list(outcome.token_ids) == toy.generate(tokens.tolist(), 4)
    else:
        assert outcome.output.logprobs[0] == pytest.approx(expected_logprob(tokens))


@pytest.mark.feature("B4")
@pytest.mark.parametrize("text", [False, True], ids=["decision", "chat"])
@pytest.mark.parametrize("known", [0, 3, 4, 9, 24])
def test_cached_tokens_are_the_whole_blocks_that_are_known(text: bool, known: int) -> None:
    """Of blocks of 4; at least the last token of a prompt is computed."""
    core = service_core(toy.ToyExecutor(num_blocks=64), step_tokens=256)
    sink = ById()
    post(core, last_logprob(behind(SHARED[:known], 2, 5), cache="always"), sink)
    run_steps(core)
    tokens = np.concatenate([SHARED[:known], np.array([96, 95, 94], np.int32)])
    request = post(core, chat(tokens, 4) if text else last_logprob(tokens), sink)
    run_steps(core)
    stats = sink.ends[request.id][0].stats
    assert stats.cached_tokens == known // 4 * 4
    assert stats.computed_tokens == len(tokens) - stats.cached_tokens + (3 if text else 0)


def deferred(prefix: int, **limits: int) -> tuple[int, int]:
    """Steps that a chat waits for another one which computes the same prefix, and the tokens that both compute."""
    core = service_core(
        toy.ToyExecutor(num_blocks=100),
        step_tokens=256,
        fold=False,
        **{"defer_steps": 8, "defer_tokens": 16, **limits},
    )
    sink = ById()
    shared = prompt(prefix, 4)
    leader, peer = (post(core, chat(behind(shared, 3, 10 + i), 3), sink) for i in range(2))
    run_steps(core)
    assert all(error is None for _, error in sink.ends.values()) and is_empty(core)
    assert leader.stats.deferred_ticks == 0 and core.stats.deferrals == peer.stats.deferred_ticks
    return peer.stats.deferred_ticks, core.stats.prefill_tokens


@pytest.mark.feature("B6")
@pytest.mark.feature("B7")
def test_a_chat_waits_for_its_leader_where_it_may_and_where_that_pays() -> None:
    assert deferred(prefix=96) == (1, 96 + 2 * 3)
    assert deferred(prefix=96, defer_steps=0) == (0, 2 * (96 + 3)), "it may wait for no step"
    assert deferred(prefix=12) == (0, 2 * (12 + 3)), "12 tokens are computed again rather than waited for"
    assert deferred(prefix=12, defer_tokens=8) == (1, 12 + 2 * 3)


@pytest.mark.feature("B8")
@pytest.mark.parametrize("seed", range(6))
def test_a_shared_load_is_through_no_later_for_waiting_for_leaders(seed: int) -> None:
    """The makespan, where a token takes 0.2 ms and a step 3 ms besides."""
    rng = np.random.default_rng(seed)
    families = [prompt(56, 100 + i) for i in range(2)]
    items = [(int(rng.integers(2)), int(rng.integers(1, 9)), rng.random() < 0.6) for _ in range(14)]
    spent = {}
    for most in (0, 8):
        executor = Timed(num_blocks=200)
        core = service_core(executor, step_tokens=2000, chunk=2000, running=16, fold=False, defer_steps=most)
        sink = ById()
        for i, (family, own, decision) in enumerate(items):
            tokens = behind(families[family], own, i)
            post(core, last_logprob(tokens) if decision else chat(tokens, 3), sink)
        run_steps(core)
        assert len(sink.ends) == len(items) and is_empty(core)
        spent[most] = executor.now
    assert spent[8] < spent[0]


@pytest.mark.feature("C2")
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    loads=st.lists(st.tuples(st.integers(0, 24), st.integers(1, 20), st.integers(2, 9)), min_size=1, max_size=8),
    blocks=st.integers(14, 40),
    chunk=st.integers(1, 20),
)
def test_extend_len_counts_the_tokens_that_a_step_has_to_compute(
    loads: list[tuple[int, int, int]], blocks: int, chunk: int
) -> None:
    """Of a prompt the tokens that are not cached, of a text that goes on one token, of a preempted one all known
    tokens; and the step in flight brings so many of its tokens, or a chunk of them."""
    core = service_core(toy.ToyExecutor(num_blocks=blocks), running=4, chunk=chunk, step_tokens=40)
    sink = ById()
    requests: list[Request] = [
        post(core, chat(behind(SHARED[:shared], own, i), count), sink) for i, (shared, own, count) in enumerate(loads)
    ]
    submit = core.executor.submit

    def submitting(batch: Any) -> Any:
        decode = [r for r in requests if r.state is State.DECODE and r.staged_len > r.cached_len]
        assert all(r.extend_len == 1 == r.staged_len - r.cached_len for r in decode)
        prefill = [r for r in requests if r.state is State.PREFILL and r.staged_len > r.cached_len]
        assert all(0 < r.staged_len - r.cached_len <= r.extend_len for r in prefill)
        rows = batch.num_tokens if isinstance(batch, DecodeBatch) else batch.decode_tokens
        assert rows == len(decode)
        if isinstance(batch, MixedBatch):
            assert batch.prefill_tokens == sum(r.staged_len - r.cached_len for r in prefill)
        return submit(batch)

    core.executor.submit = submitting
    for _ in range(600):
        for request in requests:
            if request.state in (State.WAITING, State.PREFILL):
                assert (
                    request.extend_len
                    == len(request.prepared.tree.token_ids) + len(request.output) - request.cached_len
                )
            elif request.state is State.DECODE:
                assert request.extend_len == 1
        if not core.step():
            break
    assert len(sink.ends) == len(loads) and is_empty(core)
