"""How HF writes tokenizers and components as text: ``repr`` and the shorter ``str``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import islice
from typing import Any, NamedTuple


class Limits(NamedTuple):
    elements: int  # of a list or dict
    string: int | None  # bytes of a string


LONG = Limits(99, None)  # repr
SHORT = Limits(5, 100)  # str

_NAMES = ("prepend_scheme", "behavior", "direction", "strategy")  # whose values HF writes without quotes
_PAIRS = ("sep", "cls")


def member_text(member: dict[str, Any], limits: Limits) -> str:
    """Return a component's member of a tokenizer.json."""
    return _struct(str(member["type"]), {k: v for k, v in member.items() if k != "type"}, limits)


def tokenizer_text(whole: dict[str, Any], limits: Limits) -> str:
    """Return a tokenizer.json."""
    named = dict(whole)
    for name, struct in (("truncation", "TruncationParams"), ("padding", "PaddingParams")):
        if whole[name] is not None:
            named[name] = _Text(_struct(struct, whole[name], limits))
    return _struct("Tokenizer", named, limits)


class _Text(str):
    """Text that is written as it is."""


def _struct(name: str, fields: dict[str, Any], limits: Limits) -> str:
    return f"{name}({', '.join(f'{key}={_field(key, value, limits)}' for key, value in fields.items())})"


def _field(key: str, value: Any, limits: Limits) -> str:
    if isinstance(value, str) and key in _NAMES:
        return value
    if key in ("strategy", "pattern"):  # {"Fixed": length}, {"Regex": pattern}
        [(name, inner)] = value.items()
        return f"{name}({_text(inner, limits)})"
    if key in ("single", "pair"):
        return _listed("[", map(_Text, (_piece(piece, limits) for piece in value[: limits.elements])), value, limits)
    if key == "special_tokens":
        tokens = {name: _Text(_struct("SpecialToken", token, limits)) for name, token in value.items()}
        return _text(tokens, limits)
    if key in _PAIRS:
        return _listed("(", value, value, limits)
    if key == "merges" or (key == "vocab" and isinstance(value, list)):  # BPE's merges, Unigram's pieces
        pairs = (_Text(_listed("(", pair, pair, limits)) for pair in value[: limits.elements])
        return _listed("[", pairs, value, limits)
    return _text(value, limits)


def _text(value: Any, limits: Limits) -> str:
    if isinstance(value, _Text):
        return value
    if isinstance(value, str):
        return f'"{_cut(value, limits)}"'
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, dict):
        if isinstance(value.get("type"), str):  # a vocabulary may have the word "type"
            return member_text(value, limits)
        shown = (_Text(f"{_text(k, limits)}:{_text(v, limits)}") for k, v in islice(value.items(), limits.elements))
        return _listed("{", shown, value, limits)
    if isinstance(value, list):
        return _listed("[", value, value, limits)
    return str(value)  # None, True, False and whole numbers


def _listed(opening: str, shown: Iterable[Any], of: Any, limits: Limits) -> str:
    parts = [_text(one, limits) for one in islice(shown, limits.elements)]
    more = ["..."] if len(of) > limits.elements else []
    return opening + ", ".join(parts + more) + {"[": "]", "(": ")", "{": "}"}[opening]


def _piece(piece: dict[str, Any], limits: Limits) -> str:
    [(name, inner)] = piece.items()
    fields = {k: _Text(v) if name == "Sequence" and k == "id" else v for k, v in inner.items()}
    return _struct(name, fields, limits)


def _cut(text: str, limits: Limits) -> str:
    data = text.encode()
    if limits.string is None or len(data) <= limits.string:
        return text
    return data[: limits.string].decode(errors="ignore") + "..."


def _number(value: float) -> str:
    """Return the shortest decimal number that is ``value``, without an exponent."""
    from decimal import Decimal

    return re.sub(r"\.0$", "", f"{Decimal(repr(value)):f}")
