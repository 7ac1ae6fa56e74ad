"""From the inputs of calls to encodings: ids, offsets, words and token strings, truncated and post-processed.

Token strings are made when they are asked for, from the vocabulary; not so for added tokens that swallow
white space or match normalized text: there HF's token is the matched text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .._core import Encoding, RowFrames
from ..backends.reference import ReferenceCore
from ..params import Padding, Truncation
from .post_processing import Processor, finished, frame, layout, trims_first, without_trimming

if TYPE_CHECKING:
    from ..backends.choice import Core

Int32 = npt.NDArray[np.int32]
Given = str | list[str]  # a text, or words
Settings = tuple[bool, bool, Truncation | None, bool]  # of Sequences.finished


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
        self._core, self._processor, self._untrimmed = core, processor, processor and without_trimming(processor)
        self._layouts = [(layout(processor, s, False), layout(processor, s, True)) for s in (False, True)]
        self.frames = [frame(single) for single, _ in self._layouts]
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

    def general(self, text: str, add_special_tokens: bool, fast: bool, parse_special: bool) -> Encoding:
        return self.finished(EncodeInput(text, None), add_special_tokens, fast, None, parse_special)

    def entry(self) -> tuple[Any, Any, Any]:
        """The values for ``EncodeEntry``: the core, and the tokens around texts without special tokens and with."""
        core, processor = self._core, self._processor
        if isinstance(core, ReferenceCore):
            return None, None, None
        trimmed, rows = trims_first(processor), []
        for special, (layouts, one) in enumerate(zip(self._layouts, self.frames)):
            added = (processor.added(False), processor.added(True)) if processor and special else (0, 0)
            rows.append(RowFrames(core, self, *layouts, one, added, trimmed, bool(special)))
        return core, rows[0], rows[1]

    def _encoded(self, given: Given, type_id: int, parse_special: bool, trim: bool, fast: bool) -> Encoding:
        """One sequence. With ``trim`` its offsets are trimmed as if it were the whole encoding."""
        core, texts = self._core, [given] if isinstance(given, str) else given
        rows: list[Any]
        tokens: list[str] | Callable[[], list[str]]
        if isinstance(core, ReferenceCore):
            rows = core.encode_found(texts, parse_special)
            tokens = [token for row in rows for token in row[3]]
        else:
            rows = [core.encode_full(text, parse_special, "char", trim) for text in texts]
            tokens = lambda: [t for text in texts for t in core.encode_tokens(text, parse_special)]  # noqa: E731
        none = np.empty(0, np.int32), np.empty((0, 2), np.int32), np.empty(0, np.int32)
        ids, offsets, words = map(np.concatenate, zip(none, *rows))
        if fast:
            return Encoding._make(ids, None, None, [""] * len(ids))
        if not isinstance(given, str):
            words = np.repeat(np.arange(len(rows), dtype=np.int32), [len(row[0]) for row in rows])
        return Encoding._make(ids, offsets, words, tokens, type_id)


class RowSource:
    """What encodings that were made as rows keep of their call, for their other columns."""

    padded_to = -1

    def __init__(
        self, sequences: Sequences, inputs: list[EncodeInput], settings: Settings, padding: Padding | None
    ) -> None:
        self._sequences, self._inputs, self._settings, self.padding = sequences, inputs, settings, padding
        _, self.fast, self.truncation, self.parse_special = settings
        self.firsts, self.seconds = [one.first for one in inputs], [one.second for one in inputs]

    def general(self, row: int) -> Encoding:
        made = self._sequences.finished(self._inputs[row], *self._settings)
        if self.padding is not None:
            self.padding.put(made, self.padded_to)
        return made
