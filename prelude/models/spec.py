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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from prelude.models.rope import RopeScaling, inverse_frequencies

if TYPE_CHECKING:
    import torch

Shapes: TypeAlias = Iterator[tuple[str, tuple[int, ...]]]
NormKind: TypeAlias = str  # "rms", or a name of NORMS in ops.py
Activation: TypeAlias = str  # of a native kernel ("silu", "gelu", "gelu_tanh", "relu"), or of ACTIVATIONS in ops.py
HeadActivation: TypeAlias = str  # the same, or "tanh"
HeadPooling = Literal["first", "last", "mean", "markers", "tokens"]
LmHead = Literal["own", "tied"]


@dataclass(frozen=True, slots=True)
class Norm:
    """Over rows of ``width`` values. ``rms``: x / sqrt(mean(x²) + eps). ``layer``: the same of x minus its mean. The
    result is multiplied by the weight plus ``offset``, and the bias is added where there is one."""

    name: str
    kind: NormKind
    width: int
    eps: float
    bias: bool = False
    offset: float = 0.0

    def tensors(self) -> Shapes:
        yield f"{self.name}.weight", (self.width,)
        if self.bias:
            yield f"{self.name}.bias", (self.width,)


@dataclass(frozen=True, slots=True)
class Projection:
    """y = W x + b. W is the weights ``names``, of ``rows`` outputs each, one under the other; so is b."""

    names: tuple[str, ...]
    rows: tuple[int, ...]
    columns: int
    bias: bool = False

    @property
    def outputs(self) -> int:
        return sum(self.rows)

    def tensors(self) -> Shapes:
        for name, rows in zip(self.names, self.rows):
            yield f"{name}.weight", (rows, self.columns)
            if self.bias:
                yield f"{name}.bias", (rows,)


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions over the first ``width`` values of a head, the second half of them paired with the first."""

    theta: float
    width: int
    scaling: RopeScaling | None = None

    def frequencies(self) -> tuple[torch.Tensor, float]:
        """Inverse frequencies [width / 2] in float32, and the factor on cosine and sine."""
        return inverse_frequencies(self.theta, self.width, self.scaling)


@dataclass(frozen=True, slots=True)
class Relative:
    """DeBERTa's relative term. Vectors of distances are ``norm`` of ``name`` [2 * buckets, hidden], the same in all
    layers; a layer's key and query projections make its own of them. A score is the sum of three products, query by
    key, query by the key vector and key by the query vector of ``buckets + bucket(query - key)``.

    ``bucket``: the distance itself up to half of ``buckets``, beyond it by the logarithm, so that ``farthest``
    falls into the last one; with ``farthest`` None the distance itself, cut at ``buckets``.
    """

    name: str
    buckets: int
    width: int
    farthest: int | None
    norm: Norm | None

    def tensors(self) -> Shapes:
        yield f"{self.name}.weight", (2 * self.buckets, self.width)
        if self.norm is not None:
            yield from self.norm.tensors()


@dataclass(frozen=True, slots=True)
class Attention:
    """``qkv`` stacks queries, keys and values. ``q_norm`` and ``k_norm`` norm single heads, before the rotation.

    ``causal``: a token sees the tokens before it and itself; otherwise it sees its whole prompt. ``window``: of
    those, the ones at most so many positions away. ``scale`` multiplies the products of queries and keys; None:
    ``head_dim ** -0.5``. ``cap`` above 0: a scaled score becomes ``cap * tanh(score / cap)``.
    """

    heads: int
    kv_heads: int
    head_dim: int
    qkv: Projection
    out: Projection
    rope: Rope | None
    causal: bool = True
    window: int | None = None
    q_norm: Norm | None = None
    k_norm: Norm | None = None
    scale: float | None = None
    cap: float = 0.0
    relative: Relative | None = None
    gate: bool = False
    """The first weight of ``qkv`` gives each head a query and, behind it, as many values whose sigmoid the head's
    output is multiplied by."""

    @property
    def in_proj(self) -> Projection:
        return self.qkv

    @property
    def norms(self) -> tuple[Norm, ...]:
        return tuple(norm for norm in (self.q_norm, self.k_norm) if norm is not None)

    @property
    def score_scale(self) -> float:
        return self.head_dim**-0.5 if self.scale is None else self.scale

    @property
    def query_width(self) -> int:
        return self.heads * self.head_dim

    def tensors(self) -> Shapes:
        yield from self.qkv.tensors()
        yield from self.out.tensors()
        for part in (self.q_norm, self.k_norm, self.relative):
            if part is not None:
                yield from part.tensors()


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
        yield from self.up.tensors()
        yield from self.down.tensors()


@dataclass(frozen=True, slots=True)
class GatedDelta:
    """The gated delta rule (Gated DeltaNet). ``in_proj`` stacks queries, keys, values, output gates, betas and
    decays. Queries, keys and values go through a causal convolution of ``kernel`` tokens, each channel by itself, and
    SiLU. Queries and keys are divided by their length. A value head keeps a matrix S [key_dim, value_dim]:

        S = decay S;   S += k (v - k S) beta;   y = q S / sqrt(key_dim)

    with ``decay = exp(-exp(A_log) softplus(a + dt_bias))`` and ``beta = sigmoid(b)``. A key head serves
    ``value_heads / key_heads`` value heads. The output is ``out(norm(y) silu(gate))``, ``norm`` over single heads.

    ``name`` begins the names of ``conv1d.weight`` [channels, 1, kernel], ``A_log`` and ``dt_bias`` [value_heads].
    """

    name: str
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int
    in_proj: Projection
    out: Projection
    norm: Norm

    @property
    def channels(self) -> int:
        """Values of queries, keys and values, which the convolution reads."""
        return 2 * self.key_heads * self.key_dim + self.values

    @property
    def values(self) -> int:
        return self.value_heads * self.value_dim

    @property
    def norms(self) -> tuple[Norm, ...]:
        return (self.norm,)

    def tensors(self) -> Shapes:
        yield from self.in_proj.tensors()
        yield f"{self.name}.conv1d.weight", (self.channels, 1, self.kernel)
        yield f"{self.name}.A_log", (self.value_heads,)
        yield f"{self.name}.dt_bias", (self.value_heads,)
        yield from self.norm.tensors()
        yield from self.out.tensors()


@dataclass(frozen=True, slots=True)
class ShortConv:
    """A gated short convolution. ``in_proj`` stacks B, C and u, each as wide as the model; the output is
    ``out(C conv(B u))`` with a causal convolution of ``kernel`` tokens, each channel by itself.

    ``name`` begins the names of ``conv.weight`` [hidden, 1, kernel] and, with ``bias``, ``conv.bias`` [hidden]."""

    name: str
    kernel: int
    in_proj: Projection
    out: Projection
    bias: bool = False

    @property
    def channels(self) -> int:
        return self.out.columns

    @property
    def norms(self) -> tuple[Norm, ...]:
        return ()

    def tensors(self) -> Shapes:
        yield from self.in_proj.tensors()
        yield f"{self.name}.conv.weight", (self.channels, 1, self.kernel)
        if self.bias:
            yield f"{self.name}.conv.bias", (self.channels,)
        yield from self.out.tensors()


Recurrent: TypeAlias = GatedDelta | ShortConv
"""Mixers that keep a state of each sequence instead of its keys and values."""

Mixer: TypeAlias = Attention | GatedDelta | ShortConv
"""The part of a layer that mixes the tokens of a sequence."""


@dataclass(frozen=True, slots=True)
class Entry:
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
    """With ``norm_first``: the norm of the mixer's output, before it is added to x,"""
    mlp_after: Norm | None = None
    """and of the MLP's output."""
    entry: Entry | None = None

    @property
    def attention(self) -> Attention:
        """The mixer of a layer that has attention."""
        if not isinstance(self.mixer, Attention):
            raise TypeError(f"a layer with a {type(self.mixer).__name__} has no attention")
        return self.mixer

    def norms(self) -> Iterator[Norm]:
        """All that there are, those of single heads among them."""
        yield from self._own_norms()
        yield from self.mixer.norms

    def tensors(self) -> Shapes:
        if self.entry is not None:
            yield from self.entry.tensors()
        for norm in self._own_norms():
            yield from norm.tensors()
        yield from self.mixer.tensors()
        yield from self.mlp.tensors()

    def _own_norms(self) -> Iterator[Norm]:
        candidates = (self.mixer_norm, self.mixer_after, self.mlp_norm, self.mlp_after)
        yield from (norm for norm in candidates if norm is not None)


@dataclass(frozen=True, slots=True)
class PositionEmbeddings:
    """Learned positions: row ``first + i`` of ``name`` [rows, width] belongs to position i."""

    name: str
    rows: int
    first: int = 0


@dataclass(frozen=True, slots=True)
class Embeddings:
    """``norm(scale * tokens + positions + types)``, then ``projection`` where the layers are wider. Tokens are rows
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
        for part in (self.norm, self.projection):
            if part is not None:
                yield from part.tensors()


@dataclass(frozen=True, slots=True)
class Classifier:
    """``out(norm(activation(dense row)))``, or ``out row`` where there is no ``dense``; with ``norm_first`` the norm
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
        for part in (self.dense, self.norm, self.out):
            if part is not None:
                yield from part.tensors()


@dataclass(frozen=True, slots=True)
class PointerHead:
    """The logit of an option is ``key(row of the option) · query(row of the answer)``, over the root of the width."""

    query: Projection
    key: Projection

    def tensors(self) -> Shapes:
        yield from self.query.tensors()
        yield from self.key.tensors()


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
        for part in (self.norm, self.query, self.key, self.value, self.out, self.mlp_norm, self.up, self.down):
            yield from part.tensors()


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
        yield from self.norm.tensors()
        for layer in self.layers:
            yield from layer.tensors()
        for part in (self.final_norm, self.answer, self.choice):
            yield from part.tensors()


@dataclass(frozen=True, slots=True)
class MaskedHead:
    """Logits over the vocabulary at a mask: the embeddings by ``norm(activation(dense row))``, plus ``bias``
    [vocab]. A checkpoint without its weights has no such head."""

    dense: Projection
    activation: HeadActivation
    norm: Norm
    bias: str

    def tensors(self, vocab: int) -> Shapes:
        yield from self.dense.tensors()
        yield from self.norm.tensors()
        yield self.bias, (vocab,)


OptionHead: TypeAlias = PointerHead | ChoiceHead
"""Reads the rows of a question's options and of its answer together, and gives each option a logit."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """``prefix`` begins the names of the body's weights in a checkpoint of a model with a head; one of the body alone
    leaves it out. At least one of ``layers`` has attention. It is causal in all of them or in none. Where it is
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
    """The same weights for contexts longer than ``max_positions``, where those turn every token by other angles."""

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
        """Bytes of keys and values that one token takes over all layers; 0 where none are kept."""
        if self.bidirectional:
            return 0
        return 2 * len(self.attentions) * self.attention.kv_heads * self.attention.head_dim * dtype_bytes

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every weight in a checkpoint."""
        return dict(self._tensors())

    def masked_tensors(self) -> dict[str, tuple[int, ...]]:
        """Those of the masked-language head, which a checkpoint may lack."""
        return {} if self.masked is None else dict(self.masked.tensors(self.embeddings.vocab))

    def num_parameters(self) -> int:
        """Weights, a tied head counted once."""
        return sum(math.prod(shape) for shape in self.tensors().values())

    def _tensors(self) -> Shapes:
        yield from self.embeddings.tensors()
        for layer in self.layers:
            yield from layer.tensors()
        if self.final_norm is not None:
            yield from self.final_norm.tensors()
        if self.lm_head == "own":
            yield f"{LM_HEAD}.weight", (self.embeddings.vocab, self.hidden)
        for head in (self.classifier, self.options):
            if head is not None:
                yield from head.tensors()


LM_HEAD = "lm_head"
