"""The bases of ``Tokenizer`` and ``Encoding`` without the native extension: nothing is made early."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Offsets = Literal["char", "byte"]


class FreshEncoding:
    __slots__ = ("_found",)

    _ids: npt.NDArray[np.int32]
    _found: Any  # HF's encoding, on the reference backend; None once the columns are there

    def __new__(cls, *args: Any, **kwargs: Any) -> FreshEncoding:
        made = super().__new__(cls)
        made._found = None
        return made

    @property
    def ids(self) -> list[int]:
        found = self._found
        ids: list[int] = self._ids.tolist() if found is None else found.ids
        return ids

    def _token_list(self) -> list[str]:
        raise NotImplementedError

    @property
    def tokens(self) -> list[str]:
        return self._token_list()

    def _attention_list(self) -> list[int]:
        raise NotImplementedError

    @property
    def attention_mask(self) -> list[int]:
        return self._attention_list()

    def _offset_list(self) -> list[tuple[int, int]]:
        raise NotImplementedError

    @property
    def offsets(self) -> list[tuple[int, int]]:
        found = self._found
        return self._offset_list() if found is None else found.offsets

    def __len__(self) -> int:
        return len(self._ids if self._found is None else self._found)


def encodings_over(found: Iterable[Any], type: type[FreshEncoding]) -> list[Any]:
    """A list of encodings of ``type``, one over each of HF's."""
    made = []
    for one in found:
        made.append(type.__new__(type))
        made[-1]._found = one
    return made


class StreamEntry:
    def _set_entry(self, owner: Any, native: Any) -> None:
        pass

    def _step_general(self, tokenizer: Any, id: int | Sequence[int]) -> str | None:
        raise NotImplementedError

    def step(self, tokenizer: Any, id: int | Sequence[int]) -> str | None:
        """The text that this id, or these ids, complete; None while a character is open."""
        return self._step_general(tokenizer, id)


def pair_list(pairs: npt.NDArray[np.int32]) -> list[tuple[int, int]]:
    return list(zip(*pairs.T.tolist())) if len(pairs) else []


class EncodeEntry:
    _truncation: Any
    _padding: Any
    _encode_special: bool

    def _set_entry(self, *given: Any) -> None:
        pass

    def _set_reference_entry(
        self, truncation: Any, padding: Any, encode_special: Any, encode: Any, longest: int, type: Any
    ) -> None:
        pass

    def _copy_entry(self, other: EncodeEntry) -> None:
        self._truncation, self._padding = other._truncation, other._padding
        self._encode_special = other._encode_special

    def _row_columns(self, *given: Any) -> tuple[list[Any], list[int], int] | None:
        return None

    def _row_encodings(self, *given: Any) -> list[Any] | None:
        return None

    def _encode_general(self, sequence: Any, pair: Any, is_pretokenized: bool, add_special_tokens: bool) -> Any:
        raise NotImplementedError

    def _array_general(
        self, text: str | bytes, add_special_tokens: bool, parse_special: bool
    ) -> npt.NDArray[np.int32]:
        raise NotImplementedError

    def _batch_general(
        self, input: Sequence[Any], is_pretokenized: bool, add_special_tokens: bool, fast: bool
    ) -> list[Any]:
        raise NotImplementedError

    def _offsets_general(
        self, text: str | bytes, add_special_tokens: bool, parse_special: bool, offsets: Offsets
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        raise NotImplementedError

    def encode(
        self,
        sequence: Any,
        pair: Any | None = None,
        is_pretokenized: bool = False,
        add_special_tokens: bool = True,
    ) -> Any:
        """Encode one sequence, or a pair; each a string, or a list of strings with ``is_pretokenized``."""
        return self._encode_general(sequence, pair, is_pretokenized, add_special_tokens)

    def encode_batch(
        self, input: Sequence[Any], is_pretokenized: bool = False, add_special_tokens: bool = True
    ) -> list[Any]:
        """Encode each input, then pad them together if padding is on."""
        return self._batch_general(input, is_pretokenized, add_special_tokens, False)

    def encode_batch_fast(
        self, input: Sequence[Any], is_pretokenized: bool = False, add_special_tokens: bool = True
    ) -> list[Any]:
        """``encode_batch`` for the ids: offsets are all (0, 0), words None, tokens empty, as in HF."""
        return self._batch_general(input, is_pretokenized, add_special_tokens, True)

    def encode_with_offsets(
        self,
        text: str | bytes,
        add_special_tokens: bool = True,
        *,
        parse_special: bool = True,
        offsets: Offsets = "char",
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """(ids, offsets): in code points of ``text`` as HF gives them, or in bytes of its UTF-8."""
        return self._offsets_general(text, add_special_tokens, parse_special, offsets)

    def encode_array(
        self,
        text: str | bytes,
        add_special_tokens: bool = True,
        *,
        parse_special: bool = True,
    ) -> npt.NDArray[np.int32]:
        """The ids. With ``parse_special=False`` control tokens in ``text`` are ordinary text: no id of one
        comes out of it. Other added tokens are HF\'s; docs/TOKENIZER.md says which tokens are control tokens."""
        return self._array_general(text, add_special_tokens, parse_special)

    def encode_arrays(
        self,
        texts: Sequence[str | bytes],
        add_special_tokens: bool = True,
        *,
        parse_special: bool = True,
    ) -> list[npt.NDArray[np.int32]]:
        """``encode_array`` of each text: a list of arrays. Each text has the bounds of a call of its own."""
        return [self._array_general(text, add_special_tokens, parse_special) for text in texts]
