"""The keyword parameters of the engines' verbs, declared once for both engines.

A verb takes the fields of its task and of ``RequestOptions`` as keywords. Type checkers and editors read them here;
``with_signature`` shows the same to ``help()`` and ``inspect``, with the defaults of the task.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from prelude.errors import UnknownParameter
from prelude.options import RequestOptions
from prelude.tasks import (
    Activation,
    CacheMode,
    LengthNorm,
    Orders,
    Pooling,
    Truncation,
    unknown_keyword,
)

if TYPE_CHECKING:
    from prelude.admission.template import DecisionTemplate
    from prelude.recipes import GuardRecipe, RerankRecipe

F = TypeVar("F", bound=Callable[..., Any])


class RequestKeywords(TypedDict, total=False):
    """The fields of ``RequestOptions``."""

    priority: int
    deadline: float | None
    request_id: str | None
    tenant: str | None
    trace: bool


class VerbKeywords(RequestKeywords, total=False):
    """What every verb takes."""

    truncation: Truncation
    cache: CacheMode
    salt: str | None


class DecideKeywords(VerbKeywords, total=False):
    length_norm: LengthNorm
    template: DecisionTemplate | None
    mass: bool
    orders: Orders


class ClassifyKeywords(VerbKeywords, total=False):
    activation: Activation
    skip_pad: bool


class EmbedKeywords(VerbKeywords, total=False):
    pooling: Pooling | None
    dimensions: int | None
    normalize: bool | None
    prompt_name: str | None


class PromptLogprobsKeywords(VerbKeywords, total=False):
    top: int
    last: int | None


class RerankKeywords(VerbKeywords, total=False):
    instruction: str | None
    recipe: str | RerankRecipe | None
    activation: Activation


class RewardKeywords(VerbKeywords, total=False):
    activation: Activation
    skip_pad: bool


class GuardKeywords(VerbKeywords, total=False):
    recipe: str | GuardRecipe | None


_OPTIONS = tuple(field.name for field in dataclasses.fields(RequestOptions))


def split_options(keywords: Mapping[str, Any], task: type) -> tuple[dict[str, Any], RequestOptions | None]:
    """The task's own keywords, and the options of the request; ``UnknownParameter`` for a keyword of neither."""
    if not keywords:
        return {}, None
    own, options = dict(keywords), {}
    for name in _OPTIONS:
        if name in own:
            options[name] = own.pop(name)
    fields = task.__dataclass_fields__  # type: ignore[attr-defined]
    for name in own:
        if name not in fields or fields[name].metadata:
            raise UnknownParameter(unknown_keyword(task.__name__, name, [*fields, *_OPTIONS]), field=name)
    return own, RequestOptions(**options) if options else None


def with_signature(task: type) -> Callable[[F], F]:
    """Gives a verb the signature that its ``**keywords`` stand for (the fields of ``task`` that it does not name
    itself, and those of ``RequestOptions``, with their defaults), and their documentation beside its own."""

    def give(verb: F) -> F:
        given = inspect.signature(verb)
        named = [one for one in given.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
        known = {one.name for one in named}
        more = [one for one in keyword_parameters(task) if one.name not in known]
        parts = [inspect.getdoc(verb), f"Keywords, of ``{task.__name__}``:", inspect.getdoc(task)]
        verb.__doc__ = "\n\n".join([*filter(None, parts), "And of ``RequestOptions``:", RequestOptions.__doc__ or ""])
        verb.__signature__ = given.replace(parameters=[*named, *more])  # type: ignore[attr-defined]
        return verb

    return give


def keyword_parameters(task: type) -> Iterator[inspect.Parameter]:
    for owner in (task, RequestOptions):
        for field in dataclasses.fields(owner):
            if field.default is not dataclasses.MISSING and not field.metadata:
                kind = inspect.Parameter.KEYWORD_ONLY
                yield inspect.Parameter(field.name, kind, default=field.default, annotation=field.type)
