"""The weights of a model as the CPU's forward pass holds them; ``read_weights`` makes them. Heads compute in float32;
products of two activations are summed in float64, by one thread."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np

from prelude.models.arrays import Array, bytes_of, widen
from prelude.models.ops import RowNorm, Weights, activate
from prelude.models.packed import OutLinear, PackedLinear, SummedLinear
from prelude.models.recurrent import ConvWeights, DeltaWeights
from prelude.models.relative import RelativeWeights
from prelude.models.safetensors_file import UsedFile
from prelude.models.spec import HeadActivation, Layer
from prelude.records import dataclass, fields
from prelude.values.arrays import F32, F64


def _leaves(part: object) -> Iterator[PackedLinear | RowNorm | Array]:
    """Yield the arrays, projections and norms in a part of a model."""
    if isinstance(part, PackedLinear | RowNorm | np.ndarray):
        yield part
        if isinstance(part, PackedLinear):
            yield from _leaves(part.behind)
    elif isinstance(part, SummedLinear):
        yield part.inner
    elif isinstance(part, tuple):
        for one in part:
            yield from _leaves(one)
    elif isinstance(part, Weights):
        for field in fields(part):  # type: ignore[arg-type]
            yield from _leaves(getattr(part, field.name))


def arrays_of(part: object) -> Iterator[Array]:
    """Yield the arrays of a part of a model, shared ones as often as they are there."""
    for leaf in _leaves(part):
        yield from [leaf] if isinstance(leaf, np.ndarray) else leaf.arrays()


@dataclass(frozen=True, slots=True)
class EntryWeights(Weights):
    norm: RowNorm
    types: F32  # [num_types, width] float32


@dataclass(frozen=True, slots=True)
class LayerWeights(Weights):
    spec: Layer
    in_proj: PackedLinear
    """Projection of the mixer. The rows of gates are the first."""
    out: OutLinear
    up: PackedLinear
    down: OutLinear
    mixer_norm: RowNorm | None
    mlp_norm: RowNorm
    mixer_after: RowNorm | None
    mlp_after: RowNorm | None
    qk_gain: F32 | None  # [heads + kv_heads, head_dim], interleaved; None for models without norms of heads
    relative: RelativeWeights | None
    entry: EntryWeights | None
    recurrent: DeltaWeights | ConvWeights | None
    """The weights of a mixer that keeps a state; None for attention."""


@dataclass(frozen=True, slots=True)
class EmbeddingWeights(Weights):
    tokens: Array | PackedLinear  # [vocab, width]; packed if they are the LM head's weight too
    positions: F32 | None  # [types * positions, width] float32: position and type together
    norm: RowNorm | None
    projection: PackedLinear | None

    def of(self, ids: Array) -> F32:
        """[n, width], new: the vectors of ``ids`` [n] int64."""
        if isinstance(self.tokens, PackedLinear):
            return self.tokens.gather(ids)
        return widen(self.tokens.take(ids, axis=0))


@dataclass(frozen=True, slots=True)
class ClassifierWeights(Weights):
    out: PackedLinear
    dense: PackedLinear | None
    norm: RowNorm | None


@dataclass(frozen=True, slots=True)
class MaskedWeights(Weights):
    dense: PackedLinear
    activation: HeadActivation
    norm: RowNorm
    bias: F32  # [vocab] float32

    def __call__(self, rows: F32) -> Array:
        """[n, width of the embeddings] of rows after the final norm, float32."""
        made = self.dense(rows)
        return self.norm(activate(made, made.shape[1], self.activation, gated=False))


def _products(x: F32, y: F32) -> F64:
    """[rows of x, rows of y], over the root of their width."""
    found: F64 = np.einsum("id,jd->ij", x, y, dtype=np.float64) / math.sqrt(x.shape[1])
    return found


def _logits(options: F32, answer: F32) -> F32:
    return _products(options, answer)[:, 0].astype(np.float32)


@dataclass(frozen=True, slots=True)
class PointerWeights(Weights):
    query: PackedLinear
    key: PackedLinear

    def __call__(self, rows: F32, kind: int) -> F32:
        """Return logits [n] of the rows [n + 1, hidden] of n options and of the answer."""
        return _logits(self.key(rows[:-1]), self.query(rows[-1:]))


@dataclass(frozen=True, slots=True)
class ChoiceLayerWeights(Weights):
    norm: RowNorm
    query: PackedLinear
    key: PackedLinear
    value: PackedLinear
    out: PackedLinear
    mlp_norm: RowNorm
    up: PackedLinear
    down: PackedLinear

    def __call__(self, x: F32) -> F32:
        normed = self.norm(x)
        query, key, value = self.query(normed), self.key(normed), self.value(normed)
        scores = _products(query, key)
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        mixed = np.einsum("ij,jd->id", shares, value).astype(np.float32)
        x = x + self.out(mixed)
        wide = self.up(self.mlp_norm(x))
        return x + self.down(activate(wide, wide.shape[1], "gelu", gated=False))


@dataclass(frozen=True, slots=True)
class ChoiceWeights(Weights):
    types: F32  # [num_types, hidden]
    norm: RowNorm
    layers: tuple[ChoiceLayerWeights, ...]
    final_norm: RowNorm
    answer: PackedLinear
    choice: PackedLinear

    def __call__(self, rows: F32, kind: int) -> F32:
        """Return logits [n] of the rows [n + 1, hidden] of n options and of the answer."""
        x = self.norm(np.concatenate([self.types[kind : kind + 1], rows]))
        for layer in self.layers:
            x = layer(x)
        x = self.final_norm(x)
        return _logits(self.choice(x[1:-1]), self.answer(x[-1:]))


OptionWeights: TypeAlias = PointerWeights | ChoiceWeights


@dataclass(frozen=True, slots=True)
class ModelWeights(Weights):
    embeddings: EmbeddingWeights
    layers: tuple[LayerWeights, ...]
    final_norm: RowNorm | None
    lm_head: PackedLinear | None  # shares the embeddings' memory if it is tied
    classifier: ClassifierWeights | None
    dtype: np.dtype[Any]
    """The dtype of the inputs and outputs of projections."""
    options: OptionWeights | None
    masked: MaskedWeights | None
    used: UsedFile | None
    """The file that packed weights are used in."""

    def linears(self) -> list[PackedLinear]:
        """Return the projections, shared ones once."""
        return list({id(leaf): leaf for leaf in _leaves(self) if isinstance(leaf, PackedLinear)}.values())

    @property
    def nbytes(self) -> int:
        """Resident bytes, shared memory counted once."""
        return bytes_of(arrays_of(self))
