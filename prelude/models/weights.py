"""Weights as the CPU's forward pass wants them: copied out of the files once, merged, one resident copy.

stacked   the weights of one projection one under the other; rows of q and k that are rotated are permuted so that the
          two halves of a head lie interleaved (a rotation is then one complex product; scores do not see the order)
float32   the gain of a norm before a projection is inside its weight, where the norm has no bias: one pass over the
          tokens less
bfloat16  gains stay apart, in float32: rounding their product again would double the weights' noise
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

import torch
from torch import Tensor

from prelude.models.ops import Linear, RowNorm
from prelude.models.relative import RelativeWeights, relative_weights, rows_of_distances
from prelude.models.spec import (
    LM_HEAD,
    Attention,
    Classifier,
    Embeddings,
    Entry,
    Layer,
    ModelSpec,
    Norm,
    Projection,
    Relative,
    Rope,
)
from prelude.progress import watched


class WeightSource(Protocol):
    """What is needed of a checkpoint."""

    def names(self) -> Sequence[str]: ...

    def tensor(self, name: str) -> Tensor: ...

    def finite(self, name: str) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class EntryWeights:
    norm: RowNorm
    types: Tensor  # [num_types, width] float32

    def tensors(self) -> list[Tensor]:
        return [*self.norm.tensors(), self.types]


@dataclass(frozen=True, slots=True)
class LayerWeights:
    spec: Layer
    qkv: Linear
    out: Linear
    up: Linear
    down: Linear
    mixer_norm: RowNorm | None
    mlp_norm: RowNorm
    mixer_after: RowNorm | None
    mlp_after: RowNorm | None
    qk_gain: Tensor | None  # [heads + kv_heads, head_dim], interleaved; None for models without norms of heads
    relative: RelativeWeights | None = None
    entry: EntryWeights | None = None

    def linears(self) -> tuple[Linear, ...]:
        return self.qkv, self.out, self.up, self.down

    def tensors(self) -> Iterator[Tensor]:
        for linear in self.linears():
            yield from linear.tensors()
        for norm in (self.mixer_norm, self.mlp_norm, self.mixer_after, self.mlp_after):
            if norm is not None:
                yield from norm.tensors()
        if self.qk_gain is not None:
            yield self.qk_gain
        for part in (self.relative, self.entry):
            if part is not None:
                yield from part.tensors()


@dataclass(frozen=True, slots=True)
class EmbeddingWeights:
    tokens: Tensor  # [vocab, width]
    positions: Tensor | None = None  # [types * positions, width] float32: position and type together
    norm: RowNorm | None = None
    projection: Linear | None = None

    def tensors(self) -> list[Tensor]:
        parts = [part.tensors() for part in (self.norm, self.projection) if part is not None]
        return [self.tokens, *([] if self.positions is None else [self.positions]), *chain(*parts)]


@dataclass(frozen=True, slots=True)
class ClassifierWeights:
    out: Linear
    dense: Linear | None
    norm: RowNorm | None

    def tensors(self) -> list[Tensor]:
        return list(chain(*(part.tensors() for part in (self.out, self.dense, self.norm) if part is not None)))


@dataclass(frozen=True, slots=True)
class ModelWeights:
    embeddings: EmbeddingWeights
    layers: tuple[LayerWeights, ...]
    final_norm: RowNorm | None
    lm_head: Linear | None  # shares the embeddings' memory where it is tied
    classifier: ClassifierWeights | None

    def linears(self) -> Iterator[Linear]:
        for layer in self.layers:
            yield from layer.linears()
        others = [self.embeddings.projection, self.lm_head]
        if self.classifier is not None:
            others += [self.classifier.dense, self.classifier.out]
        yield from (linear for linear in others if linear is not None)

    @property
    def nbytes(self) -> int:
        """Resident bytes, shared memory counted once."""
        parts = (self.embeddings, *self.layers, self.final_norm, self.lm_head, self.classifier)
        tensors = chain(*(part.tensors() for part in parts if part is not None))
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
        return sum(storages.values())


class _Reader:
    """Reads weights of one layer after another into merged tensors of the working dtype."""

    def __init__(self, source: WeightSource, dtype: torch.dtype, span: int = 1) -> None:
        """``span``: more than any distance of two tokens."""
        self.span = span
        self.source = source
        self.dtype = dtype
        self.names = frozenset(source.names())
        self.distances: tuple[Tensor, Tensor] | None = None  # vectors and rows, read with the first layer

    def vector(self, name: str) -> Tensor:
        return self.source.finite(name).to(torch.float32, copy=True)

    def gain(self, norm: Norm) -> Tensor:
        gain = self.vector(f"{norm.name}.weight")
        return gain.add_(norm.offset) if norm.offset else gain

    def norm(self, norm: Norm) -> RowNorm:
        bias = self.vector(f"{norm.name}.bias") if norm.bias else None
        return RowNorm(norm.kind, norm.eps, self.gain(norm), bias)

    def folded(self, norm: Norm) -> tuple[RowNorm, Tensor | None]:
        """The norm before a projection, and the gain that goes into the projection's weight."""
        if self.dtype != torch.float32 or norm.bias:
            return self.norm(norm), None
        return RowNorm(norm.kind, norm.eps, None), self.gain(norm)

    def linear(self, projection: Projection, gain: Tensor | None = None, turned: Turned | None = None) -> Linear:
        """Inputs scaled by ``gain``, rows of heads as ``turned`` says. Only one source tensor is alive at a time."""
        weight = torch.empty(projection.outputs, projection.columns, dtype=self.dtype)
        bias = torch.empty(projection.outputs, dtype=self.dtype) if projection.bias else None
        for kind, place in (("weight", weight), ("bias", bias)):
            at = 0
            for name, rows in zip(projection.names, projection.rows):
                if place is not None:
                    part = self.source.finite(f"{name}.{kind}")
                    place[at : at + rows].copy_(part if turned is None else turned.interleaved(part, at))
                at += rows
        if gain is not None:
            weight.mul_(gain)
        return Linear(weight, bias)

    def layer(self, spec: Layer) -> LayerWeights:
        mixer, mlp = spec.mixer, spec.mlp
        before = self.folded if spec.norm_first else lambda norm: (self.norm(norm), None)
        mixer_norm, mixer_gain = (None, None) if spec.mixer_norm is None else before(spec.mixer_norm)
        mlp_norm, mlp_gain = before(spec.mlp_norm)
        turned = None if mixer.rope is None else Turned.of(mixer, mixer.rope)
        after = (None if norm is None else self.norm(norm) for norm in (spec.mixer_after, spec.mlp_after))
        mixer_after, mlp_after = after
        qkv = self.linear(mixer.qkv, mixer_gain, turned)
        return LayerWeights(
            spec,
            qkv=qkv,
            out=self.linear(mixer.out),
            up=self.linear(mlp.up, mlp_gain),
            down=self.linear(mlp.down),
            mixer_norm=mixer_norm,
            mlp_norm=mlp_norm,
            mixer_after=mixer_after,
            mlp_after=mlp_after,
            qk_gain=self._qk_gain(mixer),
            relative=None if mixer.relative is None else self._relative(mixer, mixer.relative, qkv),
            entry=None if spec.entry is None else self._entry(spec.entry),
        )

    def embeddings(self, spec: Embeddings, count: int) -> EmbeddingWeights:
        tokens = self.source.finite(f"{spec.name}.weight").to(self.dtype, copy=True)
        table: Tensor | None = None
        if spec.positions is not None:
            first = spec.positions.first
            table = self.vector(f"{spec.positions.name}.weight")[first : first + count]
            if spec.types is not None:
                types = self.vector(f"{spec.types}.weight")
                table = (table[None] + types[:, None]).view(-1, spec.width)
        return EmbeddingWeights(
            tokens,
            None if table is None else table.contiguous(),
            None if spec.norm is None else self.norm(spec.norm),
            None if spec.projection is None else self.linear(spec.projection),
        )

    def classifier(self, spec: Classifier) -> ClassifierWeights:
        return ClassifierWeights(
            self.linear(spec.out),
            None if spec.dense is None else self.linear(spec.dense),
            None if spec.norm is None else self.norm(spec.norm),
        )

    def _entry(self, entry: Entry) -> EntryWeights:
        return EntryWeights(self.norm(entry.norm), self.vector(f"{entry.types}.weight"))

    def _relative(self, mixer: Attention, relative: Relative, qkv: Linear) -> RelativeWeights:
        if self.distances is None:
            vectors = self.vector(f"{relative.name}.weight")
            if relative.norm is not None:
                self.norm(relative.norm)(vectors, torch.float32, vectors)
            self.distances = vectors, rows_of_distances(relative, self.span)
        return relative_weights(mixer, qkv, *self.distances)

    def _qk_gain(self, mixer: Attention) -> Tensor | None:
        if mixer.q_norm is None or mixer.k_norm is None:
            return None
        width = mixer.head_dim if mixer.rope is None else mixer.rope.width
        q, k = (
            interleave(self.gain(norm), mixer.head_dim, width).expand(heads, mixer.head_dim)
            for norm, heads in ((mixer.q_norm, mixer.heads), (mixer.k_norm, mixer.kv_heads))
        )
        return torch.cat([q, k]).contiguous()


@dataclass(frozen=True, slots=True)
class Turned:
    """The outputs of a projection that are rotated: the first ``count`` are heads of ``head_dim``, of which the first
    ``width`` turn."""

    count: int
    head_dim: int
    width: int

    @classmethod
    def of(cls, mixer: Attention, rope: Rope) -> Turned:
        return cls((mixer.heads + mixer.kv_heads) * mixer.head_dim, mixer.head_dim, rope.width)

    def interleaved(self, rows: Tensor, first: int) -> Tensor:
        """``rows`` are the projection's outputs from ``first`` on."""
        count = min(max(self.count - first, 0), rows.shape[0])
        if count == 0:
            return rows
        turned = interleave(rows[:count], self.head_dim, self.width)
        return turned if count == rows.shape[0] else torch.cat([turned, rows[count:]])


def interleave(rows: Tensor, head_dim: int, width: int) -> Tensor:
    """The first ``width`` rows of each head from ``[a0 a1 … b0 b1 …]`` to ``[a0 b0 a1 b1 …]``."""
    heads = rows.reshape(-1, head_dim, *rows.shape[1:])
    turning = heads[:, :width]
    pairs = turning.reshape(len(heads), 2, width // 2, *rows.shape[1:]).transpose(1, 2).reshape(turning.shape)
    return torch.cat([pairs, heads[:, width:]], dim=1).reshape(rows.shape)


def load_weights(source: WeightSource, spec: ModelSpec, dtype: torch.dtype) -> ModelWeights:
    """Read everything ``spec`` needs out of ``source``, which may be closed afterwards."""
    reader = _Reader(source, dtype, spec.max_positions)
    embeddings = reader.embeddings(spec.embeddings, spec.max_positions)
    lm_head: Linear | None = None
    if f"{LM_HEAD}.weight" in reader.names:
        lm_head = Linear(source.finite(f"{LM_HEAD}.weight").to(dtype, copy=True))
    elif spec.lm_head == "tied":
        lm_head = Linear(embeddings.tokens)
    classifier: ClassifierWeights | None = None
    if spec.classifier is not None:
        # A handful of rows: float32 costs nothing and spares the answer one rounding.
        classifier = _Reader(source, torch.float32).classifier(spec.classifier)
    return ModelWeights(
        embeddings=embeddings,
        layers=tuple(map(reader.layer, watched(spec.layers, "loading", "layers", len(spec.layers)))),
        final_norm=None if spec.final_norm is None else reader.norm(spec.final_norm),
        lm_head=lm_head,
        classifier=classifier,
    )
