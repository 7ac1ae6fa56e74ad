"""Chat messages: every field is bounded, and a copy stops where they are too large to be taken."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from prelude.admission.preparer import Preparer
from prelude.admission.snapshot import snapshot
from prelude.api.engine import text_size
from prelude.errors import InvalidRequest, RequestTooLarge
from prelude.tasks import Choice, Decide, Generate, SamplingParams, YesNo
from tests.admission import toys

MAX_DEPTH, MAX_VALUES, INLINE_CHARS = 64, 1 << 15, 4096


@pytest.fixture
def chatty() -> Preparer:
    return toys.make(chat=toys.chat, bos_id=2)


def task(**fields: Any) -> Generate:
    return Generate([{"role": "user", "content": "hi", **fields}], SamplingParams(seed=1))


def nested(levels: int) -> Any:
    value: Any = "x"
    for _ in range(levels):
        value = [value]
    return value


def doubled(levels: int) -> Any:
    """``2**levels`` values, in as many lists as ``levels``."""
    value: Any = [None]
    for _ in range(levels):
        value = [value, value]
    return value


@dataclass
class Call:
    arguments: Any


class Dumped:
    def __init__(self, arguments: Any) -> None:
        self._arguments = arguments

    def model_dump(self) -> Any:
        return {"arguments": self._arguments}


@pytest.mark.fault(5)
@pytest.mark.fault(39)
@pytest.mark.parametrize(
    ("fields", "field", "says"),
    [
        ({f"k{i}": 1 for i in range(MAX_VALUES)}, "prompt[0]", "values"),
        ({"tool_calls": ["v"] * 1_000_000}, "prompt[0].tool_calls", "values"),
        (
            {"tool_calls": [{"function": {"arguments": [1] * MAX_VALUES}}]},
            "prompt[0].tool_calls[0].function",
            "values",
        ),
        ({"content": [{}] * MAX_VALUES}, "prompt[0].content", "values"),
        ({"tool_calls": doubled(40)}, "prompt[0].tool_calls[0]", "values"),
        ({"tool_calls": nested(MAX_DEPTH)}, "prompt[0].tool_calls[0]", "nested deeper than 64"),
        ({"name": "x" * 5000}, "prompt[0].name", "5000 characters; the limit is 4096"),
        ({"x" * 5000: 1}, "prompt[0]", "5000 characters; the limit is 4096"),
        ({"role": "x" * 65}, "prompt[0].role", "65 characters; the limit is 64"),
        ({"tool_calls": [{"name": "y" * 1000}] * 5}, "prompt", "more than 4096 characters together"),
        ({"tool_calls": [{"y" * 1000: 1}] * 5}, "prompt", "more than 4096 characters together"),
        ({"call": Call([1] * MAX_VALUES)}, "prompt[0].call", "values"),
        ({"call": Dumped(["x" * 5000])}, "prompt[0].call.arguments[0]", "5000 characters"),
    ],
)
def test_every_field_of_a_message_is_bounded(chatty: Preparer, fields: Any, field: str, says: str) -> None:
    given = task(**fields)
    for one in (given, snapshot(given)):
        with pytest.raises(RequestTooLarge, match=says) as caught:
            chatty.prepare(one)
        assert str(caught.value.field).startswith(field)
    with pytest.raises(RequestTooLarge, match=says.split(";")[0]):
        chatty.prepare(Decide(given.prompt, [YesNo("Well?")]))


def test_the_number_of_values_is_exact_and_counts_all_messages(chatty: Preparer) -> None:
    def messages(values: int) -> list[Any]:
        return [{"role": "user", "content": "hi", "extra": [None] * values}, {"role": "user", "content": "ho"}]

    most = MAX_VALUES - 2 - 3 - 2  # two messages and their values
    chatty.prepare(snapshot(Generate(messages(most))))
    for late in (Generate(messages(most + 1)), snapshot(Generate(messages(most + 1)))):
        with pytest.raises(RequestTooLarge, match=f"more than {MAX_VALUES} values"):
            chatty.prepare(late)


class Counted(list[Any]):
    """Says how many of its items were looked at."""

    looked = 0

    def __iter__(self) -> Iterator[Any]:
        for item in super().__iter__():
            self.looked += 1
            yield item


@pytest.mark.fault(5)
def test_a_copy_and_its_size_stop_where_messages_are_too_large() -> None:
    many = Counted(["v"] * 1_000_000)
    owned = snapshot(task(tool_calls=many, later=many))
    assert many.looked == 0 and text_size(owned) < INLINE_CHARS
    few = Counted(["v"] * 1000)
    assert text_size(snapshot(task(tool_calls=few))) > INLINE_CHARS and few.looked == 1000


@pytest.mark.fault(20)
def test_a_copy_owns_the_objects_nested_in_any_field(chatty: Preparer) -> None:
    calls = [{"function": {"arguments": ["a"]}}]
    owned = snapshot(task(tool_calls=calls))
    calls[0]["function"]["arguments"].append("b")
    assert owned.prompt[0]["tool_calls"] == [{"function": {"arguments": ["a"]}}]  # type: ignore[index, call-overload]


@pytest.mark.fault(21)
@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"name": "\ud800"}, "prompt[0].name"),
        ({"role": "\ud800"}, "prompt[0].role"),
        ({"tool_calls": [{"function": {"arguments": "a\udc00"}}]}, "prompt[0].tool_calls[0].function.arguments"),
        ({"a\udc00": 1}, "prompt[0]"),
    ],
)
def test_half_a_character_is_refused_in_every_field(chatty: Preparer, fields: Any, field: str) -> None:
    with pytest.raises(InvalidRequest, match="lone surrogate") as caught:
        chatty.prepare(task(**fields))
    assert str(caught.value.field).startswith(field)


def test_an_object_that_cannot_be_read_as_fields_fails_alone(chatty: Preparer) -> None:
    class Broken:
        def model_dump(self) -> Any:
            raise KeyError("gone")

    with pytest.raises(InvalidRequest, match=r"prompt\[0\]\.call: Broken cannot be read as fields.*give a dict"):
        chatty.prepare(task(call=Broken()))


@pytest.mark.fault(5)
@pytest.mark.parametrize(
    "tasks",
    [
        [Decide("x", [YesNo("q")])] * 100, [Decide("x", [YesNo("q")] * 150)],
        [Decide("x", [Choice("q", [f"{i}" for i in range(200)])])], [task(tool_calls=[[]] * 300)],
        [task(**{f"k{i}": None for i in range(300)})], [task(call=Dumped([]))],
    ],
)  # fmt: skip
def test_work_without_much_text_is_no_work_for_a_loop(tasks: list[Any]) -> None:
    assert sum(map(text_size, tasks)) > INLINE_CHARS


CALL = {"id": "1", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("item", "field", "says"),
    [
        ({"role": "user", "content": "a", "type": "reasoning"}, ".type", "is not the type of a message"),
        ({"role": "assistant", "tool_calls": "f()"}, ".tool_calls", "is not a list of calls"),
        ({"role": "assistant", "tool_calls": [CALL, 5]}, ".tool_calls[1]", "5 is not a call of a tool"),
        ({"role": "assistant", "function_call": "f"}, ".function_call", "is not a call of a tool"),
        ({"role": "assistant", "tool_calls": [{**CALL, "function": 5}]}, ".tool_calls[0]", "5 is not a function"),
        ({"role": "user", "content": "a", "tool_call_id": "1"}, ".tool_call_id", "answers no call"),
        ({"role": "user", "content": "a", "status": "incomplete"}, ".status", "is not shown to the model"),
        ({"role": "user", "content": [{"type": "text", "text": "a"}, 5]}, ".content[1]", "5"),
        ({"role": "user", "content": [{"type": "text", "text": "a"}, {}] * MAX_VALUES}, ".content", "values"),
        ({"role": "user", "content": 5}, ".content", "5 is not text or a list of text parts"),
        ({"role": "user"}, "", 'has no "content"'),
    ],
)
def test_an_item_of_a_conversation_is_refused_at_its_place(
    chatty: Preparer, item: dict[str, Any], field: str, says: str
) -> None:
    state = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": ["a"]}, item]
    with pytest.raises(InvalidRequest) as caught:
        chatty.prepare(snapshot(Decide(state, [YesNo("Polite?")])))
    assert caught.value.field == f"state[2]{field}" and says in str(caught.value)
