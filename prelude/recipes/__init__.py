"""Recipes: the text form that a reranker or a guard was trained on, as data.

A recipe is a JSON file. The ones that ship lie beside this module; a model directory may hold its own as
``recipe.json``. ``recipe=`` of a task takes a name of ``names()``, or a recipe object.

    rerank   parts of the prompt with {instruction}, {query} and {document}; the tokens whose logits are the score
    guard    the text behind the chat template, and the labels that may follow it, field by field
    decide   a DecisionTemplate for a plain chat model, by ``prelude.admission.template.decision_template(name)``:
             labels as text, letters, yes or no; each with a closed block of thoughts before the answer, or without
             (…-instruct)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

from prelude.errors import RecipeError, shown
from prelude.records import MISSING, dataclass, fields
from prelude.values.strict_json import parse

MAX_FILE_BYTES = 1 << 20
MAX_TEXT = 1 << 16
MAX_PARTS = 16
MAX_LABELS = 256
_PLACEHOLDER = re.compile(r"\{(instruction|query|document)\}")


@dataclass(frozen=True, slots=True)
class RerankRecipe:
    """How a decoder scores one document for one query.

    ``parts`` are tokenised apart, without the tokenizer's own special tokens, and joined; control tokens are
    recognised in their own text only. Empty ``parts`` stand for the model's chat template over messages of the roles
    ``query`` and ``document``, and ``system`` for an instruction, as sentence-transformers writes them.

    The score is the logit of ``yes`` minus that of ``no`` at the last token (``no`` None: the logit of ``yes``), or
    the classification head's one logit if the checkpoint has such a head. ``yes`` and ``no`` are texts of exactly
    one token, or token ids. ``activation``: "sigmoid" or "none". ``max_length``: the longest prompt, in tokens.
    """

    name: str
    yes: str | int
    no: str | int | None = None
    parts: tuple[str, ...] = ()
    instruction: str | None = None
    activation: Literal["none", "sigmoid"] = "sigmoid"
    max_length: int | None = None
    generation_prompt: bool = False

    def __post_init__(self) -> None:
        _text(self.name, "name")
        parts = _texts(self.parts, "parts", MAX_PARTS)
        object.__setattr__(self, "parts", parts)
        found = [name for part in parts for name in split_part(part)[1::2]]
        if parts and (sorted(set(found)) != sorted(found) or not {"query", "document"} <= set(found)):
            raise RecipeError(
                f"{found} are its placeholders; {{query}} and {{document}} stand in it once each, {{instruction}} at "
                "most once",
                field="recipe.parts",
            )
        if self.instruction is not None:
            _text(self.instruction, "instruction")
        for name in ("yes", "no"):
            token = getattr(self, name)
            is_id = type(token) is int and 0 <= token < 1 << 31
            if not is_id and not (token is None and name == "no"):
                _text(token, name)
        if self.activation not in ("none", "sigmoid"):
            raise RecipeError(f"{shown(self.activation)} is not 'none' or 'sigmoid'", field="recipe.activation")
        if self.max_length is not None and (type(self.max_length) is not int or self.max_length < 1):
            raise RecipeError(f"{shown(self.max_length)} is not a number of tokens", field="recipe.max_length")
        _flag(self.generation_prompt, "generation_prompt")


@dataclass(frozen=True, slots=True)
class GuardField:
    """One answer that a guard model writes: ``before``, and then one of ``labels``.

    ``prompt_labels`` stand in the place of ``labels`` if the last message is not the assistant's.
    ``response_only``: the field is written about an assistant's message alone. ``unless`` (field, label, own label):
    if that field has that label, this one has its own label without asking. ``joiner``: the text between two
    labels of a field that may have several; "" if there is one. ``none``: the label that has no other beside it.
    """

    name: str
    before: str
    labels: tuple[str, ...]
    prompt_labels: tuple[str, ...] = ()
    response_only: bool = False
    unless: tuple[str, str, str] | None = None
    joiner: str = ""
    none: str = ""

    def __post_init__(self) -> None:
        _text(self.name, "fields.name")
        _text(self.before, f"{self.name}.before")
        for name, least in (("labels", 2), ("prompt_labels", 0)):
            object.__setattr__(self, name, _texts(getattr(self, name), f"{self.name}.{name}", MAX_LABELS, least))
        _flag(self.response_only, f"{self.name}.response_only")
        for name in ("joiner", "none"):
            if getattr(self, name) != "":
                _text(getattr(self, name), f"{self.name}.{name}")
        if self.none and self.none not in self.labels:
            raise RecipeError(f"{shown(self.none)} is not one of its labels", field=f"recipe.{self.name}.none")
        if self.unless is not None:
            object.__setattr__(self, "unless", _texts(self.unless, f"{self.name}.unless", 3, 3))

    def labels_for(self, response: bool) -> tuple[str, ...]:
        return self.labels if response or not self.prompt_labels else self.prompt_labels


@dataclass(frozen=True, slots=True)
class GuardRecipe:
    """``fields`` in the order in which the model writes them; ``safe`` are the labels of the first one that pass.
    ``marks``: texts that all stand in the chat template of the models this recipe is for. ``separator`` stands
    between a field's ``before`` and its label. ``end``: the model's text behind the last field; needed if
    that field has a ``joiner``."""

    name: str
    fields: tuple[GuardField, ...]
    safe: tuple[str, ...]
    marks: tuple[str, ...] = ()
    separator: str = " "
    end: str = ""

    def __post_init__(self) -> None:
        _text(self.name, "name")
        if not isinstance(self.fields, list | tuple) or not 1 <= len(self.fields) <= MAX_PARTS:
            raise RecipeError(f"{shown(self.fields)} is not a list of fields", field="recipe.fields")
        made = tuple(one if isinstance(one, GuardField) else _make(GuardField, one, "fields") for one in self.fields)
        object.__setattr__(self, "fields", made)
        for name in ("safe", "marks"):
            object.__setattr__(self, name, _texts(getattr(self, name), name, MAX_LABELS))
        if not self.safe or not set(self.safe) <= set(made[0].labels):
            raise RecipeError(f"{shown(self.safe)} are not labels of {made[0].name!r}", field="recipe.safe")
        for name in ("separator", "end"):
            if not isinstance(getattr(self, name), str):
                raise RecipeError(f"{shown(getattr(self, name))} is not text", field=f"recipe.{name}")
        for response in (False, True):
            if (last := self.asked(response)[-1:]) and last[0].joiner and not self.end:
                raise RecipeError(
                    f"{last[0].name!r} may have several labels and is the last field; give the text that ends it",
                    field="recipe.end",
                )

    def after(self, field: GuardField, response: bool) -> str:
        """Return the text after the field's last label."""
        asked = self.asked(response)
        at = asked.index(field) + 1
        return asked[at].before if at < len(asked) else self.end

    def asked(self, response: bool) -> tuple[GuardField, ...]:
        """Return the fields that are written about a prompt, or about a response."""
        return tuple(field for field in self.fields if response or not field.response_only)


Recipe: TypeAlias = RerankRecipe | GuardRecipe
R = TypeVar("R", RerankRecipe, GuardRecipe)
_KINDS: Mapping[str, type[Any]] = {"rerank": RerankRecipe, "guard": GuardRecipe}


@dataclass(frozen=True, slots=True)
class ModelRecipes:
    """The recipes in a model directory's files. ``looked``: why there is no recipe for a verb, in words."""

    rerank: RerankRecipe | None = None
    guard: GuardRecipe | None = None
    looked: tuple[str, ...] = ()

    def chosen(self, given: Any, kind: type[R], does: str, why: str) -> R:
        """Return the recipe that is ``given`` or named, else the directory's own. ``RecipeError`` if there is none.
        ``does``: "ranks" or "guards"; ``why``: the reason for which no recipe is guessed."""
        found = (self.rerank if kind is RerankRecipe else self.guard) if given is None else recipe_of(given, kind)
        if isinstance(found, kind):
            return found
        looked = f" (looked for: {'; '.join(self.looked)})" if self.looked else ""
        raise RecipeError(
            f"the model directory does not say how it {does}{looked}, and {why}; name it: "
            f"recipe={' or '.join(map(repr, names(kind)))}, or a {kind.__name__} of your own",
            field="recipe",
        )


def read_recipe(data: bytes | str, where: str) -> Recipe:
    """Make a ``RecipeError`` that names ``where`` for a file that is not a recipe."""
    found = parse(data, where, RecipeError)
    verb = found.get("verb") if isinstance(found, dict) else None
    if not isinstance(verb, str) or verb not in _KINDS:
        raise RecipeError(f"{where}: an object with verb {' or '.join(map(repr, _KINDS))} is expected", field=None)
    try:
        recipe: Recipe = _make(_KINDS[verb], {key: found[key] for key in found if key != "verb"}, "recipe")
    except RecipeError as error:
        raise RecipeError(f"{where}: {error}", field=None) from error
    return recipe


@cache
def shipped() -> Mapping[str, Recipe]:
    """Return the recipes of this package by name."""
    found = {}
    for file in sorted(Path(__file__).parent.glob("*.json")):
        recipe = read_recipe(file.read_bytes(), file.name)
        found[recipe.name] = recipe
    return found


def names(kind: type[Any] = object) -> list[str]:
    """Return the names that ``recipe=`` takes, of one kind or of all."""
    return [name for name, recipe in shipped().items() if isinstance(recipe, kind)]


def recipe_of(given: Any, kind: type[Any]) -> Any:
    """Return a recipe by its name, or as it is; ``RecipeError`` for anything else."""
    if isinstance(given, kind):
        return given
    known = names(kind)
    found = shipped().get(given) if isinstance(given, str) else None
    if not isinstance(found, kind):
        raise RecipeError(f"{shown(given)} is not a recipe for this verb; there are {known}", field="recipe")
    return found


@lru_cache
def split_part(text: str) -> tuple[str, ...]:
    """Return literals and placeholder names in turn, literals first and last."""
    return tuple(_PLACEHOLDER.split(text))


def _make(kind: type[Any], values: Any, where: str) -> Any:
    if not isinstance(values, dict):
        raise RecipeError(f"{shown(values)} is not an object", field=where)
    known = {field.name: field.default is MISSING for field in fields(kind)}
    if unknown := sorted(set(values) - set(known)):
        raise RecipeError(f"unknown field {shown(unknown[0])}; the fields are {', '.join(known)}", field=where)
    if missing := [name for name, required in known.items() if required and name not in values]:
        raise RecipeError(f"{missing[0]} is missing", field=where)
    return kind(**values)


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_TEXT:
        raise RecipeError(f"{shown(value)} is not a text of 1 to {MAX_TEXT} characters", field=f"recipe.{name}")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise RecipeError(f"{shown(value)} has a lone surrogate, which is no character", field=f"recipe.{name}")
    return value


def _texts(values: Any, name: str, most: int, least: int = 0) -> tuple[str, ...]:
    if not isinstance(values, list | tuple) or not least <= len(values) <= most:
        count = most if least == most else f"{least} to {most}"
        raise RecipeError(f"{shown(values)} is not a list of {count} texts", field=f"recipe.{name}")
    return tuple(_text(text, f"{name}[{at}]") for at, text in enumerate(values))


def _flag(value: Any, name: str) -> None:
    if not isinstance(value, bool):
        raise RecipeError(f"{shown(value)} is not true or false", field=f"recipe.{name}")
