"""The calls of transformers' fast tokenizers in one call of the core.

The functions have the arguments of transformers' methods behind (tokenizer, ours). None: transformers' own method has
to run, over our tokenizer in the place of HF's; it gives the result, or the error.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from importlib import import_module
from itertools import chain
from typing import Any

import numpy as np

from .._core import Encoding
from ..errors import TokenizerError
from ..params import Padding, Truncation
from ..tokenizer import Tokenizer

_COLUMNS = ("input_ids", "token_type_ids", "attention_mask", "special_tokens_mask", "offset_mapping")


def encode_plus(
    self: Any,
    ours: Tokenizer,
    text: Any,
    text_pair: Any = None,
    add_special_tokens: bool = True,
    padding_strategy: Any = None,
    truncation_strategy: Any = None,
    max_length: int | None = None,
    stride: int = 0,
    is_split_into_words: bool = False,
    pad_to_multiple_of: int | None = None,
    padding_side: str | None = None,
    return_tensors: Any = None,
    return_token_type_ids: bool | None = None,
    return_attention_mask: bool | None = None,
    return_overflowing_tokens: bool = False,
    return_special_tokens_mask: bool = False,
    return_offsets_mapping: bool = False,
    return_length: bool = False,
    verbose: bool = True,
    split_special_tokens: bool | None = None,
    **kwargs: Any,
) -> Any:
    inputs = _inputs(text, text_pair, is_split_into_words)
    return_tensors = getattr(return_tensors, "value", return_tensors)
    kind = _KINDS.get(return_tensors)
    if inputs is None or kind is None or kwargs.get("sanitize_control_tokens"):
        return None
    batched, firsts, seconds = inputs
    if is_split_into_words:  # the caller may change its lists while the core reads the words
        firsts, seconds = list(map(list, firsts)), None if seconds is None else list(map(list, seconds))
    try:
        truncation = _truncation(truncation_strategy, max_length, stride, self.truncation_side)
        padding = _padding(self, padding_strategy, max_length, pad_to_multiple_of, padding_side)
    except (AttributeError, TypeError, ValueError, OverflowError):
        return None
    if split_special_tokens is None:
        split_special_tokens = self.split_special_tokens
    names = self.model_input_names
    wanted = (
        True,
        "token_type_ids" in names if return_token_type_ids is None else return_token_type_ids,
        "attention_mask" in names if return_attention_mask is None else return_attention_mask,
        return_special_tokens_mask,
        return_offsets_mapping,
    )
    columns = tuple([i for i in range(5) if wanted[i]])
    special, overflow = bool(add_special_tokens), bool(return_overflowing_tokens)
    if truncation is not None:
        try:
            truncation.check_stride(ours.num_special_tokens_to_add(False))
        except TokenizerError:
            return None
    settings = special, truncation, padding, not split_special_tokens
    found = ours._row_columns(firsts, seconds, *settings, columns, kind, overflow)
    if found is None:
        return None
    made, samples, longest = found
    if not longest:
        return None  # no tokens: arrays of other shapes
    data: dict[str, Any] = {_COLUMNS[i]: column for i, column in zip(columns, made)}
    ids = data["input_ids"]
    if return_length:
        data["length"] = [len(row) for row in ids]
    if overflow:
        data["overflow_to_sample_mapping"] = samples
    if max_length is None and longest > self.model_max_length:
        for row in ids:
            self._eventual_warn_about_too_long_sequence(row, None, verbose)
    if return_tensors is not None:
        data = _tensors(data, return_tensors)
    elif not batched and not overflow:
        data = {name: column[0] if name != "length" else column for name, column in data.items()}
    batch = _batch_encoding()
    result = batch.__new__(batch)
    result.data = data
    result._encodings = _Encodings(len(samples), ours, firsts, seconds, is_split_into_words, settings, overflow)
    result._n_sequences = 1 if seconds is None else 2
    return result


def decode(
    self: Any,
    ours: Tokenizer,
    token_ids: Any,
    skip_special_tokens: bool = False,
    clean_up_tokenization_spaces: bool | None = None,
    **kwargs: Any,
) -> str | None:
    if type(token_ids) is not list:
        return None
    cleans = (
        self.clean_up_tokenization_spaces if clean_up_tokenization_spaces is None else clean_up_tokenization_spaces
    )
    if not cleans:
        return ours.decode(token_ids, skip_special_tokens)
    if type(ours.model).__name__ == "BPE":
        return None  # it may warn
    return self.clean_up_tokenization(ours.decode(token_ids, skip_special_tokens))  # type: ignore[no-any-return]


def pad(
    self: Any,
    encoded_inputs: Any,
    padding: Any = True,
    max_length: int | None = None,
    pad_to_multiple_of: int | None = None,
    padding_side: str | None = None,
    return_attention_mask: bool | None = None,
    return_tensors: Any = None,
    verbose: bool = True,
) -> Any:
    """Return rows of lists as arrays or tensors, each column filled at once."""
    kind, names = getattr(return_tensors, "value", return_tensors), self.model_input_names
    side = padding_side or self.padding_side
    fills = {"input_ids": self.pad_token_id, "token_type_ids": self.pad_token_type_id} | _FILLS
    masks = "attention_mask" in names if return_attention_mask is None else bool(return_attention_mask)
    if kind not in ("np", "pt") or side not in ("left", "right") or names[0] != "input_ids" or not encoded_inputs:
        return None
    try:
        rows = {name: [row[name] for row in encoded_inputs] for name in encoded_inputs[0]}
        lengths = {name: list(map(len, column)) for name, column in rows.items()}
        flat = {name: np.array(list(chain.from_iterable(column))) for name, column in rows.items()}
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return None
    sizes = lengths.get("input_ids")
    strategy, _, length, _ = self._get_padding_truncation_strategies(
        padding=padding, max_length=max_length, verbose=verbose
    )
    if not sizes or strategy.value == "do_not_pad" or not set(rows) <= set(fills):
        return None
    if any(one != sizes for one in lengths.values()):
        return None
    if any(one.dtype != np.int64 or one.ndim != 1 for one in flat.values()):
        return None
    length = max(sizes) if strategy.value == "longest" else length
    if pad_to_multiple_of is not None and length % pad_to_multiple_of:
        length += pad_to_multiple_of - length % pad_to_multiple_of
    if length < max(sizes) or (not masks and "attention_mask" in rows):
        return None
    ends = np.array(sizes)[:, None]
    places = np.arange(length) < ends if side == "right" else np.arange(length) >= length - ends
    data = {name: np.full(places.shape, fills[name], np.int64) for name in rows}
    for name, column in data.items():
        column[places] = flat[name]
    if masks and "attention_mask" not in data:
        data["attention_mask"] = places.astype(np.int64)
    return _batch_encoding()(_tensors(data, kind))


def _inputs(text: Any, pair: Any, words: bool) -> tuple[bool, list[Any], list[Any] | None] | None:
    """(whether it is a batch, the first sequences, the second ones); None for forms that transformers looks at."""
    kind: type = list if words else str
    if (type(text) is list and bool(text) and type(text[0]) is str) if words else type(text) is str:
        if not pair:
            return False, [text], None
        return (False, [text], [pair]) if type(pair) is kind else None
    if type(text) is not list and type(text) is not tuple:
        return None
    firsts, seconds = list(text), pair
    if set(map(type, firsts)) != {kind}:
        return None
    if seconds is not None:
        if type(seconds) not in (list, tuple) or len(seconds) != len(firsts) or set(map(type, seconds)) != {kind}:
            return None
        seconds = list(seconds)
    return True, firsts, seconds


_FILLS = {"attention_mask": 0, "special_tokens_mask": 1}
_KINDS = {None: "list", "np": "int64", "pt": "int64"}


@lru_cache(64)
def _truncation(strategy: Any, max_length: int | None, stride: int, side: str) -> Truncation | None:
    if strategy.value == "do_not_truncate":
        return None
    return Truncation.checked(max_length, stride, strategy.value, side)  # type: ignore[arg-type]


def _padding(self: Any, strategy: Any, max_length: int | None, multiple: int | None, side: str | None) -> Any:
    if strategy.value == "do_not_pad":
        return None
    length = max_length if strategy.value == "max_length" else None
    return _checked_padding(
        side or self.padding_side, self.pad_token_id, self.pad_token_type_id, self.pad_token, length, multiple
    )


_checked_padding = lru_cache(64)(Padding.checked)


_batch_encoding = lru_cache(1)(lambda: import_module("transformers").BatchEncoding)
_torch = lru_cache(1)(lambda: import_module("torch"))  # for a caller that asks for its tensors


def _tensors(data: dict[str, Any], kind: str) -> dict[str, Any]:
    arrays = {name: np.asarray(column) for name, column in data.items()}
    if kind == "np":
        return arrays
    return {name: _torch().from_numpy(array) for name, array in arrays.items()}


class _Encodings(Sequence[Encoding]):
    """The encodings of a batch, made when one of them is first asked for."""

    def __init__(self, count: int, *source: Any) -> None:
        self._count, self._source = count, source
        self._made: list[Encoding] | None = None

    def _all(self) -> list[Encoding]:
        if self._made is None:
            ours, firsts, seconds, words, (special, truncation, padding, parse_special), overflow = self._source
            one = ours.__copy__()
            one._truncation, one._padding, one._encode_special = truncation, padding, not parse_special
            found = one.encode_batch(firsts if seconds is None else list(zip(firsts, seconds)), bool(words), special)
            self._made = [row for e in found for row in ((e, *e.overflowing) if overflow else (e,))]
        return self._made

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        return self._all()[index]

    def __eq__(self, other: object) -> bool:
        return self._all() == (other._all() if isinstance(other, _Encodings) else other)

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (self._all(),)
