"""SystemOne over the packaged model: bodies in and out, errors by their place, both dialects, synchronous and not."""

from __future__ import annotations

import asyncio
import json
import math
import os
import pickle
import shutil
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from prelude import AsyncEngine, Choice, Engine, EngineConfig, Noul, Score, errors
from prelude.default_model import path as packaged
from prelude.systemone import SystemOne, SystemOneError, problem

TICKET = "I was charged twice for my March invoice and the refund has not arrived."
NOUL = {"type": "noul", "instructions": "Is the customer asking for money back?"}
CHOICE = {
    "type": "choice", "instructions": "Which team?", "criteria": {"Billing": "Invoices", "Sales": None, "기술": ""},
}  # fmt: skip
SCORE = {
    "type": "score", "instructions": "How frustrated?", "criteria": ["Calm", {"label": "Angry"}, ["Very", "angry"]],
}  # fmt: skip
QUESTIONS = {"ticket-1": NOUL, "with space": CHOICE, "🎯": SCORE}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    config = EngineConfig(kv_bytes=1 << 23, deterministic=True)
    with Engine.from_pretrained(dtype="float32", config=config) as made:
        yield made
        made._core.audit()


@pytest.fixture(scope="module")
def one(engine: Engine) -> SystemOne:
    return SystemOne(engine, name="small", aliases=["jev-latest", "other"])


def ask(one: SystemOne, questions: Any = QUESTIONS, state: Any = TICKET, **more: Any) -> dict[str, Any]:
    return one.answer({"model": "jev-latest", "state": state, "questions": questions, **more})


@pytest.mark.feature("G21")
def test_a_body_of_three_questions_has_the_answers_of_decide(engine: Engine, one: SystemOne) -> None:
    body = ask(one)
    noul, choice, score = engine.decide(
        TICKET,
        [
            Noul(NOUL["instructions"]),
            Choice("Which team?", CHOICE["criteria"]),  # type: ignore[arg-type]
            Score("How frustrated?", SCORE["criteria"]),  # type: ignore[arg-type]
        ],
    )
    assert list(body["answers"]) == list(QUESTIONS) and body["model"] == "small"
    assert body["answers"]["ticket-1"] == {"type": "noul", "noul": noul.probability, "x_label_mass": noul.mass}
    assert body["answers"]["with space"] == {
        "type": "choice", "choice": choice.label, "probabilities": dict(choice.probabilities),
        "confidence": choice.confidence, "x_label_mass": choice.mass,
    }  # fmt: skip
    assert body["answers"]["🎯"] == {
        "type": "score", "score": score.expected,
        "legend": {"0": "Calm", "1": {"label": "Angry"}, "2": ["Very", "angry"]},
        "probabilities": dict(score.probabilities), "confidence": score.confidence, "x_label_mass": score.mass,
    }  # fmt: skip
    assert body["usage"]["output_tokens"] == 0 and body["usage"]["input_tokens"] > 40
    assert body["usage"]["x_cached_tokens"] >= 0 and set(body) == {"model", "answers", "usage"}
    json.dumps(body, allow_nan=False)


def test_the_same_inside_a_loop_and_with_either_engine(engine: Engine, one: SystemOne) -> None:
    request = {"state": {"ticket": TICKET}, "questions": QUESTIONS}
    expected = one.answer(request)["answers"]
    wrong: Any = {"priority": "x"}
    for ask in (lambda: one.answer(request, **wrong), lambda: one.answer_many([request], **wrong)):
        with pytest.raises(errors.InvalidRequest, match="priority"):
            ask()

    async def main() -> None:
        assert (await one.aanswer(request, priority=1))["answers"] == expected
        wrapped = SystemOne(AsyncEngine(engine), name="small")
        bodies = await asyncio.gather(*(wrapped.aanswer(request) for _ in range(8)))
        assert all(body["answers"] == expected for body in bodies)
        assert (await asyncio.to_thread(wrapped.answer, request))["answers"] == expected

    asyncio.run(main())


def test_names_of_models(one: SystemOne, engine: Engine) -> None:
    for model in ("small", "jev-latest", "other", None):
        assert one.answer({"model": model, "state": "x", "questions": {"a": NOUL}})["model"] == "small"
    with pytest.raises(SystemOneError, match=r"^model: there is no model 'x'; there is small, jev-latest") as caught:
        one.answer({"model": "x", "state": "x", "questions": {"a": NOUL}})
    assert caught.value.status == 404 and caught.value.body["detail"]["error_type"] == "not_found_error"
    with pytest.raises(SystemOneError, match=r"^model: there is no model 5") as caught:
        one.answer({"model": 5, "state": "x", "questions": {"a": NOUL}})
    assert caught.value.status == 422 and caught.value.body["detail"][0]["loc"] == ["body", "model"]
    models = one.models()["models"]
    assert [model["name"] for model in models] == ["small", "jev-latest", "other"]
    assert all(len(model["release_date"]) == 10 and model["description"] for model in models)
    assert SystemOne(engine).name == "default_model"
    assert [model["name"] for model in SystemOne(engine, name="jev-latest").models()["models"]] == ["jev-latest"]
    assert SystemOne(engine, release_date="2026-01-02").models()["models"][0]["release_date"] == "2026-01-02"
    with pytest.raises(errors.UnknownParameter, match="truncatoin"):
        SystemOne(engine, truncatoin="tail")  # type: ignore[call-arg]
    with pytest.raises(errors.ConfigError, match="options of one request"):
        SystemOne(engine, priority=3)
    with pytest.raises(errors.ConfigError, match="not an Engine"):
        SystemOne("engine")  # type: ignore[arg-type]


@pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati", "Etc/GMT+12"])  # 14 hours before, 12 hours behind
def test_the_date_of_a_model_does_not_depend_on_the_time_zone(
    zone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = shutil.copytree(packaged(), tmp_path / "model")
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        with Engine.from_pretrained(model) as engine:
            for clock in ("00:00:01", "23:59:59"):
                at = datetime.fromisoformat(f"2026-03-05T{clock}+00:00").timestamp()
                os.utime(model / "config.json", (at, at))
                assert SystemOne(engine).models()["models"][0]["release_date"] == "2026-03-05"
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    "state, text",
    [
        ({"b": 1, "a": ["x", None]}, '{"b": 1, "a": ["x", null]}'),
        ([1, 2, 3], "[1, 2, 3]"),  # a JSON body means no token ids
        ([], "[]"),
        ([{"role": "admin", "age": 3}], '[{"role": "admin", "age": 3}]'),  # a record, no message
        ([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}], "user: hi\n\nassistant: ho"),
    ],
)
def test_states_of_every_shape(one: SystemOne, state: Any, text: str) -> None:
    assert ask(one, state=state)["answers"] == ask(one, state=text)["answers"]


WRONG: list[tuple[Any, list[Any], str]] = [
    ([], ["body"], "dict_type"),
    ({"questions": {"a": NOUL}}, ["body", "state"], "missing"),
    ({"state": "x"}, ["body", "questions"], "missing"),
    ({"state": None, "questions": {"a": NOUL}}, ["body", "state"], "union_type"),
    ({"state": 5, "questions": {"a": NOUL}}, ["body", "state"], "union_type"),
    ({"state": "x", "questions": {}}, ["body", "questions"], "too_short"),
    ({"state": "x", "questions": [NOUL]}, ["body", "questions"], "too_short"),
    ({"state": "x", "questions": {"a": NOUL}, "assets": {"1": "data:"}}, ["body", "assets"], "unsupported"),
    ({"state": "x", "questions": {"": NOUL}}, ["body", "questions", ""], "string_type"),
    ({"state": "x", "questions": {"a": "b"}}, ["body", "questions", "a"], "dict_type"),
    ({"state": "x", "questions": {"a": {"a": "?"}}}, ["body", "questions", "a", "type"], "union_tag_invalid"),
    ({"state": "x", "questions": {"a": {"type": ["noul"]}}}, ["body", "questions", "a", "type"], "union_tag_invalid"),
]
Q: list[tuple[Any, list[Any], str]] = [
    ({"type": "noul"}, ["noul"], "missing"),
    ({"type": "noul", "instructions": "", "criteria": {"true": ""}}, ["noul"], "missing"),
    ({"type": "noul", "instructions": 5}, ["noul", "instructions"], "union_type"),
    ({"type": "noul", "instructions": "?", "criteria": {"yes": "x"}}, ["noul", "criteria"], "dict_type"),
    ({"type": "noul", "instructions": "?", "criteria": {"true": 1}}, ["noul", "criteria", "true"], "union_type"),
    ({"type": "noul", "instructions": "?", "citeria": {}}, ["noul", "citeria"], "extra_forbidden"),
    ({"type": "choice", "instructions": "?"}, ["choice", "criteria"], "dict_type"),
    ({"type": "choice", "criteria": {}}, ["choice", "criteria"], "too_long"),
    ({"type": "choice", "criteria": {str(i): None for i in range(256)}}, ["choice", "criteria"], "too_long"),
    ({"type": "choice", "criteria": {"a": 1, "b": None}}, ["choice", "criteria", "a"], "union_type"),
    ({"type": "choice", "criteria": {"": None, "b": None}}, ["choice", "criteria", ""], "string_type"),
    ({"type": "choice", "criteria": {"b": None, "\ud800": None}}, ["choice", "criteria", "\ud800"], "value_error"),
    ({"type": "choice", "criteria": {"b": None, "a": {"x": math.inf}}}, ["choice", "criteria", "a"], "value_error"),
    ({"type": "score", "criteria": {"0": "a", "1": "b"}}, ["score", "criteria"], "list_type"),
    ({"type": "score", "criteria": ["a"]}, ["score", "criteria"], "too_long"),
    ({"type": "score", "criteria": [str(i) for i in range(11)]}, ["score", "criteria"], "too_long"),
    ({"type": "choice", "criteria": ["a", "b"]}, ["choice", "criteria"], "dict_type"),
    ({"type": "score", "criteria": ["a", None]}, ["score", "criteria", 1], "union_type"),
    ({"type": "score", "criteria": ["a", ""]}, ["score", "criteria", 1], "value_error"),
    ({"type": "box", "instructions": "?"}, ["type"], "union_tag_invalid"),
]
WRONG += [
    ({"state": "x", "questions": {"z": NOUL, "a b": question}}, ["body", "questions", "a b", *loc], kind)
    for question, loc, kind in Q
]


@pytest.mark.feature("G21")
@pytest.mark.parametrize(
    "body, loc, kind", WRONG, ids=[f"{index}-{kind}" for index, (_, _, kind) in enumerate(WRONG)]
)
def test_errors_name_the_place(one: SystemOne, body: Any, loc: list[Any], kind: str) -> None:
    with pytest.raises(SystemOneError) as caught:
        one.answer(body)
    found = caught.value
    assert [(error["loc"], error["type"]) for error in found.errors] == [(loc, kind)] and found.errors[0]["msg"]
    assert (found.status, found.body) == (422, {"detail": found.errors}) == problem(found)
    assert pickle.loads(pickle.dumps(found)).errors == found.errors
    assert isinstance(found, errors.InvalidRequest)


def test_all_that_is_wrong_is_listed(one: SystemOne) -> None:
    with pytest.raises(SystemOneError, match=r"\(and 2 more\)$") as caught:
        one.answer({"questions": {"a": {"type": "noul"}, "b": {"type": "score", "criteria": []}}})
    assert [error["loc"][-1] for error in caught.value.errors] == ["state", "noul", "criteria"]


def test_a_body_that_is_too_large_is_413_and_a_cut_is_reported(one: SystemOne, engine: Engine) -> None:
    long = "word " * 12_000
    with pytest.raises(SystemOneError, match="tokens of state") as caught:
        ask(one, state=long)
    assert caught.value.status == 413 and caught.value.body["detail"]["error_type"] == "request_too_large"
    assert caught.value.errors[0]["loc"] == ["body", "state"]
    cut = SystemOne(engine, truncation="tail")
    assert ask(cut, state=long)["x_truncated_tokens"] > 1000
    assert "x_truncated_tokens" not in ask(cut)


def test_more_questions_than_a_step_holds_are_several_decisions() -> None:
    """400 questions by default limits; and in an engine of small steps the answers are those of a large one."""
    questions = {f"q{i}": {"type": "noul", "instructions": f"Is there a {i} in it?"} for i in range(400)}
    request = {"state": TICKET, "questions": questions}
    with Engine.from_pretrained(dtype="float32", config=EngineConfig(kv_bytes=1 << 23, deterministic=True)) as large:
        whole = SystemOne(large).answer(request)
    config = EngineConfig(kv_bytes=1 << 23, deterministic=True, max_length=512, max_step_tokens=1024)
    with Engine.from_pretrained(dtype="float32", config=config) as small:
        parted = SystemOne(small).answer(request)
        with pytest.raises(errors.RequestTooLarge):
            small.decide(TICKET, [Noul(question["instructions"]) for question in questions.values()])
        bad = {**questions, "q300": {"type": "choice", "criteria": {"a": "x" * 100_000, "b": None}}}
        with pytest.raises(SystemOneError) as caught:
            SystemOne(small).answer({**request, "questions": bad})
        assert caught.value.errors[0]["loc"][:2] == ["body", "questions"]
        small._core.audit()
    assert list(parted["answers"]) == list(questions) and parted["answers"] == whole["answers"]


def test_parts_are_answered_in_the_order_of_the_body() -> None:
    """The first half of the questions is cut again, so that its parts come after the second half."""
    long = "The caller has waited for the invoice since March and wrote about it four times. " * 5
    names = [f"{name}{index}" for index in range(4) for name in ("noul", "choice")]
    questions: dict[str, Any] = {}
    for index, name in enumerate(names):
        asked = f"{long if index < 4 else ''} Is it about number {index}?"
        kind = {"type": "choice", "criteria": {"No": None, f"Number {index}": None}}
        questions[name] = {**(kind if name.startswith("choice") else NOUL), "instructions": asked}
    config = EngineConfig(kv_bytes=1 << 23, deterministic=True, max_length=512, max_step_tokens=512)
    with Engine.from_pretrained(dtype="float32", config=config) as engine:
        one = SystemOne(engine)
        steps = engine.stats()["requests"]["oneshot"]
        body = ask(one, questions)["answers"]
        parts = engine.stats()["requests"]["oneshot"] - steps
        assert parts > 2 and parts % 2, "a half that fitted, and one that did not"
        assert list(body) == names
        for name in names:
            assert ask(one, {name: questions[name]})["answers"][name] == body[name]
        two = {name: {**NOUL, "instructions": f"{long * 2} {name}?"} for name in ("a", "b")}
        assert list(ask(one, two)["answers"]) == ["a", "b"]
        with pytest.raises(SystemOneError) as caught:  # of the second part, after the characters of the first
            many = {f"{at}": {**NOUL, "instructions": long * 2} for at in range(12)}
            ask(one, {**many, "z": {**NOUL, "instructions": "\ud800"}})
        assert caught.value.errors[0]["loc"] == ["body", "questions", "z", "noul", "instructions"]


# ------------------------------------------------------------------ OpenAI's form
def test_decisions_in_openais_form(one: SystemOne) -> None:
    parts = [{"type": "input_text", "text": "hi"}, {"type": "input_json", "data": {"a": 1}}]
    choices = [{"value": True}, {"value": "x", "description": "d"}]
    levels = [{"label": "low"}, {"label": "high", "description": "most"}]
    questions = [
        {"type": "predicate", "instructions": "Is it?"},
        {"type": "choice", "name": "c", "instructions": "Which?", "choices": choices},
        {"type": "score", "name": "c", "instructions": [{"type": "input_text", "text": "How?"}], "levels": levels},
    ]
    body = one.decisions({"model": "small", "input": [{"role": "user", "content": parts}], "questions": questions})
    predicate, choice, score = body["answers"]
    same = ask(
        one,
        {
            "p": {"type": "noul", "instructions": "Is it?"},
            "c": {"type": "choice", "instructions": "Which?", "criteria": {"true": None, "x": "d"}},
            "s": {"type": "score", "instructions": "How?", "criteria": ["low", "high: most"]},
        },
        state='user: hi\n{"a": 1}',
    )["answers"]
    assert predicate == {"type": "predicate", "name": None, "probability": same["p"]["noul"]}
    values = list(same["c"]["probabilities"].values())
    assert [one["value"] for one in choice["probabilities"]] == [True, "x"] and choice["name"] == "c"
    assert [one["probability"] for one in choice["probabilities"]] == values and choice["confidence"] == same["c"][
        "confidence"
    ]
    assert choice["choice"] is (True if same["c"]["choice"] == "true" else "x")
    assert score["score"] == same["s"]["score"]
    assert [(one["value"], one["label"]) for one in score["probabilities"]] == [(0, "low"), (1, "high")]
    usage = body["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] > 0 and usage["output_tokens"] == 0
    assert usage["input_tokens_details"]["cached_tokens"] >= 0
    assert asyncio.run(one.adecisions({"input": "x", "questions": [{"type": "predicate", "instructions": "Is it?"}]}))


def of_choices(*values: str) -> dict[str, Any]:
    return {"type": "choice", "instructions": "?", "choices": [{"value": value} for value in values]}


def of_levels(*labels: str) -> dict[str, Any]:
    return {"type": "score", "instructions": "?", "levels": [{"label": label} for label in labels]}


@pytest.mark.parametrize(
    "change, loc",
    [
        ({"input": 5}, ["input"]),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, ["input", 0, "content", 0]),
        ({"input": [{}]}, ["input", 0]), ({"input": []}, ["input"]), ({"input": None}, ["input"]),
        ({"questions": []}, ["questions"]),
        ({"questions": [{"type": "predicate", "instructions": ""}]}, ["questions", 0, "instructions"]),
        ({"questions": [of_choices("a", "a")]}, ["questions", 0, "choices", 1, "value"]),
        ({"questions": [of_levels("a", "\ud800")]}, ["questions", 0, "levels", 1]),
        ({"questions": [of_choices("a", "\ud800" * 90)]}, ["questions", 0, "choices", 1]),
        ({"questions": [{"type": "predicate", "instructions": "\ud800"}]}, ["questions", 0, "instructions"]),
        ({"input": "word " * 12_000}, ["input"]),
    ],
)  # fmt: skip
def test_errors_in_openais_form_name_the_place(one: SystemOne, change: Any, loc: list[Any]) -> None:
    body = {"model": "small", "input": "x", "questions": [{"type": "predicate", "instructions": "?"}], **change}
    with pytest.raises(SystemOneError) as caught:
        one.decisions(body)
    assert caught.value.errors[0]["loc"] == ["body", *loc]


PREDICATE = {"type": "predicate", "instructions": "Is the customer asking for money back?"}


@pytest.mark.parametrize("values", [[True, "true"], ["true", "x", True, False], ["false", False]])
def test_a_boolean_and_its_text_are_two_options(one: SystemOne, values: list[Any]) -> None:
    choices = [{"value": value} for value in values]
    question = {"type": "choice", "instructions": "Which?", "choices": choices}
    answer = one.decisions({"input": TICKET, "questions": [question]})["answers"][0]
    told = [item["value"] for item in answer["probabilities"]]
    assert told == values and list(map(type, told)) == list(map(type, values))
    shares = [item["probability"] for item in answer["probabilities"]]
    best = values[shares.index(max(shares))]
    assert answer["choice"] == best and type(answer["choice"]) is type(best)


def cached(one: SystemOne, **more: Any) -> int:
    body = one.decisions({"input": "A long state. " * 20, "questions": [PREDICATE], **more})
    found: int = body["usage"]["input_tokens_details"]["cached_tokens"]
    return found


def test_prompt_cache_keys_share_no_cached_tokens(engine: Engine) -> None:
    one, salted = SystemOne(engine), SystemOne(engine, salt="s")
    keys = ["tenant-a", "tenant-b", "", "x" * 1000]
    for service in (one, salted):
        assert [cached(service, prompt_cache_key=key) for key in keys] == [0] * len(keys)
        assert cached(service) == 0 and cached(service) > 30
        assert all(cached(service, prompt_cache_key=key) > 30 for key in keys)
    assert cached(one, prompt_cache_options={"mode": "implicit"}) > 30
    assert cached(one, prompt_cache_options={"mode": None, "ttl": None, "other": None}) > 30, "null is not given"
    assert cached(one, prompt_cache_key=None, prompt_cache_options={"mode": "explicit"}) == 0


@pytest.mark.parametrize("name", ["assets", "images", "image", "audio", "videos", "video", "files"])
def test_images_beside_a_state_are_refused(one: SystemOne, name: str) -> None:
    for _ in range(2):  # also if the questions were asked before
        with pytest.raises(SystemOneError) as caught:
            ask(one, **{name: ["data:image/png;base64,AAAA"]})
        assert caught.value.errors[0]["loc"] == ["body", name]
        assert ask(one, **{name: []})["answers"]


# ------------------------------------------------------------------ questions that were asked before
def test_questions_that_were_asked_before_are_those_of_the_body(one: SystemOne) -> None:
    """A caller's change of a body, or of an answer, changes no later answer."""
    levels: list[Any] = ["Calm", {"label": "Angry"}]
    questions = {
        "a": {"type": "score", "instructions": "How?", "criteria": levels},
        "b": dict(CHOICE),
        "c": dict(NOUL),
    }
    first = ask(one, questions)["answers"]
    assert ask(one, questions)["answers"] == first
    levels[1]["label"] = "Furious"
    second = ask(one, questions)["answers"]
    assert second["a"]["legend"]["1"] == {"label": "Furious"}
    assert second["a"]["probabilities"] != first["a"]["probabilities"]
    assert second["b"] == first["b"] and second["c"] == first["c"]
    second["a"]["legend"]["1"]["label"] = "Angry"  # the caller's own object again
    second["b"]["probabilities"]["Billing"] = 2
    assert ask(one, questions)["answers"] == first
    renamed = {name.upper(): question for name, question in questions.items()}
    assert list(ask(one, renamed)["answers"].values()) == list(first.values())
    for wrong in (True, 5):
        with pytest.raises(SystemOneError):
            ask(one, {**questions, "c": {"type": "noul", "instructions": wrong}})


def test_equal_questions_of_many_bodies_are_prepared_together(engine: Engine) -> None:
    one = SystemOne(engine)
    requests = [{"state": f"{TICKET} {index}", "questions": json.loads(json.dumps(QUESTIONS))} for index in range(8)]
    one.answer(requests[0])
    before = engine.stats()["tokenizer_calls"]
    bodies = one.answer_many(requests)
    assert engine.stats()["tokenizer_calls"] - before <= 8, "the questions are not encoded again"
    assert [body["answers"] for body in bodies] == [one.answer(request)["answers"] for request in requests]

    async def main() -> None:
        same = await SystemOne(AsyncEngine(engine)).aanswer_many(requests)
        assert [body["answers"] for body in same] == [body["answers"] for body in bodies]

    asyncio.run(main())
    with pytest.raises(SystemOneError):
        one.answer_many([*requests, {"state": "x"}])
