"""From texts to encodings as they are before post-processing: ids, offsets, word numbers, token strings.

Token strings are made when they are asked for, from the vocabulary; not so for added tokens that swallow
white space or match normalized text: there HF's token is what was found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ._reference import ReferenceCore
from .encoding import Encoding

if TYPE_CHECKING:
    from ._rungs import Core

Int32 = npt.NDArray[np.int32]
Given = str | list[str]  # a text, or words


class Sequences:
    def __init__(self, core: Core) -> None:
        self._core = core
        normalizes = core.section("normalizer") not in (None, "null")
        self._as_found = {
            id: (core.normalize(content) if normalized else content, left, right)
            for id, content, _, left, right, normalized, _ in core.added_tokens()
            if left or right or (normalized and normalizes)
        }

    @property
    def may_trim(self) -> bool:
        """Whether the core may trim offsets: not where they are needed to find a token's text."""
        return not self._as_found and not isinstance(self._core, ReferenceCore)

    def encode(self, given: Given, type_id: int, parse_special: bool, trim: bool) -> Encoding:
        """One sequence. With ``trim`` its offsets are trimmed as if it were the whole encoding."""
        core = self._core
        if isinstance(core, ReferenceCore):
            return self._by_reference(core, given, type_id, parse_special)
        if isinstance(given, str):
            ids, offsets, words = core.encode_full(given, parse_special, "char", trim)
            return self._encoding(ids, offsets, words, [given], [len(ids)], type_id)
        ids, offsets, words, starts = core.encode_batch_full(given, parse_special, "char", trim)
        lengths = np.diff(starts)
        words = np.repeat(np.arange(len(given), dtype=np.int32), lengths)
        return self._encoding(ids, offsets, words, given, lengths.tolist(), type_id)

    def encode_many(self, texts: Sequence[str], type_id: int, parse_special: bool, trim: bool) -> list[Encoding]:
        """Many texts in one call of the core."""
        core = self._core
        if isinstance(core, ReferenceCore):
            return [self._by_reference(core, text, type_id, parse_special) for text in texts]
        ids, offsets, words, starts = core.encode_batch_full(texts, parse_special, "char", trim)
        bounds = starts.tolist()
        return [
            self._encoding(ids[a:b], offsets[a:b], words[a:b], [text], [b - a], type_id)
            for text, a, b in zip(texts, bounds, bounds[1:])
        ]

    def encode_fast(self, given: Sequence[Given], parse_special: bool) -> list[Encoding]:
        """Ids alone: HF's fast encodings have no offsets, word numbers or type ids, and empty token strings."""
        flat = [text for one in given for text in ([one] if isinstance(one, str) else one)]
        ids, starts = self._core.encode_batch_array(flat, parse_special)
        counts = [1 if isinstance(one, str) else len(one) for one in given]
        bounds = starts[np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])].tolist()
        return [Encoding._make(ids[a:b], None, None, [""] * (b - a)) for a, b in zip(bounds, bounds[1:])]

    def _encoding(
        self, ids: Int32, offsets: Int32, words: Int32, texts: Sequence[str], lengths: list[int], type_id: int
    ) -> Encoding:
        lookup = self._core.tokens
        tokens: list[str] | Callable[[], list[str]]
        if self._as_found:
            tokens = self._tokens_as_found(ids, offsets, texts, lengths)
        else:
            tokens = lambda: [t or "" for t in lookup(ids)]  # noqa: E731
        return Encoding._make(ids, offsets, words, tokens, type_id)

    def _tokens_as_found(self, ids: Int32, offsets: Int32, texts: Sequence[str], lengths: list[int]) -> list[str]:
        tokens = [t or "" for t in self._core.tokens(ids)]
        row = [k for k, n in enumerate(lengths) for _ in range(n)]
        for i, id in enumerate(ids.tolist()):
            if id in self._as_found:
                token, left, right = self._as_found[id]
                start, stop = offsets[i].tolist()
                found = texts[row[i]][start:stop]
                before = found[: len(found) - len(found.lstrip())] if left else ""
                after = found[len(found.rstrip()) :] if right else ""
                tokens[i] = before + token + after
        return tokens

    @staticmethod
    def _by_reference(core: ReferenceCore, given: Given, type_id: int, parse_special: bool) -> Encoding:
        rows = [core.encode_found(text, parse_special) for text in ([given] if isinstance(given, str) else given)]
        ids = np.concatenate([row[0] for row in rows]) if rows else np.empty(0, np.int32)
        offsets = np.concatenate([row[1] for row in rows]) if rows else np.empty((0, 2), np.int32)
        if isinstance(given, str):
            words = rows[0][2]
        else:
            words = np.repeat(np.arange(len(rows), dtype=np.int32), [len(row[0]) for row in rows])
        return Encoding._make(ids, offsets, words, [t for row in rows for t in row[3]], type_id)
