"""The last backend: HF ``tokenizers`` behind the interface of the native core.

Its tokenizer is loaded once, without post-processor, truncation or padding (those are ours on every backend),
and is not changed afterwards: a setter on a shared HF object causes "Already borrowed". Treating
special tokens as text is such a setting, so a second, lazily made copy has it switched on for good.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from .._core import CoreTokenizer, UnsupportedFeature, checked_text, id_list
from ..encode.post_processing import trim_passes, trimmed
from ..encode.processor_file import parse
from ..errors import BackendUnavailable, TokenizerError, TokenizerFileError
from .bounds import checked, flat

Int32 = npt.NDArray[np.int32]
Found = tuple[Int32, Int32, Int32, list[str]]
"""Ids, offsets, word numbers and tokens of a text."""

# From so many characters on, HF's call for batches, which leaves offsets out, takes less time than its encode().
_FAST_FROM = 100


class ReferenceCore:
    def __init__(self, data: bytes, feature: str) -> None:
        tokenizers = self.package(feature)
        text, self._growth = checked(data)
        try:
            whole = asked(tokenizers.Tokenizer.from_str, text)
            state = json.loads(asked(whole.to_str))
        except (TokenizerError, ValueError) as error:
            raise TokenizerFileError(
                "the file", f"it has {feature}, and `tokenizers` cannot load it: {error}"
            ) from error
        _check_normalized(whole)
        self._sections = {k: json.dumps(v) for k, v in state.items() if k != "model"}
        _check_maps(state["normalizer"])
        model = state["model"]
        self._unk = model.get("unk_token")
        self._unk_id = model.get("unk_id")
        self._trim_passes = trim_passes(parse(state["post_processor"]))
        self._post_processor = whole.post_processor
        self._hf = _bare(whole)
        self._source = text
        self._literal: Any = None
        self._lock = threading.Lock()  # only around the making of ``_literal``
        self._added = whole.get_added_tokens_decoder()

    @staticmethod
    def package(feature: str) -> Any:
        """Return HF's package, for ``feature``. ``BackendUnavailable`` if it is not installed."""
        try:
            return importlib.import_module("tokenizers")
        except ImportError:
            raise BackendUnavailable(feature, "tokenizers") from None

    # ---- encoding

    def taken(self, text: str | bytes) -> str:
        """``checked_text``, which HF can normalize within the memory that a call may take."""
        string = checked_text(text)
        asked(self._growth.require, string, self._hf.normalizer)
        return string

    def encodings(self, texts: Sequence[str | bytes], parse_special: bool, fast: bool = False) -> list[Any]:
        """Return HF's encodings, without special tokens; ``fast``: without offsets and the like."""
        engine, given = self._engine(parse_special), [self.taken(text) for text in texts]
        if len(given) == 1 and not (fast and len(given[0]) >= _FAST_FROM):  # HF's calls for batches wake its threads
            return [asked(engine.encode, given[0], add_special_tokens=False)]
        call = engine.encode_batch_fast if fast else engine.encode_batch
        found: list[Any] = asked(call, given, add_special_tokens=False)
        return found

    def encode_array(self, text: str | bytes, parse_special: bool = True) -> Int32:
        return np.array(self.encodings([text], parse_special, True)[0].ids, np.int32)

    def last_cut(self, text: str) -> tuple[int, int]:
        return 0, 0

    def count(self, text: str | bytes, most: int = sys.maxsize) -> tuple[int, int, int, int, int]:
        """Return the count of the whole text: no part can be counted alone."""
        return len(self.encodings([text], True, True)[0]), 0, 0, 0, len(text)

    def encode_full(
        self, text: str | bytes, parse_special: bool = True, offsets: str = "char", trim: bool = True
    ) -> tuple[Int32, Int32, Int32]:
        [(ids, spans, words, tokens)] = self.encode_found([text], parse_special)
        if trim:
            for add_prefix_space in self._trim_passes:
                spans = trimmed(tokens, spans, add_prefix_space)
        if offsets == "byte":
            string = checked_text(text)
            positions = np.cumsum([0, *(len(c.encode()) for c in string)], dtype=np.int32)
            spans = positions[np.minimum(spans, len(string))]  # some of HF's lie past the text
        return ids, spans, words

    def encode_found(self, texts: Sequence[str | bytes], parse_special: bool) -> list[Found]:
        """Encode each as ``encode_full`` untrimmed, with HF's token strings: an unknown word has its own text there.
        HF encodes them on all processors."""
        found = []
        for one in self.encodings(texts, parse_special):
            words = np.array([-1 if word is None else word for word in one.word_ids], np.int32)
            spans = np.array(one.offsets, np.int32).reshape(-1, 2)
            found.append((np.array(one.ids, np.int32), spans, words, one.tokens))
        return found

    def component(self, kind: str) -> Any:
        """Return HF's component of that kind of the file; None if it has none."""
        return self._post_processor if kind == "post_processor" else getattr(self._hf, kind)

    def normalize(self, text: str | bytes) -> str:
        normalizer = self._hf.normalizer
        return checked_text(text) if normalizer is None else str(asked(normalizer.normalize_str, self.taken(text)))

    def pre_tokenize(self, text: str | bytes) -> list[tuple[str, tuple[int, int]]]:
        splitter, string = self._hf.pre_tokenizer, self.taken(text)
        if splitter is None:
            return [(string, (0, len(string)))] if string else []
        pieces: list[tuple[str, tuple[int, int]]] = asked(splitter.pre_tokenize_str, string)
        return pieces

    # ---- vocabulary

    def token_to_id(self, token: str) -> int | None:
        return self._hf.token_to_id(token)  # type: ignore[no-any-return]

    def unknown_id(self) -> int:
        id: int | None = self.token_to_id(self._unk) if self._unk else self._unk_id
        return -1 if id is None else id

    def id_to_token(self, id: int) -> str | None:
        return self._hf.id_to_token(id)  # type: ignore[no-any-return]

    def token_bytes(self, id: int) -> bytes | None:
        token, core = self._hf.id_to_token(id), self._spelled
        if token is None:
            return None
        return (
            self.decode_tokens([token]).encode() if core is None else core.token_bytes(core.token_to_id(token) or 0)
        )

    @cached_property
    def _spelled(self) -> CoreTokenizer | None:
        """The native core of the tokens and the decoder; None for a decoder that it does not have."""
        model = {
            "type": "WordLevel",
            "vocab": {token: i for i, token in enumerate(self.get_vocab())},
            "unk_token": "",
        }
        alone = {"added_tokens": [], "decoder": json.loads(self._sections["decoder"]), "model": model}
        with contextlib.suppress(UnsupportedFeature):
            return CoreTokenizer.from_json(json.dumps(alone).encode())
        return None

    def tokens(self, ids: Sequence[int] | Int32) -> list[str | None]:
        return [self._hf.id_to_token(int(i)) for i in ids]

    def vocab_size(self, with_added: bool = True) -> int:
        return int(self._hf.get_vocab_size(with_added))

    @property
    def id_limit(self) -> int:
        return max(self.vocab_size(False), *(id + 1 for id in self.get_vocab().values()), 0)

    def get_vocab(self, with_added: bool = True) -> dict[str, int]:
        return self._hf.get_vocab(with_added)  # type: ignore[no-any-return]

    def added_tokens(self) -> list[tuple[int, str, bool, bool, bool, bool, bool]]:
        added = sorted(self._added.items())
        return [(i, t.content, t.single_word, t.lstrip, t.rstrip, t.normalized, t.special) for i, t in added]

    def section(self, name: str) -> str | None:
        return self._sections.get(name)

    def model(self) -> dict[str, Any]:
        model: dict[str, Any] = json.loads(self._hf.to_str())["model"]
        return model

    # ---- decoding

    def decode(self, ids: Sequence[int] | Int32, skip_special_tokens: bool = True) -> str:
        return str(asked(self._hf.decode, self._decodable(ids), skip_special_tokens))

    def decode_batch(self, rows: Iterable[Sequence[int] | Int32], skip_special_tokens: bool = True) -> list[str]:
        found: list[str] = asked(self._hf.decode_batch, [self._decodable(r) for r in rows], skip_special_tokens)
        return found

    def decode_tokens(self, tokens: Sequence[str]) -> str:
        decoder = self._hf.decoder
        if decoder is None:
            return " ".join(tokens)
        self._growth.require_decoded(list(tokens), lambda: tokens)
        return str(asked(decoder.decode, list(tokens)))

    def _decodable(self, ids: Sequence[int] | Int32) -> list[int]:
        """Return the ids, whose text fits into the memory that a call may take."""
        row = id_list(ids)
        self._growth.require_decoded(row, lambda: map(self._hf.id_to_token, row))
        return row

    def _engine(self, parse_special: bool) -> Any:
        if parse_special:
            return self._hf
        if self._literal is None:
            with self._lock:
                if self._literal is None:
                    # from the file: HF does not load each text that its to_str makes
                    literal = _bare(type(self._hf).from_str(self._source))
                    literal.encode_special_tokens = True
                    self._literal = literal
        return self._literal


def _check_normalized(whole: Any) -> None:
    """HF searches a text for the normalized form of added tokens. An empty form is found everywhere: the search ends
    inside characters, or does not end and takes all memory."""
    normalizer = whole.normalizer
    if normalizer is None:
        return
    for id, token in whole.get_added_tokens_decoder().items():
        if token.normalized and token.content and not asked(normalizer.normalize_str, token.content):
            raise TokenizerFileError(
                "added_tokens",
                f"the normalizer leaves nothing of {token.content[:60]!r} (id {id}): remove the token, or set its "
                "`normalized` to false",
            )


def _check_maps(normalizer: Any) -> None:
    """HF panics if a look-up leads out of a map of characters. The native core, which checks that while loading,
    has not seen the map if it left the file to HF for another reason."""
    for step in flat(normalizer, "normalizers"):
        if step["type"] == "Precompiled":
            model = {"type": "WordLevel", "vocab": {}, "unk_token": ""}
            alone = {"added_tokens": [], "normalizer": step, "model": model}
            with contextlib.suppress(UnsupportedFeature):
                CoreTokenizer.from_json(json.dumps(alone).encode())


def _bare(hf: Any) -> Any:
    """``hf`` itself, without the parts that are ours on every backend."""
    hf.no_truncation()
    hf.no_padding()
    hf.post_processor = None
    return hf


def asked(call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """HF's result. Its own errors, which are plain Exceptions, as ``TokenizerError`` with HF's message, and its
    panics, which are none; errors of the arguments' types and ranges are left as they are."""
    try:
        return call(*arguments, **options)
    except BaseException as error:
        if type(error) is Exception:
            raise TokenizerError(str(error)) from error
        if type(error).__name__ == "PanicException":
            raise TokenizerError(f"`tokenizers` does not take it: {error}") from error
        raise


def _byte_characters() -> dict[str, int]:
    """GPT-2's printable stand-ins for bytes."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(others)}


CHAR_BYTES = _byte_characters()
BYTE_CHARS = {b: c for c, b in CHAR_BYTES.items()}
