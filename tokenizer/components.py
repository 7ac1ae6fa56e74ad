"""The components of a loaded tokenizer, to look at and to call, and the parts of HF's API left out on purpose.

HF's components are objects that can be changed and put into a tokenizer. Here the tables are immutable, so a
component is a view of the file's member with the methods that only read. Normalizers, pre-tokenizers and decoders
can also be made by themselves, to be called: ``pre_tokenizers.ByteLevel().pre_tokenize_str("text")``.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NoReturn

from ._schema import FIELDS, REQUIRED, canonical
from .added_token import AddedToken
from .encoding import Encoding
from .errors import TokenizersMutationError

if TYPE_CHECKING:
    from .tokenizer import Tokenizer


class Regex:
    """A pattern for ``Split`` and ``Replace`` that is a regular expression, not text."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern

    def __repr__(self) -> str:
        return f"Regex({self.pattern!r})"


class Component:
    """A read-only view of one member of the tokenizer file; its class is named for the member's type."""

    _kind = ""
    _member: dict[str, Any]
    _owner: Tokenizer | None  # None: made by itself

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._member = _member_of(type(self), args, kwargs)
        self._owner = None

    @classmethod
    def _view(cls, owner: Tokenizer, member: dict[str, Any]) -> Component:
        made = cls.__new__(cls)
        made._owner, made._member = owner, member
        return made

    @property
    def _tokenizer(self) -> Tokenizer:
        if self._owner is None:
            from .tokenizer import Tokenizer

            model = {"type": "BPE", "vocab": {}, "merges": []}
            whole = {"version": "1.0", "added_tokens": [], "model": model, self._kind: self._member}
            self._owner = Tokenizer.from_str(json.dumps(whole))
        return self._owner

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._member:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return self._member[name]

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_"):
            raise TokenizersMutationError(
                f"{type(self).__name__}.{name} cannot be set: make the component anew, or change the tokenizer.json "
                "and load that"
            )
        object.__setattr__(self, name, value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Component) and (self._kind, self._member) == (other._kind, other._member)

    __hash__ = None  # type: ignore[assignment]

    def _parts(self) -> list[Component]:
        for value in self._member.values():
            if self._member["type"] == "Sequence" and isinstance(value, list):
                return [view(self._tokenizer, self._kind, one) for one in value]
        raise TypeError(f"{type(self).__name__} is not a Sequence")

    def __len__(self) -> int:
        return len(self._parts())

    def __getitem__(self, index: int) -> Component:
        """The parts of a Sequence, each as a component by itself."""
        part = self._parts()[index]
        part._owner = None
        return part

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        shown = ", ".join(f"{k}={v!r}" for k, v in self._member.items() if k != "type")
        return f"{type(self).__name__}({shown})"

    def __getstate__(self) -> bytes:
        return json.dumps(self._member).encode()

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self._kind, self._member)


class Normalizer(Component):
    _kind = "normalizer"

    def normalize_str(self, sequence: str) -> str:
        return self._tokenizer._core.normalize(sequence)


class PreTokenizer(Component):
    _kind = "pre_tokenizer"

    def pre_tokenize_str(self, sequence: str) -> list[tuple[str, tuple[int, int]]]:
        return self._tokenizer._core.pre_tokenize(sequence)


class Decoder(Component):
    _kind = "decoder"

    def decode(self, tokens: list[str]) -> str:
        return self._tokenizer._core.decode_tokens(tokens)


class PostProcessor(Component):
    _kind = "post_processor"

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
    _kind = "model"

    def token_to_id(self, token: str) -> int | None:
        return self._tokenizer._core.get_vocab(False).get(token)

    def id_to_token(self, id: int) -> str | None:
        return self._tokenizer._core.id_to_token(id)


_KINDS: dict[str, type[Component]] = {
    one._kind: one for one in (Normalizer, PreTokenizer, Decoder, PostProcessor, Model)
}
_TYPES: dict[tuple[str, str], Any] = {}


def component_type(kind: str, name: str) -> Any:
    """The class of the components of one type; always the same one."""
    base = _KINDS[kind]
    return _TYPES.setdefault((kind, name), type(name, (base,), {"__module__": base.__module__}))


def view(owner: Tokenizer, kind: str, member: dict[str, Any]) -> Component:
    made: Component = component_type(kind, str(member.get("type", _KINDS[kind].__name__)))._view(owner, member)
    return made


def _restored(kind: str, member: dict[str, Any]) -> Component:
    restored: Component = object.__new__(component_type(kind, member["type"]))
    restored._member, restored._owner = member, None
    return restored


def _member_of(cls: type[Component], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    fields = FIELDS.get(cls._kind, {}).get(cls.__name__) if cls._kind != "post_processor" else None
    if fields is None:
        raise TokenizersMutationError(
            f"{cls.__name__} is not built here: build it with `tokenizers`, save the tokenizer, and load the file"
        )
    names = [name.removeprefix("strip_") if cls.__name__ == "Strip" else name for name, _ in fields]
    given = dict(zip(names, args)) | kwargs
    unknown = set(given) - set(names)
    if unknown or len(args) > len(names):
        raise TypeError(f"{cls.__name__} takes {', '.join(names) or 'no arguments'}, not {args}, {kwargs}")
    member: dict[str, Any] = {"type": cls.__name__}
    for name, (field, default) in zip(names, fields):
        if name not in given and default is REQUIRED:
            raise TypeError(f"{cls.__name__} needs {name}")
        member[field] = _value_of(name, given.get(name, default))
    return member


def _value_of(name: str, value: Any) -> Any:
    """An argument as a file has it."""
    if name == "pattern" and not isinstance(value, dict):
        return {"Regex": value.pattern} if isinstance(value, Regex) else {"String": value}
    if name == "behavior":  # "merged_with_next" in Python, "MergedWithNext" in files
        return "".join(part[:1].upper() + part[1:] for part in str(value).split("_"))
    if isinstance(value, (list, tuple)):
        return [one._member for one in value]
    return value


class LeftOut:
    """A name of HF's that is left out on purpose: using it says so."""

    def __init__(self, name: str, instead: str) -> None:
        self._said = f"{name}: {instead}"

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise TokenizersMutationError(self._said)

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        raise TokenizersMutationError(self._said)


_TRAINING = "training is left out: train with `tokenizers`, save, and load the file here"


def _has(tokenizer: Tokenizer, token: Any, special: bool) -> bool:
    """Whether ``token``, as HF's add_tokens takes it, is an added token already."""
    wanted = AddedToken(token, normalized=not special, special=special) if isinstance(token, str) else token
    return any(wanted == known for known in tokenizer.get_added_tokens_decoder().values())


def _adding(name: str, special: bool) -> Any:
    def add(self: Tokenizer, tokens: list[Any]) -> int:
        missing = [token for token in tokens if not _has(self, token, special)]
        if missing:
            raise TokenizersMutationError(
                f"Tokenizer.{name}: {missing[0]!r} is not added yet, and a loaded vocabulary does not change: add "
                "the tokens with `tokenizers`, save, and load the file; for PreTrainedTokenizerFast pass "
                "tokenizer_object=tokenizers.Tokenizer.from_str(this.to_str()), and call patch_transformers()"
            )
        return 0

    add.__name__ = name
    add.__doc__ = "0, where all tokens are added tokens already; more than that is left out on purpose."
    return add


def attach(cls: type[Tokenizer]) -> None:
    """Give ``cls`` its component properties and the methods that say why they are not there."""
    for name in _KINDS:
        setattr(cls, name, property(_getter(name), _setter(name), doc=f"The file's {name}, read-only."))
    for name in ("train", "train_from_iterator"):
        setattr(cls, name, _refusal(name, _TRAINING))
    for name, special in (("add_tokens", False), ("add_special_tokens", True)):
        setattr(cls, name, _adding(name, special))


def _getter(name: str) -> Any:
    def get(self: Tokenizer) -> Component | None:
        if name == "model":
            member = {k: v for k, v in json.loads(self._core.model_json()).items() if k not in ("vocab", "merges")}
        else:
            member = canonical(name, self._section(name))
        return None if member is None else view(self, name, member)

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
