"""The interface of a directory format whose head reads the options of a question."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from typing import Any, Protocol, TypeVar

from prelude.errors import ModelError, UnsupportedModel, shown
from prelude.models.families import ARCHITECTURES, FAMILIES
from prelude.models.families.base import SpecRequest
from prelude.models.fields import Fields
from prelude.models.files import ModelDirectory
from prelude.models.spec import ModelSpec
from prelude.records import dataclass, fields, replace
from prelude.values.model_settings import OptionSettings

MAX_LENGTH = 1 << 20
"""Tokens of a prompt that a config may name."""
T = TypeVar("T")


class TokenizerOf(Protocol):
    """The used methods of the directory's tokenizer."""

    def token_to_id(self, token: str) -> int | None: ...


@dataclass(frozen=True, slots=True)
class Network:
    spec: ModelSpec
    config: Fields
    """Config of the encoder or decoder below the head."""
    beside: tuple[tuple[str, str], ...] = ()
    """Weight files beside the usual ones, each with the prefix of its tensors' names."""


@dataclass(frozen=True, slots=True)
class OptionModel:
    """One format. Its two functions raise ``ModelError`` that names a key or a file."""

    name: str
    network: Callable[[ModelDirectory], Network]
    settings: Callable[[ModelDirectory, TokenizerOf], OptionSettings]
    tokenizer: str = ""
    """The folder of ``tokenizer.json``, with its slash."""


def token_ids(tokenizer: TokenizerOf, names: Mapping[str, str], where: str) -> dict[str, int]:
    """``names`` by use, as ids; ``ModelError`` for one that the tokenizer does not have."""
    found: dict[str, int] = {}
    for use, name in names.items():
        token_id = tokenizer.token_to_id(name)
        if token_id is None:
            raise ModelError(f"{where}: the tokenizer has no token {shown(name)} for {use}")
        found[use] = token_id
    return found


_SPECIAL = {"cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}


def marker_tokens(
    directory: ModelDirectory, tokenizer: TokenizerOf, where: str, folder: str = ""
) -> tuple[dict[str, int], str]:
    """Return the ids of the special tokens of an encoder by use, and the text of the mask token. ``folder``: of the
    tokenizer's files, with its slash."""
    names = {use: special_name(directory, use, default, folder) for use, default in _SPECIAL.items()}
    return token_ids(tokenizer, names, where), names["mask"]


def special_name(directory: ModelDirectory, use: str, default: str, folder: str = "") -> str:
    """Return the text of a special token in ``tokenizer_config.json``."""
    said = directory.fields(f"{folder}tokenizer_config.json", needed=False).get(f"{use}_token", None)
    if isinstance(said, dict):
        said = said.get("content")
    return said if isinstance(said, str) else default


def renamed(part: T, old: str, new: str) -> T:
    """Return a specification whose names begin with ``new`` instead of ``old``."""

    def change(value: Any) -> Any:
        if isinstance(value, str):
            return new + value.removeprefix(old) if value.startswith(old) else value
        if isinstance(value, tuple):
            return tuple(change(item) for item in value)
        if is_dataclass(value) and not isinstance(value, type):
            return replace(value, **{one.name: change(getattr(value, one.name)) for one in fields(value)})
        return value

    found: T = change(part)
    return found


def body_of(directory: ModelDirectory, *, bidirectional: bool, file: str = "config.json") -> tuple[ModelSpec, Fields]:
    """Return the family's network without its own head; ``UnsupportedModel`` if that sees its text the other way."""
    config = directory.fields(file)
    where, named, kind = config.where, config.get("architectures", None), config.get("model_type", None)
    family = ARCHITECTURES.get(named[0]) if isinstance(named, list) and len(named) == 1 else None
    if family is None and isinstance(kind, str):
        family = FAMILIES.get(kind)
    if family is None:
        raise UnsupportedModel(
            f"{where}: unsupported: architectures {shown(named)}, model_type {shown(kind)}; supported: "
            f"{', '.join(sorted(FAMILIES))}"
        )
    fields = Fields(config.values, where, family.defaults)
    spec = family.build(fields, SpecRequest(family.model_type, "none"))
    if spec.bidirectional is not bidirectional:
        wanted = "an encoder" if bidirectional else "a decoder"
        raise UnsupportedModel(
            f"{where}: unsupported: model_type {shown(family.model_type)}; the head reads {wanted}"
        )
    return spec, fields
