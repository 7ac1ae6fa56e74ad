"""The models: views of a loaded tokenizer's, or made by themselves, to be called and saved."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from .backends.files import TOKENIZER_LIMIT, read_plain
from .components import Component, register
from .errors import TokenizerError, TokenizerFileError, TokenizersMutationError
from .hf_types import Token
from .trainers import TRAINING

if TYPE_CHECKING:
    from .tokenizer import Tokenizer

__all__ = ["BPE", "Model", "Unigram", "WordLevel", "WordPiece"]

Path: TypeAlias = str | os.PathLike[str]
Vocab: TypeAlias = Mapping[str, int]
Merges: TypeAlias = Sequence[tuple[str, str]]

_TEXT = (str, type(None))


@register
class Model(Component):
    """A loaded tokenizer's model, or one made by itself, to be called and saved."""

    _kind = "model"
    _types: dict[str, tuple[type, ...]] = {}  # noqa: RUF012 - attribute -> the types it takes; never changed

    def _alone(self) -> str:
        return json.dumps({"version": "1.0", "added_tokens": [], "model": self._whole()})

    @property
    def _tokenizer(self) -> Tokenizer:
        """The tokenizer of this model alone: without another component, without added tokens. It is made once, and
        anew after a change; that of a loaded tokenizer's model is kept by the tokenizer."""
        owner = self._view_of
        if owner is None:
            self._made = self._made or ("", self._load(self._alone()))
            return self._made[1]
        if owner._model_alone is None:  # another thread may make the same meanwhile
            owner._model_alone = self._load(self._alone())
        return owner._model_alone

    def _checked(self, field: str, value: Any) -> Any:
        if not isinstance(value, self._types[field]) or (isinstance(value, bool) and bool not in self._types[field]):
            names = " or ".join(kind.__name__ for kind in self._types[field])
            raise TypeError(f"argument '{field}': expected {names}, got {type(value).__name__}")
        self._made = None
        return value

    def _set(self, name: str, **members: Any) -> None:
        known = self._types
        self._member = {"type": name, **{k: self._checked(k, v) if k in known else v for k, v in members.items()}}

    def _field(self, name: str) -> str | None:
        return name if name in self._types and name in self._member else None

    def _whole(self) -> dict[str, Any]:
        """Return the member with its vocabulary."""
        return self._member if self._view_of is None else self._view_of._core.model()

    def token_to_id(self, token: str) -> int | None:
        return self._tokenizer.token_to_id(token)

    def id_to_token(self, id: int) -> str | None:
        return self._tokenizer.id_to_token(id)

    def tokenize(self, sequence: str) -> list[Token]:
        """Return the tokens of one word: of text that is neither normalized nor split."""
        tokenizer = self._tokenizer
        tokens = tokenizer.encode(sequence).tokens
        ids, spans, _ = tokenizer._core.encode_full(sequence, offsets="byte")
        return [Token(*one) for one in zip(ids.tolist(), tokens, map(tuple, spans.tolist()))]

    def save(self, folder: str, prefix: str | None = None) -> list[str]:
        """Write the model's files into ``folder``, their names after ``prefix`` and "-"; returns their paths."""
        paths = []
        for name, text in self._files().items():
            paths.append(os.path.join(folder, name if prefix is None else f"{prefix}-{name}"))
            pathlib.Path(paths[-1]).write_text(text, encoding="utf-8", newline="")
        return paths

    def _files(self) -> dict[str, str]:
        return {}

    def get_trainer(self) -> NoReturn:
        raise TokenizersMutationError(f"{type(self).__name__}.get_trainer: {TRAINING}")


@register
class BPE(Model):
    """``vocab`` and ``merges``: a dict and a list of pairs, or the paths of their files; both or neither."""

    _types = {  # noqa: RUF012 - never changed
        "dropout": (float, int, type(None)),
        "unk_token": _TEXT,
        "continuing_subword_prefix": _TEXT,
        "end_of_word_suffix": _TEXT,
        "fuse_unk": (bool,),
        "byte_fallback": (bool,),
        "ignore_merges": (bool,),
    }

    def __init__(
        self,
        vocab: Vocab | Path | None = None,
        merges: Merges | Path | None = None,
        cache_capacity: int | None = None,  # of HF's cache; has no meaning here
        dropout: float | None = None,
        unk_token: str | None = None,
        continuing_subword_prefix: str | None = None,
        end_of_word_suffix: str | None = None,
        fuse_unk: bool | None = None,
        byte_fallback: bool = False,
        ignore_merges: bool = False,
    ) -> None:
        if (vocab is None) != (merges is None):
            raise TokenizerError("`vocab` and `merges` must be both specified")
        self._set(
            "BPE",
            dropout=dropout,
            unk_token=unk_token,
            continuing_subword_prefix=continuing_subword_prefix,
            end_of_word_suffix=end_of_word_suffix,
            fuse_unk=fuse_unk or False,
            byte_fallback=byte_fallback,
            ignore_merges=ignore_merges,
            vocab=_vocab_of(vocab),
            merges=_merges_of(merges),
        )

    def _checked(self, field: str, value: Any) -> Any:
        checked = super()._checked(field, value)
        if field == "dropout" and value is not None and not 0 <= value <= 1:
            raise TokenizerError(f"dropout={value} is out of range; it takes 0 to 1")
        return checked

    @staticmethod
    def read_file(vocab: Path, merges: Path) -> tuple[dict[str, int], list[tuple[str, str]]]:
        """Return the content of a vocab.json and a merges.txt. Raises ``OSError`` and ``TokenizerFileError``."""
        return _read_vocab(vocab), _read_merges(merges)

    @classmethod
    def from_file(cls, vocab: Path, merges: Path, **kwargs: Any) -> BPE:
        return cls(*cls.read_file(vocab, merges), **kwargs)

    def _files(self) -> dict[str, str]:
        whole = self._whole()
        merges = "".join(f"{' '.join(pair)}\n" for pair in whole["merges"])
        return {"vocab.json": _compact(whole["vocab"]), "merges.txt": f"#version: 0.2\n{merges}"}


@register
class WordPiece(Model):
    """``vocab``: a dict, or the path of a vocab.txt."""

    _types = {  # noqa: RUF012 - never changed
        "unk_token": (str,),
        "continuing_subword_prefix": (str,),
        "max_input_chars_per_word": (int,),
    }

    def __init__(
        self,
        vocab: Vocab | Path | None = None,
        unk_token: str = "[UNK]",
        max_input_chars_per_word: int = 100,
        continuing_subword_prefix: str = "##",
    ) -> None:
        known = self.read_file(vocab) if isinstance(vocab, (str, os.PathLike)) else dict(vocab or {})
        self._set(
            "WordPiece",
            unk_token=unk_token,
            continuing_subword_prefix=continuing_subword_prefix,
            max_input_chars_per_word=max_input_chars_per_word,
            vocab=known,
        )

    @staticmethod
    def read_file(vocab: Path) -> dict[str, int]:
        """Return the content of a vocab.txt, a token a line. Raises ``OSError`` and ``TokenizerFileError``."""
        return {line.rstrip(): number for number, line in enumerate(_read_lines(vocab))}

    @classmethod
    def from_file(cls, vocab: Path, **kwargs: Any) -> WordPiece:
        return cls(cls.read_file(vocab), **kwargs)

    def _files(self) -> dict[str, str]:
        return {"vocab.txt": "".join(f"{token}\n" for token in _by_id(self._whole()["vocab"]))}


@register
class WordLevel(Model):
    """``vocab``: a dict, or the path of a vocab.json."""

    _types = {"unk_token": (str,)}  # noqa: RUF012 - never changed

    def __init__(self, vocab: Vocab | Path | None = None, unk_token: str | None = None) -> None:
        self._set("WordLevel", vocab=_vocab_of(vocab), unk_token="<unk>" if unk_token is None else unk_token)

    @staticmethod
    def read_file(vocab: Path) -> dict[str, int]:
        """Return the content of a vocab.json. Raises ``OSError`` and ``TokenizerFileError``."""
        return _read_vocab(vocab)

    @classmethod
    def from_file(cls, vocab: Path, unk_token: str | None = None) -> WordLevel:
        return cls(cls.read_file(vocab), unk_token)

    def tokenize(self, sequence: str) -> list[Token]:
        if sequence:
            return super().tokenize(sequence)
        for token in ("", self._member["unk_token"]):  # the empty word is looked up as any other
            id = self.token_to_id(token)
            if id is not None:
                return [Token(id, token, (0, 0))]
        raise TokenizerError("WordLevel: the unknown token is not in the vocabulary")

    def _files(self) -> dict[str, str]:
        return {"vocab.json": _compact(self._whole()["vocab"])}


@register
class Unigram(Model):
    """``vocab``: (token, logarithm of its probability) pairs. A model with ``alpha`` or ``nbest_size`` samples in HF;
    ``tokenize`` of one is left out here."""

    _types = {"unk_id": (int, type(None)), "byte_fallback": (bool,)}  # noqa: RUF012 - never changed
    _alpha: float | None = None
    _nbest_size: int | None = None

    def __init__(
        self,
        vocab: Sequence[tuple[str, float]] | None = None,
        unk_id: int | None = None,
        byte_fallback: bool | None = None,
        alpha: float | None = None,
        nbest_size: int | None = None,
    ) -> None:
        pieces = [["<unk>", 0.0]] if vocab is None else [[token, float(score)] for token, score in vocab]
        unknown = 0 if vocab is None else unk_id
        self._set("Unigram", unk_id=unknown, vocab=pieces, byte_fallback=byte_fallback or False)
        self._alpha, self._nbest_size = alpha, nbest_size

    alpha = property(lambda self: self._alpha)
    nbest_size = property(lambda self: self._nbest_size)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("alpha", "nbest_size") and not self._frozen:
            name = f"_{name}"
        super().__setattr__(name, value)

    def tokenize(self, sequence: str) -> list[Token]:
        if self.alpha is not None or self.nbest_size is not None:
            raise TokenizersMutationError("Unigram.tokenize with alpha or nbest_size: sampling is left out")
        return super().tokenize(sequence)

    def _files(self) -> dict[str, str]:
        return {"unigram.json": json.dumps(self._whole(), ensure_ascii=False, indent=2)}


# ---- files


def _vocab_of(vocab: Vocab | Path | None) -> dict[str, int]:
    return _read_vocab(vocab) if isinstance(vocab, (str, os.PathLike)) else dict(vocab or {})


def _merges_of(merges: Merges | Path | None) -> list[list[str]]:
    read = _read_merges(merges) if isinstance(merges, (str, os.PathLike)) else merges or []
    if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in read):
        raise TypeError("argument 'merges': expected a list of pairs of strings")
    return [list(pair) for pair in read]


def _read_text(path: Path) -> str:
    try:
        return read_plain(path, TOKENIZER_LIMIT).decode()
    except UnicodeDecodeError as error:
        raise TokenizerFileError(os.fspath(path), f"not UTF-8: {error}") from None


def _read_lines(path: Path) -> list[str]:
    lines = _read_text(path).split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def _read_vocab(path: Path) -> dict[str, int]:
    try:
        found = json.loads(_read_text(path))
    except (ValueError, RecursionError) as error:
        raise TokenizerFileError(os.fspath(path), f"not JSON: {error}") from None
    if not isinstance(found, dict):
        raise TokenizerFileError(os.fspath(path), "expected an object of tokens and their ids")
    return {token: id for token, id in found.items() if isinstance(id, int) and not isinstance(id, bool)}


def _read_merges(path: Path) -> list[tuple[str, str]]:
    merges = []
    for number, line in enumerate(_read_lines(path), 1):
        if line.startswith("#version"):
            continue
        first, space, second = line.removesuffix("\r").partition(" ")
        if not space or " " in second:
            raise TokenizerFileError(f"{os.fspath(path)}, line {number}", "expected two tokens with a space between")
        merges.append((first, second))
    return merges


def _by_id(vocab: dict[str, int]) -> dict[str, int]:
    return dict(sorted(vocab.items(), key=lambda item: item[1]))


def _compact(vocab: dict[str, int]) -> str:
    return json.dumps(_by_id(vocab), ensure_ascii=False, separators=(",", ":"))
