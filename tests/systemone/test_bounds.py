"""Both sides of each bound of a body, nulls in OpenAI's options, and the place that each error names."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from prelude import Engine, EngineConfig, errors
from prelude.results import Answers, RequestStats
from prelude.systemone import SystemOne, SystemOneError, aread_body, problem, read_body, write_body
from prelude.systemone.request import usage_of

NOUL = {"type": "noul", "instructions": "Is it?"}
PREDICATE = {"type": "predicate", "instructions": "Is it?"}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine.from_pretrained(config=EngineConfig(kv_bytes=1 << 23, deterministic=True)) as made:
        yield made


@pytest.fixture(scope="module")
def one(engine: Engine) -> SystemOne:
    return SystemOne(engine, name="small")


def places(ask: Any, body: Any) -> list[tuple[Any, ...]]:
    with pytest.raises(SystemOneError) as caught:
        ask(body)
    assert caught.value.field == (".".join(map(str, caught.value.errors[0]["loc"][1:])) or None)
    return [(*error["loc"][1:], error["type"]) for error in caught.value.errors]


def asked(question: Any, **more: Any) -> dict[str, Any]:
    return {"state": "a", "questions": {"q": question}, **more}


@pytest.mark.parametrize(
    "question",
    [
        {"type": "choice", "criteria": {"a": None}},
        {"type": "choice", "criteria": {str(at): None for at in range(255)}},
        {"type": "choice", "instructions": None, "criteria": {"a": "note", "b": ["x"]}},
        {"type": "score", "criteria": ["a", "b"]}, {"type": "score", "criteria": [str(at) for at in range(10)]},
        {"type": "noul", "instructions": None, "criteria": {"true": "it is"}},
        {"type": "noul", "criteria": {"true": None, "false": "it is not"}},
        {"type": "noul", "instructions": {"a": [1]}, "criteria": None}, {**NOUL, "x_own": 5},
    ],
)  # fmt: skip
def test_a_question_within_its_bounds_is_answered(one: SystemOne, question: Any) -> None:
    assert list(one.answer(asked(question))["answers"]) == ["q"]


def test_four_hundred_questions_and_ids_that_are_strings(one: SystemOne) -> None:
    assert places(one.answer, {"state": "a", "questions": {5: NOUL}}) == [("questions", 5, "string_type")]
    assert len(str(places(one.answer, {"state": "a", "questions": {10**5000: NOUL}}))) < 150
    many = {str(at): NOUL for at in range(400)}
    assert len(one.answer({"state": "a", "questions": many})["answers"]) == 400
    assert places(one.answer, {"state": "a", "questions": {**many, "x": NOUL}}) == [("questions", "too_long")]
    listed = {"input": "a", "questions": [PREDICATE] * 400}
    assert len(one.decisions(listed)["answers"]) == 400
    assert places(one.decisions, {"input": "a", "questions": [PREDICATE] * 401}) == [("questions", "list_type")]


def test_what_is_missing_is_named(one: SystemOne) -> None:
    for ask, state in ((one.answer, "state"), (one.decisions, "input")):
        assert places(ask, {}) == [(state, "missing"), ("questions", "missing")]
        assert places(ask, {state: "a"}) == [("questions", "missing")] and places(ask, []) == [("dict_type",)]
    assert places(one.answer, {"questions": {"q": NOUL}}) == [("state", "missing")]
    assert places(one.decisions, {"questions": [PREDICATE]}) == [("input", "missing")]


# ------------------------------------------------------------------ OpenAI's form
def chosen(count: int) -> dict[str, Any]:
    return {"type": "choice", "instructions": "?", "choices": [{"value": str(at)} for at in range(count)]}


def rated(count: int) -> dict[str, Any]:
    return {"type": "score", "instructions": "?", "levels": [{"label": str(at)} for at in range(count)]}


@pytest.mark.parametrize(
    ("question", "loc"),
    [
        (chosen(1), ("choices", "list_type")), (chosen(256), ("choices", "list_type")),
        (rated(1), ("levels", "list_type")), (rated(11), ("levels", "list_type")),
        ({**chosen(2), "choices": [{"value": "a"}, "b"]}, ("choices", 1, "dict_type")),
        ({**chosen(2), "choices": [{"value": "a"}, {"value": ""}]}, ("choices", 1, "value", "union_type")),
        ({**chosen(2), "choices": [{"value": "a"}, {"value": 5}]}, ("choices", 1, "value", "union_type")),
        ({**rated(2), "levels": [{"label": ""}, {"label": "b"}]}, ("levels", 0, "label", "string_type")),
        ({**rated(2), "levels": [{"label": "a", "description": 5}] * 2}, ("levels", 0, "description", "string_type")),
        ({**rated(2), "levels": [{"label": "a"}, {}]}, ("levels", 1, "label", "string_type")),
        ({**PREDICATE, "name": 5}, ("name", "string_type")),
        ({**PREDICATE, "levels": []}, ("levels", "extra_forbidden")),
        ({**chosen(2), "levels": []}, ("levels", "extra_forbidden")),
        ({**rated(2), "choices": []}, ("choices", "extra_forbidden")),
        ({**PREDICATE, "x_own": 1}, ("x_own", "extra_forbidden")),
        ({"type": "predicate"}, ("instructions", "missing")),
        ({"type": "predicate", "instructions": 5}, ("instructions", "value_error")),
        ({"type": ["predicate"], "instructions": "?"}, ("type", "union_tag_invalid")),
        ("predicate", ("type", "union_tag_invalid")),
    ],
)  # fmt: skip
def test_a_question_of_openai_beyond_its_bounds(one: SystemOne, question: Any, loc: Any) -> None:
    found = places(one.decisions, {"input": "a", "questions": [PREDICATE, question]})
    assert found[0] == ("questions", 1, *loc)


@pytest.mark.parametrize(
    "question",
    [
        chosen(2), chosen(255), rated(2), rated(10), {**PREDICATE, "name": None},
        {**chosen(2), "choices": [{"value": "a", "description": None}, {"value": "b", "description": ""}]},
        {**rated(2), "levels": [{"label": "a", "description": None}, {"label": "b", "description": ""}]},
    ],
)  # fmt: skip
def test_a_question_of_openai_within_its_bounds(one: SystemOne, question: Any) -> None:
    body = one.decisions({"input": "a", "questions": [question], "x_own": 1})
    assert len(body["answers"]) == 1 and body["model"] == "small"
    bare = json.loads(json.dumps(question), object_hook=_without_empty)
    assert one.decisions({"input": "a", "questions": [bare]})["answers"] == body["answers"], "null is not given"


def _without_empty(value: dict[str, Any]) -> dict[str, Any]:
    return {key: item for key, item in value.items() if item not in (None, "")}


@pytest.mark.parametrize(
    ("more", "loc"),
    [
        ({"prompt_cache_key": None}, None), ({"prompt_cache_options": None}, None),
        ({"prompt_cache_options": {}}, None), ({"prompt_cache_options": {"ttl": None}}, None),
        ({"model": None}, None), ({"prompt_cache_options": "explicit"}, ("prompt_cache_options", "dict_type")),
        ({"prompt_cache_options": {"mode": ["explicit"]}}, ("prompt_cache_options", "mode", "literal_error")),
        ({"prompt_cache_options": {"mode": ""}}, ("prompt_cache_options", "mode", "literal_error")),
        ({"prompt_cache_options": {"ttl": ""}}, ("prompt_cache_options", "ttl", "extra_forbidden")),
        ({"prompt_cache_options": {"other": False}}, ("prompt_cache_options", "other", "extra_forbidden")),
        ({"prompt_cache_key": False}, ("prompt_cache_key", "string_type")),
        ({"temperature": None}, ("temperature", "extra_forbidden")),
        ({"input": {"role": "user", "content": "a"}}, ("input", "union_type")),
    ],
)  # fmt: skip
def test_an_option_that_is_null_is_not_given(one: SystemOne, more: Any, loc: Any) -> None:
    body = {"input": "a", "questions": [PREDICATE], **more}
    if loc is None:
        assert one.decisions(body)["answers"] == one.decisions({"input": "a", "questions": [PREDICATE]})["answers"]
    else:
        assert places(one.decisions, body) == [loc]


def test_usage_of_openai_is_that_of_the_other_form(one: SystemOne) -> None:
    usage = one.answer({"state": "a long state " * 9, "questions": {"q": NOUL}})["usage"]
    theirs = one.decisions({"input": "a long state " * 9, "questions": [PREDICATE]})["usage"]
    assert theirs["input_tokens"] == theirs["total_tokens"] == usage["input_tokens"]
    assert theirs["input_tokens_details"]["cache_write_tokens"] == 0 == theirs["output_tokens"]
    assert theirs["output_tokens_details"] == {"reasoning_tokens": 0}
    stats = [RequestStats(prompt_tokens=5, cached_tokens=2, truncated_tokens=at) for at in (1, 4)]
    found, cut = usage_of([Answers([], one) for one in stats])
    assert (found["input_tokens"], found["x_cached_tokens"], cut) == (10, 4, 5)


# ------------------------------------------------------------------ bytes
def test_bytes_of_a_body_up_to_the_bound() -> None:
    at_most = b"[1]".ljust(16 << 20)
    assert read_body(at_most) == [1]
    with pytest.raises(SystemOneError, match=f"the body has more than {16 << 20} bytes") as caught:
        read_body(at_most + b" ")
    assert problem(caught.value)[0] == 413
    assert caught.value.body["detail"]["error_type"] == "request_too_large"
    for encoding in (None, "", " Identity "):
        assert read_body(b"{}", encoding) == {}
    with pytest.raises(SystemOneError) as caught:
        read_body(b"{}", "gzip")
    assert caught.value.body["detail"]["error_type"] == "unsupported_encoding" and caught.value.status == 415
    with pytest.raises(SystemOneError, match="JSON decode error") as caught:
        read_body(b"{")
    assert caught.value.errors[0]["type"] == "json_invalid" and caught.value.field is None
    assert write_body({"a": "é\ud800"}) == '{"a": "é\\ud800"}'.encode()
    with pytest.raises(ValueError, match="JSON compliant"):
        write_body(float("nan"))


def test_a_body_of_more_than_64_kb_is_read_in_a_thread() -> None:
    class Counted(ThreadPoolExecutor):
        count = 0

        def submit(self, *given: Any, **keywords: Any) -> Any:
            self.count += 1
            return super().submit(*given, **keywords)

    async def threads(data: bytes, encoding: str | None = None) -> int:
        async def parts() -> AsyncIterator[bytes]:
            yield data

        used = Counted()
        asyncio.get_running_loop().set_default_executor(used)
        assert await aread_body(parts(), encoding) == [1]
        return used.count

    assert asyncio.run(threads(b"[1]".ljust(1 << 16))) == 0
    assert asyncio.run(threads(b"[1]".ljust((1 << 16) + 1))) == 1
    assert asyncio.run(threads(b"[1]", "identity")) == 1, "what is packed may be large"


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (errors.PromptTooLong("long", tokens=2, limit=1, field="state"), 413, "request_too_large"),
        (errors.RequestTooLarge("large", field="state"), 413, "request_too_large"),
        (errors.Overloaded("later"), 429, "rate_limit_error"), (errors.QueueFull("full"), 429, "rate_limit_error"),
        (errors.DeadlineExceeded("late"), 504, "timeout_error"), (errors.EngineClosed("closed"), 503, "unavailable"),
        (errors.InvalidRequest("bad", field="salt"), 422, "invalid_request"),
        (errors.ExecutionError("broken"), 500, "internal_error"),
    ],
)  # fmt: skip
def test_the_status_of_an_error(error: Exception, status: int, kind: str) -> None:
    found, body = problem(error)
    assert (found, body["detail"]["error_type"], body["detail"]["message"]) == (status, kind, str(error))
    unknown, said = problem(ZeroDivisionError("secret"))
    assert unknown == 500 and "secret" not in str(said)


def test_names_and_dates_of_a_service(one: SystemOne, engine: Engine) -> None:
    assert one.models()["models"][0]["description"] == "small, served by Prelude"
    assert [model["name"] for model in one.models()["models"]] == ["small", "jev-latest"], "by default"
    own = SystemOne(engine, name="n", aliases=(), description="d", release_date="").models()["models"]
    assert own == [{"name": "n", "description": "d", "release_date": ""}]
    with pytest.raises(SystemOneError, match=r"there is n$") as caught:
        SystemOne(engine, name="n", aliases=()).answer(asked(NOUL, model="jev-latest"))
    assert caught.value.status == 404
