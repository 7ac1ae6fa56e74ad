"""Chat messages as they are given: their bounds, and copies of them.

A chat template sees every field of a message, so all of them are bounded, not the text alone: characters (of strings
and of keys) together, values (messages, items and the values of keys) together, and how deep they are nested.
If the caller allows it, the texts of the messages are cut so that the characters stay within their bound. A copy
is made in the caller's thread, which may be a loop: it stops if the messages are too large to be taken.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from prelude.admission.context import AdmissionContext
from prelude.errors import InvalidRequest, RequestTooLarge, shown
from prelude.values import validation
from prelude.values.validation import PLAIN_TYPES

MAX_VALUES = 1 << 15
MAX_DEPTH = 64
MAX_ROLE = 64  # characters


class TooLarge(dict[str, Any]):
    """Stands in a copy for a value that is not copied and will be refused; a mapping, as a message is one."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


TOO_MANY = TooLarge(
    f"more than {MAX_VALUES} values in the messages together; leave out fields that the chat template does not show, "
    "or send fewer messages"
)
TOO_DEEP = TooLarge(f"it is nested deeper than {MAX_DEPTH}; flatten it, or give it as text")


# ------------------------------------------------------------------ copying


def copy_messages(messages: Sequence[Any]) -> list[Any]:
    if len(messages) > MAX_VALUES:
        return list(messages)  # refused for its length, with any values
    copies: list[Any] = _Copies().of(messages, MAX_DEPTH)
    return copies


def copy_value(value: Any) -> Any:
    """Return a copy of an object or an array, in which ``TooLarge`` replaces values past the bounds."""
    return _Copies().of(value, MAX_DEPTH)


class _Copies:
    """Copy dicts and lists, as JSON has them. Any other object is immutable, or its owner may change it."""

    def __init__(self) -> None:
        self._left = MAX_VALUES

    def of(self, value: Any, depth: int) -> Any:
        table = isinstance(value, Mapping)
        if not table and not isinstance(value, list | tuple):
            return value
        if not depth or len(value) > self._left:
            return too_large(depth)
        self._left -= len(value)
        depth -= 1
        if table:
            return {key: item if type(item) in PLAIN_TYPES else self.of(item, depth) for key, item in value.items()}
        return [item if type(item) in PLAIN_TYPES else self.of(item, depth) for item in value]


def too_large(depth: int) -> TooLarge:
    return TOO_MANY if depth else TOO_DEEP


# ------------------------------------------------------------------ checking


def check_messages(ctx: AdmissionContext, messages: Sequence[Any], field: str) -> None:
    """Roles are strings, contents text or lists of text parts, and all fields are within the limits."""
    check_bounds(ctx, messages, field)
    for index, message in enumerate(messages):
        here = f"{field}[{index}]"
        if not isinstance(message.get("role"), str):
            raise InvalidRequest(f"role {shown(message.get('role'))} is not a string", field=f"{here}.role")
        check_content(message.get("content"), f"{here}.content", ctx.max_chars)


def check_bounds(ctx: AdmissionContext, messages: Sequence[Any], field: str) -> int:
    """Check that all are objects with fields within the limits. Return how many characters more they might have."""
    most = min(ctx.max_length, MAX_VALUES)
    if len(messages) > most:
        raise RequestTooLarge(f"{len(messages)} messages; the limit is {most}", field=field)
    account = _Account(ctx, field, MAX_VALUES - len(messages))
    for index, message in enumerate(messages):
        here = f"{field}[{index}]"
        if not isinstance(message, Mapping):
            raise InvalidRequest(f"{shown(message)} is not a message (a mapping with role and content)", field=here)
        account.message(message, here)
    return account.chars


# ------------------------------------------------------------------ cutting


def shorten_messages(
    ctx: AdmissionContext, messages: Sequence[Any], field: str, truncation: str
) -> tuple[Sequence[Any], int]:
    """Messages of more than ``max_chars`` characters with their texts cut, as one text, to the characters that the
    other fields leave; and how many characters were cut. Other messages stay as they are, and with
    ``truncation="error"`` all do."""
    if truncation == "error" or validation.rough_size(messages, ctx.max_chars) < ctx.max_chars:
        return messages, 0
    total = 0

    def left_out(text: str) -> str:
        nonlocal total
        total += len(text)
        return ""

    room = check_bounds(ctx, with_texts(messages, left_out), field)
    excess = total - room
    if excess <= 0:
        return messages, 0
    if room < 1:
        raise too_many_characters(ctx, field)
    begin = {"head": 0, "tail": room, "middle": (room + 1) // 2}[truncation]
    at = 0

    def cut(text: str) -> str:
        nonlocal at
        first, last = max(0, begin - at), max(0, begin + excess - at)
        at += len(text)
        return text[:first] + text[last:]

    return with_texts(messages, cut), excess


def with_texts(messages: Sequence[Any], change: Callable[[str], str]) -> list[Any]:
    """Messages with ``change`` of each text in the place of it, called in their order; values that are no messages
    stay."""

    def changed(value: Any, key: str) -> Any:
        if not isinstance(value, Mapping) or isinstance(value, TooLarge):
            return value
        inside = value.get(key)
        if isinstance(inside, str):
            return {**value, key: change(inside)}
        if key != "text" and isinstance(inside, list | tuple):
            return {**value, key: [changed(part, "text") for part in inside]}
        return value

    return [changed(changed(message, "content"), "output") for message in messages]


# ------------------------------------------------------------------ counting


class _Account:
    """The rest of the bounds of one list of messages. Paths are chains (the part before, key or index) up to a
    text."""

    def __init__(self, ctx: AdmissionContext, field: str, values: int) -> None:
        self._context = ctx
        self._field = field  # of all messages
        self._values = values
        self.chars = ctx.max_chars  # the rest of them

    def message(self, message: Mapping[Any, Any], here: str) -> None:
        """Count a message. The names "role" and "content", and short roles, are no more than the template's text."""
        if isinstance(message, TooLarge):
            raise RequestTooLarge(message.reason, field=here)
        role = message.get("role")
        if isinstance(role, str) and len(role) > MAX_ROLE:
            raise RequestTooLarge(f"{len(role)} characters; the limit is {MAX_ROLE}", field=f"{here}.role")
        self._enter(len(message), here, MAX_DEPTH - 1)
        for key, value in message.items():
            if key == "role" and isinstance(role, str):
                validation.text(value, f"{here}.role", MAX_ROLE)
                continue
            inside = (here, key)
            if key != "content" and isinstance(key, str):
                self._text(key, inside)
            self.take(value, inside, MAX_DEPTH - 2)

    def take(self, value: Any, path: Any, depth: int) -> None:
        kind = type(value)
        if isinstance(value, str):
            self._text(value, path)
        elif kind in PLAIN_TYPES:
            return
        elif kind is TooLarge:
            raise RequestTooLarge(value.reason, field=written(path))
        elif isinstance(value, Mapping):
            self._enter(len(value), path, depth)
            for key, item in value.items():
                inside = (path, key)
                if isinstance(key, str):
                    self._text(key, inside)
                self.take(item, inside, depth - 1)
        elif isinstance(value, list | tuple):
            self._enter(len(value), path, depth)
            for index, item in enumerate(value):
                self.take(item, (path, index), depth - 1)
        else:
            fields = shown_fields(value, path)
            if fields is not None:
                self._enter(1, path, depth)
                self.take(fields, path, depth - 1)

    def _enter(self, length: int, path: Any, depth: int) -> None:
        if length > self._values or not depth:
            raise RequestTooLarge(too_large(depth).reason, field=written(path))
        self._values -= length

    def _text(self, value: str, path: Any) -> None:
        if len(value) > self._context.max_chars or not value.isascii():
            validation.text(value, written(path), self._context.max_chars)
        self.chars -= len(value)
        if self.chars < 0:
            raise too_many_characters(self._context, self._field)


def written(path: Any) -> str:
    """Write a path as a reader would write it. The end of a long path is left out."""
    parts: list[str] = []
    while not isinstance(path, str):
        path, key = path
        known = isinstance(key, str) and len(key) <= 40 and key.isascii()
        parts.append(f".{key}" if known else f"[{shown(key)}]")
    return "".join([path, *reversed(parts[-8:])])


def shown_fields(value: Any, path: Any) -> Any:
    """The form that a chat template sees of an object with a form of its own; ``None`` for any other object."""
    try:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        dump = getattr(value, "model_dump", None)
        return dump() if callable(dump) else None
    except Exception as error:
        message = f"{type(value).__name__} cannot be read as fields: {shown(str(error))}; give a dict"
        raise InvalidRequest(message, field=written(path)) from error


def too_many_characters(ctx: AdmissionContext, field: str) -> RequestTooLarge:
    return RequestTooLarge(
        f"the messages have more than {ctx.max_chars} characters together, checked before tokenising; shorten "
        'them, set truncation="head", "tail" or "middle" (which cuts the texts of messages alone), or '
        "raise EngineConfig.max_prompt_chars",
        field=field,
    )


def check_content(content: Any, field: str, most: int) -> None:
    """A message's content is text, ``None``, or a list of ``{"type": "text", "text": ...}`` parts."""
    if content is None or isinstance(content, str):
        return
    if not isinstance(content, Sequence) or isinstance(content, bytes | bytearray):
        raise InvalidRequest(f"{shown(content)} is not text or a list of text parts", field=field)
    if len(content) > most:
        raise RequestTooLarge(f"{len(content)} parts; the limit is {most}", field=field)
    for index, part in enumerate(content):
        if not isinstance(part, Mapping) or part.get("type") != "text":
            kind = part.get("type") if isinstance(part, Mapping) else part
            raise InvalidRequest(f"{shown(kind)} is not a text part; only text is taken", field=f"{field}[{index}]")
        validation.text(part.get("text"), f"{field}[{index}].text", most)
