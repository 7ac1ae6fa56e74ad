"""Post-processors: the tokens around the encoded sequences, and the trimming of their offsets.

A processor maps a list of encodings to a list of encodings, which belong to the call and are changed in place.
Trimming (ByteLevel, Roberta) moves a token's offsets past the white space that its own text starts or ends with.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .._core import Encoding
from ..encoding import merge, refuse_too_many_parts
from ..errors import TokenizerError
from ..params import Truncation, truncate_pair

Int32 = npt.NDArray[np.int32]

_TEXT = "\0the text"
_SPACE = "\u0120"  # byte-level BPE's character for a space
_BLANKS = (
    "\t\n\x0b\x0c\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000" + _SPACE
)


class Processor:
    __slots__ = ()

    def added(self, is_pair: bool) -> int:
        """Return how many tokens it adds."""
        return 0

    @property
    def ids(self) -> tuple[int, ...]:
        """Return all ids that it may put into an encoding."""
        return ()

    def process(self, encodings: list[Encoding], add_special_tokens: bool) -> list[Encoding]:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class ByteLevel(Processor):
    add_prefix_space: bool
    trim_offsets: bool

    def process(self, encodings: list[Encoding], add_special_tokens: bool) -> list[Encoding]:
        for i, encoding in enumerate(encodings):
            if self.trim_offsets:
                trim(encoding, self.add_prefix_space)
            encoding.set_sequence_id(i)
        return encodings


@dataclass(frozen=True, slots=True)
class BertProcessing(Processor):
    sep: tuple[str, int]
    cls: tuple[str, int]

    def added(self, is_pair: bool) -> int:
        return 3 if is_pair else 2

    @property
    def ids(self) -> tuple[int, ...]:
        return self.sep[1], self.cls[1]

    def process(self, encodings: list[Encoding], add_special_tokens: bool) -> list[Encoding]:
        if not add_special_tokens:
            return encodings
        return [
            _wrapped(encoding, [self.cls] if i == 0 else [], [self.sep], min(i, 1), 0 if i == 0 else 1)
            for i, encoding in enumerate(encodings)
        ]


@dataclass(frozen=True, slots=True)
class RobertaProcessing(BertProcessing):
    trim_offsets: bool
    add_prefix_space: bool

    def added(self, is_pair: bool) -> int:
        return 4 if is_pair else 2

    def process(self, encodings: list[Encoding], add_special_tokens: bool) -> list[Encoding]:
        for encoding in encodings:
            if self.trim_offsets:
                trim(encoding, self.add_prefix_space)
            encoding._types = 0
            if add_special_tokens:
                for part in encoding._overflowing:
                    part._types = 0
        if not add_special_tokens:
            return encodings
        return [
            _wrapped(encoding, [self.cls if i == 0 else self.sep], [self.sep], min(i, 1), 0)
            for i, encoding in enumerate(encodings)
        ]


@dataclass(frozen=True, slots=True)
class Special:
    """A special token of a template: any number of ids, and of strings, under one name.

    As in HF a template may name one that the file does not declare: it adds no token to the count, and a
    call that would use it fails.
    """

    ids: tuple[int, ...]
    tokens: tuple[str, ...]
    type_id: int
    undeclared: str | None = None  # its name

    def encoding(self) -> Encoding:
        if self.undeclared is not None:
            raise TokenizerError(
                f"post_processor: the template uses {self.undeclared!r}, which its special_tokens do not have"
            )
        return Encoding._make(np.array(self.ids, np.int32), None, None, list(self.tokens), self.type_id, 1, 1)


@dataclass(frozen=True, slots=True)
class SequencePiece:
    """Where a template takes sequence 0 or 1, and the type id its tokens get."""

    sequence: int
    type_id: int


@dataclass(frozen=True, slots=True)
class TemplateProcessing(Processor):
    single: tuple[Special | SequencePiece, ...]
    pair: tuple[Special | SequencePiece, ...]

    def added(self, is_pair: bool) -> int:
        return sum(len(p.ids) for p in (self.pair if is_pair else self.single) if isinstance(p, Special))

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(i for p in (*self.single, *self.pair) if isinstance(p, Special) for i in p.ids)

    def process(self, encodings: list[Encoding], add_special_tokens: bool) -> list[Encoding]:
        if len(encodings) > 2:
            raise TokenizerError("a template takes one or two sequences; another template came before it")
        pieces = self.pair if len(encodings) == 2 else self.single
        sequences = [piece.sequence for piece in pieces if isinstance(piece, SequencePiece)]
        if any(number >= len(encodings) for number in sequences):
            raise TokenizerError("post_processor: the template for one sequence asks for a second one")
        refuse_too_many_parts(encodings[number] for number in sequences)  # before they are copied
        made = []
        for piece in pieces:
            if isinstance(piece, SequencePiece):
                encoding = copy(encodings[piece.sequence])  # a template may use a sequence twice
                encoding._types = piece.type_id
                encoding.set_sequence_id(piece.sequence)
                made.append(encoding)
            elif add_special_tokens:
                made.append(piece.encoding())
        return made


@dataclass(frozen=True, slots=True)
class Sequenced(Processor):
    """HF's ``Sequence``: each of them in turn."""

    processors: tuple[Processor, ...]

    def added(self, is_pair: bool) -> int:
        return sum(p.added(is_pair) for p in self.processors)

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(i for p in self.processors for i in p.ids)

    def process(self, encodings: list[Encoding], add_special_tokens: bool) -> list[Encoding]:
        for processor in self.processors:
            encodings = processor.process(encodings, add_special_tokens)
        return encodings


def run(processor: Processor | None, encoding: Encoding, pair: Encoding | None, add_special_tokens: bool) -> Encoding:
    """Apply ``processor`` and merge; the encodings are used up."""
    encodings = [encoding] if pair is None else [encoding, pair]
    if processor is None:
        if pair is None:
            return encoding
        for i, one in enumerate(encodings):
            one.set_sequence_id(i)
        return merge(encodings)
    for i, one in enumerate(encodings):
        one.set_sequence_id(i)
        for part in one._overflowing:
            part.set_sequence_id(i)
        one._types = i
    return merge(processor.process(encodings, add_special_tokens))


def finished(
    first: Encoding,
    second: Encoding | None,
    add_special: bool,
    truncation: Truncation | None,
    processor: Processor | None,
) -> Encoding:
    """Truncate, and put the processor's tokens around; the encodings are used up."""
    if truncation is not None:
        added = processor.added(second is not None) if processor is not None and add_special else 0
        truncate_pair(first, second, truncation, added)
    return run(processor, first, second, add_special)


def trim_passes(processor: Processor | None) -> list[bool]:
    """Return the passes that trim offsets, in order, each by its ``add_prefix_space``."""
    if isinstance(processor, Sequenced):
        return [one for inner in processor.processors for one in trim_passes(inner)]
    if isinstance(processor, (ByteLevel, RobertaProcessing)) and processor.trim_offsets:
        return [processor.add_prefix_space]
    return []


def trim(encoding: Encoding, add_prefix_space: bool) -> None:
    """Trim the offsets of ``encoding`` and of its overflowing parts, in place."""
    for one in [encoding, *encoding._overflowing]:
        if one._offsets is not None and len(one):
            one._offsets = trimmed(one.tokens, one._offsets, add_prefix_space)


def trimmed(tokens: Sequence[str], offsets: Any, add_prefix_space: bool) -> Any:
    """``offsets`` less the white space that each token's text starts and ends with; a new array."""
    found = offsets.copy()
    for i, token in enumerate(tokens):
        if not token or (token[0] not in _BLANKS and token[-1] not in _BLANKS):
            continue
        start, stop = offsets[i].tolist()
        leading = len(token) - len(token.lstrip(_BLANKS))
        trailing = len(token) - len(token.rstrip(_BLANKS))
        if leading == 1 and add_prefix_space and (i == 0 or start == 0):
            leading = 0  # the space that add_prefix_space put there has no place in the text
        start = min(start + leading, stop)
        if stop >= trailing:
            stop = max(stop - trailing, start)
        found[i] = start, stop
    return found


def _wrapped(
    encoding: Encoding, before: list[tuple[str, int]], after: list[tuple[str, int]], sequence: int, type_id: int
) -> Encoding:
    """``encoding`` and each of its overflowing parts between special tokens of type ``type_id``."""

    def around(one: Encoding) -> Encoding:
        n = len(one)
        one._ranges, one._special, one._attention = {}, 0, 1
        specials = [
            Special(tuple(i for _, i in side), tuple(t for t, _ in side), type_id).encoding()
            for side in (before, after)
        ]
        parts, one._overflowing = one._overflowing, []
        made = merge([specials[0], one, specials[1]])
        made._ranges = {sequence: (len(before), len(before) + n)}
        made._overflowing = [around(part) for part in parts]
        return made

    return around(encoding)


def without_trimming(processor: Processor) -> Processor:
    """``processor`` for encodings whose offsets are trimmed already."""
    if isinstance(processor, Sequenced):
        return Sequenced(tuple(map(without_trimming, processor.processors)))
    if isinstance(processor, (ByteLevel, RobertaProcessing)):
        return replace(processor, trim_offsets=False)
    return processor


class Frame(NamedTuple):
    """The ids that a processor puts around a single sequence, if it does no more than that."""

    before: list[int]
    after: list[int]

    def ids(self, inner: Int32) -> Int32:
        return np.concatenate([np.array(self.before, np.int32), inner, np.array(self.after, np.int32)])


class Layout(NamedTuple):
    pieces: list[tuple[int, list[int], int, int]]  # sequence or -1, ids, type id, type id of a part that was cut off
    tokens: list[str] | None  # of each piece; None: their number is not that of the ids
    ranges: int | None  # of sequences: 0 none, 1 of those that are not cut off, 2 of all; None: others


def layout(processor: Processor | None, add_special_tokens: bool, is_pair: bool) -> Layout | None:
    """What ``processor`` puts around one sequence, or two, and around the parts that truncation cuts off of them;
    None if it does more than that."""
    marks = [[-2], [-3], [-4]]
    if is_pair:
        marks = [[-2, -5], *([a, b] for a in (-3, -4) for b in (-5, -6, -7)), [-2, -6], [-2, -7]]
    for n, wanted in (1, marks[:1]), (3, marks):  # one first: what names a sequence twice would multiply its parts
        first, second = _probe((-2, -3, -4)[:n], 0), _probe((-5, -6, -7)[:n], 1) if is_pair else None
        try:
            whole = run(processor and without_trimming(processor), first, second, add_special_tokens)
        except TokenizerError:
            return None
        rows = [whole, *whole._overflowing]
        if [[id for id in row.ids if id < 0] for row in rows] != wanted:
            return None
    if len({len(row) for row in rows}) > 1:
        return None
    pieces = []
    columns = (zip(row.ids, row.type_ids, row.special_tokens_mask, row.attention_mask) for row in rows)
    for (id, type_id, *masks), *rest in zip(*columns):  # the values that all rows have at one place
        if masks != [int(id >= 0), 1] or any(other != masks for _, _, *other in rest):
            return None
        types = {t for i, t, *_ in rest if i == id}, {t for i, t, *_ in rest if i != id}
        if not types[0] <= {type_id} or len(types[1]) > 1 or (types[1] and id >= 0):
            return None
        sequence = -1 if id >= 0 else int(id < -4)
        pieces.append((sequence, [id] if id >= 0 else [], type_id, types[1].pop() if types[1] else type_id))
    tokens = whole.tokens if all(row.tokens == whole.tokens for row in rows) else []
    own = [token != _TEXT for token in tokens] == [sequence < 0 for sequence, *_ in pieces]
    places = {sequence: (at, at + 1) for at, (sequence, *_) in enumerate(pieces) if sequence >= 0}
    stay = [{s: place for s, place in places.items() if row.ids[place[0]] in (-2, -5)} for row in rows]
    found = [row._ranges for row in rows]
    rules = [[{} for _ in rows], stay, [places for _ in rows]]
    return Layout(pieces, tokens if own else None, rules.index(found) if found in rules else None)


def _probe(ids: tuple[int, ...], type_id: int) -> Encoding:
    """Return a token, and parts of one token that were cut off."""
    first, *rest = (Encoding._make(np.array([id], np.int32), None, None, [_TEXT], type_id) for id in ids)
    first._overflowing = rest
    return first


def trims_first(processor: Processor | None) -> bool:
    """Return whether offsets are trimmed before anything is put around a sequence."""
    steps = processor.processors if isinstance(processor, Sequenced) else () if processor is None else (processor,)
    wrapped = False
    for step in steps:
        if trim_passes(step) and (wrapped or isinstance(step, Sequenced)):
            return False
        wrapped = wrapped or not isinstance(step, ByteLevel)
    return True


def frame(single: Layout | None) -> Frame | None:
    if single is None or single.ranges is None:
        return None
    sequences, ids = [piece[0] for piece in single.pieces], [id for piece in single.pieces for id in piece[1]]
    at = sequences.index(0)
    return Frame(ids[:at], ids[at:])
