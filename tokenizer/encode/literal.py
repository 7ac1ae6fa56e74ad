"""Text that must stay text: no control token may come out of it; and text that is trusted in some parts.

The core leaves special tokens unmatched if it is asked to. Two ways remain by which untrusted text could become a
control token: control tokens that are not flagged special (``<tool_call>``, ``<|User|>`` in some files), and a model
whose merges spell a control token from its characters. Both are found by looking at the ids, and each of them is
replaced by the tokens of its single characters.

In segments, control tokens are looked for in the trusted runs alone, each by itself: nothing that stands before or
after a run can complete a control token with it. Ordinary text between two control tokens is tokenised as one piece,
across the borders of trust, so that harmless input gives the ids that the whole string would give. The turn marks of
trusted text are control tokens of the call, also if no file beside the tokenizer names them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..backends.bounds import flat
from ..backends.reference import BYTE_CHARS
from .control import ControlIds, mask_of

if TYPE_CHECKING:
    from ..backends.choice import Core

Int32 = npt.NDArray[np.int32]
_MOST_OTHERS = 8
Found = list[tuple[int, int, int]]  # (start, end, id)


class LiteralText:
    """Which ids are control tokens, and how to spell them out; immutable."""

    def __init__(self, core: Core, control_ids: frozenset[int]) -> None:
        self._core = core
        self._unknown = core.unknown_id()
        self.control_ids = control_ids
        self._is_control = mask_of(control_ids - {self._unknown})  # an unknown word is not a control token
        decoder = json.loads(core.section("decoder") or "null")
        self._kinds = [step["type"] for step in flat(decoder, "decoders")]

    def ids(self, text: str | bytes) -> Int32:
        """Return the ids of ``text``, without a control token."""
        ids = self._core.encode_array(text, False)
        return self.encode(text)[0] if self._marked(ids).any() else ids

    def encode(self, text: str | bytes) -> tuple[Int32, Int32]:
        """(ids, offsets in characters, untrimmed), without a control token."""
        ids, spans, _ = self._core.encode_full(text, False, "char", False)
        marked = self._marked(ids)
        if not marked.any():
            return ids, spans
        string = text if isinstance(text, str) else text.decode()
        out_ids: list[int] = []
        out_spans: list[tuple[int, int]] = []
        for id, (start, stop), bad in zip(ids.tolist(), spans.tolist(), marked.tolist()):
            for at in range(start, stop) if bad else ():
                spelled = self._spelled(string[at])
                out_ids.extend(spelled)
                out_spans.extend([(at, at + 1)] * len(spelled))
            if not bad:
                out_ids.append(id)
                out_spans.append((start, stop))
        return np.array(out_ids, np.int32), np.array(out_spans, np.int32).reshape(-1, 2)

    @property
    def mask(self) -> bytes:
        """Return a mask by id: 1 for a control token, 0 for other tokens. Ids past the end are of other tokens."""
        return self._is_control.tobytes()

    def _marked(self, ids: Int32) -> npt.NDArray[np.bool_]:
        return self._is_control.take(ids, mode="clip")

    def _spelled(self, char: str) -> list[int]:
        core = self._core
        if "ByteLevel" in self._kinds:
            found = [core.token_to_id(BYTE_CHARS[b]) for b in char.encode()]
        else:
            shown = "\u2581" if char == " " and ("Replace" in self._kinds or "Metaspace" in self._kinds) else char
            for form in (shown, "##" + char, char + "</w>"):
                id = core.token_to_id(form)
                if id is not None and id not in self.control_ids:
                    return [id]
            found = [core.token_to_id(f"<0x{b:02X}>") for b in char.encode()]
        unknown = self._unknown
        return [i if i is not None else unknown for i in found if i is not None or unknown >= 0]


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
            pieces.append(self._literal.ids(stretch.rstrip() if left else stretch))
            pieces.append(np.array([id], np.int32))
            at = end + (len(whole[end:]) - len(whole[end:].lstrip()) if right else 0)
        pieces.append(self._literal.ids(whole[at:]))
        return np.concatenate(pieces)


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
