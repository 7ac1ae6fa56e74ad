"""Tasks of one call go through the engine together: each result is that of its task alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from prelude import Engine, Generate, SamplingParams
from prelude.errors import InvalidRequest, PromptTooLong

ONE = SamplingParams(max_tokens=1, temperature=0)


def prompts(count: int) -> list[list[int]]:
    rng = np.random.default_rng(count)
    rubric = rng.integers(5, 200, 40).tolist()
    return [
        rubric[: int(rng.integers(0, 40))] + rng.integers(5, 200, int(rng.integers(1, 30))).tolist()
        for _ in range(count)
    ]


def told(completion: Any) -> tuple[Any, ...]:
    stats = completion.stats
    counted = (stats.execution_class, stats.prompt_tokens, stats.chunks, stats.truncated_tokens, stats.request_id)
    return completion.text, completion.token_ids, completion.finish_reason, completion.logprobs, counted


def alone(engine: Engine, tasks: list[Generate]) -> list[Any]:
    """Each in a call of its own."""
    return [engine.run(task) for task in tasks]


@pytest.mark.parametrize("params", [ONE, replace(ONE, logprobs=2), replace(ONE, stop="a", include_stop=True)])
def test_together_is_the_same_as_one_by_one(make_engine: Callable[..., Engine], params: SamplingParams) -> None:
    engine = make_engine(deterministic=True)
    given = prompts(24)
    expected = alone(engine, [Generate(ids, params) for ids in given])
    for kind in (list, tuple, np.array, lambda ids: np.array(ids, np.int32)):
        tasks = [Generate(kind(ids), params) for ids in given]
        assert list(map(told, engine.run_many(tasks))) == list(map(told, expected))
    stop = replace(params, stop_token_ids=tuple({e.token_ids[0] for e in expected if e.token_ids}))
    tasks = [Generate(ids, stop) for ids in given]
    assert {result.finish_reason for result in engine.run_many(tasks)} == {"stop"}
    assert list(map(told, engine.run_many(tasks))) == list(map(told, alone(engine, tasks)))


def test_tasks_of_all_kinds_in_one_call_are_each_as_alone(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine(deterministic=True)
    given: list[Any] = [
        *[Generate([5, 6], one) for one in (ONE, replace(ONE))],
        Generate([5, 6], ONE, salt="a"),
        Generate([5, 6], ONE, cache="never"),
        *[Generate([5, 6, 7], replace(ONE, **one)) for one in ({"logit_bias": {1: 2.0}}, {"stop": ["a"]})],
        Generate([5, 6, 7], replace(ONE, max_tokens=3)),
        *[Generate(prompt, ONE) for prompt in ([], [5, -1], [True], [5] * 5000)],
        Generate([5, 6], ONE, cache=["auto"]),  # type: ignore[arg-type]
        "no task",
    ]
    results = engine.run_many(given, return_exceptions=True)
    for task, result in zip(given, results):
        try:
            assert told(engine.run(task))[:4] == told(result)[:4]
        except Exception as error:
            assert type(error) is type(result) and str(error) == str(result)
    assert [isinstance(result, Exception) for result in results] == [False] * 7 + [True] * 6
    negative, long = results[8], results[10]
    assert type(negative) is InvalidRequest and negative.field == "prompt[1]" and isinstance(long, PromptTooLong)


def test_settings_that_the_caller_may_change_are_looked_at_again(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine(deterministic=True)
    first = engine.run(Generate([5, 6, 7], ONE)).token_ids[0]
    stops = [first + 1]
    params = replace(ONE, stop_token_ids=stops)
    assert engine.run(Generate([5, 6, 7], params)).finish_reason == "length"
    stops[0] = first
    assert engine.run(Generate([5, 6, 7], params)).finish_reason == "stop"
    hot = SamplingParams(max_tokens=1, temperature=5.0)
    seeds = {engine._preparer.prepare(Generate([5], hot)).prepared.sampling.seed for _ in range(4)}  # type: ignore[union-attr]
    assert len(seeds) == 4, "without a seed each task draws its own"
