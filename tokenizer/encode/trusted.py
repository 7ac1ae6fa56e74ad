"""Tokenising text that is trusted in some parts and not in others.

Control tokens are looked for in the trusted runs alone, each by itself: nothing that stands before or after a
run can complete a control token with it. Ordinary text between two control tokens is tokenised as one piece,
across the borders of trust, so that harmless input gives the ids that the whole string would give.

The turn marks of trusted text are control tokens of the call, also if no file beside the tokenizer names them.

When the control tokens of the whole string are just those of its trusted runs, the whole string is encoded
at once, and that is then checked; else the stretches between them are encoded as text, one by one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from .literal import LiteralText

if TYPE_CHECKING:
    from ..backends.choice import Core
    from .control import ControlIds

Int32 = npt.NDArray[np.int32]
_MOST_OTHERS = 8
Found = list[tuple[int, int, int]]  # (start, end, id)


class ControlTokens:
    """The control tokens of a tokenizer as a pattern; immutable."""

    def __init__(self, core: Core, literal: LiteralText, known: ControlIds) -> None:
        self._core, self._literal, self._known = core, literal, known
        self._others: dict[frozenset[int], ControlTokens] = {}  # with the turn marks of a call
        tokens = [t for t in core.added_tokens() if t[0] in literal.control_ids]
        self._ids = {content: id for id, content, *_ in tokens}
        self._flags = {content: (single, left, right) for _, content, single, left, right, _, _ in tokens}
        self._pattern = pattern_of(self._ids)

    def encode(self, segments: Sequence[tuple[str, bool]]) -> Int32:
        runs = _runs(segments)
        marks = self._known.marks(text for text, trusted in runs if trusted) - self._literal.control_ids
        return self._and(marks)._encode(runs) if marks else self._encode(runs)

    def _and(self, marks: frozenset[int]) -> ControlTokens:
        found = self._others.get(marks)
        if found is None:
            literal = LiteralText(self._core, self._literal.control_ids | marks)
            found = ControlTokens(self._core, literal, self._known)
            if len(self._others) < _MOST_OTHERS:
                self._others[marks] = found
        return found

    def _encode(self, runs: list[tuple[str, bool]]) -> Int32:
        whole = "".join(text for text, _ in runs)
        found: Found = []
        at = 0
        for text, trusted in runs:
            if trusted:
                found += [(at + a, at + b, id) for a, b, id in self._in(text)]
            at += len(text)
        found = [f for f in found if self._stands_alone(whole, f)]
        if found == [f for f in self._in(whole) if self._stands_alone(whole, f)]:
            ids = self._core.encode_array(whole, True)
            seen = [i for i in ids.tolist() if i in self._literal.control_ids]
            if seen == [id for _, _, id in found]:
                return ids
        return self._piecewise(whole, found)

    def _in(self, text: str) -> Found:
        return [(m.start(), m.end(), self._ids[m[0]]) for m in self._pattern.finditer(text)]

    def _stands_alone(self, whole: str, found: tuple[int, int, int]) -> bool:
        start, end, _ = found
        single, _, _ = self._flags[whole[start:end]]
        return not single or not (_wordy(whole[start - 1 : start]) or _wordy(whole[end : end + 1]))

    def _piecewise(self, whole: str, found: Found) -> Int32:
        pieces: list[Int32] = []
        at = 0
        for start, end, id in found:
            _, left, right = self._flags[whole[start:end]]
            stretch = whole[at:start]
            pieces.append(self._text(stretch.rstrip() if left else stretch))
            pieces.append(np.array([id], np.int32))
            at = end + (len(whole[end:]) - len(whole[end:].lstrip()) if right else 0)
        pieces.append(self._text(whole[at:]))
        return np.concatenate(pieces)

    def _text(self, text: str) -> Int32:
        return self._literal.ids(text) if text else np.empty(0, np.int32)


def pattern_of(tokens: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern of any of ``tokens``, the longest first."""
    return re.compile("|".join(map(re.escape, sorted(tokens, key=len, reverse=True))) or "(?!)")


def _runs(segments: Sequence[tuple[str, bool]]) -> list[tuple[str, bool]]:
    """Neighbours of the same trust joined: a template may write a control token in two halves."""
    runs: list[tuple[list[str], bool]] = []
    for text, trusted in segments:
        if not isinstance(text, str):
            raise TypeError(f"a segment is (str, bool), not ({type(text).__name__}, ...)")
        if runs and runs[-1][1] == bool(trusted):
            runs[-1][0].append(text)
        elif text:
            runs.append(([text], bool(trusted)))
    return [("".join(texts), trusted) for texts, trusted in runs]


def _wordy(char: str) -> bool:
    return char.isalnum() or char == "_"
