"""``Tokenizer``: the inference API of HF ``tokenizers`` 0.2x over an immutable core.

Everything that is expensive or shared is in the core and in frozen settings, so one tokenizer serves any
number of threads without a lock: a call reads the settings once, and a setter replaces them.
"""

from __future__ import annotations

import errno
import functools
import json
import operator
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ._building import canonical
from ._core import Encoding
from ._repr import LONG, SHORT, tokenizer_text
from .added_token import AddedToken
from .backends.cache import at as cache_at
from .backends.choice import load
from .backends.files import TOKENIZER_LIMIT, read_plain
from .class_settings import Changes, Model
from .class_settings import changes as class_changes
from .components import Component, ComponentMethods
from .config import BESIDE, FileConfig, Reader, beside, folder_reader, warn_contradictions
from .encode.arrays import ArrayMethods
from .encode.control import ControlIds
from .encode.literal import ControlTokens, LiteralText
from .encode.post_processing import finished
from .encode.processor_file import parse
from .encode.sequences import EncodeInput, RowSource, Sequences, batch_inputs, batch_list, single_input
from .encoding import PaddedBatch, padded_batch
from .errors import BackendUnavailable, TokenizerFileError, TokenizersMutationError
from .params import Padding, Truncation

if TYPE_CHECKING:
    from .backends.cache import TableCache
    from .backends.choice import Core

Cache = bool | str | os.PathLike[str]


def _in_thread(call: Any) -> Any:
    """Return the asynchronous form of a method."""

    @functools.wraps(call)
    async def run(self: Tokenizer, *args: Any, **kwargs: Any) -> Any:
        from asyncio import to_thread  # slow to import, and for this alone

        return await to_thread(getattr(self, call.__name__), *args, **kwargs)

    run.__name__ = f"async_{call.__name__}"  # pickle looks a bound method up by its name
    run.__qualname__ = f"Tokenizer.{run.__name__}"
    return run


class Tokenizer(ArrayMethods, ComponentMethods):
    """A loaded tokenizer file. Make one with ``from_file``, ``from_str``, ``from_buffer``,
    ``from_pretrained`` or ``from_tiktoken``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise TokenizersMutationError(
            "a tokenizer is loaded, not built from components: use Tokenizer.from_file, from_str, from_buffer, "
            "from_pretrained or from_tiktoken"
        )

    # ---- loading and saving

    # ``cache``: whether tables made of a large file are kept, and where (see ``_cache``): True for the user's cache
    # directory, a path for another one, False for neither reading nor writing them.

    @staticmethod
    def from_file(path: str | os.PathLike[str], *, cache: Cache = True) -> Tokenizer:
        """Load a tokenizer.json, with the tokenizer_config.json beside it if there is one."""
        where = Path(os.fspath(path))
        config = beside(folder_reader(where.parent), str(where.parent))
        return Tokenizer._build(where, config, str(where), cache)

    @staticmethod
    def from_reader(read: Reader, folder: str, *, cache: Cache = True, model: Model | None = None) -> Tokenizer:
        """Load the files of ``folder``, whose contents ``read(name, limit)`` gives: for a caller that has rules of
        its own about which files may be read. With a ``model`` the entries of tokenizer_config.json that its class
        in transformers applies are followed over tokenizer.json. Raises the errors of ``read``, and
        ``FileNotFoundError`` without a tokenizer.json."""
        where = os.path.join(folder, "tokenizer.json")
        data = read("tokenizer.json", TOKENIZER_LIMIT)
        if data is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), where)
        return Tokenizer._build(data, beside(read, folder), where, cache, model)

    @staticmethod
    def from_str(json: str, *, cache: Cache = True) -> Tokenizer:
        return Tokenizer._build(json.encode(), FileConfig(), "the string", cache)

    @staticmethod
    def from_buffer(buffer: bytes, *, cache: Cache = True) -> Tokenizer:
        return Tokenizer._build(bytes(buffer), FileConfig(), "the buffer", cache)

    @staticmethod
    def from_pretrained(
        identifier: str, revision: str = "main", token: str | None = None, *, cache: Cache = True
    ) -> Tokenizer:
        """Load from a local directory, or from the Hugging Face Hub through ``huggingface_hub``."""
        if os.path.isdir(identifier):
            return Tokenizer.from_file(Path(identifier) / "tokenizer.json", cache=cache)
        try:
            from huggingface_hub import hf_hub_download
            from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
        except ImportError:
            raise BackendUnavailable("the Hugging Face Hub", "huggingface_hub") from None
        path = hf_hub_download(identifier, "tokenizer.json", revision=revision, token=token)
        for name in BESIDE:
            try:
                hf_hub_download(identifier, name, revision=revision, token=token)
            except (EntryNotFoundError, LocalEntryNotFoundError):
                continue
        return Tokenizer.from_file(path, cache=cache)

    @staticmethod
    def from_tiktoken(
        ranks: str | os.PathLike[str] | bytes,
        pattern: str,
        special_tokens: dict[str, int] | None = None,
        *,
        cache: Cache = True,
    ) -> Tokenizer:
        """Load a rank file (base64 bytes and a rank a line) with its split pattern and special tokens."""
        from .tiktoken import recipe, tokenizer_json

        data = ranks if isinstance(ranks, bytes) else read_plain(ranks, TOKENIZER_LIMIT)
        special = special_tokens or {}
        made = Tokenizer.__new__(Tokenizer)
        core = load(recipe(data, pattern, special), cache_at(cache), lambda: tokenizer_json(data, pattern, special))
        made._assemble(*core, FileConfig())
        return made

    @staticmethod
    def _build(
        data: bytes | Path, config: FileConfig, source: str, cache: Cache, model: Model | None = None
    ) -> Tokenizer:
        made = Tokenizer.__new__(Tokenizer)
        made._assemble(*load(data, cache_at(cache)), config)
        if model is not None:
            # Without the file nothing says that the class's own settings are meant: they are warned of.
            found = made._class_changes(model if config.source else replace(model, type=""))
            if found.sections or found.added:
                made = made._with(found, cache_at(cache))
        if config.source or model is not None:
            said, around = made._class_changes(model).said, made._frames[1]
            ids = ([], []) if around is None else around
            warn_contradictions(config, source, made._core.token_to_id, ids, said)
        return made

    def _class_changes(self, model: Model | None) -> Changes:
        size = self.get_vocab_size(False)
        added = self.get_added_tokens_decoder()
        return class_changes(self._config.values, self._section, added, size, self._core.token_to_id, model)

    def _with(self, found: Changes, cache: TableCache | None) -> Tokenizer:
        """Return the same tokenizer with other sections and further added tokens."""
        whole = {**self._whole(), **found.sections}
        added = {token["id"]: token for token in whole["added_tokens"]}
        added |= {id: {"id": id, **token} for id, token in found.added.items()}
        whole["added_tokens"] = [token for _, token in sorted(added.items())]
        made = Tokenizer.__new__(Tokenizer)
        made._assemble(*load(json.dumps(whole, ensure_ascii=False).encode(), cache), self._config)
        return made

    def _assemble(self, core: Core, backend: str, config: FileConfig) -> None:
        self._core, self._backend, self._config = core, backend, config
        self._processor = parse(self._section("post_processor"))
        self._truncation = _parsed(self._section("truncation"), "truncation", Truncation.from_json)
        self._padding = _parsed(self._section("padding"), "padding", Padding.from_json)
        self._encode_special = False
        known = ControlIds(core, config)
        self._literal = LiteralText(core, known.fixed)
        self._control = ControlTokens(core, self._literal, known)
        self._sequences = Sequences(core, self._processor)
        self._frames = self._sequences.frames
        self._digest: bytes | None = None  # see decoders._digest
        self._model_alone: Tokenizer | None = None  # see models.Model
        self._model_settings: dict[str, Any] | None = None  # see ComponentMethods._model_members
        self._set_entry(*self._sequences.entry(), self._literal.mask)

    def save(self, path: str | os.PathLike[str], pretty: bool = True) -> None:
        Path(os.fspath(path)).write_text(self.to_str(pretty), encoding="utf-8")

    def to_str(self, pretty: bool = False) -> str:
        """Return the tokenizer as a tokenizer.json, with the truncation and padding that are set now."""
        whole = self._whole()
        if pretty:
            return json.dumps(whole, ensure_ascii=False, indent=2)
        return json.dumps(whole, ensure_ascii=False, separators=(",", ":"))

    def _whole(self) -> dict[str, Any]:
        return {
            "version": self._section("version") or "1.0",
            "truncation": self._truncation and self._truncation.to_json(),
            "padding": self._padding and self._padding.to_json(),
            "added_tokens": [
                {"id": i, **token.to_dict()} for i, token in sorted(self.get_added_tokens_decoder().items())
            ],
            **{
                name: canonical(name, self._section(name))
                for name in ("normalizer", "pre_tokenizer", "post_processor", "decoder")
            },
            "model": self._core.model(),
        }

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self.to_str().encode(), self._config, self._encode_special)

    def __copy__(self) -> Tokenizer:
        """Return a tokenizer with settings of its own over the same immutable tables."""
        made = Tokenizer.__new__(Tokenizer)
        made.__dict__.update(self.__dict__)
        made._copy_entry(self)
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> Tokenizer:
        return self.__copy__()

    def __repr__(self) -> str:
        return tokenizer_text(self._whole(), LONG)

    def __str__(self) -> str:
        return tokenizer_text(self._whole(), SHORT)

    # ---- encoding

    # encode() and encode_batch() are EncodeEntry's. Calls with more than texts between the tokens of a frame come
    # here.

    def _encode_general(
        self, sequence: Any, pair: Any | None, is_pretokenized: bool, add_special_tokens: bool
    ) -> Encoding:
        return self._encoded([single_input(sequence, pair, is_pretokenized)], add_special_tokens)[0]

    def _batch_general(
        self, input: Sequence[Any], is_pretokenized: bool, add_special_tokens: bool, fast: bool
    ) -> list[Encoding]:
        inputs = batch_list(input)
        if inputs is not input:
            call = self.encode_batch_fast if fast else self.encode_batch
            return call(inputs, is_pretokenized, add_special_tokens)
        return self._encoded(batch_inputs(inputs, is_pretokenized), add_special_tokens, fast)

    async_encode = _in_thread(ArrayMethods.encode)
    async_encode_batch = _in_thread(ArrayMethods.encode_batch)
    async_encode_batch_fast = _in_thread(ArrayMethods.encode_batch_fast)

    def post_process(
        self, encoding: Encoding, pair: Encoding | None = None, add_special_tokens: bool = True
    ) -> Encoding:
        """Truncate, add the post-processor's tokens, and pad: the last steps of ``encode``, on copies."""
        second = None if pair is None else pair.__copy__()
        made = finished(encoding.__copy__(), second, add_special_tokens, self._truncation, self._processor)
        padding = self._padding
        if padding is not None:
            padding.apply([made])
        return made

    def _encoded(self, inputs: list[EncodeInput], add_special_tokens: bool, fast: bool = False) -> list[Encoding]:
        """Encode and post-process; the settings are read here, once."""
        truncation, padding, parse_special = self._truncation, self._padding, not self._encode_special
        settings = add_special_tokens, fast, truncation, parse_special
        source = RowSource(self._sequences, inputs, settings, padding)
        rows: list[Encoding] | None = self._row_encodings(source, add_special_tokens)
        if rows is not None:
            return rows
        encodings = [self._sequences.finished(one, *settings) for one in inputs]
        if padding is not None:
            padding.apply(encodings)
        return encodings

    def encode_padded(
        self,
        input: Sequence[Any],
        is_pretokenized: bool = False,
        add_special_tokens: bool = True,
        *,
        overflow: bool = False,
        offsets: bool = False,
        dtype: npt.DTypeLike = np.int32,
    ) -> PaddedBatch:
        """``encode_batch`` under the same truncation and padding, as one array a column. ``overflow``: the parts that
        truncation cuts off are rows too. ``dtype``: int32 or int64.

        Raises ``TokenizerError`` if rows have different lengths, as they may without padding."""
        kind = str(np.dtype(dtype))
        if kind not in ("int32", "int64"):
            raise TypeError(f"dtype={dtype!r} is neither int32 nor int64")
        inputs = batch_inputs(batch_list(input), is_pretokenized)
        firsts, seconds = [one.first for one in inputs], [one.second for one in inputs]
        truncation, padding, special = self._truncation, self._padding, bool(add_special_tokens)
        columns = (0, 1, 2, 3, 4) if offsets else (0, 1, 2, 3)
        settings = special, truncation, padding, not self._encode_special
        found = self._row_columns(firsts, seconds, *settings, columns, kind, overflow)
        if found is None:
            rows = self._encoded(inputs, special)
            return padded_batch(rows, overflow, offsets, np.dtype(dtype))
        (ids, types, attention, marks, *pairs), samples, _ = found
        spans = pairs[0] if pairs else None
        return PaddedBatch(ids, types, attention, marks, spans, np.array(samples, np.int32))

    # ---- decoding

    def decode_batch(self, sequences: Sequence[Sequence[int]], skip_special_tokens: bool = True) -> list[str]:
        return self._core.decode_batch(sequences, skip_special_tokens)

    async_decode_batch = _in_thread(decode_batch)

    # ---- vocabulary

    def token_to_id(self, token: str) -> int | None:
        plain = str(token) if isinstance(token, str) else token  # of a subclass of str
        return self._core.token_to_id(plain)

    def id_to_token(self, id: int) -> str | None:
        number = operator.index(id)  # a float is no id
        if not 0 <= number < 1 << 32:
            raise OverflowError(f"{number} is not an id: they are numbers of 32 bits without a sign")
        return self._core.id_to_token(number)

    def get_vocab(self, with_added_tokens: bool = True) -> dict[str, int]:
        return self._core.get_vocab(with_added_tokens)

    def get_vocab_size(self, with_added_tokens: bool = True) -> int:
        return self._core.vocab_size(with_added_tokens)

    @property
    def id_limit(self) -> int:
        """One more than the largest id that ``encode`` can give: of the vocabulary, which may have holes, of the
        added tokens, and those that the post-processor adds. The id that padding adds is not among them."""
        named = () if self._processor is None else self._processor.ids
        return max(self._core.id_limit, *(id + 1 for id in named), 0)

    def get_added_tokens_decoder(self) -> dict[int, AddedToken]:
        return {i: AddedToken(*rest) for i, *rest in self._core.added_tokens()}  # type: ignore[arg-type]

    def num_special_tokens_to_add(self, is_pair: bool) -> int:
        return 0 if self._processor is None else self._processor.added(bool(is_pair))

    # ---- settings

    @property
    def truncation(self) -> dict[str, Any] | None:
        rule = self._truncation
        return None if rule is None else rule.as_dict()

    def enable_truncation(
        self, max_length: int, stride: int = 0, strategy: str = "longest_first", direction: str = "right"
    ) -> None:
        rule = Truncation.checked(max_length, stride, strategy, direction)
        rule.check_stride(self.num_special_tokens_to_add(False))
        self._truncation = rule

    def no_truncation(self) -> None:
        self._truncation = None

    @property
    def padding(self) -> dict[str, Any] | None:
        rule = self._padding
        return None if rule is None else rule.as_dict()

    def enable_padding(
        self,
        direction: str = "right",
        pad_id: int = 0,
        pad_type_id: int = 0,
        pad_token: str = "[PAD]",
        length: int | None = None,
        pad_to_multiple_of: int | None = None,
    ) -> None:
        self._padding = Padding.checked(direction, pad_id, pad_type_id, pad_token, length, pad_to_multiple_of)

    def no_padding(self) -> None:
        self._padding = None

    @property
    def encode_special_tokens(self) -> bool:
        """Whether the text of special tokens is encoded as ordinary text."""
        return self._encode_special

    @encode_special_tokens.setter
    def encode_special_tokens(self, value: bool) -> None:
        self._encode_special = bool(value)


Component._load = staticmethod(lambda text: Tokenizer.from_str(text, cache=False))


def _restored(data: bytes, config: FileConfig, encode_special: bool) -> Tokenizer:
    made = Tokenizer.__new__(Tokenizer)
    made._assemble(*load(data), config)
    made._encode_special = encode_special
    return made


def _parsed(member: Any, path: str, parse: Callable[[dict[str, Any]], Any]) -> Any:
    try:
        return None if member is None else parse(member)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise TokenizerFileError(path, f"not {path} parameters: {type(error).__name__} {error}") from None
