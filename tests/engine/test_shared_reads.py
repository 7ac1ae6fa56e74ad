"""Requests of one step that share less than a block, or read the same place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from prelude import Embed, Engine, Generate, Loglikelihood, PromptLogprobs, SamplingParams
from tests.engine.conftest import Oracle

LETTERS = [[5], [6], [7], [8]]
LONG, SHORT = list(range(100, 140)), list(range(100, 108))


def counted(engine: Engine, tasks: list[Any]) -> tuple[list[Any], dict[str, int]]:
    """Results, and by how much they moved the counters."""
    before = engine.stats()
    results = engine.run_many(tasks)
    after = engine.stats()
    return results, {name: after[name] - before[name] for name in ("lm_head_rows", "prefill_tokens", "folded_tokens")}


@pytest.mark.parametrize("context", [LONG, list(range(100, 116)), SHORT, [9, 4], [9]], ids=len)
@pytest.mark.parametrize("deterministic", [False, True])
def test_continuations_of_one_token_cost_one_row_of_the_head(
    make_engine: Callable[..., Engine], oracle: Oracle, context: list[int], deterministic: bool
) -> None:
    engine = make_engine(deterministic=deterministic, prefix_cache=False)
    results, cost = counted(engine, [Loglikelihood(context, letter) for letter in LETTERS])
    assert cost == {"lm_head_rows": 1, "prefill_tokens": len(context), "folded_tokens": 3 * len(context)}
    table = oracle.logprobs(context)[-1]
    for letter, result in zip(LETTERS, results):
        assert abs(result.total - table[letter[0]]) < 1e-5
        assert result.is_greedy == (int(table.argmax()) == letter[0])
    assert sum(result.stats.computed_tokens for result in results) == len(context)


def test_a_short_context_of_longer_continuations_is_computed_once(
    make_engine: Callable[..., Engine], oracle: Oracle
) -> None:
    engine = make_engine(prefix_cache=False)
    continuations = [[5, 9], [6, 9, 10], [7], [5, 9, 11]]
    results, cost = counted(engine, [Loglikelihood(SHORT, ids) for ids in continuations])
    fed = sum(len(ids) - 1 for ids in continuations)
    assert cost == {"lm_head_rows": 1 + fed, "prefill_tokens": len(SHORT) + fed, "folded_tokens": 3 * len(SHORT)}
    for ids, result in zip(continuations, results):
        assert abs(result.total - oracle.joint(SHORT, ids)) < 1e-5


def test_the_deeper_of_two_common_prefixes_stays_where_it_saves_more(make_engine: Callable[..., Engine]) -> None:
    """Two texts with ten tokens in common and two with twelve, of which three are common to all: two folds. Three
    with eleven in common, one of which has the next token of a fourth as well: one fold."""
    engine = make_engine(prefix_cache=False)
    start = [9, 4, 2]
    first, second = start + list(range(10, 17)), start + list(range(30, 39))
    tasks = [Loglikelihood([*common, last], [5]) for common in (first, second) for last in (70, 71)]
    _, cost = counted(engine, tasks)
    assert cost["folded_tokens"] == len(first) + len(second)
    common = start + list(range(40, 48))
    _, cost = counted(engine, [Loglikelihood([*common, *ends], [5]) for ends in ([70], [71, 72], [71, 73], [74])])
    assert cost["folded_tokens"] == 3 * len(common)


def test_texts_that_share_a_token_alone_stay_apart(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine(prefix_cache=False)
    _, cost = counted(engine, [Loglikelihood([1, *range(10 * i, 10 * i + 9)], [5]) for i in range(2, 8)])
    assert cost["folded_tokens"] == 0


@pytest.mark.parametrize("deterministic", [False, True])
def test_any_mixture_gives_the_numbers_of_each_alone(make_engine: Callable[..., Engine], deterministic: bool) -> None:
    """Random trees of contexts: bits of each request alone in deterministic mode, 1e-5 otherwise."""
    engine = make_engine(deterministic=deterministic)
    draw = np.random.default_rng(7)
    pieces = [draw.integers(1, 4000, size=n).tolist() for n in (1, 2, 3, 7, 15, 16, 17, 40)]
    for _ in range(12):
        tasks: list[Any] = []
        for _ in range(int(draw.integers(2, 24))):
            context = [token for at in draw.integers(0, 3, size=draw.integers(1, 4)) for token in pieces[at]]
            context = [*pieces[int(draw.integers(0, len(pieces)))], *context]
            cache = ("auto", "never", "always")[int(draw.integers(0, 3))]
            tasks.append(
                Loglikelihood(context, [int(draw.integers(1, 4)) for _ in range(draw.integers(1, 4))], cache=cache)
            )
        together = engine.run_many(tasks)
        alone = [engine.run(task) for task in tasks]
        for one, other in zip(together, alone):
            if deterministic:
                assert one.token_logprobs.tobytes() == other.token_logprobs.tobytes()
            else:
                assert np.abs(one.token_logprobs - other.token_logprobs).max() < 1e-5
            assert one.is_greedy == other.is_greedy


def test_drawn_tokens_and_vectors_of_one_text_are_read_at_one_place(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine(prefix_cache=False)
    params = [SamplingParams(max_tokens=1, seed=seed, logprobs=2) for seed in range(4)]
    drawn, cost = counted(engine, [Generate(SHORT, each) for each in params])
    assert cost["prefill_tokens"] == len(SHORT)
    for each, result in zip(params, drawn):
        alone = engine.complete(SHORT, each)
        assert result.token_ids == alone.token_ids and result.logprobs[0].top[0][0] == alone.logprobs[0].top[0][0]
    for pooling in ("last", "mean"):
        same, cost = counted(engine, [Embed(SHORT, pooling=pooling), Embed([*SHORT, 3], pooling=pooling)])
        assert cost["prefill_tokens"] == len(SHORT) + 1
        assert np.allclose(same[0], engine.embed(SHORT, pooling=pooling), atol=1e-6)
        assert np.allclose(same[1], engine.embed([*SHORT, 3], pooling=pooling), atol=1e-6)


def test_the_alternatives_of_a_place_are_everybodys(make_engine: Callable[..., Engine]) -> None:
    """``PromptLogprobs`` of texts that begin alike: rows and their ``top`` tokens of each, read once where shared."""
    engine = make_engine(prefix_cache=False)
    texts = [[*SHORT, 3], [*SHORT, 4, 5], SHORT]
    together = engine.run_many([PromptLogprobs(ids, top=3) for ids in texts])
    for ids, result in zip(texts, together):
        alone = engine.prompt_logprobs(ids, top=3)
        for one, other in zip(result[1:], alone[1:]):
            assert one.token_id == other.token_id and one.rank == other.rank
            assert [token for token, _ in one.top] == [token for token, _ in other.top]
            assert abs(one.logprob - other.logprob) < 1e-5
