"""Reading JSON that a stranger wrote, in requests and in files: bounded, strict, and one reading only.

Two parsers that disagree about a text are how a scanner and a loader come to see different things, so a key that
appears twice is an error here, as are bytes that are not UTF-8. Numbers are finite, unless the caller reads them
in another way (``Numbers``).

The cost of parsing depends on the number of values, not of bytes: 90 MB of short strings take ten seconds and
1.7 GB. So values and depth are counted before anything is parsed: each value but the first of its array or object
has a comma before it, and each array and object has a bracket.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from itertools import accumulate
from typing import Any, TypedDict

from prelude.errors import PreludeError, shown
from prelude.records import dataclass

MAX_DEPTH = 128
"""Arrays and objects inside each other. The values of a request may have half of it (``admission.messages``)."""
MAX_VALUES = 1 << 18
"""Values of one text: a request of 400 questions with 255 options each has 100,000."""
MAX_FILE_VALUES = 1 << 20
"""Values of a model's file. A safetensors header takes eight a tensor, so that it is enough for 100,000 tensors."""

_PIECE = 1 << 16
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NOT_BRACKETS = bytes(set(range(256)) - set(_STEPS))


@dataclass(frozen=True, slots=True)
class Unnatural:
    """A JSON number that is not a natural number of at most 20 digits, as it was written."""

    text: str

    def __repr__(self) -> str:
        return self.text


class Numbers(TypedDict, total=False):
    """How the text of a number is read: keywords of ``json.loads``."""

    parse_int: Callable[[str], Any]
    parse_float: Callable[[str], Any]
    parse_constant: Callable[[str], Any]


def _natural(text: str) -> int | Unnatural:
    return int(text) if text[0] != "-" and len(text) <= 20 else Unnatural(text)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:80]} is not a finite number")
    return value


FINITE: Numbers = {"parse_float": _finite, "parse_constant": _finite}
NATURAL: Numbers = {"parse_int": _natural, "parse_float": Unnatural, "parse_constant": Unnatural}
ANY: Numbers = {}  # as Python writes them: a model's configuration may say Infinity


def loads(data: bytes | str, *, numbers: Numbers = FINITE, max_values: int = MAX_VALUES) -> Any:
    """The value in ``data``, UTF-8 with or without a byte order mark. ``ValueError`` says in at most 200 characters
    the fault. The caller bounds the size of ``data``; the time taken grows with it in proportion."""
    _check_shape(data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data, max_values)
    text = data if isinstance(data, str) else data.decode("utf-8-sig")
    try:
        return json.loads(text, object_pairs_hook=_once, **numbers)
    except RecursionError:  # brackets that are never closed, and a caller that stands deep itself
        raise ValueError("it is nested too deeply") from None


def _check_shape(raw: bytes, max_values: int) -> None:
    if raw.count(b",") < max_values and raw.count(b"[") + raw.count(b"{") <= MAX_DEPTH:
        return
    outside = _outside(raw)
    brackets = outside.translate(None, _NOT_BRACKETS)
    opened = brackets.count(b"[") + brackets.count(b"{")
    if max(outside.count(b","), opened) >= max_values:
        raise ValueError(f"it has more than the limit of {max_values:,} values")
    if 2 * opened == len(brackets) and max(accumulate(map(_STEPS.__getitem__, brackets)), default=0) > MAX_DEPTH:
        raise ValueError(f"it is nested too deeply: {MAX_DEPTH} arrays and objects inside each other are the limit")


def _outside(raw: bytes) -> bytes:
    """Return the characters outside of texts, found in pieces: 100 MB of short texts would be gigabytes of parts."""
    plain = raw.replace(rb"\\", b"").replace(rb"\"", b"")
    found, quoted = bytearray(), 0
    for first in range(0, len(plain), _PIECE):
        parts = plain[first : first + _PIECE].split(b'"')
        found += b"".join(parts[quoted::2])
        quoted ^= (len(parts) - 1) & 1
    return bytes(found)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the key {shown(key)} appears twice")
            seen.add(key)
    return found


def parse(data: bytes | str, where: str, error: type[PreludeError], *, numbers: Numbers = ANY) -> Any:
    """Return the value in a model's file ``data``, or ``error`` naming ``where``."""
    try:
        return loads(data, numbers=numbers, max_values=MAX_FILE_VALUES)
    except ValueError as failure:  # syntax, encoding, a duplicate, an integer of thousands of digits
        raise error(f"{where}: not usable JSON: {failure}") from None
