"""The interface of a family of models: names, and a function from its config to the network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

from prelude.errors import UnsupportedModel, shown
from prelude.models.fields import Fields
from prelude.models.spec import ModelSpec
from prelude.records import dataclass

T = TypeVar("T")
Head = Literal["lm", "classifier", "tokens", "steps", "masked", "none"]
"""``tokens``: a classifier of every token; ``steps``: one of the ends of steps, with a hidden projection."""

MAX_LAYERS = 1024
MAX_WIDTH = 1 << 20
MAX_HEADS = 4096
MAX_VOCABULARY = 1 << 24
FULL, SLIDING = "full_attention", "sliding_attention"
CAUSAL: dict[str, tuple[Any, ...]] = {"is_causal": (None, True), "use_bidirectional_attention": (None, False)}
"""Keys of decoders, with the values that change nothing."""


@dataclass(frozen=True, slots=True)
class SpecRequest:
    """Which of a family's networks a config asks for. ``labels``: rows of the classifier, 0 without one. ``nested``:
    the network is a part of a larger one, and its config lies inside that one's."""

    model_type: str
    head: Head
    labels: int = 0
    nested: bool = False


@dataclass(frozen=True, slots=True)
class Family:
    """One ``model_type``. ``build`` checks the config and returns the network. It raises ``ModelError`` that names a
    key, or ``UnsupportedModel`` if the config asks for operations that do not exist here."""

    model_type: str
    architectures: Mapping[str, Head]
    """Class names in ``architectures``, and the head of each. The first one is meant if a config names none."""
    build: Callable[[Fields, SpecRequest], ModelSpec]
    defaults: Mapping[str, Any]
    """Keys that files of this family are known to leave out, with the value that is then meant."""
    nested: str | None = None
    """The key under which a config of this family has the text model's. Other parts of the model are not read."""


def classes(begins: str, *, encoder: bool = False) -> dict[str, Head]:
    """Return transformers' classes of a decoder, or an encoder, whose names begin with ``begins``."""
    own: dict[str, Head] = {f"{begins}ForCausalLM": "lm", f"{begins}Model": "none"}
    if encoder:
        own = {f"{begins}Model": "none", f"{begins}ForMaskedLM": "masked"}
    return {**own, f"{begins}ForSequenceClassification": "classifier", f"{begins}ForTokenClassification": "tokens"}


def layer_kinds(fields: Fields, layers: int, known: tuple[str, ...] = (FULL, SLIDING)) -> list[str] | None:
    """``layer_types``, each of them one of ``known``; None if the config has none."""
    kinds = fields.get("layer_types", None)
    if kinds is None:
        return None
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise fields.wrong("layer_types", f"a list of {layers} names, one a layer, is needed")
    for kind in kinds:
        if kind not in known:
            raise UnsupportedModel(f"{fields.where}: unsupported: layer_types with {shown(kind)}")
    return kinds


def head_width(
    fields: Fields, hidden: int, heads: int, key: str = "hidden_size", heads_key: str = "num_attention_heads"
) -> int:
    """Return values of a head if all heads together are as wide as the model."""
    width, rest = divmod(hidden, heads)
    if rest:
        raise fields.wrong(key, f"without head_dim it must be a multiple of {heads_key} = {heads}")
    return width


def one_of(fields: Fields, key: str, supported: Mapping[str, T]) -> T:
    """Return the value of ``supported`` under the text of ``key``; ``UnsupportedModel`` for another text."""
    name = fields.text(key)
    if name not in supported:
        raise UnsupportedModel(
            f"{fields.where}: unsupported: {key} {shown(name)}; supported: {', '.join(sorted(supported))}"
        )
    return supported[name]


def refuse_other_values(fields: Fields, neutral: Mapping[str, tuple[Any, ...]]) -> None:
    """Raise ``UnsupportedModel`` for a key with another value than those with which it changes nothing."""
    for key, allowed in neutral.items():
        value = fields.get(key, None)
        if not is_one_of(value, allowed):
            others = ", ".join(str(one) for one in allowed if type(one) not in (bool, type(None)))
            said = f"{shown(value)}; supported: {others}" if others else f"({shown(value)})"
            raise UnsupportedModel(f"{fields.where}: unsupported: {key} {said}")


def is_one_of(value: Any, allowed: tuple[Any, ...]) -> bool:
    """Return whether a raw value of a config is one of ``allowed``; 0 and False are not told apart."""
    return any(value is item or (item is not None and value == item) for item in allowed)
