"""The tokenizer inside a tokenizer of transformers: ours for the work, HF's for the rest.

``Backend`` stands in the place of HF's object. It looks up and decodes by ours, and makes HF's when it is first asked
for anything else: a component, say, or a method that adds tokens. From then on HF's is authoritative, as it is if
transformers made it: any change of it is noticed at the next call, and loaded anew. If HF's cannot be serialised
(components written in Python), transformers goes on with it as before.

An HF tokenizer has no version number, and comparing all of it means to serialise it. So its classes are given setters
and methods that count: each that changes a tokenizer, or a component of one, does its own work and then counts. If
the counts differ, the serialised forms are compared. A component does not know which tokenizers hold it, so all
components of the process have one count.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import itertools
import logging
import threading
from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, finalize

from ..tokenizer import Tokenizer

_log = logging.getLogger("prelude.tokenizer")
_DECODES = ("decode", "decode_batch")
_LOOKS_UP = frozenset((*_DECODES, "token_to_id", "id_to_token", "get_vocab", "get_vocab_size"))
_LOOKS_UP |= {"num_special_tokens_to_add", "to_str", "save"}
_SETTINGS = ("truncation", "enable_truncation", "no_truncation", "padding", "enable_padding", "no_padding")
_OF_A_CALL = frozenset((*_DECODES, *_SETTINGS, "encode", "encode_batch", "encode_batch_fast"))
_TOKENIZER_METHODS = ("add_tokens", "add_special_tokens", "__setstate__")
_TRAINING = ("train", "train_from_iterator")
_TOKENIZER_MEMBERS = ("normalizer", "pre_tokenizer", "post_processor", "decoder", "model")
_COMPONENT_METHODS = ("__setitem__", "__setstate__")
_MODULES = ("models", "normalizers", "pre_tokenizers", "decoders", "processors")
COUNT = "_prelude_version"

_versions = itertools.count(1)
_components = 0
_replaced: list[tuple[type, str, Any]] = []


class _Loaded(NamedTuple):
    """Ours for an HF tokenizer as it was at ``version``; None if it cannot be had."""

    theirs: Any
    version: tuple[int, int]
    digest: bytes  # of its serialised form; empty: not known
    ours: Tokenizer | None


lock = threading.RLock()
_loaded: WeakKeyDictionary[Any, _Loaded] = WeakKeyDictionary()
_watchers = 0


def begin_watching() -> None:
    global _watchers
    with lock:
        if _watchers == 0:
            _watch()
        _watchers += 1


def end_watching() -> None:
    global _watchers
    with lock:
        _watchers -= 1
        if _watchers == 0:
            while _replaced:
                owner, name, original = _replaced.pop()
                setattr(owner, name, original)
            _loaded.clear()


class Backend:
    """The contents of one tokenizer of transformers: our ``Tokenizer``, or HF's, or both."""

    __slots__ = ("__weakref__", "_ours", "_theirs")

    def __init__(self, ours: Tokenizer | None, theirs: Any = None) -> None:
        object.__setattr__(self, "_ours", ours)
        object.__setattr__(self, "_theirs", None)
        if theirs is not None:
            self._keep(theirs, _Loaded(theirs, version(theirs), b"", ours) if ours is not None else None)

    def _keep(self, theirs: Any, loaded: _Loaded | None) -> None:
        begin_watching()
        finalize(self, end_watching)
        if loaded is not None:
            _loaded[self] = loaded
        object.__setattr__(self, "_theirs", theirs)

    def ours(self) -> Tokenizer | None:
        return self._ours if self._theirs is None else ours_for(self, self._theirs)

    def theirs(self) -> Any:
        """HF's. It is authoritative once it is made."""
        with lock:
            if self._theirs is None:
                import tokenizers

                made = tokenizers.Tokenizer.from_str(self._ours.to_str())
                made.encode_special_tokens = self._ours.encode_special_tokens
                self._keep(made, _Loaded(made, version(made), b"", self._ours))
        return self._theirs

    def get_added_tokens_decoder(self) -> dict[int, Any]:
        if self._theirs is not None:
            return dict(self._theirs.get_added_tokens_decoder())
        from tokenizers import AddedToken

        return {id: AddedToken(**token.to_dict()) for id, token in self._ours.get_added_tokens_decoder().items()}

    def __getattr__(self, name: str) -> Any:
        if name in _LOOKS_UP and self._theirs is None:
            return getattr(self._ours, name)
        return getattr(self.theirs(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.theirs(), name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return Backend, (self._ours, None) if self._theirs is None else (None, self._theirs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Backend:
        return Backend(self._ours) if self._theirs is None else Backend(None, copy.deepcopy(self._theirs, memo))

    def __repr__(self) -> str:
        return repr(self._ours if self._theirs is None else self._theirs)


class Call:
    """The tokenizer that one call sees: ours for the work, under settings of its own; HF's, or ``Backend``, for the
    rest."""

    __slots__ = ("_ours", "_theirs")

    def __init__(self, theirs: Any, ours: Tokenizer) -> None:
        made = ours.__copy__()
        made.no_truncation()
        made.no_padding()
        object.__setattr__(self, "_theirs", theirs)
        object.__setattr__(self, "_ours", made)

    def __getattr__(self, name: str) -> Any:
        theirs = self._theirs
        if name == "encode_special_tokens" or (
            name in _OF_A_CALL and (isinstance(theirs, Backend) or name not in getattr(theirs, "__dict__", ()))
        ):
            return getattr(self._ours, name)
        return getattr(theirs, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._ours if name == "encode_special_tokens" else self._theirs, name, value)


def ours_of(owner: Any, inside: Any) -> Tokenizer | None:
    """Our tokenizer for the contents of ``owner`` now; None when it cannot be had."""
    if isinstance(inside, Backend):
        return inside.ours()
    return inside if isinstance(inside, Tokenizer) else ours_for(owner, inside)  # given as ``tokenizer_object``


def ours_for(owner: Any, theirs: Any) -> Tokenizer | None:
    """Our tokenizer for HF's as it is now; None when it cannot be had."""
    now, found = version(theirs), _loaded.get(owner)
    if found is not None and found.theirs is theirs and found.version == now:
        return found.ours
    ours: Tokenizer | None = None
    digest = b""
    try:
        if replaced := vars(theirs).keys() - {COUNT}:  # as CLIP's tokenizer sets ``decode``
            raise ValueError(f"its object has a method of its own: {', '.join(replaced)}")
        text = theirs.to_str()
        digest = hashlib.blake2b(text.encode()).digest()
        same = found is not None and found.theirs is theirs and found.digest == digest
        ours = found.ours if found is not None and same else read_back(text, theirs)
    except Exception as error:
        _log.info("transformers keeps its own tokenizer for %s: %s", type(owner).__name__, error)
    with lock:
        _loaded[owner] = _Loaded(theirs, now, digest, ours)
    return ours


def read_back(text: str, theirs: Any) -> Tokenizer:
    """``theirs`` as its serialised form has it; ValueError if that is another tokenizer than ``theirs`` is.

    Loading a file gives ids to the added tokens that the model does not have, and normalizes those that are to be
    found in normalized text. A live tokenizer did both when the tokens were added: the model or the normalizer may
    have been changed since.
    """
    ours = Tokenizer.from_str(text)
    added = theirs.get_added_tokens_decoder()
    mine = ours.get_added_tokens_decoder()
    if {i: str(t) for i, t in mine.items()} != {i: str(t) for i, t in added.items()}:
        raise ValueError("its added tokens have other ids when it is saved and loaded")
    if theirs.normalizer is not None:
        for token in (str(t) for t in added.values() if t.normalized):
            if ours.encode(token).ids != theirs.encode(token).ids:
                raise ValueError(f"its added token {token!r} is found in other text when it is saved and loaded")
        rows = [[id] for id in added]
        if ours.decode_batch(rows, False) != theirs.decode_batch(rows, False):
            raise ValueError("an added token is decoded as another text when it is saved and loaded")
    return ours


# ---- noticing changes


def version(tokenizer: Any) -> tuple[int, int]:
    """Equal for two moments between which ``tokenizer`` was not changed; a change of another one may make it differ.

    Truncation, padding and ``encode_special_tokens`` do not count: transformers sets them in each call.
    """
    return vars(tokenizer).get(COUNT, 0), _components


def _watch() -> None:
    import tokenizers

    whole = tokenizers.Tokenizer
    for name in _TOKENIZER_METHODS:
        _replace(whole, name, _counting(vars(whole)[name], _count_tokenizer))
    for name in _TRAINING:
        _replace(whole, name, _counting(vars(whole)[name], _count_training))
    for name in _TOKENIZER_MEMBERS:
        _replace(whole, name, _counting_member(vars(whole)[name], _count_tokenizer))
    for module in _MODULES:
        for component in vars(getattr(tokenizers, module)).values():
            if isinstance(component, type):
                _watch_component(component)


def _watch_component(component: type) -> None:
    for name, member in list(vars(component).items()):
        if name in _COMPONENT_METHODS:
            _replace(component, name, _counting(member, _count_component))
        elif type(member).__name__ == "getset_descriptor" and name != "__dict__":
            _replace(component, name, _counting_member(member, _count_component))


def _replace(owner: type, name: str, by: Any) -> None:
    _replaced.append((owner, name, vars(owner)[name]))
    setattr(owner, name, by)


def _counting(method: Callable[..., Any], count: Callable[[Any], None]) -> Callable[..., Any]:
    @functools.wraps(method)
    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        finally:  # one that fails may have made a change before
            count(self)

    return counted


def _counting_member(member: Any, count: Callable[[Any], None]) -> property:
    def put(self: Any, value: Any) -> None:
        member.__set__(self, value)
        count(self)

    return property(member.__get__, put, doc=member.__doc__)


def _count_tokenizer(tokenizer: Any) -> None:
    vars(tokenizer)[COUNT] = next(_versions)


def _count_component(component: Any) -> None:
    global _components
    _components = next(_versions)


def _count_training(tokenizer: Any) -> None:
    """Training changes the model in place, and other tokenizers may hold the same model."""
    _count_tokenizer(tokenizer)
    _count_component(tokenizer)
