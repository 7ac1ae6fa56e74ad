"""The types that HF's package names for annotations and arguments, and the token of a model's ``tokenize``."""

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Token:
    """A token that a model made of one word: its id, its text, and the bytes of the word (start, end) it covers."""

    id: int
    value: str
    offsets: Offsets

    def as_tuple(self) -> tuple[int, str, Offsets]:
        return self.id, self.value, self.offsets
