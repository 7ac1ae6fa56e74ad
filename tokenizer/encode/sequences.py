"""From texts to encodings as they are before post-processing: ids, offsets, word numbers, token strings.

Token strings are made when they are asked for, from the vocabulary; not so for added tokens that swallow
white space or match normalized text: there HF's token is the matched text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..backends.reference import ReferenceCore
from ..encoding import Encoding
from .post_processing import layout, trims_first

if TYPE_CHECKING:
    from ..backends.choice import Core
    from ..backends.reference import Found
    from .post_processing import Frame, Processor

Int32 = npt.NDArray[np.int32]
Given = str | list[str]  # a text, or words


class _Columns:
    """Offsets and words of one text, made when one of them is asked for."""

    def __init__(self, core: Any, text: str, frame: Frame, parse_special: bool, placed: Int32 | None) -> None:
        self._core, self._text, self._frame, self._parse_special = core, text, frame, parse_special
        self._placed = placed  # the ids, if they say where they lie
        self._both: tuple[Int32, Int32] | None = None

    def offsets(self) -> Int32:
        spans = None if self._placed is None else self._core.char_spans(self._placed, self._text)
        return self._frame.rows(self._full()[0] if spans is None else spans, 0)

    def words(self) -> Int32:
        return self._frame.rows(self._full()[1], -1)

    def _full(self) -> tuple[Int32, Int32]:
        if self._both is None:
            _, *both = self._core.encode_full(self._text, self._parse_special, "char", True)
            self._both = (both[0], both[1])
        return self._both


class Sequences:
    def __init__(self, core: Core) -> None:
        self._core = core
        normalizes = core.section("normalizer") not in (None, "null")
        self.as_found = any(
            left or right or (normalized and normalizes)
            for _, _, _, left, right, normalized, _ in core.added_tokens()
        )
        self.shown = -1
        if not isinstance(core, ReferenceCore):
            self.as_found = self.as_found or core.has_shadowed_tokens()
            self.shown = core.shown_id()

    @property
    def may_trim(self) -> bool:
        """Whether the core trims offsets; on the reference backend that is the processor's work."""
        return not isinstance(self._core, ReferenceCore)

    def encode(self, given: Given, type_id: int, parse_special: bool, trim: bool, fast: bool) -> Encoding:
        """One sequence. With ``trim`` its offsets are trimmed as if it were the whole encoding. ``fast``: ids alone;
        HF's fast encodings have no offsets, word numbers or type ids, and empty token strings."""
        core = self._core
        if isinstance(core, ReferenceCore):
            made = self._by_reference(core, given, type_id, parse_special)
        elif isinstance(given, str):
            ids, offsets, words = core.encode_full(given, parse_special, "char", trim)
            made = Encoding._make(ids, offsets, words, self._tokens(ids, [given], parse_special), type_id)
        else:
            ids, offsets, words, starts = core.encode_batch_full(given, parse_special, "char", trim)
            words = np.repeat(np.arange(len(given), dtype=np.int32), np.diff(starts))
            made = Encoding._make(ids, offsets, words, self._tokens(ids, given, parse_special), type_id)
        return Encoding._make(made._ids, None, None, [""] * len(made)) if fast else made

    def entry(
        self, frames: tuple[Frame | None, Frame | None], processor: Processor | None
    ) -> tuple[Any, Any, Any, Any, Any]:
        """The values for ``EncodeEntry``: the core, and the tokens put around a text and the texts of a row, each
        without and with special tokens."""
        core = self._core
        if isinstance(core, ReferenceCore):
            return None, None, None, None, None
        from .._core import QuickFrame, RowFrames

        plain, special = (None if f is None else QuickFrame(self, f, Encoding) for f in frames)
        first = trims_first(processor)
        rows = []
        for with_special in (False, True):
            added = (0, 0)
            if processor is not None and with_special:
                added = processor.added(False), processor.added(True)
            single, pair = layout(processor, with_special, False), layout(processor, with_special, True)
            rows.append(RowFrames(single, pair, added, first))
        return core, plain, special, rows[0], rows[1]

    def fill_fresh(
        self, fresh: Encoding, ids: Int32, text: str, frame: Frame, parse_special: bool, placed: bool, bare: bool
    ) -> None:
        """The columns of a fresh encoding; offsets and words are made when they are asked for. placed: whether
        ``char_spans`` may be asked about its ids. bare: as ``encode_fast`` has them."""
        start = len(frame.before)
        found = ids[start : len(ids) - len(frame.after)]
        if bare:
            frame.fill_columns(fresh, ids, partial(list, [""] * len(found)), None, None)
            return
        columns = _Columns(self._core, text, frame, parse_special, found if placed else None)
        frame.fill_columns(fresh, ids, self._tokens(found, [text], parse_special), columns.offsets, columns.words)

    def _tokens(self, ids: Int32, texts: Sequence[str], parse_special: bool) -> Callable[[], list[str]]:
        core: Any = self._core
        shown = self.shown

        def found() -> list[str]:
            if self.as_found or (shown >= 0 and bool((ids == shown).any())):
                return [t for text in texts for t in core.encode_tokens(text, parse_special)]
            return [t or "" for t in core.tokens(ids)]

        return found

    @staticmethod
    def _by_reference(core: ReferenceCore, given: Given, type_id: int, parse_special: bool) -> Encoding:
        rows = core.encode_found([given] if isinstance(given, str) else given, parse_special)
        none: Found = np.empty(0, np.int32), np.empty((0, 2), np.int32), np.empty(0, np.int32), []
        ids, offsets, words = (np.concatenate(column) for column in list(zip(none, *rows))[:3])
        if not isinstance(given, str):
            words = np.repeat(np.arange(len(rows), dtype=np.int32), [len(row[0]) for row in rows])
        return Encoding._make(ids, offsets, words, [token for row in rows for token in row[3]], type_id)
