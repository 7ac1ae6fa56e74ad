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
from prelude.models.spec import LM_HEAD, Attention, Classifier, Embeddings, Layer, ModelSpec, Norm, Projection
from prelude.progress import watched


class WeightSource(Protocol):
    """What is needed of a checkpoint."""

    def names(self) -> Sequence[str]: ...

    def tensor(self, name: str) -> Tensor: ...

    def finite(self, name: str) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class LayerWeights:
    spec: Layer
    qkv: Linear
    out: Linear
    up: Linear
    down: Linear
    mixer_norm: RowNorm | None
    mlp_norm: RowNorm
    qk_gain: Tensor | None  # [heads + kv_heads, head_dim], interleaved; None for models without norms of heads

    def linears(self) -> tuple[Linear, ...]:
        return self.qkv, self.out, self.up, self.down

    def tensors(self) -> Iterator[Tensor]:
        for linear in self.linears():
            yield from linear.tensors()
        for norm in (self.mixer_norm, self.mlp_norm):
            if norm is not None:
                yield from norm.tensors()
        if self.qk_gain is not None:
            yield self.qk_gain


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

    def __init__(self, source: WeightSource, dtype: torch.dtype) -> None:
        self.source = source
        self.dtype = dtype
        self.names = frozenset(source.names())

    def vector(self, name: str) -> Tensor:
        return self.source.finite(name).to(torch.float32, copy=True)

    def gain(self, norm: Norm) -> Tensor:
        return self.vector(f"{norm.name}.weight")

    def norm(self, norm: Norm) -> RowNorm:
        bias = self.vector(f"{norm.name}.bias") if norm.bias else None
        return RowNorm(norm.kind, norm.eps, self.gain(norm), bias)

    def folded(self, norm: Norm) -> tuple[RowNorm, Tensor | None]:
        """The norm before a projection, and the gain that goes into the projection's weight."""
        if self.dtype != torch.float32 or norm.bias:
            return self.norm(norm), None
        return RowNorm(norm.kind, norm.eps, None), self.gain(norm)

    def linear(self, projection: Projection, gain: Tensor | None = None, turned: int = 0, width: int = 0) -> Linear:
        """Inputs scaled by ``gain``; the first ``turned`` rows are heads of ``width``, interleaved. Only one source
        tensor is alive at a time."""
        weight = torch.empty(projection.outputs, projection.columns, dtype=self.dtype)
        bias = torch.empty(projection.outputs, dtype=self.dtype) if projection.bias else None
        for kind, place in (("weight", weight), ("bias", bias)):
            at = 0
            for name, rows in zip(projection.names, projection.rows):
                if place is not None:
                    part = self.source.finite(f"{name}.{kind}")
                    place[at : at + rows].copy_(interleave_first(part, turned - at, width))
                at += rows
        if gain is not None:
            weight.mul_(gain)
        return Linear(weight, bias)

    def layer(self, spec: Layer) -> LayerWeights:
        mixer, mlp = spec.mixer, spec.mlp
        before = self.folded if spec.norm_first else lambda norm: (self.norm(norm), None)
        mixer_norm, mixer_gain = (None, None) if spec.mixer_norm is None else before(spec.mixer_norm)
        mlp_norm, mlp_gain = before(spec.mlp_norm)
        turned = (mixer.heads + mixer.kv_heads) * mixer.head_dim if mixer.rope else 0
        return LayerWeights(
            spec,
            qkv=self.linear(mixer.qkv, mixer_gain, turned, mixer.head_dim),
            out=self.linear(mixer.out),
            up=self.linear(mlp.up, mlp_gain),
            down=self.linear(mlp.down),
            mixer_norm=mixer_norm,
            mlp_norm=mlp_norm,
            qk_gain=self._qk_gain(mixer),
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

    def _qk_gain(self, mixer: Attention) -> Tensor | None:
        if mixer.q_norm is None or mixer.k_norm is None:
            return None
        q, k = (
            interleave(self.gain(norm), mixer.head_dim).expand(heads, mixer.head_dim)
            for norm, heads in ((mixer.q_norm, mixer.heads), (mixer.k_norm, mixer.kv_heads))
        )
        return torch.cat([q, k]).contiguous()


def interleave(rows: Tensor, head_dim: int) -> Tensor:
    """Rows of each head from ``[a0 a1 … b0 b1 …]`` to ``[a0 b0 a1 b1 …]``."""
    heads = rows.shape[0] // head_dim
    split = rows.reshape(heads, 2, head_dim // 2, *rows.shape[1:])
    return split.transpose(1, 2).reshape(rows.shape)


def interleave_first(rows: Tensor, count: int, head_dim: int) -> Tensor:
    """``rows`` with the first ``count`` of them interleaved, or all where there are fewer."""
    if count <= 0:
        return rows
    if count >= rows.shape[0]:
        return interleave(rows, head_dim)
    return torch.cat([interleave(rows[:count], head_dim), rows[count:]])


def load_weights(source: WeightSource, spec: ModelSpec, dtype: torch.dtype) -> ModelWeights:
    """Read everything ``spec`` needs out of ``source``, which may be closed afterwards."""
    reader = _Reader(source, dtype)
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
