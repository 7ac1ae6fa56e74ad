"""Defines a conversation: the messages of a state, and their text.

A list is a conversation if one of its objects is a message or a call of a tool. Then each of them has to be one, in
the form of a chat, of OpenAI's responses or of LangChain's tool calls. ``turns_of`` makes the same turns of all:
objects with a role, a content and perhaps a name, which are texts.

    {"role": "user", "name": "Ada", "content": [{"type": "text", "text": "hi"}]}    user, Ada:        hi
    {"role": "assistant", "content": None, "tool_calls": [...]}                     tool_call:        {"name": …}
    {"role": "tool", "tool_call_id": …, "content": …}                               tool, the call's: …

An output stands behind the call that it answers, since the ids of calls are not shown. A key whose value is None is
not there. A field that has no place in a turn is refused, as are images, sounds and files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

from prelude.admission.messages import MAX_ROLE, TooLarge
from prelude.admission.structured import MAX_TEXT, json_of
from prelude.errors import InvalidRequest, RequestTooLarge, shown
from prelude.values import validation
from prelude.values.strict_json import loads

_ROLES = frozenset(["system", "developer", "user", "assistant", "tool", "function"])
_CALLS = frozenset(["function_call", "custom_tool_call"])
_OUTPUTS = frozenset(["function_call_output", "custom_tool_call_output"])
_ITEMS = _CALLS | _OUTPUTS | {"message"}
_TEXTS: Mapping[str, str] = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
# The fields that are read, and those that say nothing about the conversation: ids, and where a text came from.
_IDS = frozenset(["id", "type", "index"])
_MESSAGE = _IDS | {
    "role",
    "content",
    "name",
    "phase",
    "status",
    "refusal",
    "tool_calls",
    "function_call",
    "tool_call_id",
}
_FUNCTION = _IDS | {"name", "arguments", "args", "input"}
_AROUND = _IDS | {"call_id", "namespace", "status"}  # of a call, beside its function
_OUTPUT = _IDS | {"call_id", "output", "status"}
_PART = _IDS | {"annotations", "logprobs"}
_EMPTY = frozenset(["output", "input"])  # texts that may be empty


def is_conversation(value: Any) -> bool:
    """Return whether an array holds a message or a call of a tool, and so has to be a conversation."""
    if not isinstance(value, list | tuple) or not value or type(value[0]) is int:
        return False
    return any(map(_is_item, value))


def _is_item(item: Any) -> bool:
    if not isinstance(item, Mapping):
        return False
    role, kind = item.get("role"), item.get("type")
    if "role" in item:
        return "content" in item or "tool_calls" in item or (isinstance(role, str) and role in _ROLES)
    return isinstance(kind, str) and kind in _ITEMS


def turns_of(items: Sequence[Any], field: str) -> Sequence[Mapping[str, str]]:
    """Return the turns of a conversation; ``items`` itself if it has no more than roles and texts. ``InvalidRequest``
    names the place in ``field``."""
    if all(map(_is_turn, items)):
        return items
    turns = _Turns()
    for index, item in enumerate(items):
        here = f"{field}[{index}]"
        if isinstance(item, TooLarge):
            raise RequestTooLarge(item.reason, field=here)
        if not isinstance(item, Mapping):
            raise InvalidRequest(f"{shown(item)} is not a message (an object with role and content)", field=here)
        turns.take(_given(item), here)
    return turns.all()


def _given(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields with a value: no ``None``, and no empty text but a content."""
    return {
        key: value
        for key, value in item.items()
        if key == "content" or not (value is None or (isinstance(value, str) and not value and key not in _EMPTY))
    }


def _is_turn(item: Any) -> bool:
    if type(item) is not dict or not 2 <= len(item) <= 3:
        return False
    texts = map(item.get, ("role", "content") if len(item) == 2 else ("role", "content", "name"))
    return all(isinstance(text, str) for text in texts) and item.get("name") != ""


class _Turns:
    def __init__(self) -> None:
        self._places: list[list[dict[str, str]]] = []  # a turn; or a call with the outputs that answer it
        self._open: dict[str, tuple[str, list[dict[str, str]]]] = {}  # calls without an output, by their id

    def all(self) -> list[dict[str, str]]:
        return [turn for place in self._places for turn in place]

    def take(self, item: Mapping[str, Any], here: str) -> None:
        kind = item.get("type")
        if "role" in item or kind == "message":
            if kind not in (None, "message"):
                raise InvalidRequest(f"{shown(kind)} is not the type of a message", field=f"{here}.type")
            self._message(item, here)
        elif isinstance(kind, str) and kind in _CALLS:
            self._call(item, here, named=True)
        elif isinstance(kind, str) and kind in _OUTPUTS:
            refuse_others(item, _OUTPUT, here, kind)
            _finished(item, here)
            text = content_of(item.get("output"), f"{here}.output")
            self._output(_text(item, "call_id", here), [""], text, f"{here}.call_id")
        else:
            known = ", ".join(sorted(_ITEMS))
            said = (
                f"the type {shown(kind)} is none of {known}" if "type" in item else "it has neither a role nor a type"
            )
            raise InvalidRequest(f"{said}; a message has a role and a content", field=here)

    def _message(self, item: Mapping[str, Any], here: str) -> None:
        role = validation.text(item.get("role"), f"{here}.role", MAX_ROLE)
        refuse_others(item, _MESSAGE, here, "message")
        _finished(item, here)
        calls = item.get("tool_calls", ())
        if not isinstance(calls, list | tuple):
            raise InvalidRequest(f"{shown(calls)} is not a list of calls", field=f"{here}.tool_calls")
        given = [(call, f"{here}.tool_calls[{at}]") for at, call in enumerate(calls)]
        if "function_call" in item:
            given.append((item["function_call"], f"{here}.function_call"))
        if not given and "content" not in item and "refusal" not in item:
            raise InvalidRequest('the message has no "content"', field=here)
        content = item.get("content")
        text = "" if content is None else content_of(content, f"{here}.content")
        if "refusal" in item:
            text += _text(item, "refusal", here)
        names = [_text(item, key, here) for key in ("name", "phase") if key in item]
        if role in ("tool", "function") and "tool_call_id" in item:
            names = names if "name" in item else ["", *names]
            self._output(_text(item, "tool_call_id", here), names, text, f"{here}.tool_call_id")
        elif "tool_call_id" in item:
            raise InvalidRequest("a message of another role than tool answers no call", field=f"{here}.tool_call_id")
        elif text or names or not given:
            self._places.append([_turn(role, names, text)])
        for call, place in given:
            if not isinstance(call, Mapping):
                raise InvalidRequest(f"{shown(call)} is not a call of a tool", field=place)
            self._call(_given(call), place)

    def _call(self, call: Mapping[str, Any], here: str, *, named: bool = False) -> None:
        """``named``: whether it needs an id, as calls do that are items of their own."""
        inside = next((key for key in ("function", "custom") if key in call), None)
        function = call if inside is None else call[inside]
        if not isinstance(function, Mapping):
            raise InvalidRequest(f"{shown(function)} is not a function with a name and arguments", field=here)
        function = _given(function)
        refuse_others(call, _AROUND | (_FUNCTION if inside is None else {inside}), here, "call")
        refuse_others(function, _FUNCTION | (_AROUND if inside is None else set()), here, "call")
        name = _text(function, "name", here)
        told: dict[str, Any] = {"name": name}
        if "namespace" in call:
            told["namespace"] = _text(call, "namespace", here)
        arguments = [key for key in ("arguments", "args", "input") if key in function]
        if len(arguments) > 1:
            raise InvalidRequest(f"a call has one of {' and '.join(arguments)}", field=here)
        if arguments == ["input"]:
            told["input"] = validation.text(function["input"], f"{here}.input", MAX_TEXT)
        else:
            given = function[arguments[0]] if arguments else {}
            told["arguments"] = _arguments(given, f"{here}.arguments")
        if call.get("status", "completed") != "completed":
            told["status"] = _text(call, "status", here)
        place = [_turn("tool_call", [], json_of(told, here))]
        self._places.append(place)
        key = "call_id" if named or "call_id" in call else "id"
        if named or key in call:
            call_id = _text(call, key, here)
            if call_id in self._open:
                raise InvalidRequest(
                    f"an earlier call has the id {shown(call_id)} and no output yet", field=f"{here}.{key}"
                )
            self._open[call_id] = name, place

    def _output(self, call_id: str, names: list[str], text: str, here: str) -> None:
        """Name the output. The first of ``names`` becomes the call's if it is empty."""
        if call_id not in self._open:
            raise InvalidRequest(f"no call before it has the id {shown(call_id)} and waits for an output", field=here)
        called, place = self._open.pop(call_id)
        place.append(_turn("tool", [names[0] or called, *names[1:]], text))


def _turn(role: str, names: list[str], content: str) -> dict[str, str]:
    return {"role": role, "content": content, **({"name": ", ".join(names)} if names else {})}


def _text(item: Mapping[str, Any], key: str, here: str) -> str:
    return validation.text(item.get(key), f"{here}.{key}", MAX_TEXT)


def _arguments(value: Any, here: str) -> Any:
    """Return arguments as an object, also if they come as its JSON. Any other text stays text."""
    if isinstance(value, Mapping):
        return value
    text = validation.text(value, here, MAX_TEXT)
    try:
        found = loads(text)
        json_of(found, here)
    except ValueError:  # of ``InvalidRequest`` too
        return text
    return found if isinstance(found, dict) else text


def _finished(item: Mapping[str, Any], here: str) -> None:
    if item.get("status", "completed") != "completed":
        raise InvalidRequest(
            f"{shown(item['status'])} is not shown to the model; leave it out", field=f"{here}.status"
        )


def refuse_others(item: Mapping[str, Any], known: Set[str], here: str, kind: str) -> None:
    """Refuse a field with a value that is none of the ``known`` ones: nothing that is given gets lost."""
    for key, value in item.items():
        nothing = value is None or (isinstance(value, str | list | tuple | dict) and not value)
        if key not in known and not nothing:
            raise InvalidRequest(
                f"a {kind} has no field {shown(key)}; leave it out, or give the list inside an object, "
                "which is shown as JSON",
                field=here,
            )


def content_of(content: Any, field: str) -> str:
    """Text, or parts of text one after the other; a part of JSON stands in lines of its own."""
    if isinstance(content, str):
        return validation.text(content, field, MAX_TEXT)
    if not isinstance(content, list | tuple):
        raise InvalidRequest(f"{shown(content)} is not text or a list of text parts", field=field)
    return "".join(_pieces(content, field))


def _pieces(parts: Sequence[Any], field: str) -> Iterator[str]:
    line = True  # whether the next piece begins a line
    data = False  # whether the piece before was of JSON
    for index, part in enumerate(parts):
        here = f"{field}[{index}]"
        if isinstance(part, TooLarge):
            raise RequestTooLarge(part.reason, field=here)
        kind = "text" if isinstance(part, str) else part.get("type") if isinstance(part, Mapping) else part
        if kind == "input_json":
            refuse_others(part, _PART | {"data"}, here, "part")
            text = json_of(part.get("data"), f"{here}.data")
        elif isinstance(kind, str) and kind in _TEXTS:
            if not isinstance(part, str):
                refuse_others(part, _PART | {_TEXTS[kind]}, here, "part")
                here, part = f"{here}.{_TEXTS[kind]}", part.get(_TEXTS[kind])
            text = validation.text(part, here, MAX_TEXT)
        else:
            raise InvalidRequest(f"{shown(kind)} is not a text part; only text is taken", field=here)
        if not line and (data or kind == "input_json"):
            yield "\n"
        yield text
        line = text.endswith("\n") if text else line
        data = kind == "input_json"
