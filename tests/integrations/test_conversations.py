"""A conversation at ``decide``, System One, ``/v1/decisions`` and LangChain: one prompt, or refused at each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies

from prelude import Engine, Noul
from prelude.admission.conversation import is_conversation
from prelude.errors import InvalidRequest
from prelude.systemone import SystemOne, SystemOneError
from prelude.tasks import Decide

USER = {"role": "user", "content": "Is it warm in Rome?"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 3000}}


def text(value: str, kind: str = "text") -> dict[str, Any]:
    return {"type": kind, "refusal" if kind == "refusal" else "text": value}


def called(call_id: str, name: str = "warm", arguments: Any = '{"in": "Rome"}') -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def call(call_id: str, name: str = "warm", arguments: str = '{"in":"Rome"}', **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments, **more}


def output(call_id: str, said: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": said}


def assistant(**fields: Any) -> dict[str, Any]:
    return {"role": "assistant", **fields}


def tool(call_id: str, said: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": said, **fields}


ASKED = "user: Is it warm in Rome?"
ROME = '\n\ntool_call: {"name": "warm", "arguments": {"in": "Rome"}}'
OSLO = '\n\ntool_call: {"name": "warm", "arguments": {"in": "Oslo"}}'
TWO = [called("1"), called("2", arguments={"in": "Oslo"})]
YES, NO = "\n\ntool (warm): yes", "\n\ntool (warm): no"

# A conversation and its text.
SHOWN: dict[str, tuple[list[Any], str]] = {
    "a text": ([USER], ASKED),
    "two turns": ([USER, assistant(content="Yes.")], f"{ASKED}\n\nassistant: Yes."),
    "a part of text": ([{"role": "user", "content": [text("Is it warm in Rome?")]}], ASKED),
    "one message in parts": (
        [USER, assistant(content=[text("Yes."), text(" Very.")])],
        f"{ASKED}\n\nassistant: Yes. Very.",
    ),
    "parts of OpenAI": (
        [
            {"role": "user", "content": [text("Is it ", "input_text"), text("warm in Rome?", "input_text")]},
            assistant(content=[text("No.", "refusal")]),
        ],
        f"{ASKED}\n\nassistant: No.",
    ),
    "a part of JSON": (
        [{"role": "user", "content": [text("See"), {"type": "input_json", "data": {"a": [1, "ü"]}}, text("now")]}],
        'user: See\n{"a": [1, "ü"]}\nnow',
    ),
    "an empty part before JSON": (
        [{"role": "user", "content": [text("See\n"), text(""), {"type": "input_json", "data": 1}]}],
        "user: See\n1",
    ),
    "a bare string in parts": ([{"role": "user", "content": ["Is it warm", text(" in Rome?")]}], ASKED),
    "no parts": ([USER, assistant(content=[])], f"{ASKED}\n\nassistant: "),
    "no content": ([USER, assistant(content=None)], f"{ASKED}\n\nassistant: "),
    "keys that are None": (
        [
            {**USER, "name": None, "tool_calls": None},
            assistant(content=None, refusal="No.", audio=None, annotations=[]),
        ],
        f"{ASKED}\n\nassistant: No.",
    ),
    "an empty name": ([{**USER, "name": ""}], ASKED),
    "fields that are empty": (
        [{**USER, "name": "", "tool_calls": []}, call("1", arguments="", namespace=""), output("1", "")],
        f'{ASKED}\n\ntool_call: {{"name": "warm", "arguments": {{}}}}\n\ntool (warm): ',
    ),
    "a name": ([{**USER, "name": "Ada"}], "user (Ada): Is it warm in Rome?"),
    "another role": ([USER, {"role": "judge", "content": "Fair."}], f"{ASKED}\n\njudge: Fair."),
    "a phase": (
        [USER, assistant(content="Yes.", phase="final_answer")],
        f"{ASKED}\n\nassistant (final_answer): Yes.",
    ),
    "a typed message": ([{**USER, "type": "message", "id": "m1", "status": "completed"}], ASKED),
    "a call": ([USER, assistant(content=None, tool_calls=[called("1")])], ASKED + ROME),
    "a call without arguments": (
        [USER, assistant(content=None, tool_calls=[called("1", arguments=None)])],
        f'{ASKED}\n\ntool_call: {{"name": "warm", "arguments": {{}}}}',
    ),
    "a call with a name": (
        [USER, assistant(content=None, name="bot", tool_calls=[called("1")])],
        f"{ASKED}\n\nassistant (bot): {ROME}",
    ),
    "a call beside a text": (
        [USER, assistant(content="Let me see.", tool_calls=[called("1")])],
        f"{ASKED}\n\nassistant: Let me see.{ROME}",
    ),
    "a call of OpenAI": ([USER, call("1")], ASKED + ROME),
    "a call that answers": (
        [USER, assistant(content="", tool_calls=[called("1")]), tool("1", "yes")],
        ASKED + ROME + YES,
    ),
    "the same of OpenAI": (
        [USER, call("1"), output("1", [text("y", "input_text"), text("es", "input_text")])],
        ASKED + ROME + YES,
    ),
    "two calls": (
        [USER, assistant(content=None, tool_calls=TWO), tool("1", "yes"), tool("2", "no")],
        ASKED + ROME + YES + OSLO + NO,
    ),
    "two calls answered late": (
        [USER, assistant(content=None, tool_calls=TWO), tool("2", "no"), tool("1", "yes")],
        ASKED + ROME + YES + OSLO + NO,
    ),
    "two calls, ids swapped": (
        [USER, assistant(content=None, tool_calls=TWO), tool("2", "yes"), tool("1", "no")],
        ASKED + ROME + NO + OSLO + YES,
    ),
    "two calls of OpenAI": (
        [USER, call("1"), call("2", arguments='{"in": "Oslo"}'), output("2", "no"), output("1", "yes")],
        ASKED + ROME + YES + OSLO + NO,
    ),
    "the same, ids swapped": (
        [USER, call("1"), call("2", arguments='{"in": "Oslo"}'), output("1", "no"), output("2", "yes")],
        ASKED + ROME + NO + OSLO + YES,
    ),
    "an id used again": (
        [call("1"), output("1", "yes"), call("1"), output("1", "no")],
        (ROME + YES + ROME + NO).lstrip(),
    ),
    "arguments that are no object": (
        [USER, call("1", arguments="[Rome"), output("1", "yes")],
        f'{ASKED}\n\ntool_call: {{"name": "warm", "arguments": "[Rome"}}{YES}',
    ),
    "a call in a namespace": (
        [USER, call("1", namespace="met", status="incomplete")],
        f'{ASKED}\n\ntool_call: {{"name": "warm", "namespace": "met", "arguments": {{"in": "Rome"}}, '
        '"status": "incomplete"}',
    ),
    "a tool of its own": (
        [
            {"type": "custom_tool_call", "call_id": "1", "name": "shell", "input": "ls"},
            {"type": "custom_tool_call_output", "call_id": "1", "output": "a b"},
        ],
        'tool_call: {"name": "shell", "input": "ls"}\n\ntool (shell): a b',
    ),
    "an older call": (
        [
            USER,
            assistant(content=None, function_call={"name": "warm", "arguments": "{}"}),
            {"role": "function", "name": "warm", "content": "yes"},
        ],
        f'{ASKED}\n\ntool_call: {{"name": "warm", "arguments": {{}}}}\n\nfunction (warm): yes',
    ),
}

# A conversation that is refused, and the place in it.
REFUSED: dict[str, tuple[list[Any], list[Any]]] = {
    "an image": ([{"role": "user", "content": [text("What is it?"), IMAGE]}], [0, "content", 1]),
    "an image of OpenAI": (
        [{"role": "user", "content": [{"type": "input_image", "image_url": "data:x"}]}],
        [0, "content", 0],
    ),
    "a sound": (
        [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}]}],
        [0, "content", 0],
    ),
    "a file": (
        [USER, {"role": "user", "content": [{"type": "file", "file": {"file_data": "AAAA"}}]}],
        [1, "content", 0],
    ),
    "an image as an output": (
        [call("1"), output("1", [{"type": "input_image", "image_url": "data:x"}])],
        [1, "output", 0],
    ),
    "an image of a tool": (
        [assistant(content=None, tool_calls=[called("1")]), tool("1", [IMAGE])],
        [1, "content", 0],
    ),
    "an output that answers no call": ([USER, output("1", "yes")], [1, "call_id"]),
    "an output before its call": ([output("1", "yes"), call("1")], [0, "call_id"]),
    "two outputs of a call": ([call("1"), output("1", "yes"), output("1", "no")], [2, "call_id"]),
    "two calls of one id": ([call("1"), call("1")], [1, "call_id"]),
    "a message of a tool that answers no call": ([USER, tool("9", "yes")], [1, "tool_call_id"]),
    "a type that nothing has": (
        [USER, {"type": "function_cal", "call_id": "1", "name": "warm", "arguments": "{}"}],
        [1],
    ),
    "another item": ([USER, {"type": "reasoning", "summary": []}], [1]),
    "no role": ([USER, {"content": "Yes."}], [1]),
    "a role that is no text": ([USER, {"role": None, "content": "Yes."}], [1]),
    "a misspelt content": ([{"role": "user", "contnet": "Is it warm?"}], [0]),
    "a field of no use": ([{**USER, "mood": "cheerful"}], [0]),
    "a content that is an object": ([{"role": "user", "content": {"text": "hi"}}], [0, "content"]),
    "a part without its text": ([{"role": "user", "content": [{"type": "text"}]}], [0, "content", 0, "text"]),
    "a part that marks a cache": (
        [
            {
                "role": "user",
                "content": [{**text("hi", "input_text"), "prompt_cache_breakpoint": {"mode": "explicit"}}],
            }
        ],
        [0, "content", 0],
    ),
    "a call without a name": (
        [assistant(content=None, tool_calls=[{"id": "1", "function": {"arguments": "{}"}}])],
        [0, "tool_calls", 0, "name"],
    ),
    "arguments twice": ([call("1", args={})], [0]),
    "a call with two names": (
        [assistant(content=None, tool_calls=[{**called("1"), "name": "cold"}])],
        [0, "tool_calls", 0],
    ),
    "two texts in a part": ([{"role": "user", "content": [{**text("hi"), "refusal": "no"}]}], [0, "content", 0]),
    "a message without a role": ([{"type": "message", "content": "hi"}], [0, "role"]),
    "no message at all": ([USER, "Yes."], [1]),
    "half a character": ([{"role": "user", "content": [text("\ud800")]}], [0, "content", 0, "text"]),
}


class Entrances:
    """Each gives the prompt that a state becomes."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self._engine = engine
        self._one = SystemOne(engine)
        self._tasks: list[Decide] = []
        run = engine.run_many

        def recorded(tasks: Any, *options: Any, **keywords: Any) -> Any:
            self._tasks = list(tasks)
            return run(tasks, *options, **keywords)

        monkeypatch.setattr(engine, "run_many", recorded)

    def decide(self, state: Any) -> str:
        return self._prompt(Decide(state, [Noul("Well?")]))

    def systemone(self, state: Any) -> str:
        self._one.answer({"state": state, "questions": {"q": {"type": "noul", "instructions": "Well?"}}})
        return self._prompt(self._tasks[0])

    def openai(self, state: Any) -> str:
        self._one.decisions({"input": state, "questions": [{"type": "predicate", "instructions": "Well?"}]})
        return self._prompt(self._tasks[0])

    def langchain(self, state: Any) -> str:
        decisions = pytest.importorskip("langchain_core.decisions")
        from prelude.integrations.langchain import PreludeDecisions

        question = decisions.Noul(instructions="Well?")
        PreludeDecisions(engine=self._engine).invoke({"state": state, "questions": {"q": question}})
        return self._prompt(self._tasks[0])

    def _prompt(self, task: Decide) -> str:
        shown: str = self._engine.explain(task).text
        return shown.removesuffix("\n\nQuestion: Well?\nOptions: yes, no\nAnswer:")


@pytest.fixture
def entrances(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Entrances:
    return Entrances(engine, monkeypatch)


ENTRANCES: list[Callable[[Entrances, Any], str]] = [
    Entrances.decide, Entrances.systemone, Entrances.openai, Entrances.langchain,
]  # fmt: skip


@pytest.mark.feature("G21")
@pytest.mark.parametrize("entrance", ENTRANCES)
@pytest.mark.parametrize("name", SHOWN)
def test_a_conversation_is_one_prompt(
    entrances: Entrances, entrance: Callable[[Entrances, Any], str], name: str
) -> None:
    state, shown = SHOWN[name]
    assert entrance(entrances, state) == shown
    assert entrance(entrances, tuple(state)) == shown


@pytest.mark.parametrize("entrance", ENTRANCES)
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_conversation_is_refused_at_its_place(
    entrances: Entrances, entrance: Callable[[Entrances, Any], str], name: str
) -> None:
    state, place = REFUSED[name]
    with pytest.raises(InvalidRequest) as caught:
        entrance(entrances, state)
    if isinstance(caught.value, SystemOneError):
        key = "input" if entrance is Entrances.openai else "state"
        assert (caught.value.status, caught.value.errors[0]["loc"]) == (422, ["body", key, *place])
    else:
        steps = [f"[{step}]" if isinstance(step, int) else f".{step}" for step in place]
        assert caught.value.field == "state" + "".join(steps)
    assert len(str(caught.value)) < 300


PIECES: list[Any] = [
    None, "", "x", 5, True, [], {}, [None], ["x"], {"type": "text"}, text("x"), IMAGE, USER, call("1"),
    output("1", "yes"), tool("1", "yes"), called("1"),
    "tool", "message", "function_call", {"role": "user"}, {"content": "x"},
]  # fmt: skip


def changed(value: Any, draw: Callable[[int], int]) -> Any:
    """``value`` with another piece at one place of it."""
    if not isinstance(value, list | dict) or not value or not draw(4):
        return PIECES[draw(len(PIECES))]
    key = list(value)[draw(len(value))] if isinstance(value, dict) else draw(len(value))
    copy = value.copy()
    if draw(8):
        copy[key] = changed(value[key], draw)
    else:
        del copy[key]
    return copy


@given(strategies.sampled_from([*SHOWN, *REFUSED]), strategies.lists(strategies.integers(0, 1 << 16), min_size=40))
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_changed_conversation_is_one_prompt_or_refused(entrances: Entrances, name: str, numbers: list[int]) -> None:
    """``/v1/decisions`` takes conversations alone."""
    left = iter(numbers * 10)
    state = changed((SHOWN.get(name) or REFUSED[name])[0], lambda most: next(left) % most)
    if not is_conversation(state):
        return
    found = set()
    for entrance in (Entrances.decide, Entrances.systemone, Entrances.openai):
        try:
            found.add(entrance(entrances, state))
        except InvalidRequest:
            found.add("")
    assert len(found) == 1, state


def test_messages_of_langchain_are_the_conversation_that_they_say(entrances: Entrances) -> None:
    messages = pytest.importorskip("langchain_core.messages")
    converted = 0
    for name, (state, shown) in SHOWN.items():
        if not all("role" in item and item["role"] != "judge" for item in state) or "input_json" in str(state):
            continue
        try:
            given = messages.convert_to_messages(state)
        except (ValueError, TypeError, KeyError):
            continue
        converted += 1
        assert entrances.langchain(given) == shown.replace(" (final_answer)", ""), name
    assert converted > 12


@pytest.mark.parametrize("part", [{"type": "function_call", "call_id": "1"}, {"type": "tool_call", "id": "1"}])
def test_a_call_of_langchain_that_is_in_the_content_too_is_shown_once(entrances: Entrances, part: Any) -> None:
    message = pytest.importorskip("langchain_core.messages").AIMessage
    calls = [{"name": "look", "args": {}, "id": "1"}]
    once, twice = ([{"type": "text", "text": "Wait."}, *more] for more in ([], [{**part, "name": "look"}]))
    shown = [entrances.langchain([message(content, tool_calls=calls)]) for content in (once, twice)]
    assert shown[0] == shown[1] and shown[0].count("look") == 1


@pytest.mark.parametrize("calls", [[], [{"name": "look", "args": {}, "id": "1"}]])
@pytest.mark.parametrize("part", [{"cachePoint": {}}, {"type": "tool_call", "id": []}])
def test_content_of_langchain_that_is_no_text_is_refused_as_such(entrances: Entrances, calls: Any, part: Any) -> None:
    message = pytest.importorskip("langchain_core.messages").AIMessage
    with pytest.raises(InvalidRequest, match="only text is taken"):
        entrances.langchain([message([part], tool_calls=calls)])


def test_langchain_names_the_message_that_it_cannot_read(entrances: Entrances) -> None:
    messages = pytest.importorskip("langchain_core.messages")
    broken = messages.AIMessage("", invalid_tool_calls=[{"name": "f", "args": "{", "id": "1", "error": "no JSON"}])
    film = messages.HumanMessage([{"type": "video", "url": "http://example.invalid"}])
    for state, field in (
        ([messages.HumanMessage("hi"), broken], "state[1].invalid_tool_calls"),
        ({"log": [film]}, "state.log[0]"),
        ({"last": messages.ToolMessage("yes", tool_call_id="1")}, "state.last[0].tool_call_id"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            entrances.langchain(state)
        assert caught.value.field == field


@pytest.mark.parametrize(
    "part",
    [
        IMAGE, {"type": "image", "base64": "AAAA", "mime_type": "image/png"}, {"type": "input_file", "file_id": "f"},
        {"type": "document", "source": {"type": "base64", "data": "AAAA"}}, {"type": "video", "url": "http://x"},
        {"type": "file", "file_data": "AAAA"}, {"type": "input_audio", "input_audio": {"data": "AAAA"}},
    ],
)  # fmt: skip
def test_an_image_inside_an_object_is_refused(entrances: Entrances, part: Any) -> None:
    state = {"plan": "pro", "messages": [{"role": "user", "content": [text("hi"), part]}]}
    for entrance in (Entrances.decide, Entrances.systemone, Entrances.langchain):
        with pytest.raises(InvalidRequest, match="only text is taken") as caught:
            entrance(entrances, state)
        if isinstance(caught.value, SystemOneError):
            assert caught.value.errors[0]["loc"] == ["body", "state", "messages", 0, "content", 1]
    deep: Any = "x"
    for _ in range(5000):
        deep = {"in": deep}
    with pytest.raises(SystemOneError, match="nested deeper"):
        entrances.langchain(deep)
    assert entrances.decide({"type": "file", "name": "a.txt"}) == '{"type": "file", "name": "a.txt"}'
