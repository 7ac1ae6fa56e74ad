"""HF's ready-made tokenizers, read from their vocabulary files. ``train`` is left out, as everywhere here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from . import decoders, models, normalizers, pre_tokenizers, processors
from ._core import Encoding
from .added_token import AddedToken
from .components import Component, Regex
from .errors import TokenizerError
from .models import Merges, Path, Vocab
from .tokenizer import Tokenizer

_OWN = ("_tokenizer", "_parameters")


class BaseTokenizer:
    """A tokenizer and the parameters it was made with. Other attributes are the tokenizer's."""

    _tokenizer: Tokenizer
    _parameters: Mapping[str, Any]

    def __init__(self, tokenizer: Tokenizer, parameters: Mapping[str, Any] | None = None) -> None:
        self._tokenizer, self._parameters = tokenizer, parameters or {}

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value}" for name, value in self._parameters.items())
        return f"Tokenizer(vocabulary_size={self._tokenizer.get_vocab_size()}, {shown})"

    def __getattr__(self, name: str) -> Any:
        if name in _OWN:  # not set yet: a copy that is being made
            raise AttributeError(name)
        return getattr(self._tokenizer, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN:
            object.__setattr__(self, name, value)
        else:
            setattr(self._tokenizer, name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self._tokenizer)})

    def encode(
        self,
        sequence: Any,
        pair: Any | None = None,
        is_pretokenized: bool = False,
        add_special_tokens: bool = True,
    ) -> Encoding:
        return self._tokenizer.encode(_given("sequence", sequence), pair, is_pretokenized, add_special_tokens)

    def encode_batch(
        self, inputs: Any, is_pretokenized: bool = False, add_special_tokens: bool = True
    ) -> list[Encoding]:
        return self._tokenizer.encode_batch(_given("inputs", inputs), is_pretokenized, add_special_tokens)

    def decode(self, ids: Any, skip_special_tokens: bool = True) -> str:
        return self._tokenizer.decode(_given("ids", ids), skip_special_tokens)

    def decode_batch(self, sequences: Any, skip_special_tokens: bool = True) -> list[str]:
        return self._tokenizer.decode_batch(_given("sequences", sequences), skip_special_tokens)

    def normalize(self, sequence: str) -> str:
        return self._tokenizer.normalizer.normalize_str(sequence)  # type: ignore[no-any-return]

    def save_model(self, directory: str, prefix: str | None = None) -> list[str]:
        """Return the paths of the model's files, written into ``directory``."""
        return self._tokenizer.model.save(directory, prefix)  # type: ignore[no-any-return]


class BertWordPieceTokenizer(BaseTokenizer):
    def __init__(
        self,
        vocab: Vocab | Path | None = None,
        unk_token: str | AddedToken = "[UNK]",
        sep_token: str | AddedToken = "[SEP]",
        cls_token: str | AddedToken = "[CLS]",
        pad_token: str | AddedToken = "[PAD]",
        mask_token: str | AddedToken = "[MASK]",
        clean_text: bool = True,
        handle_chinese_chars: bool = True,
        strip_accents: bool | None = None,
        lowercase: bool = True,
        wordpieces_prefix: str = "##",
    ) -> None:
        parameters = _parameters(locals(), "vocab")
        model = models.WordPiece(vocab, unk_token=str(unk_token))
        around = None
        if vocab is not None:
            around = processors.BertProcessing(
                _token_and_id(model, "sep_token", sep_token), _token_and_id(model, "cls_token", cls_token)
            )
        tokenizer = _tokenizer_of(
            model,
            [unk_token, sep_token, cls_token, pad_token, mask_token],
            normalizer=normalizers.BertNormalizer(clean_text, handle_chinese_chars, strip_accents, lowercase),
            pre_tokenizer=pre_tokenizers.BertPreTokenizer(),
            post_processor=around,
            decoder=decoders.WordPiece(prefix=wordpieces_prefix),
        )
        super().__init__(tokenizer, {"model": "BertWordPiece", **parameters})

    @staticmethod
    def from_file(vocab: Path, **kwargs: Any) -> BertWordPieceTokenizer:
        return BertWordPieceTokenizer(models.WordPiece.read_file(vocab), **kwargs)


class _OfBPE(BaseTokenizer):
    @classmethod
    def from_file(cls: Any, vocab_filename: Path, merges_filename: Path, **kwargs: Any) -> Any:
        return cls(*models.BPE.read_file(vocab_filename, merges_filename), **kwargs)


class ByteLevelBPETokenizer(_OfBPE):
    def __init__(
        self,
        vocab: Vocab | Path | None = None,
        merges: Merges | Path | None = None,
        add_prefix_space: bool = False,
        lowercase: bool = False,
        dropout: float | None = None,
        unicode_normalizer: str | None = None,
        continuing_subword_prefix: str | None = None,
        end_of_word_suffix: str | None = None,
        trim_offsets: bool = False,
    ) -> None:
        parameters = _parameters(locals(), "vocab", "merges")
        model = models.BPE()
        if vocab is not None and merges is not None:
            around = continuing_subword_prefix or "", end_of_word_suffix or ""
            model = models.BPE(vocab, merges, None, dropout, None, *around)
        tokenizer = _tokenizer_of(
            model,
            [],
            normalizer=_one_or_many(unicode_normalizer, None, lowercase),
            pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space),
            post_processor=processors.ByteLevel(trim_offsets=trim_offsets),
            decoder=decoders.ByteLevel(),
        )
        super().__init__(tokenizer, {"model": "ByteLevelBPE", **parameters})


class CharBPETokenizer(_OfBPE):
    def __init__(
        self,
        vocab: Vocab | Path | None = None,
        merges: Merges | Path | None = None,
        unk_token: str | AddedToken = "<unk>",
        suffix: str = "</w>",
        dropout: float | None = None,
        lowercase: bool = False,
        unicode_normalizer: str | None = None,
        bert_normalizer: bool = True,
        split_on_whitespace_only: bool = False,
    ) -> None:
        parameters = _parameters(locals(), "vocab", "merges")
        vocab, merges = (None, None) if vocab is None or merges is None else (vocab, merges)
        model = models.BPE(vocab, merges, unk_token=str(unk_token), dropout=dropout, end_of_word_suffix=suffix)
        bert = normalizers.BertNormalizer(lowercase=False) if bert_normalizer else None
        whitespace = split_on_whitespace_only
        tokenizer = _tokenizer_of(
            model,
            [unk_token],
            normalizer=_one_or_many(unicode_normalizer, bert, lowercase),
            pre_tokenizer=pre_tokenizers.WhitespaceSplit() if whitespace else pre_tokenizers.BertPreTokenizer(),
            decoder=decoders.BPEDecoder(suffix=suffix),
        )
        super().__init__(tokenizer, {"model": "BPE", **parameters})


class SentencePieceBPETokenizer(_OfBPE):
    def __init__(
        self,
        vocab: Vocab | Path | None = None,
        merges: Merges | Path | None = None,
        unk_token: str | AddedToken = "<unk>",
        replacement: str = "▁",
        add_prefix_space: bool = True,
        dropout: float | None = None,
        fuse_unk: bool | None = False,
    ) -> None:
        parameters = _parameters(locals(), "vocab", "merges", "fuse_unk")
        vocab, merges = (None, None) if vocab is None or merges is None else (vocab, merges)
        model = models.BPE(vocab, merges, dropout=dropout, unk_token=str(unk_token), fuse_unk=fuse_unk)
        tokenizer = _tokenizer_of(
            model, [unk_token], normalizer=normalizers.NFKC(), **_metaspace(replacement, add_prefix_space)
        )
        super().__init__(tokenizer, {"model": "SentencePieceBPE", **parameters})


class SentencePieceUnigramTokenizer(BaseTokenizer):
    def __init__(
        self,
        vocab: list[tuple[str, float]] | None = None,
        replacement: str = "▁",
        add_prefix_space: bool = True,
    ) -> None:
        parameters = _parameters(locals(), "vocab")
        steps = [normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
        tokenizer = _tokenizer_of(
            models.Unigram(vocab),
            [],
            normalizer=normalizers.Sequence(steps),
            **_metaspace(replacement, add_prefix_space),
        )
        super().__init__(tokenizer, {"model": "SentencePieceUnigram", **parameters})


# ---- inside


def _given(name: str, value: Any) -> Any:
    if value is None:
        raise TokenizerError(f"`{name}` can't be `None`")
    return value


def _parameters(arguments: dict[str, Any], *without: str) -> dict[str, Any]:
    """Return the arguments of a constructor that HF keeps as the tokenizer's parameters."""
    return {name: value for name, value in arguments.items() if name not in ("self", "__class__", *without)}


def _tokenizer_of(model: models.Model, special: list[str | AddedToken], **parts: Component | None) -> Tokenizer:
    """Return the tokenizer of these components; those of ``special`` that the model has are special tokens."""
    vocab = model._member["vocab"]
    known = {vocab[name]: name for name in map(str, special) if name in vocab}
    added = [{"id": id, **AddedToken(name, special=True).to_dict()} for id, name in sorted(known.items())]
    members = {name: None if part is None else part.member for name, part in parts.items()}
    whole = {"version": "1.0", "added_tokens": added, **members, "model": model._member}
    return Tokenizer.from_str(json.dumps(whole))


def _token_and_id(model: models.Model, argument: str, token: str | AddedToken) -> tuple[str, int]:
    id = model._member["vocab"].get(str(token))
    if id is None:
        raise TypeError(f"{argument} not found in the vocabulary")
    return str(token), id


def _one_or_many(unicode: str | None, bert: Component | None, lowercase: bool) -> Component | None:
    """Return the normalizers that are asked for, as one."""
    steps: list[Any] = [normalizers.unicode_normalizer_from_str(unicode)] if unicode else []
    steps += [bert] if bert is not None else []
    steps += [normalizers.Lowercase()] if lowercase else []
    return normalizers.Sequence(steps) if len(steps) > 1 else steps[0] if steps else None


def _metaspace(replacement: str, add_prefix_space: bool) -> dict[str, Component]:
    scheme = "always" if add_prefix_space else "never"
    return {
        "pre_tokenizer": pre_tokenizers.Metaspace(replacement=replacement, prepend_scheme=scheme),
        "decoder": decoders.Metaspace(replacement=replacement, prepend_scheme=scheme),
    }
