"""The components of a loaded tokenizer: views of the file's members with the methods that only read; and the parts of
HF's API left out on purpose. Components can also be made by themselves, to be called.

HF runs components written in Python (``custom``), and methods that take its ``NormalizedString`` or
``PreTokenizedString``: these need the package ``tokenizers``.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from ._building import CUSTOM, FIELDS, attribute_names, canonical, file_value, member_of, python_value
from ._core import Encoding
from ._repr import LONG, SHORT, member_text
from .added_token import AddedToken
from .backends.reference import CHAR_BYTES, ReferenceCore, asked
from .errors import TokenizersMutationError
from .trainers import TRAINING

if TYPE_CHECKING:
    from .tokenizer import Tokenizer


class Regex:
    """A pattern for ``Split`` and ``Replace`` that is a regular expression, not text."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern

    def __repr__(self) -> str:
        return f"Regex({self.pattern!r})"


class Component:
    """One member of a tokenizer file; its class is named for the member's type.

    A view of a loaded tokenizer's member cannot be changed. A component made by itself can: its attributes are set,
    and the parts of a Sequence, as in HF.
    """

    _kind = ""
    _member: dict[str, Any]
    _view_of: Tokenizer | None = None  # None: not of a loaded tokenizer as a whole
    _frozen = False  # whether the member is a loaded tokenizer's
    _made: tuple[str, Tokenizer] | None = None  # the member as JSON, and a tokenizer of this component alone
    _theirs_made: tuple[str, Any] | None = None  # the same with HF's component
    _written: Any = None  # HF's component over an object written in Python
    _load: Any  # the tokenizer of a tokenizer.json; the tokenizer's module, which imports this one, sets it

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._member = member_of(self._kind, type(self).__name__, args, kwargs)
        if "precompiled_charsmap" in self._member:
            self._load(self._alone())  # a map that is none is refused here, as by HF

    @property
    def _tokenizer(self) -> Tokenizer:
        if self._view_of is not None:
            return self._view_of
        text = self._alone()
        made = self._made
        if made is None or made[0] != text:
            self._made = made = text, self._load(text)
        return made[1]

    @property
    def _theirs(self) -> Any:
        """HF's component that is equal to this one. Raises ``BackendUnavailable`` without ``tokenizers``."""
        if self._written is not None:
            return self._written
        text = self._alone()
        made = self._theirs_made
        if made is None or made[0] != text:
            core = ReferenceCore(text.encode(), "a method of HF's")
            self._theirs_made = made = text, core.component(self._kind)
        return made[1]

    def _alone(self) -> str:
        """Return a tokenizer.json of this component and nothing else."""
        model = {"type": "BPE", "vocab": {}, "merges": []}
        return json.dumps({"version": "1.0", "added_tokens": [], "model": model, self._kind: self._member})

    def _field(self, name: str) -> str | None:
        """Return the member's name for an attribute of HF's."""
        return attribute_names(self._kind, type(self).__name__).get(name)

    def __getattr__(self, name: str) -> Any:
        field = self._field(name)
        if field is None:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return python_value(field, self._member[field])

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            object.__setattr__(self, name, value)
            return
        self._check_own(f"{type(self).__name__}.{name}")
        field = self._field(name)
        if field is None:
            raise AttributeError(f"{type(self).__name__}.{name} cannot be set")
        self._member[field] = self._checked(field, value)

    def _check_own(self, what: str) -> None:
        if self._frozen:
            raise TokenizersMutationError(
                f"{what} cannot be set: the tokenizer is loaded; change the tokenizer.json and load that"
            )

    def _checked(self, field: str, value: Any) -> Any:
        """Return the value of an attribute as a file has it. Raises ``TypeError`` and ``ValueError``."""
        default = dict(FIELDS[self._kind][type(self).__name__])[field]
        return None if value is None and default is None else file_value(field, value, default)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Component) and (self._kind, self._member) == (other._kind, other._member)

    __hash__ = None  # type: ignore[assignment]

    @property
    def member(self) -> dict[str, Any]:
        """A copy of the tokenizer file's member, its defaults filled in. Not in HF."""
        copied: dict[str, Any] = json.loads(json.dumps(self._member))
        return copied

    def _parts(self) -> list[dict[str, Any]]:
        for value in self._member.values():
            if self._member["type"] == "Sequence" and isinstance(value, list):
                return value
        raise TypeError(f"{type(self).__name__} is not a Sequence")

    def __len__(self) -> int:
        return len(self._parts())

    def __getitem__(self, index: int) -> Component:
        """Return a part of a Sequence, as a component by itself."""
        return component(self._kind, self._parts()[index], self._frozen)

    def __setitem__(self, index: int, part: Component) -> None:
        self._check_own(f"parts of {type(self).__name__}")
        if not isinstance(part, Component) or part._kind != self._kind:
            raise TypeError(f"expected a {_KINDS[self._kind].__name__}, got {type(part).__name__}")
        self._parts()[index] = part._member

    def __bool__(self) -> bool:
        return self._member != {"type": "Sequence", "normalizers": []}

    def _whole(self) -> dict[str, Any]:
        return self._member

    def __repr__(self) -> str:
        return member_text(self._whole(), LONG)

    def __str__(self) -> str:
        return member_text(self._whole(), SHORT)

    def __getstate__(self) -> bytes:
        if self._written is not None:
            raise TokenizersMutationError("a component written in Python cannot be pickled or saved")
        return json.dumps(self._whole()).encode()

    def __reduce__(self) -> tuple[Any, ...]:
        return component, (self._kind, json.loads(self.__getstate__()), False)


AnyComponent = TypeVar("AnyComponent", bound=Component)


def _custom(base: type[AnyComponent], written: Any) -> AnyComponent:
    """HF's component over the object ``written``, as one of ours. It cannot be part of a Sequence or be pickled."""
    module = getattr(ReferenceCore.package("components written in Python"), f"{base._kind}s")
    made = object.__new__(base)
    made._member = {"type": CUSTOM}
    made._written = getattr(module, base.__name__).custom(written)
    return made


class Normalizer(Component):
    _kind = "normalizer"

    @staticmethod
    def custom(normalizer: Any) -> Normalizer:
        """Return a normalizer written in Python: an object with ``normalize(normalized)``."""
        return _custom(Normalizer, normalizer)

    def normalize(self, normalized: Any) -> None:
        """Normalize HF's ``NormalizedString`` in place."""
        asked(self._theirs.normalize, normalized)

    def normalize_str(self, sequence: str) -> str:
        if self._written is not None:
            return str(self._written.normalize_str(sequence))
        return self._tokenizer._core.normalize(sequence)


class PreTokenizer(Component):
    _kind = "pre_tokenizer"

    @staticmethod
    def custom(pretok: Any) -> PreTokenizer:
        """Return a pre-tokenizer written in Python: an object with ``pre_tokenize(pretok)``."""
        return _custom(PreTokenizer, pretok)

    def pre_tokenize(self, pretok: Any) -> None:
        """Split HF's ``PreTokenizedString`` in place."""
        asked(self._theirs.pre_tokenize, pretok)

    def pre_tokenize_str(self, sequence: str) -> list[tuple[str, tuple[int, int]]]:
        if self._written is not None:
            return list(self._written.pre_tokenize_str(sequence))
        return self._tokenizer._core.pre_tokenize(sequence)


class Decoder(Component):
    _kind = "decoder"

    @staticmethod
    def custom(decoder: Any) -> Decoder:
        """Return a decoder written in Python: an object with ``decode_chain(tokens)``."""
        return _custom(Decoder, decoder)

    def decode(self, tokens: list[str]) -> str:
        if self._written is not None:
            return str(self._written.decode(tokens))
        return self._tokenizer._core.decode_tokens(tokens)


class PostProcessor(Component):
    _kind = "post_processor"

    def num_special_tokens_to_add(self, is_pair: bool) -> int:
        return self._tokenizer.num_special_tokens_to_add(is_pair)

    def process(self, encoding: Encoding, pair: Encoding | None = None, add_special_tokens: bool = True) -> Encoding:
        from .encode.post_processing import run

        return run(
            self._tokenizer._processor,
            encoding.__copy__(),
            None if pair is None else pair.__copy__(),
            add_special_tokens,
        )


_KINDS: dict[str, type[Component]] = {one._kind: one for one in (Normalizer, PreTokenizer, Decoder, PostProcessor)}
_TYPES: dict[tuple[str, str], Any] = {}


def register(cls: type[AnyComponent]) -> type[AnyComponent]:
    """Decorator: the class of the components of its name, or of its kind."""
    _TYPES[cls._kind, cls.__name__] = cls
    _KINDS.setdefault(cls._kind, cls)
    return cls


def component_type(kind: str, name: str) -> Any:
    """Return the class of the components of one type; always the same one."""
    base = _KINDS[kind]
    named: dict[str, Any] = {"__module__": base.__module__}
    if (kind, name) == ("pre_tokenizer", "ByteLevel"):
        named["alphabet"] = staticmethod(lambda: list(CHAR_BYTES))
    return _TYPES.setdefault((kind, name), type(name, (base,), named))


def component(kind: str, member: dict[str, Any], frozen: bool) -> Component:
    made: Component = object.__new__(component_type(kind, str(member.get("type", _KINDS[kind].__name__))))
    made._member, made._frozen = member, frozen
    return made


class _OfFile:
    """A component of the loaded file, read-only."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, tokenizer: Any, owner: type) -> Any:
        if tokenizer is None:
            return self
        name = self._name
        member = tokenizer._model_members() if name == "model" else canonical(name, tokenizer._section(name))
        if member is None:
            return None
        made = component(name, member, True)
        made._view_of = tokenizer
        return made

    def __set__(self, tokenizer: Any, value: object) -> NoReturn:
        raise TokenizersMutationError(
            f"{self._name} cannot be set after loading: set it with `tokenizers`, or edit the tokenizer.json "
            "(Tokenizer.to_str() gives it), and load that"
        )


class ComponentMethods:
    """The part of ``Tokenizer`` that gives its components, and the methods that say why they are left out."""

    _model_settings: dict[str, Any] | None
    normalizer, pre_tokenizer, post_processor, decoder, model = (_OfFile() for _ in range(5))

    def train(self, *args: object, **kwargs: object) -> NoReturn:
        raise TokenizersMutationError(f"Tokenizer.train: {TRAINING}")

    def train_from_iterator(self, *args: object, **kwargs: object) -> NoReturn:
        raise TokenizersMutationError(f"Tokenizer.train_from_iterator: {TRAINING}")

    def add_tokens(self, tokens: list[Any]) -> int:
        """0, where all tokens are added tokens already; more than that is left out on purpose."""
        return self._added("add_tokens", [AddedToken(t) if isinstance(t, str) else t for t in tokens])

    def add_special_tokens(self, tokens: list[Any]) -> int:
        """0, where all tokens are added tokens already; more than that is left out on purpose."""
        wanted = [AddedToken(t) if isinstance(t, str) else t for t in tokens]
        for token in wanted:
            token.special = True  # as in HF, on the caller's object
        return self._added("add_special_tokens", wanted)

    def _added(self: Any, name: str, tokens: list[Any]) -> int:
        known = list(self.get_added_tokens_decoder().values())
        missing = [token for token in tokens if token not in known]
        if missing:
            raise TokenizersMutationError(
                f"Tokenizer.{name}: {str(missing[0])!r} is not added yet, and a loaded vocabulary does not change: "
                "add the tokens with `tokenizers`, save, and load the file; for PreTrainedTokenizerFast pass "
                "tokenizer_object=tokenizers.Tokenizer.from_str(this.to_str()), and call fast_tokenizer() on it"
            )
        return 0

    def _model_members(self: Any) -> dict[str, Any]:
        """The file's ``model`` without its vocabulary, kept. Another thread may make the same meanwhile."""
        if self._model_settings is None:
            self._model_settings = {k: v for k, v in self._core.model().items() if k not in ("vocab", "merges")}
        return dict(self._model_settings)
