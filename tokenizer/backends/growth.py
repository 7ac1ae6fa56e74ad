"""How much longer the normalizers, pre-tokenizers and decoders of a file may make a text in HF ``tokenizers``.

HF ends the process if memory ends, so the result of a call is bounded before HF is asked. The bounds are those
of the native core (``core/errors.hpp``), but for ``LITTLE``: how long a step can make a text is only known from
above here, and honest files of many steps must not be refused for that.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from itertools import chain
from typing import Any

from ..errors import TokenizerError, TokenizerFileError

MOST_STEPS = 1024  # of normalizers, of pre-tokenizers, of decoders
MOST_CONTENT = 1 << 16  # bytes that one step inserts at a time
MOST_TIMES = 1 << 16  # times that all normalizers, or all decoders, may make a text longer
MOST_CUT_TIMES = 64  # the same of the pre-tokenizers, which no call looks at
MOST_TEXT = 1 << 29  # bytes of a text
LITTLE = 1 << 26  # bytes that any text may become; HF takes twenty times as many for offsets
TIMES = 32  # a longer text may become this many times as long

# In bytes, the most that one character of Unicode takes.
_NORMALIZERS = {"ByteLevel": 2, "NFD": 3, "NFC": 3, "NFKD": 11, "NFKC": 11, "Lowercase": 2, "BertNormalizer": 10}
_CUTS = {"ByteLevel": 2, "Metaspace": 4}
_DECODERS = {"ByteLevel": 3, "WordPiece": 2, "BPEDecoder": 2, "CTC": 2}
_KINDS = (
    ("normalizer", "normalizers", _NORMALIZERS, MOST_TIMES),
    ("pre_tokenizer", "pretokenizers", _CUTS, MOST_CUT_TIMES),
    ("decoder", "decoders", _DECODERS, MOST_TIMES),
)


class Growth:
    """Reads a file's JSON before HF gets it. ``TokenizerFileError`` if a bound of the file is passed."""

    def __init__(self, whole: dict[str, Any]) -> None:
        self._steps, _, decoders = (self._read(whole, *kind) for kind in _KINDS)
        self._decoded = _product(decoders)
        self._longest = 4 * _longest(whole)  # bytes of a token
        self.free = LITTLE // (4 * _product(self._steps))
        """Characters of a text that no call has to look at."""
        self._check_added(whole.get("added_tokens"))

    @staticmethod
    def _read(whole: dict[str, Any], name: str, inner: str, times: dict[str, int], most: int) -> list[_Step]:
        steps = [_Step(step, name, times) for step in flat(whole.get(name), inner)]
        if len(steps) > MOST_STEPS:
            raise TokenizerFileError(name, f"{len(steps)} steps; at most {MOST_STEPS} are taken")
        if _product(steps) > most:
            raise TokenizerFileError(name, f"its steps may make a text more than {most} times as long")
        return steps

    def _check_added(self, tokens: Any) -> None:
        """HF normalizes the contents of added tokens while it loads."""
        found = [t.get("content") for t in tokens if isinstance(t, dict)] if isinstance(tokens, list) else []
        size = sum(_size(content) for content in found if isinstance(content, str))
        if size * _product(self._steps) > LITTLE:
            raise TokenizerFileError(
                "added_tokens", f"{size} bytes of contents, which the normalizers may make more than {LITTLE}"
            )

    def require(self, text: str, normalizer: Any) -> None:
        """Raise ``TokenizerError`` if ``normalizer``, HF's of the file, may make ``text`` too long."""
        if len(text) <= self.free:
            return
        size = _size(text)
        most = max(LITTLE, TIMES * size)
        if size * _product(self._steps) <= most:
            return
        given, parts = size, _parts(normalizer)
        if len(parts) != len(self._steps):
            _refuse(given, most)
        for step, part in zip(self._steps, parts):
            if step.after(text, size) > most:
                _refuse(given, most)
            text = part.normalize_str(text)
            size = _size(text)

    def require_decoded(self, tokens: Sized, texts: Callable[[], Iterable[str | None]]) -> None:
        """Raise ``TokenizerError`` if so many tokens, of these texts, may decode to too much."""
        if len(tokens) * self._longest * self._decoded <= LITTLE:
            return
        size = sum(_size(text) for text in texts() if text is not None)
        if size > MOST_TEXT or size * self._decoded > max(LITTLE, TIMES * size):
            raise TokenizerError(f"tokens of {size} bytes in all may decode to too much; decode fewer at a time")


class _Step:
    """One step, and how long it may make a text."""

    def __init__(self, step: dict[str, Any], name: str, times: dict[str, int]) -> None:
        kind = step.get("type")
        self._times, self._added = times.get(str(kind), 1), 0
        self._replaced, self._content = "", 0  # of a Replace of a fixed text
        if kind == "Prepend":
            self._added = _content(step.get("prepend"), f"{name}.prepend")
        elif kind == "Replace":
            content, pattern = _content(step.get("content"), f"{name}.content"), step.get("pattern")
            text = pattern.get("String") if isinstance(pattern, dict) else None
            if isinstance(text, str) and text:
                self._replaced, self._content = text, content
                self._times = max(1, math.ceil(content / _size(text)))
            else:  # it may match nothing, before each character and at the end
                self._times, self._added = 1 + content, content
        elif kind == "Precompiled":
            self._times = _charsmap(step.get("precompiled_charsmap"))

    def after(self, text: str, size: int) -> int:
        """Return the most bytes that ``text``, which has ``size``, becomes."""
        if self._replaced:
            return size + text.count(self._replaced) * (self._content - _size(self._replaced))
        return size * self._times + self._added

    @property
    def times(self) -> int:
        """How many times as long any text but the empty one can become."""
        return self._times + self._added


def _longest(whole: dict[str, Any]) -> int:
    """Characters of the longest token."""
    model, added = whole.get("model"), whole.get("added_tokens")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    found: Iterable[Any] = vocab if isinstance(vocab, dict) else ()
    if isinstance(vocab, list):
        found = (pair[0] for pair in vocab if isinstance(pair, list) and pair)
    contents = [t.get("content") for t in added if isinstance(t, dict)] if isinstance(added, list) else []
    return max((len(token) for token in chain(found, contents) if isinstance(token, str)), default=0)


def _product(steps: Sequence[_Step]) -> int:
    found = 1
    for step in steps:
        found = min(found * step.times, 1 << 62)
    return found


def _content(content: Any, where: str) -> int:
    """Return bytes that a step inserts."""
    size = _size(content) if isinstance(content, str) else 0  # HF names the error of another type
    if size > MOST_CONTENT:
        raise TokenizerFileError(where, f"{size} bytes; at most {MOST_CONTENT} are taken")
    return size


def _charsmap(member: Any) -> int:
    """sentencepiece's map: the size of a trie, the trie, and texts that each end in a zero. The longest of these."""
    where = "normalizer.precompiled_charsmap"
    if not isinstance(member, str):
        return 1  # HF names the error
    try:
        raw = base64.b64decode(member, validate=True)
    except (binascii.Error, ValueError):
        raise TokenizerFileError(where, "not base64") from None
    size = int.from_bytes(raw[:4], "little")
    if len(raw) < 4 or size % 4 or size > len(raw) - 4:
        raise TokenizerFileError(where, f"a trie of {size} bytes in a map of {len(raw)}")
    return max(1, *map(len, raw[4 + size :].split(b"\0")))


def flat(component: Any, inner: str) -> Iterator[dict[str, Any]]:
    if not isinstance(component, dict):
        return
    nested = component.get(inner)
    if isinstance(nested, list):
        for one in nested:
            yield from flat(one, inner)
    else:
        yield component


def _parts(normalizer: Any) -> list[Any]:
    """Return HF's steps; a sequence in a sequence is part of it."""
    if normalizer is None:
        return []
    return [normalizer[i] for i in range(len(normalizer))] if hasattr(normalizer, "__getitem__") else [normalizer]


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="replace"))


def _refuse(size: int, most: int) -> None:
    raise TokenizerError(
        f"the replacements of the tokenizer file may make the text of {size} bytes longer than {most}; "
        "give a shorter text"
    )
