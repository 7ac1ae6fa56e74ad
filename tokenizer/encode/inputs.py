"""The inputs of ``encode`` and ``encode_batch``: HF's rules, with the offending type in the message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np


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
