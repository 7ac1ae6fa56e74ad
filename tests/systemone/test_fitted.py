"""Fitted questions in System One: a question names one in its field ``x_fitted``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from prelude import Engine, EngineConfig, FittedQuestion
from prelude.fitting.report import Scope
from prelude.systemone import SystemOne, SystemOneError

STATE = "The library is open."
LANGUAGE = {"type": "choice", "instructions": "Which language?", "criteria": {"English": None, "French": None}}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine.from_pretrained(config=EngineConfig(deterministic=True)) as found:
        yield found


@pytest.fixture(scope="module")
def heads(engine: Engine) -> dict[str, FittedQuestion]:
    size = len(engine.embed(STATE, pooling="mean"))
    weight = np.random.default_rng(0).standard_normal((3, size))

    def made(name: str, labels: list[Any], kind: Any) -> FittedQuestion:
        rows = weight[: len(labels)]
        more: Any = {"name": name, "kind": kind, "pooling": "mean", "scope": Scope(rows, (-9.0, 9.0), 0.9)}
        return FittedQuestion.from_arrays(rows, [0] * len(labels), labels, **more)

    heads = [made("team", ["a", "b", "c"], "choice"), made("urgent", [True, False], "noul")]
    return {one.name: one for one in [*heads, made("level", [1, 2, 3], "score")]}


def test_questions_of_both_kinds_are_answered_by_their_names(
    engine: Engine, heads: dict[str, FittedQuestion]
) -> None:
    one = SystemOne(engine, fitted=heads.values(), orders="all")
    questions = {
        "which": {"type": "choice", "x_fitted": "team"},
        "language": LANGUAGE,
        "now": {"type": "noul", "x_fitted": "urgent"},
        "how": {"type": "score", "x_fitted": "level"},
    }
    body = one.answer({"state": STATE, "questions": questions})
    team, urgent, level = engine.decide(STATE, list(heads.values()))
    assert list(body["answers"]) == list(questions)
    assert body["answers"]["which"]["probabilities"] == team.probabilities
    assert body["answers"]["which"]["choice"] == team.label and "x_label_mass" not in body["answers"]["which"]
    assert [body["answers"]["which"][f"x_{name}"] for name in ("scope", "in_scope")] == [team.scope, team.in_scope]
    assert body["answers"]["now"]["noul"] == urgent.probability
    assert body["answers"]["how"]["score"] == level.expected
    assert body["answers"]["how"]["legend"] == {"1": "1", "2": "2", "3": "3"}
    plain = SystemOne(engine, orders="all").answer({"state": STATE, "questions": {"language": LANGUAGE}})
    assert body["answers"]["language"] == plain["answers"]["language"]
    assert body["usage"]["input_tokens"] > plain["usage"]["input_tokens"]


@pytest.mark.parametrize("asked", ["urgent", "nothing", 7, ["team"]])
def test_a_name_of_no_fitted_choice_is_refused_at_its_place(
    engine: Engine, heads: dict[str, FittedQuestion], asked: Any
) -> None:
    one = SystemOne(engine, fitted=heads.values())
    with pytest.raises(
        SystemOneError, match=r"is no fitted choice of this service, which has \{'team': 'choice', 'urgent': 'noul'"
    ) as raised:
        one.answer({"state": STATE, "questions": {"which": {"type": "choice", "x_fitted": asked}}})
    assert raised.value.errors[0]["loc"] == ["body", "questions", "which", "choice", "x_fitted"]


def test_a_service_without_fitted_questions_answers_none_in_their_place(engine: Engine) -> None:
    with pytest.raises(SystemOneError, match=r"'x' is no fitted choice of this service, which has \{\}"):
        SystemOne(engine).answer({"state": STATE, "questions": {"language": {**LANGUAGE, "x_fitted": "x"}}})


def test_a_vector_of_another_size_is_named_at_its_question(engine: Engine) -> None:
    head = FittedQuestion.from_arrays(np.zeros((2, 3)), [0, 0], ["a", "b"], name="team", pooling="mean")
    with pytest.raises(SystemOneError, match="3 inputs") as raised:
        SystemOne(engine, fitted=[head]).answer(
            {"state": STATE, "questions": {"language": LANGUAGE, "which": {"type": "choice", "x_fitted": "team"}}}
        )
    assert raised.value.errors[0]["loc"][:3] == ["body", "questions", "which"]
