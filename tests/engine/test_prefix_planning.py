"""Shared prefixes on a real model: however a prefix came to be shared, the numbers are those of a request alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from prelude import Engine, EngineConfig, Generate, Loglikelihood, SamplingParams

GREEDY = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)


def prompts(count: int = 6) -> list[list[int]]:
    draw = np.random.default_rng(3)
    rubric = draw.integers(10, 400, 200).tolist()
    return [rubric + draw.integers(10, 400, 12).tolist() for _ in range(count)]


def tasks(kind: str, cache: str) -> list[Any]:
    if kind == "chat":
        return [Generate(ids, GREEDY, cache=cache) for ids in prompts()]
    return [Loglikelihood(ids, [7, 8], cache=cache) for ids in prompts()]


def numbers(results: list[Any]) -> list[list[float]]:
    return [r.token_logprobs.tolist() if hasattr(r, "token_logprobs") else list(r.token_ids) for r in results]


Made = Callable[..., Engine]


@pytest.fixture(scope="module")
def made() -> Any:
    engines: list[Engine] = []

    def make(**limits: Any) -> Engine:
        engines.append(Engine.from_pretrained(None, config=EngineConfig().changed(deterministic=True, **limits)))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


@pytest.mark.feature("B6")
@pytest.mark.parametrize("kind", ["chat", "shot"])
def test_the_bits_do_not_depend_on_how_a_prefix_is_shared(made: Made, kind: str) -> None:
    """Alone and never cached; read in the same step; behind a leader; folded; attached from the cache."""
    alone_engine = made(prefix_cache=False, fold=False)
    alone = numbers([alone_engine.run_many([task])[0] for task in tasks(kind, "never")])
    shares = {"same step": {}, "deferred": {"fold": False}, "refused": {"fold": False, "defer_steps": 0}}
    tokens = {}
    for name, limits in shares.items():
        engine = made(**limits)
        results = engine.run_many(tasks(kind, "always"))
        assert numbers(results) == alone, name
        tokens[name] = sum(result.stats.computed_tokens for result in results)
        again = engine.run_many(tasks(kind, "auto"))
        assert numbers(again) == alone, f"{name}, cached"
        assert all(result.stats.cached_tokens >= 192 for result in again)
    folded = made().run_many(tasks(kind, "auto"))
    assert numbers(folded) == alone
    assert tokens["same step"] == tokens["deferred"] <= tokens["refused"] - 5 * 192


@pytest.mark.feature("G17")
def test_an_engine_says_how_much_of_a_prompt_it_has(made: Made) -> None:
    """The figure that a router compares between engines: it changes nothing, keeps salts apart and is a hint, not a
    hold."""
    engine = made()
    rubric = np.random.default_rng(70).integers(10, 400, 100).tolist()
    asked = Loglikelihood([*rubric, 11, 12], [7])
    before = engine.stats()["steps"]
    assert engine.would_hit(asked) == 0 and engine.stats()["steps"] == before
    engine.run(Loglikelihood([*rubric, 21, 22], [7]))
    assert engine.would_hit(asked) == 96  # whole blocks of 16
    assert engine.run(asked).stats.cached_tokens == 96
    assert engine.would_hit(Loglikelihood([*rubric, 11], [7], salt="another")) == 0
    assert engine.would_hit(Loglikelihood([*rubric, 11], [7], cache="never")) == 0
    assert engine.would_hit(Loglikelihood(rubric[::-1], [7])) == 0
