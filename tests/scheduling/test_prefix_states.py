"""Prefixes of a recurrent model that are cached with their state: the numbers are those of the whole sequence, and
only tokens behind the last kept state are computed again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from prelude.runtime.core import EngineCore
from tests import recurrent
from tests.pools import evict
from tests.recurrent import RecurrentToy
from tests.scheduling.cores import Collect, chat, last_logprob, prompt, run, submit, tree_request
from tests.scheduling.test_recurrent import OVERLAP, stepped
from tests.service import service_core

BLOCK = RecurrentToy().limits().block_size


def core_of(prefixes: int = 8, **options: Any) -> EngineCore:
    return service_core(RecurrentToy(entries=4, prefixes=prefixes, num_blocks=256), step_tokens=200, **options)


def ask(core: EngineCore, tokens: np.ndarray) -> int:
    """Asks for a token's logprob; how many tokens were computed for it."""
    [outcome] = run(core, [last_logprob(tokens)])
    assert outcome.output.logprobs[0] == recurrent.logprob_after(tokens, 5)
    core.audit()
    return outcome.stats.computed_tokens


@pytest.mark.feature("A8")
def test_a_prompt_that_is_asked_again_goes_on_from_its_last_full_block() -> None:
    core = core_of()
    for length in (4 * BLOCK + 3, 4 * BLOCK, 4 * BLOCK + 1, BLOCK - 1):
        tokens = prompt(length, length)
        assert ask(core, tokens) == length
        assert core.pool.would_hit(tokens) == (length - 1) // BLOCK
        assert ask(core, tokens) == length - (length - 1) // BLOCK * BLOCK
    longer = np.concatenate([prompt(4 * BLOCK + 1, 4 * BLOCK + 1), prompt(9, 5)])
    assert ask(core, longer) == 10


@pytest.mark.feature("A8")
def test_a_branch_gets_a_state_when_it_is_seen_the_second_time() -> None:
    """The first prompt with the rubric leaves a state at its own end alone; the second finds its blocks, and none to
    go on from; the third goes on from the rubric."""
    core, rubric = core_of(), prompt(5 * BLOCK, 1)
    texts = [np.concatenate([rubric, prompt(BLOCK + 2, 10 + i)]) for i in range(4)]
    whole = len(texts[0])
    assert [ask(core, text) for text in texts] == [whole, whole, BLOCK + 2, BLOCK + 2]
    assert core.pool.prefix_states == 5


@pytest.mark.feature("A8")
def test_one_state_and_many_questions() -> None:
    core, state = core_of(), prompt(3 * BLOCK + 2, 1)
    branches = [prompt(n, 50 + n) for n in (1, 4)]
    for computed in (3 * BLOCK + 7, 7):
        [outcome] = run(core, [tree_request(state, branches)])
        expected = [recurrent.logprob_after([*state, *branch], 5) for branch in branches]
        assert outcome.output.logprobs.tolist() == expected
        assert outcome.stats.computed_tokens == computed
        core.audit()


@pytest.mark.feature("A8")
def test_rows_that_share_a_cold_prefix_leave_its_state_once() -> None:
    core, rubric = core_of(), prompt(2 * BLOCK + 1, 1)
    texts = [np.concatenate([rubric, prompt(3, 10 + i)]) for i in range(5)]
    for outcome, tokens in zip(run(core, [last_logprob(text) for text in texts]), texts):
        assert outcome.output.logprobs[0] == recurrent.logprob_after(tokens, 5)
    assert core.stats.folded_tokens > 0 and core.pool.prefix_states == 1
    assert ask(core, texts[0]) == 4


@pytest.mark.feature("A8")
@OVERLAP
@pytest.mark.parametrize("chunk", [3, BLOCK, 2 * BLOCK + 1])
def test_a_chat_goes_on_from_the_turn_before(overlap: bool, chunk: int) -> None:
    core = core_of(chunk=chunk, overlap=overlap)
    tokens, sink = prompt(6 * BLOCK + 1, 3), Collect()
    [beside] = submit(core, [chat(prompt(2, 9), 60)], sink)  # so that prompts come in chunks
    for cached in (0, 6 * BLOCK, 7 * BLOCK):
        [request] = submit(core, [chat(tokens, 5)], sink)
        while request.id not in sink.ends:
            core.step()
            core.audit()
        outcome, _ = sink.ends[request.id]
        assert list(outcome.token_ids) == recurrent.generate(tokens, 5)
        assert request.stats.cached_tokens == cached
        tokens = np.concatenate([tokens, np.array(outcome.token_ids, np.int32)])
    stepped(core)
    assert list(sink.ends[beside.id][0].token_ids) == recurrent.generate(prompt(2, 9), 60)


@pytest.mark.feature("A8")
def test_a_state_goes_with_its_block_and_gives_way_to_others() -> None:
    core = core_of(prefixes=2)
    one, two, three = (prompt(2 * BLOCK + 1, i) for i in range(3))
    whole = 2 * BLOCK + 1
    assert [ask(core, tokens) for tokens in (one, one, two, three)] == [whole, 1, whole, whole]
    assert core.pool.prefix_states == 2 and core.pool.prefix_counts()["states_evicted"] == 1
    assert ask(core, one) == 1, "the state that was gone on from stays, of the others the older one went"
    assert core.pool.would_hit(two) == 0 and core.pool.would_hit(three) == 2
    evict(core.pool, core.pool.num_cached)
    assert core.pool.prefix_states == 0 and core.pool.would_hit(one) == 0
    core.audit()
    assert ask(core, one) == whole


@pytest.mark.feature("A8")
def test_nothing_is_kept_of_a_request_that_says_so() -> None:
    core = core_of()
    run(core, [chat(prompt(40, 1), 3, cache="never")])
    assert core.pool.prefix_states == 0
    run(core, [chat(prompt(40, 1), 3)])
    assert core.pool.prefix_states == 1
