"""The post-processor that a tokenizer.json describes, checked and bounded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import TokenizerFileError
from .post_processing import (
    BertProcessing,
    ByteLevel,
    Processor,
    RobertaProcessing,
    Sequenced,
    SequencePiece,
    Special,
    TemplateProcessing,
)

_MOST_PIECES = 64  # of a template, and processors of a Sequence; each copies the result of those before it
_MOST_SPECIAL = 1 << 10  # ids of one piece of a template


def parse(member: Any) -> Processor | None:
    """Return the processor that the file's ``post_processor`` describes."""
    return None if member is None else _processor(member, "post_processor")


def _processor(member: Any, path: str) -> Processor:
    kind = _get(member, "type", path)
    if kind == "TemplateProcessing":
        return _template(member, path)
    if kind == "Sequence":
        items = _bounded(member, "processors", path)
        return Sequenced(tuple(_processor(item, f"{path}.processors[{i}]") for i, item in enumerate(items)))
    if kind not in _PLAIN:
        raise TokenizerFileError(
            f"{path}.type", f"{kind!r} is not one of {', '.join(_PLAIN)}, TemplateProcessing, Sequence"
        )
    made, checks = _PLAIN[kind]
    return made(**{key: check(member, key, path) for key, check in checks.items()})


def _template(member: Any, path: str) -> Processor:
    specials = _get(member, "special_tokens", path)

    def piece(item: Any, where: str) -> Special | SequencePiece:
        if isinstance(item, dict) and isinstance(item.get("Sequence"), dict):
            name = _get(item["Sequence"], "id", where)
            if name not in ("A", "B"):
                raise TokenizerFileError(f"{where}.Sequence.id", f"{name!r} is neither 'A' nor 'B'")
            return SequencePiece("AB".index(name), _number(item["Sequence"], "type_id", where))
        inner = _get(item, "SpecialToken", where)
        name = _get(inner, "id", where)
        type_id = _number(inner, "type_id", where)
        if not isinstance(specials, dict) or not isinstance(name, str):
            raise TokenizerFileError(where, "the special tokens are no object, or the name of one is no string")
        if name not in specials:
            return Special((), (), type_id, name)
        described = specials[name]
        at = f"{path}.special_tokens[{name!r}]"
        ids, tokens = _list(described, "ids", at), _list(described, "tokens", at)
        if max(len(ids), len(tokens)) > _MOST_SPECIAL:
            raise TokenizerFileError(at, f"more than {_MOST_SPECIAL} ids or tokens")
        for i, id in enumerate(ids):
            if not _is_id(id):
                raise TokenizerFileError(f"{at}.ids[{i}]", f"{id!r:.60} is not an id")
        for i, token in enumerate(tokens):
            if not isinstance(token, str):
                raise TokenizerFileError(f"{at}.tokens[{i}]", f"{token!r:.60} is not a string")
        return Special(tuple(ids), tuple(tokens), type_id)

    def pieces(side: str) -> tuple[Special | SequencePiece, ...]:
        return tuple(piece(item, f"{path}.{side}[{i}]") for i, item in enumerate(_bounded(member, side, path)))

    return TemplateProcessing(pieces("single"), pieces("pair"))


def _bounded(member: Any, key: str, path: str) -> list[Any]:
    items = _list(member, key, path)
    if len(items) > _MOST_PIECES:
        raise TokenizerFileError(f"{path}.{key}", f"{len(items)} parts; the limit is {_MOST_PIECES}")
    return items


def _get(member: Any, key: str, path: str) -> Any:
    if not isinstance(member, dict) or key not in member:
        raise TokenizerFileError(f"{path}.{key}", "missing")
    return member[key]


def _list(member: Any, key: str, path: str) -> list[Any]:
    value = _get(member, key, path)
    if not isinstance(value, list):
        raise TokenizerFileError(f"{path}.{key}", f"a list, not {type(value).__name__}")
    return value


def _flag(member: Any, key: str, path: str) -> bool:
    value = _get(member, key, path)
    if not isinstance(value, bool):
        raise TokenizerFileError(f"{path}.{key}", f"true or false, not {value!r:.60}")
    return value


def _number(member: Any, key: str, path: str) -> int:
    value = _get(member, key, path)
    if not _is_id(value):
        raise TokenizerFileError(f"{path}.{key}", f"a number from 0 on, not {value!r:.60}")
    return int(value)


def _named(member: Any, key: str, path: str) -> tuple[str, int]:
    value = _get(member, key, path)
    if not (isinstance(value, list) and len(value) == 2 and isinstance(value[0], str) and _is_id(value[1])):
        raise TokenizerFileError(f"{path}.{key}", f'expected ["token", id], not {value!r:.60}')
    return value[0], value[1]


_Checks = dict[str, Callable[[Any, str, str], Any]]
_AROUND: _Checks = {"sep": _named, "cls": _named}
_TRIMS: _Checks = {"trim_offsets": _flag, "add_prefix_space": _flag}
_PLAIN: dict[str, tuple[Callable[..., Processor], _Checks]] = {
    "ByteLevel": (ByteLevel, _TRIMS),
    "BertProcessing": (BertProcessing, _AROUND),
    "RobertaProcessing": (RobertaProcessing, {**_AROUND, **_TRIMS}),
}


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31
