"""Under ``deterministic=True`` the bits of an answer do not depend on its company, the cache or the fold."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from prelude import Choice, Decide, Engine, Generate, Loglikelihood, SamplingParams, YesNo

Make = Callable[..., Engine]
RUBRIC = "Judge the text by these rules. " + " ".join(f"Rule {i}: mind the {i}th word." for i in range(12))
LABELS = ["harbour", "harbour master", "city"]


def task(i: int, cache: str = "auto") -> Decide:
    text = " ".join(["boats lay at the quay"] * (i % 5 + 1)) + f" on day {i}"
    return Decide(f"{RUBRIC}\n\n{text}", [Choice("Where?", LABELS), YesNo("Polite?")], cache=cache)  # type: ignore[arg-type]


def bits(answers) -> list[tuple[float, ...]]:  # type: ignore[no-untyped-def]
    return [tuple(answer.logprobs.values()) for answer in answers]


@pytest.mark.fault(74)
@pytest.mark.feature("E12")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_same_bits_in_any_company(make_engine: Make, dtype: str) -> None:
    fresh = make_engine(deterministic=True, dtype=dtype, prefix_cache=False, fold=False)
    alone = {i: bits(fresh.run(task(i))) for i in range(64)}
    cached = make_engine(deterministic=True, dtype=dtype)
    unfolded = make_engine(deterministic=True, dtype=dtype, fold=False)
    order = np.random.default_rng(0)
    for engine in (fresh, cached, unfolded):
        for count in (1, 2, 7, 64):
            chosen = order.permutation(64)[:count].tolist()
            for i, answers in zip(chosen, engine.run_many([task(i) for i in chosen])):
                assert bits(answers) == alone[i], (count, i)
    assert cached.stats()["folded_tokens"] > 0 and cached.stats()["prefix_hit_tokens"] > 0


@pytest.mark.feature("A21")
@pytest.mark.feature("A3")
def test_same_bits_through_either_class_and_either_path(make_engine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    from prelude import AsyncEngine
    from prelude.admission.prepared import ExecutionClass

    engine = make_engine(deterministic=True)
    params = SamplingParams(max_tokens=1, temperature=0, ignore_eos=True)
    prompts = [f"{RUBRIC} {i}" for i in range(5)]
    direct = [engine.run(Generate(p, params)) for p in prompts]
    queued = asyncio.run(AsyncEngine(engine).run_many([Generate(p, params) for p in prompts]))
    forced = make_engine(deterministic=True)
    with monkeypatch.context() as patched:
        patched.setattr("prelude.scheduling.request.classify", lambda prepared: ExecutionClass.DECODE)
        decoded = [forced.run(Generate(p, params)) for p in prompts]
    assert {r.stats.execution_class for r in direct + queued} == {"oneshot"}
    assert {r.stats.execution_class for r in decoded} == {"decode"}
    assert [r.token_ids for r in direct] == [r.token_ids for r in queued] == [r.token_ids for r in decoded]
    drawn = [
        Generate(p, SamplingParams(max_tokens=1, temperature=2.0, seed=i, ignore_eos=True))
        for p in prompts
        for i in range(3)
    ]
    direct_ids = [engine.run(one).token_ids for one in drawn]
    monkeypatch.setattr("prelude.scheduling.request.classify", lambda prepared: ExecutionClass.DECODE)
    assert direct_ids == [forced.run(one).token_ids for one in drawn]


@pytest.mark.feature("G17")
def test_an_engine_says_how_much_of_a_prompt_it_has(make_engine: Make) -> None:
    """The figure that a router compares between engines: it changes nothing, keeps salts apart and is a hint, not a
    hold."""
    engine = make_engine()
    rubric = np.random.default_rng(70).integers(10, 400, 100).tolist()
    asked = Loglikelihood([*rubric, 11, 12], [7])
    before = engine.stats()["steps"]
    assert engine.would_hit(asked) == 0 and engine.stats()["steps"] == before
    engine.run(Loglikelihood([*rubric, 21, 22], [7]))
    assert engine.would_hit(asked) == 96  # whole blocks of 16
    assert engine.run(asked).stats.cached_tokens == 96
    assert engine.would_hit(Loglikelihood([*rubric, 11], [7], cache="never")) == 0
    assert engine.would_hit(Loglikelihood(rubric[::-1], [7])) == 0
    assert engine.would_hit(Generate(rubric[:96], SamplingParams(max_tokens=1))) == 95  # the last one is read
