"""From the inputs of calls to encodings: ids, offsets, words and token strings, truncated and post-processed.

Token strings are made when they are asked for, from the vocabulary; not so for added tokens that swallow
white space or match normalized text: there HF's token is the matched text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..backends.reference import ReferenceCore
from ..encoding import Encoding
from ..params import Padding, Truncation
from .post_processing import Frame, Processor, finished, layout, trims_first, without_trimming

if TYPE_CHECKING:
    from ..backends.choice import Core
    from ..backends.reference import Found

Int32 = npt.NDArray[np.int32]
Given = str | list[str]  # a text, or words


class EncodeInput(NamedTuple):
    """A text, or a list of words, and the same again when it is a pair."""

    first: str | list[str]
    second: str | list[str] | None

    @property
    def has_words(self) -> bool:
        return not isinstance(self.first, str) or not isinstance(self.second, (str, type(None)))


def single_input(sequence: Any, pair: Any, is_pretokenized: bool) -> EncodeInput:
    take = _words if is_pretokenized else _text
    return EncodeInput(take(sequence), None if pair is None else take(pair))


def batch_list(inputs: Any) -> Sequence[Any]:
    """The inputs of a batch as a list or another sequence: arrays of numpy, and the columns of pandas, polars and
    pyarrow, are made lists."""
    for name in ("tolist", "to_list", "to_pylist"):
        if hasattr(inputs, name):
            inputs = getattr(inputs, name)()
            break
    if isinstance(inputs, (str, bytes)) or not isinstance(inputs, Sequence):
        raise TypeError(f"a batch is a list of inputs, not {type(inputs).__name__}")
    return inputs


def batch_inputs(inputs: Sequence[Any], is_pretokenized: bool) -> list[EncodeInput]:
    return [_batch_input(item, is_pretokenized) for item in inputs]


def _batch_input(item: Any, is_pretokenized: bool) -> EncodeInput:
    if isinstance(item, np.ndarray):
        item = item.tolist()
    if not is_pretokenized and isinstance(item, str):
        return EncodeInput(item, None)
    words = _list_of_words(item) if is_pretokenized else None
    if words is not None:
        return EncodeInput(words, None)
    if isinstance(item, Sequence) and not isinstance(item, (str, bytes)) and len(item) == 2:
        take = _words if is_pretokenized else _text
        return EncodeInput(take(item[0]), take(item[1]))
    kind = "words or a pair of lists of words" if is_pretokenized else "a string or a pair of strings"
    raise TypeError(f"an input of a batch is {kind}, not {_described(item)}")


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    hint = "; for a list of words pass is_pretokenized=True" if isinstance(value, (list, tuple)) else ""
    raise TypeError(f"TextInputSequence must be str, not {_described(value)}{hint}")


def _words(value: Any) -> list[str]:
    words = _list_of_words(value)
    if words is None:
        raise TypeError(f"PreTokenizedInputSequence must be Union[List[str], Tuple[str]], not {_described(value)}")
    return words


def _list_of_words(value: Any) -> list[str] | None:
    """Return None if it is not words."""
    if not isinstance(value, (list, tuple, np.ndarray)):
        return None
    if set(map(type, value)) <= {str}:  # without a line of Python for each word
        return list(value)
    return [str(word) for word in value] if all(isinstance(word, str) for word in value) else None


def _described(value: Any) -> str:
    if isinstance(value, (list, tuple)) and value:
        return f"{type(value).__name__} of {len(value)}, the first {type(value[0]).__name__}"
    return type(value).__name__


class Sequences:
    """The general way of ``encode``: any input, under any settings. Immutable."""

    def __init__(self, core: Core, processor: Processor | None) -> None:
        self._core, self._processor, self._untrimmed = core, processor, without_trimming(processor)
        self.as_found = b"" if isinstance(core, ReferenceCore) else core.as_found()

    def finished(
        self,
        given: EncodeInput,
        add_special_tokens: bool,
        fast: bool,
        truncation: Truncation | None,
        parse_special: bool,
    ) -> Encoding:
        """Encoded, truncated and post-processed, without padding. ``fast``: ids alone; HF's fast encodings have no
        offsets, word numbers or type ids, and empty token strings."""
        # Trimming belongs after truncation and over whole sequences; if neither cuts in, the core does it.
        trim = truncation is None and not isinstance(self._core, ReferenceCore) and not given.has_words
        first = self._encoded(given.first, 0, parse_special, trim, fast)
        second = None if given.second is None else self._encoded(given.second, 1, parse_special, trim, fast)
        return finished(first, second, add_special_tokens, truncation, self._untrimmed if trim else self._processor)

    def fill_fresh(self, fresh: Encoding, text: str, frame: Frame, bare: Int32 | None, parse_special: bool) -> None:
        """Make the columns of ``fresh``, one text between the tokens of ``frame``, faster than ``finished``.
        ``bare``: all ids of a fast encoding."""
        if bare is None:
            made = self._encoded(text, 0, parse_special, True, False)
        else:
            ids = bare[len(frame.before) : len(bare) - len(frame.after)]
            made = Encoding._make(ids, None, None, [""] * len(ids))
        fresh._columns = frame.around(made, self._processor is not None)._columns

    def entry(self, frames: tuple[Frame | None, Frame | None]) -> tuple[Any, Any, Any, Any, Any]:
        """The values for ``EncodeEntry``: the core, and the tokens put around a text and the texts of a row, each
        without and with special tokens."""
        core, processor = self._core, self._processor
        if isinstance(core, ReferenceCore):
            return None, None, None, None, None
        from .._core import QuickFrame, RowFrames

        plain, special = (None if f is None else QuickFrame(self, f, Encoding) for f in frames)
        rows = []
        for with_special in (False, True):
            around = processor if with_special else None
            added = (0, 0) if around is None else (around.added(False), around.added(True))
            single, pair = layout(processor, with_special, False), layout(processor, with_special, True)
            rows.append(RowFrames(single, pair, added, trims_first(processor)))
        return core, plain, special, rows[0], rows[1]

    def _encoded(self, given: Given, type_id: int, parse_special: bool, trim: bool, fast: bool) -> Encoding:
        """One sequence. With ``trim`` its offsets are trimmed as if it were the whole encoding."""
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

    def _tokens(self, ids: Int32, texts: Sequence[str], parse_special: bool) -> Callable[[], list[str]]:
        core: Any = self._core

        def found() -> list[str]:
            if self.as_found and np.frombuffer(self.as_found, np.bool_)[ids].any():
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


class RowSource:
    """The columns of encodings that were made of rows, but for their ids, for one sample each. ``frame``: around a
    single text that is not truncated; without one the general way makes them."""

    def __init__(
        self,
        sequences: Sequences,
        inputs: list[EncodeInput],
        settings: tuple[bool, bool, Truncation | None, bool],
        padding: Padding | None,
        frame: Frame | None,
    ) -> None:
        self._sequences, self._inputs, self._settings, self._padding = sequences, inputs, settings, padding
        self._frame = frame
        self.padded_to = 0

    def fill(self, fresh: Encoding, row: int) -> None:
        given, (_, fast, truncation, parse_special) = self._inputs[row], self._settings
        made, frame = Encoding(), None if fast or given.second is not None else self._frame
        if frame is not None and isinstance(given.first, str):
            self._sequences.fill_fresh(made, given.first, frame, None, parse_special)
        if not len(made) or (truncation is not None and len(made) > truncation.max_length):
            made = self._sequences.finished(given, *self._settings)
        if self._padding is not None:
            self._padding.put(made, self.padded_to)
        fresh._columns = made._columns
