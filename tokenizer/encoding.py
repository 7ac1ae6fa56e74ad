"""One encoded input: HF's ``Encoding`` over numpy columns.

Columns that are the same for every token (type ids, the masks) are kept as one number. Arrays are int32; ids and type
ids are int64 if padding added larger ones, which HF takes up to 2**32 - 1. An encoding belongs to its caller, whose
``pad``, ``truncate`` and ``set_sequence_id`` change it in place, as in HF. ``ranges`` maps a sequence number to its
token range; empty means one sequence that covers everything.
"""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, product
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, SupportsIndex, TypeVar

import numpy as np
import numpy.typing as npt

from .errors import TokenizerError

if TYPE_CHECKING:
    from ._core import Encoding, FreshEncoding
else:
    FreshEncoding = object  # _core.Encoding has both bases

T = TypeVar("T")
Int32 = npt.NDArray[np.int32]
Column = int | Int32
Tokens = list[str] | Callable[[], list[str]]

_MOST_PART_TOKENS = 1 << 26  # of all overflowing parts of one encoding
_PART = 64  # tokens that take about as much memory as a part itself
_MOST_MERGED_BYTES = 1 << 30  # of all parts that one call merges out of others, those between two steps among them
_MERGED_PART, _MERGED_TOKEN = 2048, 40  # bytes of a merged part, and of each of its tokens
_MOST_INT32 = (1 << 31) - 1
_ATTRIBUTES = "ids, type_ids, tokens, offsets, attention_mask, special_tokens_mask, overflowing"


class _Of(Generic[T]):
    """A column of an encoding, by its name; a fresh encoding makes them all when one is read."""

    def __set_name__(self, owner: type[EncodingMethods], name: str) -> None:
        self._name = name

    def __get__(self, encoding: EncodingMethods, owner: type[EncodingMethods]) -> T:
        found: T = getattr(encoding._columns, self._name)
        return found

    def __set__(self, encoding: EncodingMethods, value: T) -> None:
        setattr(encoding._columns, self._name, value)


class EncodingMethods(FreshEncoding):
    """The methods of ``Encoding`` that are Python."""

    __slots__ = ()

    _ids = _Of[Int32]()
    _offsets = _Of["Int32 | None"]()  # None: all (0, 0)
    _words = _Of["Int32 | None"]()  # -1 or the whole column None: no word
    _tokens = _Of[Tokens]()
    _types = _Of[Column]()
    _special = _Of[Column]()
    _attention = _Of[Column]()
    _ranges = _Of["dict[int, tuple[int, int]]"]()
    _overflowing = _Of["list[Encoding]"]()

    @classmethod
    def _make(
        cls,
        ids: Int32,
        offsets: Int32 | None,
        words: Int32 | None,
        tokens: Tokens,
        types: Column = 0,
        special: Column = 0,
        attention: Column = 1,
    ) -> Encoding:
        made = cls.__new__(cls)
        made._columns = SimpleNamespace(
            **{"_ids": ids, "_offsets": offsets, "_words": words, "_tokens": tokens, "_types": types},
            **{"_special": special, "_attention": attention, "_ranges": {}, "_overflowing": []},
        )
        return made

    # ---- columns

    def _token_list(self) -> list[str]:
        if callable(self._tokens):
            self._tokens = self._tokens()
        return list(self._tokens)

    def _word_list(self) -> list[int | None]:
        if self._words is None:
            return [None] * len(self._ids)
        return [None if w < 0 else w for w in self._words.tolist()]

    @property
    def words(self) -> list[int | None]:
        warnings.warn(
            "Deprecated in 0.9.4: Encoding.words is deprecated, please use Encoding.word_ids instead.",
            DeprecationWarning,
            stacklevel=2,
        )
        return self.word_ids

    def _column_list(self, name: str) -> list[int]:
        return _listed(getattr(self, name), len(self._ids))

    @property
    def overflowing(self) -> list[Encoding]:
        return [_clone(e) for e in self._overflowing]

    @property
    def n_sequences(self) -> int:
        return len(self._ranges) or 1

    def __repr__(self) -> str:
        return f"Encoding(num_tokens={len(self._ids)}, attributes=[{_ATTRIBUTES}])"

    # ---- between tokens, words, characters and sequences

    def token_to_sequence(self, token_index: int) -> int | None:
        token = _unsigned(token_index)
        if token > len(self._ids):
            return None
        if not self._ranges:
            return 0
        return next((s for s, (start, stop) in self._ranges.items() if start <= token < stop), None)

    def token_to_chars(self, token_index: int) -> tuple[int, int] | None:
        token = _unsigned(token_index)
        if self.token_to_sequence(token) is None or token >= len(self._ids):
            return None
        return self._offset(token)

    def token_to_word(self, token_index: int) -> int | None:
        token = _unsigned(token_index)
        if self.token_to_sequence(token) is None or token >= len(self._ids) or self._words is None:
            return None
        word = int(self._words[token])
        return None if word < 0 else word

    def word_to_tokens(self, word_index: int, sequence_index: int = 0) -> tuple[int, int] | None:
        word, (start, stop) = _unsigned(word_index), self._range(_unsigned(sequence_index))
        if self._words is None or stop > len(self._ids):
            return None
        words = self._words[start:stop]
        later = np.flatnonzero(words > word)  # HF looks no further than the first later word
        found = np.flatnonzero(words[: later[0]] == word if len(later) else words == word)
        if not len(found):
            return None
        return start + int(found[0]), start + int(found[-1]) + 1

    def word_to_chars(self, word_index: int, sequence_index: int = 0) -> tuple[int, int] | None:
        span = self.word_to_tokens(word_index, sequence_index)
        return None if span is None else (self._offset(span[0])[0], self._offset(span[1] - 1)[1])

    def char_to_token(self, char_pos: int, sequence_index: int = 0) -> int | None:
        pos, (start, stop) = _unsigned(char_pos), self._range(_unsigned(sequence_index))
        if self._offsets is None or stop > len(self._ids):
            return None
        part = self._offsets[start:stop]
        found = np.flatnonzero((part[:, 0] <= pos) & (pos < part[:, 1]))
        return start + int(found[0]) if len(found) else None

    def char_to_word(self, char_pos: int, sequence_index: int = 0) -> int | None:
        token = self.char_to_token(char_pos, sequence_index)
        return None if token is None else self.token_to_word(token)

    # ---- changes in place

    def set_sequence_id(self, sequence_id: int) -> None:
        self._ranges = {**self._ranges, _unsigned(sequence_id): (0, len(self._ids))}

    def truncate(self, max_length: int, stride: int = 0, direction: str = "right") -> None:
        """Keep at most ``max_length`` tokens; the rest become ``overflowing`` parts that overlap by ``stride``."""
        limit, stride, total = _unsigned(max_length), _unsigned(stride), len(self._ids)
        if direction not in ("left", "right"):
            raise TokenizerError(f"Invalid truncation direction value : {direction}")
        if limit >= total:
            return
        if limit == 0:
            whole = _clone(self)
            self.__init__()  # type: ignore[misc]
            self._overflowing = [whole]
            return
        if stride >= limit:
            raise TokenizerError(f"stride {stride} must be below max_length {limit}")
        parts = (total - stride) // (limit - stride) + 1
        if parts * (limit + _PART) > _MOST_PART_TOKENS:
            raise TokenizerError(
                f"{total} tokens in parts of {limit} that overlap by {stride} are {parts} parts, and all of them may "
                f"have {_MOST_PART_TOKENS} tokens, {_PART} for each part among them; a smaller stride makes fewer"
            )
        step = limit - stride
        spans = [(start, min(start + limit, total)) for start in range(0, total - limit + step, step)]
        if direction == "left":
            spans = [(total - stop, total - start) for start, stop in spans]
        first, *rest = (_sliced(self, start, stop) for start, stop in spans)
        self._columns = first._columns
        self._overflowing = rest

    def pad(
        self,
        length: int,
        direction: str = "right",
        pad_id: int = 0,
        pad_type_id: int = 0,
        pad_token: str = "[PAD]",
    ) -> None:
        """Pad with ``pad_token`` up to ``length`` tokens; the overflowing parts too."""
        target = _unsigned(length)
        id, type_id = unsigned_32("pad_id", pad_id), unsigned_32("pad_type_id", pad_type_id)
        if direction not in ("left", "right"):
            raise TokenizerError(f"Unknown `direction`: `{direction}`. Use one of `left` or `right`")
        for part in self._overflowing:
            part.pad(target, direction, pad_id, pad_type_id, pad_token)
        missing = target - len(self._ids)
        if missing <= 0:
            return
        padding = self._make(_array(id, missing), None, None, [pad_token] * missing, type_id, 1, 0)
        first, second = (padding, self) if direction == "left" else (self, padding)
        joined = _joined(first, second, 0)
        shift = missing if direction == "left" else 0
        joined._ranges = {s: (a + shift, b + shift) for s, (a, b) in self._ranges.items()}
        joined._overflowing = self._overflowing
        self._columns = joined._columns

    @staticmethod
    def merge(encodings: Sequence[Encoding], growing_offsets: bool = True) -> Encoding:
        return merge(encodings, growing_offsets)

    # ---- copies

    def __copy__(self) -> Encoding:
        return _clone(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Encoding:
        return _clone(self)

    def __reduce__(self) -> tuple[Any, ...]:
        state = (self._ids, self._offsets, self._words, self.tokens, self._types, self._special, self._attention)
        return _restored, (type(self), state, dict(self._ranges), list(self._overflowing))

    # ---- inside

    def _range(self, sequence: int) -> tuple[int, int]:
        return self._ranges.get(sequence, (0, len(self._ids)))

    def _offset(self, token: int) -> tuple[int, int]:
        if self._offsets is None:
            return 0, 0
        start, stop = self._offsets[token].tolist()
        return start, stop


class PaddedBatch(NamedTuple):
    """Encoded texts as rows of one length, which are int32 or int64 arrays [rows, length]."""

    ids: npt.NDArray[Any]
    type_ids: npt.NDArray[Any]
    attention_mask: npt.NDArray[Any]
    special_tokens_mask: npt.NDArray[Any]
    offsets: npt.NDArray[Any] | None  # [rows, length, 2], in code points of the text; None: not asked for
    samples: Int32  # [rows]: which input a row is of


def padded_batch(encodings: Sequence[Encoding], overflow: bool, offsets: bool, dtype: np.dtype[Any]) -> PaddedBatch:
    """Raises ``TokenizerError`` if their lengths differ, and ``OverflowError`` for an id beyond ``dtype``."""
    rows = [(i, row) for i, one in enumerate(encodings) for row in (one, *(one._overflowing if overflow else ()))]
    lengths = {len(row) for _, row in rows}
    if len(lengths) > 1:
        raise TokenizerError(
            f"rows of {min(lengths)} to {max(lengths)} tokens are no array; enable_padding() makes them equally long"
        )
    shape = len(rows), max(lengths, default=0)
    columns = ([row.ids, row.type_ids, row.attention_mask, row.special_tokens_mask] for _, row in rows)
    ids, types, attention, special = [np.array(column, dtype).reshape(shape) for column in zip(*columns)] or [
        np.empty(shape, dtype)
    ] * 4
    pairs = np.array([_pairs(row) for _, row in rows], dtype).reshape(*shape, 2) if offsets else None
    return PaddedBatch(ids, types, attention, special, pairs, np.array([i for i, _ in rows], np.int32))


def merge(encodings: Iterable[Encoding], growing_offsets: bool = False) -> Encoding:
    """One encoding after the other; each overflowing part is combined with each of the others, as in HF."""
    from ._core import Encoding  # which is made of this file's class

    given = [Encoding()]
    for one in encodings:
        if one._overflowing or given[-1]._overflowing:
            given.append(one)
        else:  # before all parts would get it
            given[-1] = _merged(given[-1], one, growing_offsets)
    refuse_too_many_parts(given)
    merged = given[0]
    for encoding in given[1:]:
        merged = _merged(merged, encoding, growing_offsets)
    return merged


def _merged(left: Encoding, right: Encoding, growing: bool) -> Encoding:
    pairs = ((a, b) for a in left._overflowing for b in (right, *right._overflowing))
    parts = [_merged(a, b, growing) for a, b in chain(pairs, ((left, b) for b in right._overflowing))]
    shift = left._offset(len(left) - 1)[1] if growing and len(left) else 0
    joined = _joined(left, right, shift)
    n = len(left)
    joined._ranges = {**left._ranges, **{s: (a + n, b + n) for s, (a, b) in right._ranges.items()}}
    joined._overflowing = parts
    return joined


def refuse_too_many_parts(encodings: Iterable[Encoding]) -> None:
    """Raise ``TokenizerError`` if what ``merge`` would make of them is too large. Nothing is made yet."""
    merged, room = [(1, 0)], _MOST_MERGED_BYTES
    for encoding in encodings:
        left, right = merged, _levels(encoding)
        merged = [(0, 0)] * (len(left) + len(right) - 1)
        for (i, (n, n_tokens)), (j, (m, m_tokens)) in product(enumerate(left), enumerate(right)):
            for k in range(max(i, j), i + j + 1):
                ways = math.comb(k, i) * math.comb(i, k - j)  # k steps to a part, each on the left, the right or both
                parts, tokens = ways * n * m, ways * (n_tokens * m + n * m_tokens)
                merged[k] = merged[k][0] + parts, merged[k][1] + tokens
                room -= (parts * _MERGED_PART + tokens * _MERGED_TOKEN) * (k > 0)
                if room < 0:
                    raise _too_many_parts()


def _too_many_parts() -> TokenizerError:
    return TokenizerError(
        "the post_processor combines each overflowing part with each of the others, and all of them would take more "
        f"than {_MOST_MERGED_BYTES >> 20} MB; truncate to more tokens, or give shorter texts"
    )


def _levels(encoding: Encoding) -> list[tuple[int, int]]:
    """Return how many encodings and tokens there are: in it alone, in its parts, in the parts of these, and so on."""
    found, level = [(1, len(encoding))], encoding._overflowing
    while level:
        found.append((len(level), sum(map(len, level))))
        level = [part for one in level for part in one._overflowing]
    return found


def _joined(left: Encoding, right: Encoding, shift: int) -> Encoding:
    """Return the columns one after the other; ranges and overflowing are the caller's business."""
    n, m = len(left), len(right)
    if not n and not shift:
        return _shallow(right)
    offsets = None
    if left._offsets is not None or right._offsets is not None or shift:
        offsets = np.concatenate([_pairs(left), _pairs(right) + np.int32(shift)])
    words = None
    if left._words is not None or right._words is not None:
        words = np.concatenate([_word_column(left), _word_column(right)])
    ours, theirs = left._tokens, right._tokens
    tokens: Tokens = (
        ours + theirs if isinstance(ours, list) and isinstance(theirs, list) else lambda: _made(ours) + _made(theirs)
    )
    return left._make(
        np.concatenate([left._ids, right._ids]),
        offsets,
        words,
        tokens,
        _joined_column(left._types, n, right._types, m),
        _joined_column(left._special, n, right._special, m),
        _joined_column(left._attention, n, right._attention, m),
    )


def _joined_column(left: Column, n: int, right: Column, m: int) -> Column:
    if isinstance(left, int) and isinstance(right, int) and (left == right or not n or not m):
        return left if n else right
    return np.concatenate([_array(left, n), _array(right, m)])


def _sliced(encoding: Encoding, start: int, stop: int) -> Encoding:
    tokens = encoding._tokens
    part: Tokens = tokens[start:stop] if isinstance(tokens, list) else (lambda: _made(tokens)[start:stop])
    return encoding._make(
        encoding._ids[start:stop],
        None if encoding._offsets is None else encoding._offsets[start:stop],
        None if encoding._words is None else encoding._words[start:stop],
        part,
        *(
            column if isinstance(column, int) else column[start:stop]
            for column in (encoding._types, encoding._special, encoding._attention)
        ),
    )


def _shallow(encoding: Encoding) -> Encoding:
    copied = encoding.__new__(type(encoding))
    copied._columns = SimpleNamespace(**vars(encoding._columns))  # columns are replaced, never changed in place
    return copied


def _clone(encoding: Encoding) -> Encoding:
    copied = _shallow(encoding)
    copied._overflowing = [_clone(e) for e in encoding._overflowing]
    return copied


def _restored(
    kind: type[Encoding], state: tuple[Any, ...], ranges: dict[int, tuple[int, int]], parts: list[Encoding]
) -> Encoding:
    made = kind._make(*state)
    made._ranges, made._overflowing = ranges, parts
    return made


def _made(tokens: Tokens) -> list[str]:
    return tokens() if callable(tokens) else tokens


def _pairs(encoding: Encoding) -> Int32:
    return np.zeros((len(encoding), 2), np.int32) if encoding._offsets is None else encoding._offsets


def _word_column(encoding: Encoding) -> Int32:
    return np.full(len(encoding), -1, np.int32) if encoding._words is None else encoding._words


def _array(column: Column, n: int) -> Int32:
    """Return the column as an array: int64 if an id or type id that padding adds is no int32."""
    if not isinstance(column, int):
        return column
    return np.full(n, column, np.int32 if column <= _MOST_INT32 else np.int64)


def _listed(column: Column, n: int) -> list[int]:
    return [column] * n if isinstance(column, int) else column.tolist()


def unsigned_32(name: str, value: SupportsIndex) -> int:
    """Return an id as HF takes it. Raises ``OverflowError`` and ``TypeError``."""
    number = _unsigned(value)
    if number >> 32:
        raise OverflowError(f"{name}={number} is out of range; it takes 0 to {(1 << 32) - 1}")
    return number


def _unsigned(value: SupportsIndex) -> int:
    number = operator.index(value)
    if number < 0:
        raise OverflowError("can't convert negative int to unsigned")
    return number
