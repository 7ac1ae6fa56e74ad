"""Strings that remember which of their characters came from outside the template.

A ``Marked`` is a ``str`` with the spans of its untrusted characters; a plain ``str`` is the template's own:
``'user\\n' + content`` has the spans ``((5, 5 + n),)``. Joining, slicing, stripping, splitting and replacing keep the
spans exactly. Any other operation on a marked string gives one that is untrusted as a whole: text can lose trust,
never gain it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import Any, SupportsIndex

Spans = tuple[tuple[int, int], ...]


class Marked(str):
    """``marks`` is ``None`` if all characters are untrusted, which most marked strings are: no spans are kept."""

    marks: Spans | None
    __slots__ = ("marks",)

    def __new__(cls, text: object = "", marks: Spans | None = None) -> Marked:
        made = super().__new__(cls, text)
        made.marks = marks
        return made

    @property
    def spans(self) -> Spans:
        if self.marks is not None:
            return self.marks
        return ((0, len(self)),) if self else ()

    def __str__(self) -> str:
        return self  # ``str(x)`` must not lose the spans

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        text = super().__getitem__(key)
        if self.marks is None:
            return Marked(text)
        if isinstance(key, slice):
            start, stop, step = key.indices(len(self))
            if step != 1:
                return Marked(text)
        else:
            start = key.__index__() % len(self)
            stop = start + 1
        return _of(text, _cut(self.marks, start, max(start, stop)))

    def __iter__(self) -> Iterator[str]:
        if self.marks is None:
            return map(Marked, super().__iter__())
        return (self[i] for i in range(len(self)))

    def __add__(self, other: str) -> str:
        return joined([self, other])

    def __radd__(self, other: str) -> str:
        return joined([other, self])

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return rsplit(self, sep, maxsplit)  # jinja2's ``truncate`` calls it

    def __reduce__(self) -> tuple[Any, ...]:
        return str, (str.__str__(self),)


class MarkedInt(int):
    """A number that came from outside the template: its digits are untrusted."""

    __slots__ = ()


class MarkedFloat(float):
    """A number that came from outside the template: its digits are untrusted."""

    __slots__ = ()


def joined(parts: Iterable[str], separator: str = "") -> str:
    """``separator.join(parts)`` with the spans of all of them."""
    pieces = list(parts)
    if separator:
        pieces = [piece for part in pieces for piece in (separator, part)][1:]
    if Marked not in map(type, pieces):
        return "".join(pieces)
    spans: list[tuple[int, int]] = []
    at = 0
    for piece in pieces:
        size = len(piece)
        if type(piece) is Marked and size:
            marks = piece.marks
            if spans and spans[-1][1] == at and (marks is None or not marks[0][0]):
                stop = size if marks is None else marks[0][1]
                spans[-1] = (spans[-1][0], at + stop)
                spans.extend((at + a, at + b) for a, b in (marks or ())[1:])
            elif marks is None:
                spans.append((at, at + size))
            else:
                spans.extend((at + a, at + b) for a, b in marks)
        at += size
    if spans == [(0, at)]:
        return Marked("".join(pieces))
    return _of("".join(pieces), tuple(spans))


def segments(text: str) -> list[tuple[str, bool]]:
    """``text`` in runs of (plain string, trusted)."""
    plain = str.__str__(text)
    if not isinstance(text, Marked):
        return [(plain, True)] if plain else []
    found: list[tuple[str, bool]] = []
    at = 0
    for start, stop in (*text.spans, (len(plain), len(plain))):
        if start > at:
            found.append((plain[at:start], True))
        if stop > start:
            found.append((plain[start:stop], False))
        at = stop
    return found


# ---- str's methods, with spans


def strip(text: str, chars: str | None = None) -> str:
    return rstrip(lstrip(text, chars), chars)


def lstrip(text: str, chars: str | None = None) -> str:
    return text[len(text) - len(str.lstrip(text, chars)) :]


def rstrip(text: str, chars: str | None = None) -> str:
    return text[: len(str.rstrip(text, chars))]


def split(text: str, sep: str | None, maxsplit: SupportsIndex) -> list[str]:
    return _placed(text, str.split(text, sep, maxsplit), sep)


def rsplit(text: str, sep: str | None, maxsplit: SupportsIndex) -> list[str]:
    return _placed(text, str.rsplit(text, sep, maxsplit), sep)


def splitlines(text: str, keepends: bool) -> list[str]:
    kept = _placed(text, str.splitlines(text, keepends=True), "")
    return kept if keepends else [one[: len(bare)] for one, bare in zip(kept, str.splitlines(text))]


def partition(text: str, sep: str) -> tuple[str, ...]:
    return tuple(_placed(text, list(str.partition(text, sep)), ""))


def rpartition(text: str, sep: str) -> tuple[str, ...]:
    return tuple(_placed(text, list(str.rpartition(text, sep)), ""))


def replace(text: str, old: str, new: str, count: SupportsIndex) -> str:
    if not isinstance(text, Marked) and not isinstance(new, Marked):
        return str.replace(text, old, new, count)
    if not old:
        return Marked(str.replace(text, old, new, count))
    return joined(split(text, old, count), new)


def removeprefix(text: str, prefix: str) -> str:
    return text[len(prefix) :] if text.startswith(prefix) else text


def removesuffix(text: str, suffix: str) -> str:
    return text[: -len(suffix)] if suffix and text.endswith(suffix) else text


def _cased(change: Callable[[str], str]) -> Callable[[str], str]:
    return lambda text: joined(change(part) if trusted else Marked(change(part)) for part, trusted in segments(text))


upper, lower = _cased(str.upper), _cased(str.lower)
_EXACT = (strip, lstrip, rstrip, split, rsplit, splitlines, partition, rpartition)
METHODS = {f.__name__: f for f in (*_EXACT, replace, removeprefix, removesuffix)} | {"upper": upper, "lower": lower}


def _of(text: str, spans: Spans) -> str:
    return Marked(text, spans) if spans else text


def _cut(spans: Spans, start: int, stop: int) -> Spans:
    first = max(bisect_right(spans, (start, start)) - 1, 0)
    found: list[tuple[int, int]] = []
    for i in range(first, len(spans)):
        a, b = spans[i]
        if a >= stop:
            break
        if b > start:
            found.append((max(a, start) - start, min(b, stop) - start))
    return tuple(found)


def _placed(text: str, parts: list[str], sep: str | None) -> list[str]:
    """``parts`` of ``text``, in order, as slices of it."""
    if not isinstance(text, Marked):
        return parts
    if text.marks is None:
        return [Marked(part) for part in parts]
    found, at = [], 0
    for part in parts:
        if sep is None:
            at = text.find(part, at)
        found.append(text[at : at + len(part)])
        at += len(part) + len(sep or "")
    return found
