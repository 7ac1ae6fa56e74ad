"""The weights of a model as the CPU's forward pass holds them; ``read_weights`` makes them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np

from prelude.models.arrays import F32, Array, bytes_of, widen
from prelude.models.ops import RowNorm, activate
from prelude.models.option_heads import OptionWeights
from prelude.models.packed import OutLinear, PackedLinear, own
from prelude.models.recurrent import ConvWeights, DeltaWeights
from prelude.models.relative import RelativeWeights
from prelude.models.safetensors_file import UsedFile
from prelude.models.spec import HeadActivation, Layer
from prelude.records import dataclass


@dataclass(frozen=True, slots=True)
class EntryWeights:
    norm: RowNorm
    types: F32  # [num_types, width] float32

    def arrays(self) -> list[Array]:
        return [*self.norm.arrays(), self.types]


@dataclass(frozen=True, slots=True)
class LayerWeights:
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
    relative: RelativeWeights | None = None
    entry: EntryWeights | None = None
    recurrent: DeltaWeights | ConvWeights | None = None
    """The weights of a mixer that keeps a state; None for attention."""

    def linears(self) -> tuple[PackedLinear, ...]:
        return self.in_proj, own(self.out), self.up, own(self.down)

    def arrays(self) -> Iterator[Array]:
        for linear in self.linears():
            yield from linear.arrays()
        for norm in (self.mixer_norm, self.mlp_norm, self.mixer_after, self.mlp_after):
            if norm is not None:
                yield from norm.arrays()
        if self.qk_gain is not None:
            yield self.qk_gain
        for part in (self.relative, self.entry, self.recurrent):
            if part is not None:
                yield from part.arrays()


@dataclass(frozen=True, slots=True)
class EmbeddingWeights:
    tokens: Array | PackedLinear  # [vocab, width]; packed if they are the LM head's weight too
    positions: F32 | None = None  # [types * positions, width] float32: position and type together
    norm: RowNorm | None = None
    projection: PackedLinear | None = None

    def arrays(self) -> list[Array]:
        parts = [part.arrays() for part in (self.norm, self.projection) if part is not None]
        tokens = [self.tokens] if isinstance(self.tokens, np.ndarray) else self.tokens.arrays()
        return [*tokens, *([] if self.positions is None else [self.positions]), *chain(*parts)]

    def of(self, ids: Array) -> F32:
        """[n, width], new: the vectors of ``ids`` [n] int64."""
        if isinstance(self.tokens, PackedLinear):
            return self.tokens.gather(ids)
        return widen(self.tokens.take(ids, axis=0))


@dataclass(frozen=True, slots=True)
class ClassifierWeights:
    out: PackedLinear
    dense: PackedLinear | None
    norm: RowNorm | None

    def arrays(self) -> list[Array]:
        return list(chain(*(part.arrays() for part in (self.out, self.dense, self.norm) if part is not None)))


@dataclass(frozen=True, slots=True)
class MaskedWeights:
    dense: PackedLinear
    activation: HeadActivation
    norm: RowNorm
    bias: F32  # [vocab] float32

    def __call__(self, rows: F32) -> Array:
        """[n, width of the embeddings] of rows after the final norm, float32."""
        made = self.dense(rows)
        return self.norm(activate(made, made.shape[1], self.activation, gated=False))

    def arrays(self) -> list[Array]:
        return [*self.dense.arrays(), *self.norm.arrays(), self.bias]


@dataclass(frozen=True, slots=True)
class ModelWeights:
    embeddings: EmbeddingWeights
    layers: tuple[LayerWeights, ...]
    final_norm: RowNorm | None
    lm_head: PackedLinear | None  # shares the embeddings' memory if it is tied
    classifier: ClassifierWeights | None
    dtype: np.dtype[Any]
    """The dtype of the inputs and outputs of projections."""
    options: OptionWeights | None = None
    masked: MaskedWeights | None = None
    used: UsedFile | None = None
    """The file that packed weights are used in."""

    def linears(self) -> Iterator[PackedLinear]:
        for layer in self.layers:
            yield from layer.linears()
        others: list[PackedLinear | None] = [self.embeddings.projection, self.lm_head]
        if self.classifier is not None:
            others += [self.classifier.dense, self.classifier.out]
        if self.masked is not None:
            others.append(self.masked.dense)
        yield from (linear for linear in others if linear is not None)

    @property
    def nbytes(self) -> int:
        """Resident bytes, shared memory counted once."""
        heads = (self.lm_head, self.classifier, self.options, self.masked)
        parts = (self.embeddings, *self.layers, self.final_norm, *heads)
        return bytes_of(chain(*(part.arrays() for part in parts if part is not None)))
