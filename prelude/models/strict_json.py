"""Reading JSON that came with a model: bounded, strict, and one reading only.

Two parsers that disagree about a file are how a scanner and a loader come to see different models,
so a key that appears twice is an error here, as are bytes that are not UTF-8. Numbers that are not
plain non-negative integers can be kept as :class:`Unnatural`, so that the code that validates the value
can name the place where it stood.

The cost of parsing depends on the number of values, not of bytes: 90 MB of short strings take ten seconds and
1.7 GB. So the values are counted before anything is parsed: each but the first of its array or object has a comma
before it, and nesting without commas is as deep as the parser's own limit at most.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from prelude.errors import ModelError, shown

MAX_VALUES = 1 << 20
"""Values of one file. A safetensors header takes eight a tensor, so that it is enough for 100,000 tensors."""


@dataclass(frozen=True)
class Unnatural:
    """A JSON number that is not a natural number of at most 20 digits, as it was written."""

    text: str

    def __repr__(self) -> str:
        return self.text


def _natural(text: str) -> int | Unnatural:
    return int(text) if text[0] != "-" and len(text) <= 20 else Unnatural(text)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the key {shown(key)} appears twice")
            seen.add(key)
    return found


def parse(data: bytes | str, where: str, error: type[ModelError], *, naturals: bool = False) -> Any:
    """The value in ``data``, or ``error`` naming ``where``.

    With ``naturals`` every number other than a natural one arrives as :class:`Unnatural`.
    """
    commas = data.count(",") if isinstance(data, str) else data.count(b",")
    if commas >= MAX_VALUES:
        raise error(f"{where}: {commas:,} commas, so it may hold more than the limit of {MAX_VALUES:,} values")
    try:
        text = data if isinstance(data, str) else data.decode("utf-8")
        if naturals:
            return json.loads(
                text,
                object_pairs_hook=_once,
                parse_int=_natural,
                parse_float=Unnatural,
                parse_constant=Unnatural,
            )
        return json.loads(text, object_pairs_hook=_once)
    except RecursionError:
        raise error(f"{where}: the JSON is nested too deeply") from None
    except ValueError as failure:  # syntax, encoding, a duplicate, an integer of thousands of digits
        raise error(f"{where}: not usable JSON: {shown(str(failure))}") from None
