"""Text from the real engine: settings against a reference sampler, stops, logprobs, and one bad row among good."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prelude import Engine, Generate, SamplingParams
from prelude.errors import ExecutionError
from tests import reference_sampler as reference
from tests.checkpoints import make_checkpoint
from tests.engine.conftest import Oracle

Make = Callable[..., Engine]
STATE = "The harbour was quiet that morning; two boats lay at the quay."


def prompt_ids(engine: Engine, text: str) -> list[int]:
    return engine.explain(Generate(text)).token_ids.tolist()


@pytest.mark.feature("H3")
@pytest.mark.feature("C11")
@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0.8, "top_k": 50},
        {"temperature": 1.0, "top_p": 0.9, "repetition_penalty": 1.3},
        {"temperature": 0.0, "repetition_penalty": 1.2, "frequency_penalty": 0.5, "presence_penalty": 0.25},
        {"temperature": 1.5, "min_p": 0.02, "logit_bias": {300: 5.0, 301: 4.0}, "banned_token_ids": [302, 303]},
        {"temperature": 1.0, "allowed_token_ids": list(range(400, 440)), "min_tokens": 64},
    ],
)
def test_sixty_four_tokens_equal_a_reference_sampler(make_engine: Make, oracle: Oracle, settings: Any) -> None:
    """The same uniform numbers and transformers' logits, beside two other texts with other settings."""
    engine = make_engine()
    params = SamplingParams(max_tokens=64, seed=11, ignore_eos=True, **settings)
    others = [Generate(f"{i} more", SamplingParams(max_tokens=40, seed=i, presence_penalty=2.0)) for i in range(2)]
    got = engine.run_many([others[0], Generate(STATE, params), others[1]])[1]
    prompt, output = prompt_ids(engine, STATE), list[int]()
    with oracle.torch.inference_mode():
        rows = oracle.model(oracle.torch.tensor([[*prompt, *got.token_ids]])).logits[0, len(prompt) - 1 : -1]
    for row in rows:
        output.append(reference.sample(row.tolist(), prompt, output, params))
    assert list(got.token_ids) == output and len(output) == 64


@pytest.mark.feature("H5")
def test_the_same_text_whatever_the_company(make_engine: Make) -> None:
    """A seed decides the tokens: alone, among others, and after being preempted."""
    engine = make_engine(deterministic=True)
    params = [
        SamplingParams(max_tokens=24, seed=i, ignore_eos=True, temperature=0.9, frequency_penalty=0.3 * (i % 2))
        for i in range(6)
    ]
    tasks = [Generate(f"{i} {STATE}", p) for i, p in enumerate(params)]
    alone = [engine.run(task).token_ids for task in tasks]
    assert [r.token_ids for r in engine.run_many(tasks)] == alone
    assert [r.token_ids for r in reversed(engine.run_many(tasks[::-1]))] == alone
    tight = make_engine(deterministic=True, kv_blocks=8, max_length=96, max_running=4)
    assert [r.token_ids for r in tight.run_many(tasks)] == alone
    assert tight.stats()["preemptions"] > 0
    assert len(set(alone)) == 6


def test_max_tokens_of_one_takes_the_same_settings(make_engine: Make) -> None:
    engine = make_engine()
    for settings in (
        {"temperature": 0.9, "seed": 3, "top_k": 40},
        {"temperature": 0.0, "banned_token_ids": [316], "logit_bias": {77: 30.0}},
        {"temperature": 0.0, "repetition_penalty": 3.0},
        {"temperature": 0.0, "allowed_token_ids": [99]},
    ):
        one = engine.complete(STATE, SamplingParams(max_tokens=1, logprobs=2, ignore_eos=True, **settings))
        two = engine.complete(STATE, SamplingParams(max_tokens=2, logprobs=2, ignore_eos=True, **settings))
        assert one.token_ids == two.token_ids[:1] and one.stats.execution_class == "oneshot"
        assert one.logprobs[0].logprob == pytest.approx(two.logprobs[0].logprob, abs=1e-4)
        assert [t for t, _ in one.logprobs[0].top] == [t for t, _ in two.logprobs[0].top]
    assert engine.complete(STATE, SamplingParams(max_tokens=0, logprobs=2)).logprobs == ()


@pytest.mark.fault(75)
def test_logprobs_are_the_models_own(make_engine: Make, oracle: Oracle) -> None:
    """With all settings; rows that ask for different numbers share steps."""
    engine = make_engine()
    heavy = {"seed": 5, "ignore_eos": True, "temperature": 0.3, "logit_bias": {9: 50.0}}
    tasks = [Generate(STATE, SamplingParams(max_tokens=6, logprobs=k, **heavy)) for k in (None, 0, 1, 7)]
    results = engine.run_many(tasks)
    prompt = prompt_ids(engine, STATE)
    assert results[0].logprobs is None
    for k, result in zip((0, 1, 7), results[1:]):
        table = oracle.logprobs([*prompt, *result.token_ids])
        assert len(result.logprobs) == 6
        for i, token in enumerate(result.logprobs):
            row = table[len(prompt) + i - 1]
            assert token.token_id == result.token_ids[i] and token.logprob <= 0
            assert token.logprob == pytest.approx(row[token.token_id], abs=2e-4)
            assert [t for t, _ in token.top] == np.argsort(-row, kind="stable")[:k].tolist()
            assert [p for _, p in token.top] == pytest.approx([row[t] for t, _ in token.top], abs=2e-4)


@pytest.mark.feature("H4")
@pytest.mark.fault(12)
def test_stop_strings_stop_ids_and_eos(make_engine: Make) -> None:
    engine = make_engine()
    base = {"max_tokens": 30, "temperature": 0.0, "ignore_eos": True, "repetition_penalty": 1.3}
    full = engine.complete(STATE, SamplingParams(**base))
    assert full.finish_reason == "length" and len(full.text) > 20
    stop = full.text[7:11]
    cut = engine.complete(STATE, SamplingParams(stop=["never there", stop], **base))
    assert cut.text == full.text[: full.text.index(stop)] and cut.finish_reason == "stop"
    assert cut.token_ids == full.token_ids[: len(cut.token_ids)] and len(cut.token_ids) < 30
    kept = engine.complete(STATE, SamplingParams(stop=stop, include_stop=True, **base))
    assert kept.text == cut.text + stop and kept.token_ids == cut.token_ids
    passed = engine.complete(STATE, SamplingParams(stop=stop, min_tokens=len(cut.token_ids), **base))
    assert full.text.count(stop) == 1 and (passed.text, passed.finish_reason) == (full.text, "length")
    last = full.token_ids[5]
    first = full.token_ids.index(last)
    by_id = engine.complete(STATE, SamplingParams(stop_token_ids=[last], **base))
    assert by_id.token_ids == full.token_ids[:first] and by_id.finish_reason == "stop"
    with_it = engine.complete(STATE, SamplingParams(stop_token_ids=[last], include_stop=True, logprobs=0, **base))
    assert with_it.token_ids == full.token_ids[: first + 1] and len(with_it.logprobs) == first + 1
    one = engine.complete(STATE, SamplingParams(**{**base, "max_tokens": 1, "stop": full.text[0]}))
    assert (one.text, one.finish_reason, len(one.token_ids)) == ("", "stop", 1)
    longer = engine.complete(STATE, SamplingParams(stop="x" * 4000, **base))
    assert longer.text == full.text and longer.finish_reason == "length"


@pytest.mark.feature("H4")
@pytest.mark.feature("C4")
def test_the_models_own_end_token_ends_the_text_unless_it_is_ignored(make_engine: Make) -> None:
    engine = make_engine()
    [end] = engine._preparer.context.eos_ids
    base: dict[str, Any] = {"max_tokens": 6, "temperature": 0.0, "logit_bias": {end: 100.0}}
    ended = engine.complete(STATE, SamplingParams(**base))
    assert (ended.finish_reason, ended.token_ids, ended.text) == ("stop", (), "")
    later = engine.complete(STATE, SamplingParams(min_tokens=3, **base))
    assert later.finish_reason == "stop" and len(later.token_ids) == 3 and end not in later.token_ids
    ignored = engine.complete(STATE, SamplingParams(ignore_eos=True, **base))
    assert ignored.finish_reason == "length" and ignored.token_ids == (end,) * 6


@pytest.mark.fault(58)
def test_a_row_that_is_not_a_number_fails_alone(tmp_path: Path, make_engine: Make) -> None:
    """One token's embedding is NaN: texts that meet it fail, in prefill and in the middle; no other text does."""
    engine = make_engine(make_checkpoint(tmp_path / "nan", tie_word_embeddings=False))
    bad = 77
    clean = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True, banned_token_ids=[bad])
    want = engine.complete(STATE, clean)
    embedding = engine._core.executor.weights.embeddings.tokens  # type: ignore[attr-defined]
    embedding[bad] = float("nan")
    forced = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True, allowed_token_ids=[bad])
    tasks = [
        Generate(STATE, clean),
        Generate([5, bad, 6], clean),
        Generate("and " + STATE, forced),
        Generate([5, bad, 6], SamplingParams(max_tokens=1)),
    ]
    good, *failed = engine.run_many(tasks, return_exceptions=True)
    assert good.token_ids == want.token_ids
    assert all(isinstance(error, ExecutionError) and "not finite" in str(error) for error in failed)
    assert engine.health().ok and engine.stats()["failed_steps"] == 0
    assert engine.complete(STATE, clean).token_ids == want.token_ids
