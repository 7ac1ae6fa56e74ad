"""Errors that readers of the code found once: each stays mended."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import Callable

import numpy as np
import pytest

from prelude import AsyncEngine, Choice, Decide, Embed, Engine, Generate, SamplingParams, YesNo
from prelude.errors import ConfigError, InsufficientMemory, InvalidRequest, PromptTooLong

Make = Callable[..., Engine]


def test_warming_the_cache_twice_with_whole_blocks_is_no_empty_step(make_engine: Make) -> None:
    engine = make_engine()
    task = Generate(list(range(100, 116)), SamplingParams(max_tokens=0))
    first, second = engine.run(task), engine.run(task)
    assert first.text == second.text == "" and engine.stats()["failed_steps"] == 0
    assert engine.embed([*range(100, 116), 5], pooling="last").stats.cached_tokens == 16
    longer = Generate(list(range(200, 248)), SamplingParams(max_tokens=0))
    assert [engine.run(longer).stats.cached_tokens for _ in range(2)] == [0, 32], "its block is computed"


def test_one_question_alone_is_a_typed_error_in_the_loop_too(make_engine: Make) -> None:
    engine = AsyncEngine(make_engine())
    for questions in (YesNo("q"), 5, None):
        with pytest.raises(InvalidRequest):
            asyncio.run(engine.decide("x", questions))  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest):
        asyncio.run(engine.run_many(None))  # type: ignore[arg-type]
    assert len(engine.engine.run_many(Embed("a", pooling="last") for _ in range(3))) == 3  # type: ignore[arg-type]


def test_the_blocks_that_are_kept_do_not_depend_on_company(make_engine: Make) -> None:
    shared = list(range(100, 200))
    a, b = shared + list(range(500, 564)), shared + list(range(900, 964))
    engine = make_engine()
    engine.run_many([Embed(tokens, pooling="last", cache="always") for tokens in (a, b)])
    assert [engine.embed(tokens, pooling="last").stats.cached_tokens for tokens in (a, b)] == [160, 160]
    engine = make_engine()
    engine.run_many([Embed(a, pooling="last", cache="never"), Embed(b, pooling="last")])
    assert engine.embed(b, pooling="last").stats.cached_tokens == 96, (
        "the common part, published by a request that may"
    )


def test_results_and_errors_can_be_copied_and_pickled(make_engine: Make) -> None:
    engine = make_engine()
    answers = engine.decide("two boats", {"where": Choice("Where?", ["harbour", "city"])})
    tokens = engine.prompt_logprobs("two boats at the quay")
    vector = engine.embed("two boats", pooling="last")
    for copied in (pickle.loads(pickle.dumps(answers)), copy.deepcopy(answers), copy.copy(answers)):
        assert copied == answers and (copied.stats, copied.names) == (answers.stats, ("where",))
    for listed in (pickle.loads(pickle.dumps(tokens)), copy.deepcopy(tokens)):
        assert listed == tokens and listed.stats == tokens.stats
    again = pickle.loads(pickle.dumps(vector))
    assert np.array_equal(again, vector) and again.stats == vector.stats
    for error in (
        PromptTooLong("long", tokens=5, limit=4, field="prompt"),
        InsufficientMemory("small", needed=2, available=1),
        InvalidRequest("bad", field="x"),
    ):
        back = pickle.loads(pickle.dumps(error))
        assert type(back) is type(error) and str(back) == str(error) and vars(back) == vars(error)


def test_limits_that_cannot_work_are_refused_when_the_engine_is_made(make_engine: Make) -> None:
    with pytest.raises(ConfigError, match="logits_bytes=1 does not hold one row"):
        make_engine(logits_bytes=1)
    with pytest.raises(ConfigError, match="EngineConfig"):
        Engine.from_pretrained(config={"kv_blocks": 3})  # type: ignore[arg-type]
    narrow = make_engine(logits_bytes=2 * 4096 * 8)
    assert narrow.loglikelihood("two boats lay", " at the quay").total < 0
    with pytest.raises(InvalidRequest):
        narrow.run(Decide("x", [YesNo("q")]), deadline=10**400)
