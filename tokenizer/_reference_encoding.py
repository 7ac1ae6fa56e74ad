"""An encoding of HF's behind the interface of ours: what is asked of it as lists is given as HF gives it.

The columns that ``Encoding`` works on are made when one of them is needed: by ``pad``, ``truncate``, a merge, or a
look-up by character.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .encoding import Encoding

if TYPE_CHECKING:
    from ._post_processing import Frame


class ReferenceEncoding(Encoding):
    """``found`` without special tokens, between the tokens of ``frame``."""

    __slots__ = ("_found", "_frame")

    _found: Any  # None once the columns are there
    _frame: Frame

    @staticmethod
    def of(found: Any, frame: Frame) -> ReferenceEncoding:
        made = ReferenceEncoding.__new__(ReferenceEncoding)
        made._found, made._frame = found, frame
        return made

    @property
    def ids(self) -> list[int]:
        found, frame = self._found, self._frame
        if found is None:
            listed: list[int] = self._ids.tolist()
            return listed
        ids: list[int] = found.ids
        return ids if frame.is_empty else [*frame.before.ids, *ids, *frame.after.ids]

    @property
    def offsets(self) -> list[tuple[int, int]]:
        found, frame = self._found, self._frame
        if found is None:
            return self._offset_list()
        offsets: list[tuple[int, int]] = found.offsets
        return offsets if frame.is_empty else frame.listed(offsets, (0, 0))

    @property
    def tokens(self) -> list[str]:
        found, frame = self._found, self._frame
        if found is None:
            return super().tokens
        tokens: list[str] = found.tokens
        return tokens if frame.is_empty else [*frame.before.tokens, *tokens, *frame.after.tokens]

    @property
    def word_ids(self) -> list[int | None]:
        found, frame = self._found, self._frame
        if found is None:
            return super().word_ids
        words: list[int | None] = found.word_ids
        return words if frame.is_empty else frame.listed(words, None)

    def __len__(self) -> int:
        found = self._found
        return len(self._ids) if found is None else len(self._frame.before) + len(found) + len(self._frame.after)

    def __getattr__(self, name: str) -> Any:
        if name not in self._columns:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        # Another thread may do the same at the same time, with the same result.
        found, frame = self._found, self._frame
        frame.settle(
            self,
            np.array(self.ids, np.int32),
            lambda: found.tokens,
            lambda: frame.rows(np.array(found.offsets, np.int32).reshape(-1, 2), 0),
            lambda: frame.rows(np.array([-1 if w is None else w for w in found.word_ids], np.int32), -1),
        )
        self._found = None
        return getattr(self, name)
