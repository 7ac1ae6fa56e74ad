"""Field checks. Each returns the value in plain form or raises ``InvalidRequest`` naming field, value and limit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from prelude.errors import InvalidRequest, RequestTooLarge, shown

MAX_SALT = 256
VALUE_CHARS = 16  # the cost of preparing one value, in characters
PLAIN_TYPES = frozenset([str, int, float, bool, type(None)])


def integer(value: Any, field: str, least: int, most: int, hint: str = "") -> int:
    """Return a Python or numpy integer within ``[least, most]``; a bool is not an integer."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise _outside(value, "not an integer", f"{least} to {most}", field, hint)
    if not least <= value <= most:
        raise _outside(int(value), "out of range", f"{least} to {most}", field, hint)
    return int(value)


def number(value: Any, field: str, low: float, high: float, hint: str = "") -> float:
    """Return a finite Python or numpy number within ``[low, high]``."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.integer | np.floating):
        raise _outside(value, "not a number", f"{low:g} to {high:g}", field, hint)
    if isinstance(value, float | np.floating) and not math.isfinite(value):
        raise _outside(float(value), "not finite", f"{low:g} to {high:g}", field, hint)
    if not low <= value <= high:
        raise _outside(value, "out of range", f"{low:g} to {high:g}", field, hint)
    return float(value)


def flag(value: Any, field: str) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise InvalidRequest(f"{shown(value)} is not True or False", field=field)
    return bool(value)


def one_of(value: Any, field: str, options: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in options:
        raise InvalidRequest(f"{shown(value)} is not one of {', '.join(map(repr, options))}", field=field)
    return str(value)


_CHARS_WAY_OUT = "checked before tokenising; shorten it or raise EngineConfig.max_prompt_chars"


def text(value: Any, field: str, most: int, *, empty: bool = True, way_out: str = _CHARS_WAY_OUT) -> str:
    """Return a string of at most ``most`` characters that can be written as UTF-8.

    Lone surrogates are refused here, for every string that reaches a tokenizer: they are half a character, and
    tokenizers treat them differently.
    """
    if not isinstance(value, str):
        raise wrong_type(value, field, "a string")
    if len(value) > most:
        raise RequestTooLarge(f"{len(value)} characters; the limit is {most}, {way_out}", field=field)
    if not value and not empty:
        raise InvalidRequest("it is empty; give at least one character", field=field)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(
                f"a lone surrogate {shown(value[error.start])} at character {error.start} is not text; "
                "decode the input with errors='replace' first",
                field=field,
            ) from None
    return str.__str__(value)  # of a subclass, too


def listed(value: Any, field: str, items: str = "") -> list[Any]:
    """Return the items of an iterable that is no text, mapping or set. ``items``: their name in the message."""
    if hasattr(value, "tolist"):  # arrays, and columns of pandas
        value = value.tolist()
    if isinstance(value, str | bytes | Mapping | set | frozenset) or not isinstance(value, Iterable):
        raise InvalidRequest(f"{shown(value)} is not a list{items}", field=field)
    return list(value)


def salt(value: Any) -> str | None:
    """Return a tenant's name, 1 to 256 characters, or ``None``."""
    if value is None:
        return None
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_SALT:
        raise InvalidRequest(f"{shown(value)} is not a string of 1 to {MAX_SALT} characters, or None", field="salt")
    return text(value, "salt", MAX_SALT)


def wrong_type(value: Any, field: str, takes: str) -> InvalidRequest:
    said = "it is None" if value is None else f"{shown(value)} is of type {type(value).__name__}"
    return InvalidRequest(f"{said}; give {takes}", field=field)


def _outside(value: Any, defect: str, takes: str, field: str, hint: str) -> InvalidRequest:
    return InvalidRequest(f"{shown(value)} is {defect}; it takes {takes}{f'; {hint}' if hint else ''}", field=field)


def rough_size(messages: Any, enough: int) -> int:
    """Count the characters and values that preparing is going to look at, up to ``enough``."""
    size = 0
    ahead: list[Any] = [messages]
    while ahead and size < enough:
        value = ahead.pop()
        size += VALUE_CHARS
        if isinstance(value, str):
            size += len(value)
        elif isinstance(value, (list, tuple)):
            ahead.extend(value)
        elif isinstance(value, Mapping):
            size += VALUE_CHARS * len(value)
            ahead.extend(value.values())
        elif type(value) not in PLAIN_TYPES:
            size += enough  # the template may read any part of it
    return size
