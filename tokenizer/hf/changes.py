"""Noticing that a tokenizer of HF's was changed, at no cost to the calls in between.

An HF tokenizer has no version number, and comparing all of it means to serialise it. So its classes are given
setters and methods that count: while ``watch`` is in force, each setter and method that changes a tokenizer, or a
component of one, first does its own work and then counts.

``version`` has one number for a tokenizer itself and one for all components of the process: a component does not
know which tokenizers hold it. When it differs, the caller compares the serialised form to learn whether its own
tokenizer was changed.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

_TOKENIZER_METHODS = ("add_tokens", "add_special_tokens", "__setstate__")
_TRAINING = ("train", "train_from_iterator")
_TOKENIZER_MEMBERS = ("normalizer", "pre_tokenizer", "post_processor", "decoder", "model")
_COMPONENT_METHODS = ("__setitem__", "__setstate__")
_MODULES = ("models", "normalizers", "pre_tokenizers", "decoders", "processors")
COUNT = "_prelude_version"

_versions = itertools.count(1)
_components = 0
_replaced: list[tuple[type, str, Any]] = []


def version(tokenizer: Any) -> tuple[int, int, bool]:
    """Equal for two moments between which ``tokenizer`` was not changed; a change of another one may make it differ.

    Truncation and padding do not count. ``encode_special_tokens`` is part of it because it is not serialised.
    """
    return vars(tokenizer).get(COUNT, 0), _components, tokenizer.encode_special_tokens


def watch() -> None:
    """Begin to count. ``unwatch`` has to be called before it is called again."""
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


def unwatch() -> None:
    """Put back the methods that ``watch`` replaced."""
    while _replaced:
        owner, name, original = _replaced.pop()
        setattr(owner, name, original)


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
