"""Split patterns that the native compiler refuses, matched by the ``regex`` package without changing a token.

The patterns are written for Oniguruma. Two engines agree on little more than the skeleton of a pattern, so
the rest is not left to ``regex``: every class (``\\p{L}``, ``\\s``, ``[^\\r\\n]``...) is asked of the native
core, code point by code point, and written out; anchors and boundaries are spelled out in look-arounds. A
construct that is not known to mean the same is refused, and the file goes to the next backend.
"""

from __future__ import annotations

import functools
import json
import re
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from ..errors import TokenizerError

_MOST_PATTERN = 100_000  # characters
# Of all patterns of a file:
_MOST_CLASSES = 32  # that are asked of the core; each takes a tenth of a second
_MOST_WRITTEN = 1 << 20  # characters, classes and least repetitions written out: ``regex`` takes a second and 150 MB
_SIMPLE = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\x0b", "a": "\x07", "e": "\x1b", "0": "\0"}
_CLASS_ESCAPE = re.compile(r"\\(?:[pP]\{\^?[\w ]+\}|[sSdDwWhH])")
_CODE_ESCAPE = re.compile(r"\\x\{([0-9A-Fa-f]{1,6})\}|\\x([0-9A-Fa-f]{2})|\\u([0-9A-Fa-f]{4})")
_GROUP = re.compile(r"\((?:\?(?:[:=!>]|<[=!]))?")
_QUANTIFIER = re.compile(r"[*+?][?+]?|\{\d+,\d*\}\??(?![+*?])|\{,?\d+\}(?![+*?])")
_REFERENCE = re.compile(r"\\[1-9]")
_LEAST = re.compile(r"\{(\d+)")

Matcher = Callable[[str, float], Iterable[tuple[int, int]]]


class Refused(TokenizerError):
    """A construct of a pattern that two engines may read in two ways."""


def matcher(native: Any) -> Callable[[str], Matcher]:
    """The core calls it for each pattern that it refuses; raises ``Refused`` or ``ImportError``."""
    import regex  # type: ignore[import-untyped, unused-ignore]

    made = Translation(functools.partial(_code_points, native))

    def compile(pattern: str) -> Matcher:
        written = made.of(pattern)
        try:
            compiled = regex.compile(written, regex.VERSION1)
        except Exception as error:  # besides its own error it raises RecursionError, OverflowError and others
            raise Refused(f"{type(error).__name__}: {error}") from error

        def matches(text: str, seconds: float) -> list[tuple[int, int]]:
            """Yield all successive matches; an empty one does not count right after another. ``TokenizerError`` if
            they take longer than so many seconds of the thread's time."""
            found: list[tuple[int, int]] = []
            at, last, deadline = 0, -1, time.thread_time() + seconds
            while at <= len(text):
                left = deadline - time.thread_time()
                try:
                    # ``regex`` counts the time of all threads: the rest is given to one search alone.
                    match = compiled.search(text, at, timeout=left) if left > 0 else _out_of_time(pattern)
                except TimeoutError:
                    _out_of_time(pattern)
                if match is None:
                    break
                start, end = match.span()
                if start == end == last:
                    at += 1
                    continue
                found.append((start, end))
                at = last = end
            return found

        return matches

    return compile


def _out_of_time(pattern: str) -> NoReturn:
    raise TokenizerError(f"the pattern {pattern[:60]!r} of the tokenizer file takes too long on this text")


class Translation:
    """Patterns of one file for the ``regex`` package; ``code_points`` gives the ranges of a class."""

    def __init__(self, code_points: Callable[[str], list[tuple[int, int]]]) -> None:
        self._code_points = code_points
        self._classes: dict[str, str] = {}
        self._written = 0

    def of(self, pattern: str) -> str:
        if len(pattern) > _MOST_PATTERN:
            raise Refused(f"{len(pattern)} characters")
        out: list[str] = []
        begun: list[int] = []  # of each open group, how much was written before it
        last = at = 0  # characters of the last atom or group
        while at < len(pattern):
            first, before = pattern[at], self._written
            piece, at = _piece(pattern, at, self._written_class)
            out.append(piece)
            if first in "*+?{":
                self._written += last * (_least(piece) - 1)
            else:
                self._written += len(piece)
                last = self._written - (begun.pop() if first == ")" and begun else before)
                if first == "(":
                    begun.append(before)
            if self._written > _MOST_WRITTEN:
                raise Refused(f"more than {_MOST_WRITTEN} characters, classes and repetitions written out")
        return "".join(out)

    def _written_class(self, written: str) -> str:
        if written not in self._classes:
            if len(self._classes) == _MOST_CLASSES:
                raise Refused(f"more than {_MOST_CLASSES} classes")
            self._classes[written] = _written_out(self._code_points(written))
        return self._classes[written]


def _least(quantifier: str) -> int:
    """Return how often it repeats at least; if that is too large to be read, as often as is refused."""
    found = _LEAST.match(quantifier)
    return 1 if found is None else max(1, int(found[1])) if len(found[1]) < 9 else 2 * _MOST_WRITTEN


def _piece(pattern: str, at: int, class_of: Callable[[str], str]) -> tuple[str, int]:
    char = pattern[at]
    if char == "\\":
        return _escape(pattern, at, class_of)
    if char == "[":
        end = _class_end(pattern, at)
        return class_of(pattern[at:end]), end
    if char == "(":
        group = _GROUP.match(pattern, at)
        if group is None:
            raise Refused(f"the group {pattern[at : at + 6]!r}")
        if pattern[group.end() : group.end() + 1] in ("?", "*"):
            raise Refused(f"the group {pattern[at : at + 6]!r}")
        return group[0], group.end()
    if char in "*+?{":
        quantifier = _QUANTIFIER.match(pattern, at)
        if quantifier is None or pattern[quantifier.end() : quantifier.end() + 1] in ("*", "+", "?", "{"):
            raise Refused(f"the quantifier {pattern[at : at + 6]!r}")
        return quantifier[0], quantifier.end()
    if char == ".":
        return "[^\\n]", at + 1
    if char == "^":
        return "(?:\\A|(?<=\\n)(?!\\Z))", at + 1
    if char == "$":
        return "(?=\\n|\\Z)", at + 1
    if char in "|)":
        return char, at + 1
    return _literal(ord(char)), at + 1


def _escape(pattern: str, at: int, class_of: Callable[[str], str]) -> tuple[str, int]:
    found = _CLASS_ESCAPE.match(pattern, at)
    if found:
        return class_of(found[0]), found.end()
    code = _CODE_ESCAPE.match(pattern, at)
    if code:
        number = int(next(g for g in code.groups() if g), 16)
        if number > sys.maxunicode:
            raise Refused(f"the code point {code[0]!r}")
        return _literal(number), code.end()
    reference = _REFERENCE.match(pattern, at)
    if reference and not pattern[at + 2 : at + 3].isdigit():
        return reference[0], reference.end()
    after = pattern[at + 1 : at + 2]
    if after in ("b", "B"):
        word = class_of("\\w")
        edge = f"(?<={word})(?!{word})|(?<!{word})(?={word})"
        inside = f"(?<={word})(?={word})|(?<!{word})(?!{word})"
        return f"(?:{edge if after == 'b' else inside})", at + 2
    if after == "A":
        return "\\A", at + 2
    if after == "z":
        return "\\Z", at + 2
    if after == "Z":
        return "(?=\\n?\\Z)", at + 2
    if after in _SIMPLE and not pattern[at + 2 : at + 3].isdigit():
        return _literal(ord(_SIMPLE[after])), at + 2
    if after and not after.isalnum():
        return _literal(ord(after)), at + 2
    raise Refused(f"the escape {pattern[at : at + 2]!r}")


def _class_end(pattern: str, start: int) -> int:
    depth, at = 0, start
    while at < len(pattern):
        if pattern[at] == "\\":
            at += 2
            continue
        depth += (pattern[at] == "[") - (pattern[at] == "]")
        at += 1
        if not depth:
            return at
    raise Refused("an unclosed class")


def _literal(code: int) -> str:
    return f"\\U{code:08X}"


def _written_out(ranges: list[tuple[int, int]]) -> str:
    if not ranges:
        return "(?!)"
    return "[" + "".join(f"\\U{a:08X}-\\U{b:08X}" for a, b in ranges) + "]"


@functools.lru_cache(maxsize=256)
def _code_points(native: Any, written: str) -> list[tuple[int, int]]:
    """Return the ranges of code points that a class matches, as the native core reads it."""
    whole: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"Regex": written + "+"},
            "behavior": "Removed",
            "invert": True,
        },
        "post_processor": None,
        "decoder": None,
        "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []},
    }
    try:
        core = native.CoreTokenizer.from_json(json.dumps(whole).encode())
    except ValueError as error:
        raise Refused(f"the class {written!r}: {error}") from None
    found: list[tuple[int, int]] = []
    for first, last in ((0, 0xD7FF), (0xE000, 0x10FFFF)):
        text = "".join(map(chr, range(first, last + 1)))
        found += [(first + a, first + b - 1) for _, (a, b) in core.pre_tokenize(text)]
    return found
