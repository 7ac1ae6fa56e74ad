"""The types that HF's package names for annotations and arguments, and the token of a model's ``tokenize``."""

from __future__ import annotations

from enum import Enum

Offsets = tuple[int, int]
TextInputSequence = str
PreTokenizedInputSequence = list[str] | tuple[str]
TextEncodeInput = TextInputSequence | tuple[TextInputSequence, TextInputSequence] | list[TextInputSequence]
PreTokenizedEncodeInput = (
    PreTokenizedInputSequence
    | tuple[PreTokenizedInputSequence, PreTokenizedInputSequence]
    | list[PreTokenizedInputSequence]
)
InputSequence = TextInputSequence | PreTokenizedInputSequence
EncodeInput = TextEncodeInput | PreTokenizedEncodeInput


class OffsetReferential(Enum):
    ORIGINAL = "original"
    NORMALIZED = "normalized"


class OffsetType(Enum):
    BYTE = "byte"
    CHAR = "char"


class SplitDelimiterBehavior(Enum):
    REMOVED = "removed"
    ISOLATED = "isolated"
    MERGED_WITH_PREVIOUS = "merged_with_previous"
    MERGED_WITH_NEXT = "merged_with_next"
    CONTIGUOUS = "contiguous"


class Token:
    """A token that a model made of one word: its id, its text, and the bytes of the word (start, end) it covers."""

    __slots__ = ("_id", "_offsets", "_value")

    def __init__(self, id: int, value: str, offsets: Offsets) -> None:
        self._id, self._value, self._offsets = id, value, offsets

    @property
    def id(self) -> int:
        return self._id

    @property
    def value(self) -> str:
        return self._value

    @property
    def offsets(self) -> Offsets:
        return self._offsets

    def as_tuple(self) -> tuple[int, str, Offsets]:
        return self._id, self._value, self._offsets
