"""Reading JSON that came with a model: bounded, strict, and one reading only.

Two parsers that disagree about a file are how a scanner and a loader come to see different models,
so a key that appears twice is an error here, as are bytes that are not UTF-8. Numbers that are not
plain non-negative integers can be kept as :class:`Unnatural`, so that whoever validates the value
can name the place where it stood.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prelude.errors import ModelError, shown


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


def open_regular(path: Path, error: type[ModelError]) -> int:
    """A descriptor on ``path``, which is a regular file; never waits on a pipe or a device."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except (OSError, ValueError) as failure:
        reason = getattr(failure, "strerror", None) or failure
        raise error(f"{path}: cannot be opened: {reason}") from failure
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise error(f"{path}: not a regular file")
    return descriptor


def read_object(path: Path, *, limit: int, error: type[ModelError] = ModelError) -> dict[str, Any]:
    """The JSON object in the file ``path`` of at most ``limit`` bytes."""
    with open(open_regular(path, error), "rb") as file:
        try:
            data = file.read(limit + 1)
        except OSError as failure:
            raise error(f"{path}: cannot be read: {failure.strerror}") from failure
    if len(data) > limit:
        raise error(f"{path}: larger than the limit of {limit:,} bytes")
    value = parse(data, str(path), error)
    if not isinstance(value, dict):
        raise error(f"{path}: holds a {type(value).__name__}, an object is needed")
    return value


__all__ = ["Unnatural", "open_regular", "parse", "read_object"]
