"""The network of a model as data: layers over a small set of operations, with the names of their weights.

``ModelConfig`` makes a ``ModelSpec`` from ``config.json``. The checkpoint and both executors read nothing else, so a
model family is a function from a config to one of these (see ``families``).

    embeddings ─▶ x ─▶ layers ─▶ final norm ─▶ LM head, classifier, or the rows themselves

    norm_first        x += mixer(norm(x));   x += mlp(norm(x));   some have another norm around mixer and MLP
    not norm_first    x = norm(x + mixer(x));   x = norm(x + mlp(x))

A weight is named as in the checkpoint of a model with its head, without ``.weight`` and ``.bias``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal, TypeAlias

from prelude.models.rope import Rope
from prelude.models.spec.mixers import (
    Attention,
    GatedDelta,
    Mixer,
    Norm,
    NormKind,
    Projection,
    Recurrent,
    Relative,
    Shapes,
    ShortConv,
    tensors_of,
)
from prelude.records import dataclass

HeadActivation: TypeAlias = str  # of a native kernel, "tanh", or of ACTIVATIONS in ops.py
HeadPooling = Literal["first", "last", "mean", "markers", "tokens"]


@dataclass(frozen=True, slots=True)
class Classifier:
    """``out(norm(activation(dense row)))``, or ``out row`` if there is no ``dense``; with ``norm_first`` the norm
    stands in front of ``dense``. The row is the hidden state of the first or last token, or the mean of all; with
    ``markers`` there is one row for each option of a question, with ``tokens`` one for each token that is asked
    for."""

    out: Projection
    pooling: HeadPooling = "last"
    dense: Projection | None = None
    activation: HeadActivation | None = None
    norm: Norm | None = None
    norm_first: bool = False

    def tensors(self) -> Shapes:
        return tensors_of(self.dense, self.norm, self.out)


@dataclass(frozen=True, slots=True)
class PointerHead:
    """The logit of an option is ``key(row of the option) · query(row of the answer)``, over the root of the width."""

    query: Projection
    key: Projection

    def tensors(self) -> Shapes:
        return tensors_of(self.query, self.key)


@dataclass(frozen=True, slots=True)
class ChoiceLayer:
    """``x += out(attention(norm x)); x += down(gelu(up(mlp_norm x)))``, with one head of attention over all rows."""

    norm: Norm
    query: Projection
    key: Projection
    value: Projection
    out: Projection
    mlp_norm: Norm
    up: Projection
    down: Projection

    def tensors(self) -> Shapes:
        return tensors_of(self.norm, self.query, self.key, self.value, self.out, self.mlp_norm, self.up, self.down)


@dataclass(frozen=True, slots=True)
class ChoiceHead:
    """Layers over the rows of one question: the row of ``types`` [num_types, hidden] of its kind, the options' rows
    and the answer's row. The logit of an option is ``choice(its row) · answer(last row)``, over the root of the
    width."""

    types: str
    num_types: int
    norm: Norm
    layers: tuple[ChoiceLayer, ...]
    final_norm: Norm
    answer: Projection
    choice: Projection

    def tensors(self) -> Shapes:
        yield f"{self.types}.weight", (self.num_types, self.norm.width)
        yield from tensors_of(self.norm, *self.layers, self.final_norm, self.answer, self.choice)


@dataclass(frozen=True, slots=True)
class MaskedHead:
    """Logits over the vocabulary at a mask: the embeddings by ``norm(activation(dense row))``, plus ``bias``
    [vocab]. A checkpoint without its weights has no masked-language head."""

    dense: Projection
    activation: HeadActivation
    norm: Norm
    bias: str

    def tensors(self, vocab: int) -> Shapes:
        yield from tensors_of(self.dense, self.norm)
        yield self.bias, (vocab,)


OptionHead: TypeAlias = PointerHead | ChoiceHead
"""Reads the rows of a question's options and of its answer together, and gives each option a logit."""


Activation: TypeAlias = str  # of a native kernel ("silu", "gelu", "gelu_tanh", "relu"), or of ACTIVATIONS in ops.py
LmHead = Literal["own", "tied"]
LM_HEAD = "lm_head"


@dataclass(frozen=True, slots=True)
class Mlp:
    """``down(activation(up x))``. ``gated``: ``up`` stacks two halves, and the result is
    ``down(activation(first half) * second half)``."""

    inner: int
    up: Projection
    down: Projection
    activation: Activation
    gated: bool

    def tensors(self) -> Shapes:
        return tensors_of(self.up, self.down)


@dataclass(frozen=True, slots=True)
class LayerInput:
    """The operation on x before a layer: ``x = norm(x) + types``, with the row of ``types`` [num_types, width] of
    each token's type (see ``Embeddings``)."""

    norm: Norm
    types: str
    num_types: int

    def tensors(self) -> Shapes:
        yield from self.norm.tensors()
        yield f"{self.types}.weight", (self.num_types, self.norm.width)


@dataclass(frozen=True, slots=True)
class Layer:
    mixer: Mixer
    mlp: Mlp
    mixer_norm: Norm | None
    """None, with ``norm_first``: the mixer reads x itself."""
    mlp_norm: Norm
    norm_first: bool = True
    mixer_after: Norm | None = None
    """Norm of the mixer's output before it is added to x, with ``norm_first``."""
    mlp_after: Norm | None = None
    """Norm of the MLP's output before it is added to x, with ``norm_first``."""
    entry: LayerInput | None = None

    @property
    def attention(self) -> Attention:
        """The mixer of a layer that has attention."""
        if not isinstance(self.mixer, Attention):
            raise TypeError(f"a layer with a {type(self.mixer).__name__} has no attention")
        return self.mixer

    def norms(self) -> Iterator[Norm]:
        """Return all norms, those of single heads among them."""
        yield from self._own_norms()
        yield from self.mixer.norms

    def tensors(self) -> Shapes:
        return tensors_of(self.entry, *self._own_norms(), self.mixer, self.mlp)

    def _own_norms(self) -> Iterator[Norm]:
        candidates = (self.mixer_norm, self.mixer_after, self.mlp_norm, self.mlp_after)
        yield from (norm for norm in candidates if norm is not None)


@dataclass(frozen=True, slots=True)
class PositionEmbeddings:
    """Learned positions: row ``first + i`` of ``name`` [rows, width] belongs to position i. A token of the id
    ``uncounted`` has row ``first - 1``, and the tokens behind it stand where they would without it."""

    name: str
    rows: int
    first: int = 0
    uncounted: int | None = None


@dataclass(frozen=True, slots=True)
class Embeddings:
    """``norm(scale * tokens + positions + types)``, then ``projection`` if the layers are wider. Tokens are rows
    of ``name`` [vocab, width]; the scale is rounded to the type of the weights. The type of a token counts the
    segments above its own, up to ``num_types - 1``: 0 for a prompt and for the first text of a pair, 1 for the
    second text."""

    name: str
    vocab: int
    width: int
    positions: PositionEmbeddings | None = None
    types: str | None = None
    num_types: int = 0
    norm: Norm | None = None
    projection: Projection | None = None
    scale: float = 1.0

    def tensors(self) -> Shapes:
        yield f"{self.name}.weight", (self.vocab, self.width)
        if self.positions is not None:
            yield f"{self.positions.name}.weight", (self.positions.rows, self.width)
        if self.types is not None:
            yield f"{self.types}.weight", (self.num_types, self.width)
        yield from tensors_of(self.norm, self.projection)


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """``prefix`` begins the names of the body's weights in a checkpoint of a model with a head; one of the body alone
    leaves it out. At least one of ``layers`` has attention. It is causal in all of them or in none. If it is
    causal, all have heads of the same number and width; so have all layers that rotate. The convolutions of recurrent
    layers have the same kernel."""

    prefix: str
    hidden: int
    max_positions: int
    embeddings: Embeddings
    layers: tuple[Layer, ...]
    final_norm: Norm | None = None
    lm_head: LmHead | None = None
    """``tied``: the embeddings are the LM head's weight. None: no logits over the vocabulary."""
    logit_cap: float = 0.0
    """Above 0, a logit over the vocabulary becomes ``cap * tanh(logit / cap)``."""
    classifier: Classifier | None = None
    options: OptionHead | None = None
    masked: MaskedHead | None = None
    longer: ModelSpec | None = None
    """The same weights for contexts longer than ``max_positions``, if those turn every token by other angles."""

    @property
    def bidirectional(self) -> bool:
        """Whether tokens see those that follow them: then no prefix of a prompt is kept or shared, and no text is
        written."""
        return not self.attention.causal

    @property
    def attention(self) -> Attention:
        """The first one, for the values that all layers with attention share: the number and width of heads."""
        return self.attentions[0]

    @property
    def attentions(self) -> tuple[Attention, ...]:
        return tuple(layer.mixer for layer in self.layers if isinstance(layer.mixer, Attention))

    @property
    def recurrent(self) -> tuple[Recurrent, ...]:
        """The mixers that keep a state of each sequence."""
        return tuple(layer.mixer for layer in self.layers if not isinstance(layer.mixer, Attention))

    @property
    def num_types(self) -> int:
        """How many types of tokens there are; 0 for models without types."""
        entries = (0 if layer.entry is None else layer.entry.num_types for layer in self.layers)
        return max(self.embeddings.num_types, *entries)

    def kv_bytes_per_token(self, dtype_bytes: int) -> int:
        """Return bytes of keys and values that one token takes over all layers; 0 if none are kept."""
        if self.bidirectional:
            return 0
        return 2 * len(self.attentions) * self.attention.kv_heads * self.attention.head_dim * dtype_bytes

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every weight in a checkpoint."""
        return dict(self._tensors())

    def masked_tensors(self) -> dict[str, tuple[int, ...]]:
        """Return tensors of the masked-language head, which a checkpoint may lack."""
        return {} if self.masked is None else dict(self.masked.tensors(self.embeddings.vocab))

    def num_parameters(self) -> int:
        """Weights, a tied head counted once."""
        return sum(math.prod(shape) for shape in self.tensors().values())

    def _tensors(self) -> Shapes:
        yield from tensors_of(self.embeddings, *self.layers, self.final_norm)
        if self.lm_head == "own":
            yield f"{LM_HEAD}.weight", (self.embeddings.vocab, self.hidden)
        yield from tensors_of(self.classifier, self.options)


# The names of ``mixers`` that are imported from here; others are defined here.
__all__ = ["Attention", "GatedDelta", "Norm", "NormKind", "Projection", "Recurrent", "Relative", "Rope", "ShortConv"]
