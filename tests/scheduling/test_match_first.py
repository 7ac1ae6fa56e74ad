"""A prompt is matched with the prefix cache before anything is taken for it, and charged with the rest."""

from __future__ import annotations

import numpy as np
import pytest

from prelude import EngineConfig, ExpertConfig
from prelude.runtime.assembly import make_core
from prelude.runtime.core import EngineCore
from tests import toy
from tests.scheduling.cores import Collect, chat, expected_logprob, last_logprob, post, prompt
from tests.scheduling.test_pace import Timed
from tests.service import is_empty, run_steps, service_core

SHARED = prompt(24, 1)


def behind(shared: np.ndarray, own: int, seed: int) -> np.ndarray:
    return np.concatenate([shared, prompt(own, seed)])


@pytest.mark.feature("A24")
@pytest.mark.feature("B2")
def test_a_text_is_charged_for_the_tokens_that_the_cache_does_not_have() -> None:
    """A prompt of 27 tokens, of which 24 are cached: a step of eight tokens has room for the rest of it."""
    core = service_core(toy.ToyExecutor(num_blocks=64), step_tokens=8, running=1, chunk=64)
    sink = Collect()
    post(core, chat(SHARED, 2, cache="always"), sink)
    run_steps(core)
    request = post(core, chat(behind(SHARED, 3, 5), 4), sink)
    core.step()
    assert core.executor.batches[-1].num_tokens == 3 and request.cached_len == 27
    run_steps(core)
    assert list(sink.ends[request.id][0].token_ids) == toy.generate(behind(SHARED, 3, 5).tolist(), 4)


@pytest.mark.feature("A24")
@pytest.mark.feature("B2")
@pytest.mark.parametrize("text", [False, True], ids=["decision", "chat"])
def test_the_blocks_of_a_prompt_never_evict_the_prefix_that_it_matches(text: bool) -> None:
    """The pool is full, and the coldest blocks in it are the prompt's own prefix. Blocks of other prompts
    are evicted."""
    core = service_core(toy.ToyExecutor(num_blocks=16), step_tokens=256, running=4)
    sink = Collect()
    post(core, last_logprob(behind(SHARED, 1, 5), cache="always"), sink)
    run_steps(core)
    post(core, last_logprob(prompt(41, 6), cache="always"), sink)
    run_steps(core)
    assert core.pool.num_cached == 16 and not core.stats.evictions
    tokens = behind(SHARED, 13, 7)
    request = post(core, chat(tokens, 4) if text else last_logprob(tokens, cache="always"), sink)
    run_steps(core)
    outcome, error = sink.ends[request.id]
    assert error is None and outcome.stats.cached_tokens == 24
    assert core.snapshot()["evictions"] >= 3 and core.pool.would_hit(SHARED) == 6
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
    sink = Collect()
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
    expert = ExpertConfig(fold=False, **{"defer_steps": 8, "defer_tokens": 16, **limits})
    core = make_core(EngineCore, toy.ToyExecutor(num_blocks=100), EngineConfig(max_step_tokens=256, expert=expert))
    sink = Collect()
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
    spent, computed = {}, {}
    for most in (0, 8):
        executor = Timed(num_blocks=200)
        core = service_core(executor, step_tokens=2000, chunk=2000, running=16, fold=False, defer_steps=most)
        sink = Collect()
        for i, (family, own, decision) in enumerate(items):
            tokens = behind(families[family], own, i)
            post(core, last_logprob(tokens) if decision else chat(tokens, 3), sink)
        run_steps(core)
        assert len(sink.ends) == len(items) and is_empty(core)
        spent[most], computed[most] = executor.now, core.stats.prefill_tokens
    assert spent[8] < spent[0] and computed[8] <= computed[0] - 56
