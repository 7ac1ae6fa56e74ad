"""Objects and arrays as text, in the form of ``json.dumps(value, ensure_ascii=False)`` unless a model has its own.

    {"plan": "pro", "tickets": 3, "tags": ["refund", "späť"]}

Keys keep the order in which they were given: a caller that puts the common part of many requests first lets them
share a prefix. Keys are strings, numbers are finite. A string alone is itself, without quotation marks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from prelude.admission.messages import MAX_DEPTH, MAX_VALUES, TooLarge, written
from prelude.errors import InvalidRequest, RequestTooLarge, shown
from prelude.values import validation
from prelude.values.model_settings import Layout

MAX_TEXT = 1 << 62  # of a text that may yet be cut
_SCALARS = frozenset([int, float, bool, type(None)])


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _indented(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, indent=2)


def _lines(value: Any) -> str:
    """``key: value`` and ``- item``, a line each, nested values two spaces further in."""
    if not isinstance(value, dict | list):
        return value if isinstance(value, str) else _json(value)
    items = value.items() if isinstance(value, dict) else (("-", item) for item in value)
    written = []
    for key, item in items:
        mark = "-" if isinstance(value, list) else f"{key}:"
        inner = _lines(item)
        if isinstance(item, dict | list) and item:
            written.append("\n".join([mark, *(f"  {line}" for line in inner.split("\n"))]))
        else:
            written.append(f"{mark} {inner}" if inner else mark)
    return "\n".join(written)


_WRITERS: dict[Layout, Callable[[Any], str]] = {"json": _json, "indented": _indented, "lines": _lines}


def text_of(value: Any, field: str, most: int, *, empty: bool = True, layout: Layout = "json") -> str:
    """``value`` as text of at most ``most`` characters. ``InvalidRequest`` names ``field`` and the place in it."""
    if not isinstance(value, str):
        if not is_structured(value):
            raise validation.wrong_type(value, field, "a string, an object or an array")
        value = json_of(value, field, layout)
    return validation.text(value, field, most, empty=empty)


def json_of(value: Any, field: str, layout: Layout = "json") -> str:
    """Write any value that JSON has as ``text_of`` does: a string alone stands in quotation marks."""
    plain = _Copy().of(value, field, MAX_DEPTH)
    try:
        return _WRITERS[layout](plain)
    except ValueError as error:  # NaN, or an integer of thousands of digits
        raise InvalidRequest(f"{error}; JSON has finite numbers", field=field) from None


def is_structured(value: Any) -> bool:
    return isinstance(value, Mapping | list | tuple)


_MEDIA = frozenset(["image", "audio", "video", "file", "document", "media"])


def is_media(value: Mapping[Any, Any]) -> bool:
    """Whether an object is an image, a sound or a file, as messages of OpenAI, Anthropic and LangChain hold them."""
    kind = value.get("type")
    if not isinstance(kind, str):
        return False
    bare = kind.removeprefix("input_").removesuffix("_url")
    if bare not in _MEDIA:
        return False
    if isinstance(value.get(kind), Mapping) or any(key in value for key in ("image_url", "audio_url", "file_data")):
        return True
    if isinstance(value.get("source"), Mapping) or any(key in value for key in ("base64", "file_id")):
        return True
    return ("data" in value or "url" in value) and ("mime_type" in value or bare in ("image", "audio", "video"))


class _Copy:
    """A value as dicts, lists and scalars alone, as ``json`` takes them; bounded like messages are."""

    def __init__(self) -> None:
        self._left = MAX_VALUES

    def of(self, value: Any, path: Any, depth: int) -> Any:
        """``path``: a chain as ``messages.written`` takes it, so that a long key is not copied for each value."""
        if isinstance(value, str):
            return str.__str__(value)
        if type(value) in _SCALARS:
            return value
        if not is_structured(value):
            raise InvalidRequest(
                f"{shown(value)} is of type {type(value).__name__}, which JSON does not have", field=written(path)
            )
        if isinstance(value, TooLarge):
            raise RequestTooLarge(value.reason, field=written(path))
        if not depth:
            raise RequestTooLarge(f"it is nested deeper than {MAX_DEPTH}; flatten it", field=written(path))
        if len(value) > self._left:
            raise RequestTooLarge(f"more than {MAX_VALUES} values; give fewer, or give text", field=written(path))
        self._left -= len(value)
        if isinstance(value, Mapping):
            if is_media(value):
                said = f"{shown(value.get('type'))} is no text, and only text is taken; leave it out"
                raise InvalidRequest(said, field=written(path))
            return {self._key(key, path): self.of(item, (path, key), depth - 1) for key, item in value.items()}
        return [self.of(item, (path, index), depth - 1) for index, item in enumerate(value)]

    def _key(self, key: Any, path: Any) -> str:
        if not isinstance(key, str):
            raise InvalidRequest(f"the key {shown(key)} is not a string", field=written(path))
        return str.__str__(key)
