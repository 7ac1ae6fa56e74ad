"""An encoding of HF's behind the interface of ours: its columns are HF's.

The columns that ``Encoding`` works on are made when something changes it: ``pad``, ``truncate``, a merge. From then
on nothing of HF's is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from operator import attrgetter
from typing import Any

import numpy as np

from ._core import encodings_over
from .encoding import Encoding, Int32, _fill

_READ = ("tokens", "word_ids", "type_ids", "special_tokens_mask", "attention_mask", "sequence_ids", "n_sequences")
_LOOK_UPS = (
    *("token_to_sequence", "token_to_chars", "token_to_word", "word_to_tokens", "word_to_chars"),
    *("char_to_token", "char_to_word"),
)


class ReferenceEncoding(Encoding):
    __slots__ = ()

    @staticmethod
    def over(found: Iterable[Any]) -> list[Encoding]:
        return encodings_over(found, ReferenceEncoding)

    @property
    def overflowing(self) -> list[Encoding]:
        found = self._found
        return super().overflowing if found is None else ReferenceEncoding.over(found.overflowing)

    def __getattr__(self, name: str) -> Any:
        found = self._found
        if found is None and name in _READ:
            return getattr(Encoding, name).__get__(self)
        if name not in self._columns:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        # Another thread may do the same at the same time, with the same result.
        columns = (found.type_ids, found.special_tokens_mask, found.attention_mask)
        _fill(self, _column(found.ids), None, None, lambda: list(found.tokens), *map(_column, columns))
        self._pending_offsets = lambda: np.array(found.offsets, np.int32).reshape(-1, 2)
        self._pending_words = lambda: np.array([-1 if w is None else w for w in found.word_ids], np.int32)
        self._ranges, self._overflowing = _ranges(found), ReferenceEncoding.over(found.overflowing)
        self._found = None
        return getattr(self, name)


def _column(values: Sequence[int]) -> Int32:
    """int32, where all ids are; see ``Encoding``."""
    column: Int32 = np.array(values, np.uint32).view(np.int32)
    return np.array(values, np.int64) if len(column) and column.min() < 0 else column


def _ranges(found: Any) -> dict[int, tuple[int, int]]:
    """The tokens of each sequence; {} for one sequence that covers everything."""
    length = len(found)
    if found.token_to_sequence(length) == 0:  # HF finds a token past the end in such an encoding alone
        return {}
    ranges: dict[int, tuple[int, int]] = {}
    for token in range(length):
        sequence = found.token_to_sequence(token)
        if sequence is not None:
            ranges[sequence] = ranges.get(sequence, (token, 0))[0], token + 1
    for sequence in range(found.n_sequences):  # one without tokens is counted as well
        if len(ranges) < found.n_sequences:
            ranges.setdefault(sequence, (0, 0))
    return ranges


def _looking_up(name: str) -> Callable[..., Any]:
    base: Callable[..., Any] = getattr(Encoding, name)

    @wraps(base)
    def look_up(self: ReferenceEncoding, *args: Any, **kwargs: Any) -> Any:
        found = self._found
        return base(self, *args, **kwargs) if found is None else getattr(found, name)(*args, **kwargs)

    return look_up


for _name in _READ:  # read without a line of Python, and by __getattr__ where nothing of HF's is left
    setattr(ReferenceEncoding, _name, property(attrgetter(f"_found.{_name}")))
for _name in _LOOK_UPS:
    setattr(ReferenceEncoding, _name, _looking_up(_name))
