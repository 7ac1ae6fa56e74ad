"""The components of a loaded tokenizer, to look at and to call, and the parts of HF's API left out on purpose.

HF's components are objects that can be changed and put into a tokenizer. Here the tables are immutable, so
a component is a view of the file's member with the methods that only read.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NoReturn

from .encoding import Encoding
from .errors import TokenizersMutationError

if TYPE_CHECKING:
    from .tokenizer import Tokenizer


class Component:
    """A read-only view of one member of the tokenizer file; its class is named for the member's type."""

    def __init__(self, tokenizer: Tokenizer, member: dict[str, Any]) -> None:
        self._tokenizer = tokenizer
        self._member = member

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._member:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return self._member[name]

    def __repr__(self) -> str:
        shown = ", ".join(f"{k}={v!r}" for k, v in self._member.items() if k != "type")
        return f"{type(self).__name__}({shown})"

    def __getstate__(self) -> bytes:
        return json.dumps(self._member).encode()


class Normalizer(Component):
    def normalize_str(self, sequence: str) -> str:
        return self._tokenizer._core.normalize(sequence)


class PreTokenizer(Component):
    def pre_tokenize_str(self, sequence: str) -> list[tuple[str, tuple[int, int]]]:
        return self._tokenizer._core.pre_tokenize(sequence)


class Decoder(Component):
    def decode(self, tokens: list[str]) -> str:
        return self._tokenizer._core.decode_tokens(tokens)


class PostProcessor(Component):
    def num_special_tokens_to_add(self, is_pair: bool) -> int:
        return self._tokenizer.num_special_tokens_to_add(is_pair)

    def process(self, encoding: Encoding, pair: Encoding | None = None, add_special_tokens: bool = True) -> Encoding:
        from .processors import run

        return run(
            self._tokenizer._processor,
            encoding.__copy__(),
            None if pair is None else pair.__copy__(),
            add_special_tokens,
        )


class Model(Component):
    def token_to_id(self, token: str) -> int | None:
        return self._tokenizer._core.get_vocab(False).get(token)

    def id_to_token(self, id: int) -> str | None:
        return self._tokenizer._core.id_to_token(id)


_KINDS: dict[str, type[Component]] = {
    "normalizer": Normalizer,
    "pre_tokenizer": PreTokenizer,
    "decoder": Decoder,
    "post_processor": PostProcessor,
    "model": Model,
}

_LEFT_OUT = {
    "train": "training is left out: train with `tokenizers`, save, and load the file here",
    "train_from_iterator": "training is left out: train with `tokenizers`, save, and load the file here",
    "add_tokens": "a loaded vocabulary does not change: add the tokens with `tokenizers`, save, and load the file",
    "add_special_tokens": (
        "a loaded vocabulary does not change: add the tokens with `tokenizers`, save, and load the file"
    ),
}


def attach(cls: type[Tokenizer]) -> None:
    """Give ``cls`` its component properties and the methods that say why they are not there."""
    for name in _KINDS:
        setattr(cls, name, property(_getter(name), _setter(name), doc=f"The file's {name}, read-only."))
    for name, why in _LEFT_OUT.items():
        setattr(cls, name, _refusal(name, why))


def _getter(name: str) -> Any:
    def get(self: Tokenizer) -> Component | None:
        if name == "model":
            member = {k: v for k, v in json.loads(self._core.model_json()).items() if k not in ("vocab", "merges")}
        else:
            member = self._section(name)
        if member is None:
            return None
        base = _KINDS[name]
        named: type[Component] = type(str(member.get("type", base.__name__)), (base,), {})
        return named(self, member)

    return get


def _setter(name: str) -> Any:
    def refuse(self: Tokenizer, value: object) -> NoReturn:
        raise TokenizersMutationError(
            f"{name} cannot be set after loading: set it with `tokenizers`, or edit the tokenizer.json "
            "(Tokenizer.to_str() gives it), and load that"
        )

    return refuse


def _refusal(name: str, why: str) -> Any:
    def refuse(self: Tokenizer, *args: object, **kwargs: object) -> NoReturn:
        raise TokenizersMutationError(f"Tokenizer.{name}: {why}")

    refuse.__name__ = name
    refuse.__doc__ = f"Left out on purpose: {why}."
    return refuse
