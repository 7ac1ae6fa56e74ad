"""tiktoken's ``Encoding`` over ours: the same names, arguments, ids and refusals.

encoding = TiktokenEncoding("cl100k_base", pat_str=..., mergeable_ranks="the/file.tiktoken", special_tokens={...})
encoding = TiktokenEncoding.like(tiktoken.get_encoding("cl100k_base"))
"""

from __future__ import annotations

import base64
import operator
import os
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from functools import cached_property, lru_cache, partial
from typing import Any, Literal, NoReturn

import numpy as np
import numpy.typing as npt

from .encode.literal import pattern_of
from .errors import TokenizerError
from .tokenizer import Cache, Tokenizer

Special = Literal["all"] | Collection[str]
Refused = Special | None  # None: no token
_pattern_of = lru_cache(64)(pattern_of)
Ranks = str | os.PathLike[str] | bytes | Mapping[bytes, int]


class TiktokenEncoding:
    """``mergeable_ranks``: a rank file's path or content, or the ranks themselves; ``cache`` as for ``Tokenizer``."""

    def __init__(
        self,
        name: str,
        *,
        pat_str: str,
        mergeable_ranks: Ranks,
        special_tokens: Mapping[str, int],
        explicit_n_vocab: int | None = None,
        cache: Cache = True,
    ) -> None:
        self.name, self._pat_str, self._special_tokens = name, pat_str, dict(special_tokens)
        file = _rank_file(mergeable_ranks) if isinstance(mergeable_ranks, Mapping) else mergeable_ranks
        self._tokenizer = Tokenizer.from_tiktoken(file, pat_str, self._special_tokens, cache=cache)
        self._names = {id: token.encode() for token, id in self._special_tokens.items()}
        self.max_token_value = max(self._tokenizer.get_vocab().values())
        if explicit_n_vocab not in (None, self.n_vocab):
            raise TokenizerError(f"explicit_n_vocab={explicit_n_vocab}, but the largest id is {self.max_token_value}")

    @staticmethod
    def like(encoding: Any, *, cache: Cache = True) -> TiktokenEncoding:
        """Ours for an ``Encoding`` of tiktoken."""
        return TiktokenEncoding(
            encoding.name,
            pat_str=encoding._pat_str,
            mergeable_ranks=encoding._mergeable_ranks,
            special_tokens=encoding._special_tokens,
            cache=cache,
        )

    def __repr__(self) -> str:
        return f"<TiktokenEncoding {self.name!r}>"

    # ---- encoding

    def encode_ordinary(self, text: str) -> list[int]:
        """Return the ids of ``text``, in which control tokens are ordinary text."""
        return self.encode_to_numpy(text, disallowed_special=()).tolist()  # type: ignore[no-any-return]

    def encode(
        self, text: str, *, allowed_special: Special = frozenset(), disallowed_special: Refused = "all"
    ) -> list[int]:
        """Return the ids of ``text``; TokenizerError, a ValueError, if it holds a control token of
        ``disallowed_special``: by default each that is not in ``allowed_special``."""
        ids = self.encode_to_numpy(text, allowed_special=allowed_special, disallowed_special=disallowed_special)
        return ids.tolist()  # type: ignore[no-any-return]

    def encode_to_numpy(
        self, text: str, *, allowed_special: Special = frozenset(), disallowed_special: Refused = "all"
    ) -> npt.NDArray[np.int32]:
        """``encode`` as an int32 array (tiktoken's is uint32)."""
        if not isinstance(text, str):
            raise TypeError(f"expected str, got {type(text).__name__}")
        allowed = self._named("allowed_special", allowed_special, self.special_tokens_set)
        refused = self._named("disallowed_special", disallowed_special or (), self.special_tokens_set - allowed)
        found = _pattern_of(refused).search(text) if refused else None
        if found:
            raise TokenizerError(
                f"the text holds the disallowed special token {found[0]!r} at {found.start()}: to get its id pass "
                f"allowed_special={{{found[0]!r}}}, to encode it as ordinary text pass disallowed_special=()"
            )
        text = _scalar_values(text)
        if self.special_tokens_set <= allowed:
            return self._tokenizer.encode_array(text)
        # tiktoken looks for the allowed ones alone, also inside of a refused one
        pieces, at = [], 0
        for match in _pattern_of(allowed & self.special_tokens_set).finditer(text):
            control = np.array([self._special_tokens[match[0]]], np.int32)
            pieces += [self._ordinary(text[at : match.start()]), control]
            at = match.end()
        return np.concatenate([*pieces, self._ordinary(text[at:])])

    def encode_batch(
        self,
        text: Sequence[str],
        *,
        num_threads: int = 8,
        allowed_special: Special = frozenset(),
        disallowed_special: Refused = "all",
    ) -> list[list[int]]:
        from concurrent.futures import ThreadPoolExecutor

        call = partial(self.encode, allowed_special=allowed_special, disallowed_special=disallowed_special)
        with ThreadPoolExecutor(num_threads) as pool:
            return list(pool.map(call, text))

    def encode_ordinary_batch(self, text: Sequence[str], *, num_threads: int = 8) -> list[list[int]]:
        return self.encode_batch(text, num_threads=num_threads, disallowed_special=())

    def encode_single_token(self, text_or_bytes: str | bytes) -> int:
        """Return the id of one whole token; KeyError if it is none."""
        raw = text_or_bytes.encode() if isinstance(text_or_bytes, str) else text_or_bytes
        if not isinstance(raw, bytes):
            raise TypeError(f"a token is str or bytes, not {type(raw).__name__}")
        return self._ids[raw]

    def encode_with_unstable(self, *args: object, **kwargs: object) -> NoReturn:
        raise TokenizerError("TiktokenEncoding has no encode_with_unstable; use tiktoken for it")

    # ---- decoding

    def decode_bytes(self, tokens: Sequence[int]) -> bytes:
        """Return the bytes of all tokens; KeyError if an id is none."""
        return b"".join(self._each_bytes(tokens))

    def decode(self, tokens: Sequence[int], errors: str = "replace") -> str:
        return self.decode_bytes(tokens).decode("utf-8", errors)

    def decode_single_token_bytes(self, token: int) -> bytes:
        return next(self._each_bytes((token,)))

    def decode_tokens_bytes(self, tokens: Sequence[int]) -> list[bytes]:
        return list(self._each_bytes(tokens))

    def decode_with_offsets(self, tokens: Sequence[int]) -> tuple[str, list[int]]:
        """Return the text, and for each token the index of the character in which its first byte lies."""
        offsets, length = [], 0
        parts = self.decode_tokens_bytes(tokens)
        for part in parts:
            offsets.append(max(0, length - (part[0] & 0xC0 == 0x80)))
            length += sum(byte & 0xC0 != 0x80 for byte in part)
        return b"".join(parts).decode("utf-8", "strict"), offsets

    def decode_batch(
        self, batch: Sequence[Sequence[int]], *, errors: str = "replace", num_threads: int = 8
    ) -> list[str]:
        return [self.decode(tokens, errors) for tokens in batch]

    def decode_bytes_batch(self, batch: Sequence[Sequence[int]], *, num_threads: int = 8) -> list[bytes]:
        return [self.decode_bytes(tokens) for tokens in batch]

    # ---- vocabulary

    @property
    def n_vocab(self) -> int:
        return self.max_token_value + 1

    @property
    def eot_token(self) -> int:
        return self._special_tokens["<|endoftext|>"]

    @cached_property
    def special_tokens_set(self) -> Set[str]:
        return frozenset(self._special_tokens)

    def is_special_token(self, token: int) -> bool:
        return token in self._names

    def token_byte_values(self) -> list[bytes]:
        """Return the bytes of all tokens that are no control tokens, sorted."""
        return sorted(self._mergeable_ranks)

    # ---- inside; code that extends an encoding reads the first, as it does tiktoken's

    @cached_property
    def _mergeable_ranks(self) -> dict[bytes, int]:
        return {raw: id for raw, id in self._ids.items() if id not in self._names}

    @cached_property
    def _bytes(self) -> dict[int, bytes]:
        ids = self._tokenizer.get_vocab().values()
        return {id: self._tokenizer.token_bytes(id) for id in ids} | self._names

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        return {raw: id for id, raw in self._bytes.items()}

    def _each_bytes(self, tokens: Sequence[int]) -> Iterator[bytes]:
        """Yield the bytes of each token, as they are asked for. A float is no id."""
        return map(self._bytes.__getitem__, map(operator.index, tokens))

    @staticmethod
    def _named(argument: str, given: Special, all: Set[str]) -> Set[str]:
        if isinstance(given, str):
            if given != "all":
                raise TypeError(f'{argument}={given!r:.60} is a string: it takes "all" or a set of special tokens')
            return all
        return frozenset(given)

    def _ordinary(self, text: str) -> npt.NDArray[np.int32]:
        return self._tokenizer._array_general(text, False, False)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self.name, self._pat_str, _rank_file(self._mergeable_ranks), self._special_tokens)


def _restored(name: str, pattern: str, ranks: bytes, special_tokens: dict[str, int]) -> TiktokenEncoding:
    return TiktokenEncoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens=special_tokens)


def _rank_file(ranks: Mapping[bytes, int]) -> bytes:
    lines = (b"%s %d" % (base64.b64encode(raw), id) for raw, id in sorted(ranks.items(), key=lambda item: item[1]))
    return b"\n".join(lines)


def _scalar_values(text: str) -> str:
    """Lone surrogates become U+FFFD and pairs of them one character, as in tiktoken."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
