"""Sparrow's files (``*.sparrow``): token vectors and a small network, without attention.

    config.json      arch static, dim, hidden, vocab_size, kv, max_len, temperature_by_kind
    tokenizer.json   vocab: the pieces of an uncased WordPiece, by id
    model.npz        rows of 8 bits with a scale each (name.q8, name.scale), or floats

A zip archive of these three. State, question and options are means of their tokens' vectors. With ``kv``, numbers of
the state are read as pairs of a key and a value.
"""

from __future__ import annotations

import io
import json
import math
import os
import zipfile
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from prelude.errors import ModelError, UnsupportedModel, shown
from prelude.models.fields import Fields
from prelude.records import dataclass
from prelude.values.arrays import F32
from prelude.values.model_settings import COLDEST, HOTTEST, KINDS, OptionSettings
from prelude.values.strict_json import parse

SUFFIX = ".sparrow"
DIGITS = "0123456789.-"
"""Tokens that numbers of a state are written with, one character each."""
_FILE, _CONFIG, _TOKENIZER, _WEIGHTS = 256 << 20, 1 << 20, 32 << 20, 256 << 20
_ARRAYS = 512 << 20
"""Bytes of all arrays together, as float32."""
_ENTRIES = 1000
"""Entries of an archive."""
_BLOCKS, _PAIR_BLOCKS, _VALUES = 6, 4, 4
_KINDS = {"noul": 0, "choice": 1, "score": 2}


@dataclass(frozen=True, slots=True)
class SparrowModel:
    """``tokens`` [vocab, dim] and the layers of the network, [outputs, inputs] and [outputs]. ``pairs``: weight
    [dim, 4] and bias [dim] of values, and the sharpness of an option's look at them; None without ``kv``."""

    name: str
    vocab: Mapping[str, int]
    tokens: F32
    kinds: F32
    layers: tuple[tuple[F32, F32], ...]
    pairs: tuple[F32, F32, float] | None
    max_len: int
    temperatures: tuple[float, float, float]

    @property
    def nbytes(self) -> int:
        arrays = [self.tokens, self.kinds, *[part for layer in self.layers for part in layer]]
        return sum(array.nbytes for array in [*arrays, *(self.pairs or ())[:2]])

    def settings(self) -> OptionSettings:
        digits = {char: self.vocab[char] for char in DIGITS} if self.pairs else {}
        return OptionSettings(
            "sparrow",
            4 * self.max_len,
            digits,
            state_length=self.max_len,
            option_length=self.max_len,
            static=True,
            layout="indented",
            temperatures=self.temperatures,
        )

    def tokenizer_json(self) -> str:
        """Return the tokenizer in the form of the tokenizers library. No text of a caller is a control token."""
        parts = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "lowercase": True}
        model = {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##"}
        return json.dumps(
            {
                "version": "1.0",
                "normalizer": {**parts, "strip_accents": None},
                "pre_tokenizer": {"type": "BertPreTokenizer"},
                "added_tokens": [],
                "model": {**model, "max_input_chars_per_word": 100, "vocab": dict(self.vocab)},
            }
        )


def is_sparrow(model: object) -> TypeGuard[str | os.PathLike[str]]:
    return isinstance(model, str | os.PathLike) and os.fspath(model).endswith(SUFFIX) and os.path.isfile(model)


def read_sparrow(path: str | os.PathLike[str]) -> SparrowModel:
    """Raises ``ModelError`` that names the part, and ``UnsupportedModel`` for Sparrow's models of another kind."""
    from prelude.tokenizer.backends.files import read_plain

    where = os.fspath(path)
    try:
        data = read_plain(Path(where), _FILE)
    except OSError as failure:
        raise ModelError(f"{where}: cannot be read: {failure}") from failure
    archive = _opened(data, where)
    config = Fields(_object(archive, "config.json", _CONFIG, where), f"{where}: config.json")
    vocab = _vocab(archive, where)
    return _model(config, vocab, _Arrays(_read(archive, "model.npz", _WEIGHTS, where), f"{where}: model.npz"))


def _model(config: Fields, vocab: dict[str, int], arrays: _Arrays) -> SparrowModel:
    arch = config.text("arch")
    if arch != "static":
        raise UnsupportedModel(
            f"{config.where}: unsupported: arch {shown(arch)}; supported: static (sparrow-micro and sparrow-nano)"
        )
    dim, hidden = config.integer("dim", 1, 4096), config.integer("hidden", 1, 8192)
    rows, paired = config.integer("vocab_size", 1, 1 << 20), config.boolean("kv", False)
    if len(vocab) != rows:
        raise ModelError(f"{config.where}: vocab_size is {rows}, tokenizer.json has {len(vocab)} pieces")
    if paired and (missing := [char for char in DIGITS if char not in vocab]):
        raise ModelError(
            f"{config.where}: kv needs a piece for each character of numbers; {shown(missing[0])} has none"
        )
    said = config.get("temperature_by_kind", {})
    if not isinstance(said, dict):
        raise config.wrong("temperature_by_kind", "an object is needed")
    heat = Fields(said, f"{config.where}: temperature_by_kind")
    sizes = [(_BLOCKS + (_PAIR_BLOCKS if paired else 0)) * dim, hidden, hidden, 1]
    layers = [
        (arrays.of(f"mlp.{2 * at}.weight", (out, inner)), arrays.of(f"mlp.{2 * at}.bias", (out,)))
        for at, (inner, out) in enumerate(pairwise(sizes))
    ]
    pairs = None
    if paired:
        weight, bias = arrays.of("g.weight", (dim, _VALUES)), arrays.of("g.bias", (dim,))
        pairs = weight, bias, float(arrays.of("tau", (1,))[0])
    return SparrowModel(
        config.text("name", "sparrow"),
        vocab,
        arrays.of("emb.weight", (rows, dim)),
        arrays.of("kind.weight", (len(_KINDS), dim))[[_KINDS[kind] for kind in KINDS]],
        tuple(layers),
        pairs,
        config.integer("max_len", 8, 1 << 16, 512),
        (_heat(heat, "choice"), _heat(heat, "score"), _heat(heat, "noul")),
    )


def _heat(heat: Fields, kind: str) -> float:
    """Settings of other formats are held within these bounds, so that a value beyond them would not be used."""
    return heat.number(kind, 0.999 * COLDEST, HOTTEST, 1.0)


def _opened(data: bytes, where: str) -> zipfile.ZipFile:
    """Return the archive in ``data``, whose directory is read into memory: its entries are counted before."""
    if data.count(b"PK\1\2") > _ENTRIES:
        raise ModelError(f"{where}: an archive of more than {_ENTRIES:,} entries")
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
    except Exception as failure:  # malformed fields raise errors of many kinds
        raise ModelError(f"{where}: not a readable archive: {failure}") from failure
    names = archive.namelist()
    if len(set(names)) < len(names):
        raise ModelError(f"{where}: a name is there twice: {shown(names)}")
    for entry in archive.infolist():
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise UnsupportedModel(f"{where}: unsupported: {shown(entry.filename)} is neither stored nor deflated")
    return archive


def _read(archive: zipfile.ZipFile, name: str, limit: int, where: str) -> bytes:
    try:
        with archive.open(name) as part:
            data = part.read(limit + 1)
    except KeyError:
        raise ModelError(f"{where}: there is no {name} in it") from None
    except Exception as failure:  # a decompressor raises errors of its own for bad data
        raise ModelError(f"{where}: {name} cannot be read: {failure}") from failure
    if len(data) > limit:
        raise ModelError(f"{where}: {name} has more than {limit:,} bytes")
    return data


def _object(archive: zipfile.ZipFile, name: str, limit: int, where: str) -> dict[str, Any]:
    value = parse(_read(archive, name, limit, where), f"{where}: {name}", ModelError)
    if not isinstance(value, dict):
        raise ModelError(f"{where}: {name} holds a {type(value).__name__}, an object is needed")
    return value


def _vocab(archive: zipfile.ZipFile, where: str) -> dict[str, int]:
    vocab = _object(archive, "tokenizer.json", _TOKENIZER, where).get("vocab")
    here = f"{where}: tokenizer.json: vocab"
    if not isinstance(vocab, dict) or any(type(at) is not int for at in vocab.values()):
        raise ModelError(f"{here} is not an object of pieces to their ids")
    if sorted(vocab.values()) != list(range(len(vocab))) or "[UNK]" not in vocab:
        raise ModelError(f"{here}: ids are not 0 to {len(vocab) - 1}, each once, with [UNK] among them")
    return vocab


class _Arrays:
    """The arrays of ``model.npz``. A header that promises another shape is refused before memory is asked for, and so
    are arrays of more than ``_ARRAYS`` bytes."""

    def __init__(self, data: bytes, where: str) -> None:
        self._where = where
        self._archive = _opened(data, where)
        self._names = set(self._archive.namelist())
        self._room = _ARRAYS

    def of(self, name: str, shape: tuple[int, ...]) -> F32:
        self._room -= 4 * math.prod(shape)
        if self._room < 0:
            raise ModelError(f"{self._where}: its arrays have more than {_ARRAYS:,} bytes: {name} is {list(shape)}")
        if f"{name}.q8.npy" in self._names:
            found = self._plain(f"{name}.q8", shape, ("i1",)).astype(np.float32)
            found *= self._plain(f"{name}.scale", shape[:1], ("f4",))[:, None]
        else:
            found = self._plain(name, shape, ("f4", "f2")).astype(np.float32, copy=False)
        if not np.isfinite(found).all():
            raise ModelError(f"{self._where}: {name} holds NaN or infinity")
        return found

    def _plain(self, name: str, shape: tuple[int, ...], kinds: tuple[str, ...]) -> np.ndarray[Any, Any]:
        wanted = max(np.dtype(kind).itemsize for kind in kinds) * math.prod(shape)
        data = _read(self._archive, f"{name}.npy", wanted + 4096, self._where)
        stream = io.BytesIO(data)
        try:
            version = np.lib.format.read_magic(stream)
            reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            seen, columns, dtype = reader(stream)
        except Exception as failure:  # a header is a literal of Python, with errors of many kinds
            raise ModelError(f"{self._where}: {name} is no array: {shown(str(failure))}") from failure
        if seen != shape or columns or dtype.str.lstrip("<|") not in kinds:
            raise ModelError(
                f"{self._where}: {name} is {dtype} {list(seen)}, {' or '.join(kinds)} {list(shape)} needed"
            )
        body = memoryview(data)[stream.tell() :]
        if len(body) != dtype.itemsize * math.prod(shape):
            raise ModelError(f"{self._where}: {name} ends early")
        return np.frombuffer(body, dtype).reshape(shape)
