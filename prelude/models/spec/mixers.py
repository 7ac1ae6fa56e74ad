"""Norms, projections and rotary positions, and the parts of a layer that mix the tokens of a sequence: attention, and
layers that keep a state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, TypeAlias

from prelude.models.rope import Rope
from prelude.records import dataclass

Shapes: TypeAlias = Iterator[tuple[str, tuple[int, ...]]]
NormKind: TypeAlias = str  # "rms", or a name of NORMS in ops.py


class Part(Protocol):
    def tensors(self) -> Shapes:
        """Yield the name and the shape of each weight in a checkpoint."""


def tensors_of(*parts: Part | None) -> Shapes:
    for part in parts:
        if part is not None:
            yield from part.tensors()


@dataclass(frozen=True, slots=True)
class Norm:
    """Over rows of ``width`` values. ``rms``: x / sqrt(mean(x²) + eps). ``layer``: the same of x minus its mean. The
    result is multiplied by the weight plus ``offset``, and the bias is added if there is one."""

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
        yield from tensors_of(self.norm)


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
        yield from tensors_of(self.qkv, self.out, self.q_norm, self.k_norm, self.relative)


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
        yield from tensors_of(self.norm, self.out)


@dataclass(frozen=True, slots=True)
class ShortConv:
    """A gated short convolution. ``in_proj`` stacks B, C and u, each as wide as the model; the output is
    ``out(C conv(B u))`` with a causal convolution of ``kernel`` tokens, each channel by itself.

    ``name`` begins the names of ``conv.weight`` [hidden, 1, kernel] and, with ``bias``, ``conv.bias`` [hidden]."""

    name: str
    kernel: int
    in_proj: Projection
    out: Projection
    bias: bool

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
