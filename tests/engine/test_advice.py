"""Errors and warnings tell a newcomer what this model can do, and that an answer is chance."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest

from prelude import Choice, Decide, Engine, YesNo, default_model
from prelude.errors import InvalidRequest
from prelude.systemone import SystemOne, SystemOneError
from prelude.tools.cli import main
from tests.checkpoints import make_checkpoint
from tests.encoders import write_encoder
from tests.engine.test_sparrow import arrays, config, write
from tests.option_models import BERT_SPECIALS, save_tokenizer, write_opendecider, write_pointer

MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
TEAM = [Choice("Which team?", ["a", "b"])]
VERBS: dict[str, Any] = {
    "decide": lambda engine: engine.decide("text", TEAM),
    "embed": lambda engine: engine.embed("text", pooling="mean"),
    "classify": lambda engine: engine.classify("text"),
    "classify_tokens": lambda engine: engine.classify_tokens("text"),
    "complete": lambda engine: engine.complete("text"),
    "loglikelihood": lambda engine: engine.loglikelihood("a", "b"),
    "prompt_logprobs": lambda engine: engine.prompt_logprobs("text"),
    "rerank": lambda engine: engine.rerank("a", ["b"]),
    "reward": lambda engine: engine.reward(MESSAGES),
    "guard": lambda engine: engine.guard(MESSAGES),
}


def encoder(path: Path, kind: str, **changes: Any) -> Path:
    write_encoder(path, family="bert", kind=kind, vocab_size=261, **changes)
    save_tokenizer(path / "tokenizer.json", BERT_SPECIALS)
    return path


MODELS: dict[str, Any] = {
    "sparrow": lambda path: write(path.with_suffix(".sparrow"), arrays(True), config(True)),
    "nano": write_opendecider,
    "pointer": write_pointer,
    "encoder": lambda path: encoder(path, "Model"),
    "classifier": lambda path: encoder(path, "ForSequenceClassification", num_labels=3),
    "cross-encoder": lambda path: encoder(path, "ForSequenceClassification", num_labels=1),
    "tokens": lambda path: encoder(path, "ForTokenClassification", num_labels=3),
    "decoder": make_checkpoint,
}


@pytest.mark.parametrize("model", MODELS)
def test_an_error_names_a_field_and_verbs_that_this_model_serves(model: str, tmp_path: Path) -> None:
    with Engine.from_pretrained(MODELS[model](tmp_path / "model")) as engine:
        works, errors = set(), {}
        for verb, call in VERBS.items():
            try:
                call(engine)
                works.add(verb)
            except InvalidRequest as error:
                errors[verb] = error
        assert works and errors
        for error in errors.values():
            assert error.field and "()" not in str(error) and ": )" not in str(error)
            for said in re.findall(r"it serves ((?:\w+\([^)]*\)(?: and )?)+)", str(error)):
                assert set(re.findall(r"(\w+)\(", said)) <= works
            advised = set(re.findall(r"\b(\w+)\((?:prompt|state|\()", str(error)))
            assert advised & VERBS.keys() <= works, str(error)


@pytest.mark.parametrize("model", MODELS)
def test_the_demo_answers_or_says_at_once_why_not(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["demo", "--model", str(MODELS[model](tmp_path / "model"))])
    printed = capsys.readouterr()
    assert (code, bool(printed.out)) in ((0, True), (2, False))
    assert "Milliseconds: " in printed.out if code == 0 else "prelude: " in printed.err
    assert "tell languages apart" not in printed.out and "the packaged model" not in printed.out


def test_the_demo_of_the_packaged_model_says_what_it_knows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--model", str(default_model.path())]) == 0
    printed = capsys.readouterr().out
    assert "vectors of the packaged model: " in printed and "tell languages apart, and not topics." in printed
    assert "Which language is it?" in printed and "Does it contain personal data?" in printed
    [vectors] = re.findall(r"The nearest of (\d+) texts", printed)
    [fitted, right, rest, chance] = re.findall(r"on (\d+) l.*: (\d+) of (\d+) o.*\n.*chance (\d+) would", printed)[0]
    assert int(fitted) + int(rest) == int(vectors) and int(right) <= int(rest) == 4 * int(chance)
    assert [part.split()[-1] for part in printed.splitlines()[-1].split(", ")] == [
        "loading",
        "decisions",
        "rows",
        "it",
        "vectors.",
    ]


@pytest.mark.parametrize("model", ["sparrow", "nano"])
def test_a_setting_of_system_one_that_the_head_refuses_is_named(model: str, tmp_path: Path) -> None:
    question = {"type": "noul", "instructions": "Is it?"}
    with Engine.from_pretrained(MODELS[model](tmp_path / "model")) as engine:
        one = SystemOne(engine, orders="sorted")
        with pytest.raises(SystemOneError, match=r"orders: 'sorted'.* leave it at .given."):
            one.answer({"state": "text", "questions": {"q": question}})
        assert SystemOne(engine).answer({"state": "text", "questions": {"q": question}})["answers"]


def test_labels_that_the_model_would_not_say_are_warned_about_once(caplog: pytest.LogCaptureFixture) -> None:
    teams = Choice("Which team?", {"Billing": "payments, refunds", "Support": "bugs", "Sales": None})
    state = "I was charged twice and get no answer."
    with Engine.from_pretrained() as engine, caplog.at_level(logging.WARNING, logger="prelude.engine"):
        known = engine.decide(state, [Choice("Which language is it?", ["English", "French"])])
        assert known[0].mass > 0.5 and not caplog.records
        for _ in range(2):
            [answer] = engine.decide(state, {"team": teams}, orders="all")
            assert answer.mass < 0.01
        engine.decide(state, [teams], mass=False)
        [record] = caplog.records
        assert "'Which team?'" in record.getMessage() and f"{answer.mass:.1g}" in record.getMessage()


def test_a_label_without_another_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    with Engine.from_pretrained() as engine, caplog.at_level(logging.WARNING, logger="prelude.engine"):
        [answer] = engine.decide("Hello.", [Choice("Is it x or y?", ["x;y"])])
        assert answer.probability == 1.0
        engine.run_many([Decide("Hello.", [Choice("Is it x or y?", ["x;y"]), YesNo("Is it?")])])
    assert sum("'x;y'" in one.getMessage() for one in caplog.records) == 1
