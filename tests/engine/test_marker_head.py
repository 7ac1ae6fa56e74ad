"""Models with a marker head (Laya): recorded answers of its own program, and refusals."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prelude import Choice, Decide, Engine, EngineConfig, Noul, Score
from prelude.errors import InvalidRequest, ModelError, PromptTooLong, UnsupportedModel
from prelude.systemone import SystemOne
from prelude.values.model_settings import OptionSettings
from tests.engine.test_option_models import QUESTIONS, STATE
from tests.option_models import formula_of, write_laya, write_random


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path = write_random(tmp_path_factory.mktemp("marker"))
    with Engine.from_pretrained(path, config=EngineConfig(deterministic=True)) as engine:
        yield engine


def test_answers_are_those_of_layas_own_program(shared: Path, tmp_path: Path) -> None:
    folder = shared / "decision"
    recorded = json.loads((folder / "laya_tiny.json").read_text(encoding="utf-8"))
    asked = 0
    with Engine.from_pretrained(write_laya(tmp_path, recorded, formula_of(folder))) as engine:
        decide = SystemOne(engine, truncation="head")
        for case in recorded["cases"].values():
            if "request" not in case:
                continue
            body = decide.answer(case["request"])
            for name, theirs in case["answers"]["answers"].items():
                ours = body["answers"][name]
                for key in ("noul", "score"):
                    assert (key in ours) == (key in theirs)
                    assert abs(ours.get(key, 0.0) - theirs.get(key, 0.0)) < 6e-5  # they are rounded to 4 digits
                for label, share in theirs.get("probabilities", {}).items():
                    assert abs(ours["probabilities"][label] - share) < 6e-5
                asked += 1
            assert body["usage"]["input_tokens"] == case["answers"]["usage"]["input_tokens"]
    assert asked == 8


def test_temperatures_of_the_trained_checkpoint_by_kind_and_number_of_options(shared: Path) -> None:
    recorded = json.loads((shared / "decision" / "laya_real.json").read_text(encoding="utf-8"))
    said = recorded["temperature"]["typed-decisions by options"]
    settings = OptionSettings("laya", 1024, temperatures=(1.0148, 1.0374, 1.0575), by_options=said)
    assert settings.temperature("choice", 2) == said["choice:2"]
    assert settings.temperature("choice", 4) == said["choice:3-5"]
    assert settings.temperature("choice", 12) == 0.5, "0.1 would saturate"
    assert settings.temperature("score", 4) == said["score:3-5"] and settings.temperature("score", 9) == 1.0374
    assert settings.temperature("noul", 2) == said["noul:2"]


def test_a_question_has_the_same_bits_in_any_company(engine: Engine) -> None:
    together = engine.decide(STATE, QUESTIONS)
    turned = engine.decide(STATE, QUESTIONS[::-1])
    for at, question in enumerate(QUESTIONS):
        [alone] = engine.decide(STATE, [question])
        assert alone.logprobs == together[at].logprobs == turned[len(QUESTIONS) - 1 - at].logprobs
        assert math.isclose(sum(alone.probabilities.values()), 1.0, rel_tol=1e-9)


def test_requests_of_several_sizes_share_a_step(engine: Engine) -> None:
    tasks = [Decide(STATE[:n], QUESTIONS[: 1 + n % 4]) for n in range(1, 40)]
    for task, found in zip(tasks, engine.run_many(tasks)):
        alone = engine.decide(task.state, task.questions)
        assert [one.logprobs for one in found] == [one.logprobs for one in alone]


def test_the_kinds_of_questions_differ(engine: Engine) -> None:
    """The type of a question is added to every row."""
    choice, score = engine.decide(STATE, [Choice("How?", ["level 0: a", "level 1: b"]), Score("How?", ["a", "b"])])
    assert abs(choice.probability - max(score.probabilities.values())) > 1e-4
    assert score.expected == pytest.approx(score.probabilities["1"])
    assert math.isnan(choice.mass)
    [noul] = engine.decide(STATE, [Noul("It is.")])
    assert noul.labels == ("yes", "no") and noul.probability == noul.probabilities["yes"]


def test_a_mask_token_in_a_text_is_a_space(engine: Engine) -> None:
    one, other = (engine.decide(f"a{text}b", [QUESTIONS[3]])[0] for text in ("[MASK]", " "))
    assert one.logprobs == other.logprobs


def test_a_text_that_is_too_long_is_refused_or_cut_as_in_training(engine: Engine) -> None:
    long = "word " * 100
    with pytest.raises(PromptTooLong, match=r"questions\[0\] .* longer than the model reads \(200, of them 120"):
        engine.decide(long, QUESTIONS)
    cut = engine.decide(long, [QUESTIONS[3]], truncation="head")
    assert cut.stats.truncated_tokens == 500 - (200 - cut_head(engine)) and cut.stats.prompt_tokens == 200
    with pytest.raises(PromptTooLong, match=r"^questions\[1\]: 60 options and their question"):
        engine.decide("x", [QUESTIONS[3], Choice("q", [f"option {n}" for n in range(60)])], truncation="head")
    wide = [Choice("q", {"a": "y" * 60, "b": "z" * 60, "c": "x" * 60})]
    with pytest.raises(PromptTooLong, match=r"questions\[1\] .* longer"):
        engine.decide("x", [QUESTIONS[3], *wide])
    shown = engine.explain(Decide("x", wide, truncation="head"))
    assert np.diff(shown.rows).tolist() == [34, 34], "a third of 120 tokens less 16 for the question"
    for count, longest, question in ((25, 4, 20), (30, 4, 8)):  # at least 4 tokens of each, and 8 of the question
        many = [Choice("q" * 60, [f"{n:02} option" for n in range(count)])]
        shown = engine.explain(Decide("x", many, truncation="head"))
        assert np.diff(shown.rows).tolist() == [longest] * (count - 1) and shown.rows[0] == question + 2


@pytest.mark.parametrize(
    ("most", "ask"),
    [
        (47, lambda count: Decide("st", [Choice("q", ["b", "a" * count])])),  # 48 with the space in front of it
        (120 - 2 * 3 - 17, lambda count: Decide("st", [Choice("q" * count, ["a", "b"])])),
        (200 - 4 - 2 * 3 - 18, lambda count: Decide("s" * count, [Choice("q", ["a", "b"])])),
    ],
    ids=["option", "question", "state"],
)
def test_each_part_is_cut_behind_its_last_token(engine: Engine, most: int, ask: Any) -> None:
    whole, longer = engine.explain(ask(most)), ask(most + 1)
    with pytest.raises(PromptTooLong):
        engine.explain(longer)
    cut = engine.explain(replace(longer, truncation="tail"))
    assert (whole.truncated_tokens, cut.truncated_tokens) == (0, 1) and cut.text == whole.text


def cut_head(engine: Engine) -> int:
    """Tokens of a prompt without its state, but for the last one."""
    return engine.decide("", [QUESTIONS[3]]).stats.prompt_tokens


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda engine: engine.classify("x"), "head reads the options of a question"),
        (lambda engine: engine.rerank("x", ["y", "z"]), "head reads the options of a question"),
        (lambda engine: engine.decide(STATE, QUESTIONS, orders="all"), "orders"),
        (lambda engine: engine.decide(STATE, QUESTIONS, length_norm="token"), "length_norm"),
        (lambda engine: engine.decide(STATE, []), "it takes 1 or more"),
        (lambda engine: engine.decide(7, QUESTIONS), "7 is not text, an object or an array"),
        (lambda engine: engine.decide(STATE, [Choice("q", ["a", "a"])]), "given twice"),
        (lambda engine: engine.loglikelihood("a", "b"), "language-model head"),
    ],
)
def test_fields_that_have_no_meaning_are_refused(engine: Engine, ask: Any, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        ask(engine)


def test_explain_shows_the_prompts(engine: Engine) -> None:
    shown = engine.explain(Decide("st", QUESTIONS[2:]))
    assert shown.text.startswith("[CLS]noul question: The writer is angry.[SEP][MASK] false: no, the statement")
    assert len(shown.rows) == 4 and shown.execution_class == "oneshot"
    assert np.array_equal(shown.token_ids[shown.rows], [4, 4, 4, 4])


@pytest.mark.fault(43)
@pytest.mark.parametrize(
    ("agent", "encoder", "words"),
    [
        ({"option_layout": "parallel"}, {}, "option_layout 'parallel'"),
        ({"head_layers": 0}, {}, "head_layers is 0"),
        ({"head_layers": 10**6}, {}, "head_layers is 1000000"),
        ({"max_len": 8}, {}, "max_len is 8"),
        ({"head_max_len": 201}, {}, "head_max_len is 201"),
        ({"temperature": [1.0]}, {}, "temperature is .* 3 numbers"),
        ({"temperature": [1.0, 0.0, 1.0]}, {}, "score is 0.0"),
        ({"temperature_by_options": [1]}, {}, "temperature_by_options is"),
        ({}, {"model_type": "bert"}, "model_type 'bert'"),
        ({}, {"num_attention_heads": 5}, "num_attention_heads = 5"),
        ({}, {"hidden_size": 200}, "hidden_size is 200|num_attention_heads"),
        ({}, {"num_hidden_layers": 0}, "num_hidden_layers is 0"),
    ],
)
def test_hostile_configs(agent: dict[str, Any], encoder: dict[str, Any], words: str, tmp_path: Path) -> None:
    write_random(tmp_path, agent, encoder)
    with pytest.raises((ModelError, UnsupportedModel), match=words):
        Engine.from_pretrained(tmp_path)


def test_a_tokenizer_without_a_mask_token_is_refused(tmp_path: Path) -> None:
    write_random(tmp_path)
    (tmp_path / "tokenizer/tokenizer_config.json").write_text(json.dumps({"mask_token": "<mask>"}), encoding="utf-8")
    with pytest.raises(ModelError, match="no token '<mask>' for mask"):
        Engine.from_pretrained(tmp_path)
