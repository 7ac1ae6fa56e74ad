"""Heads that read the rows of one question together, on the CPU, in float32; products of two activations are summed
in float64, by one thread."""

from __future__ import annotations

import math

import numpy as np

from prelude.models.arrays import F32, Array
from prelude.models.ops import RowNorm, activate
from prelude.models.packed import PackedLinear
from prelude.records import dataclass
from prelude.values.arrays import F64


def _products(x: F32, y: F32) -> F64:
    """[rows of x, rows of y], over the root of their width."""
    found: F64 = np.einsum("id,jd->ij", x, y, dtype=np.float64) / math.sqrt(x.shape[1])
    return found


def _logits(options: F32, answer: F32) -> F32:
    return _products(options, answer)[:, 0].astype(np.float32)


@dataclass(frozen=True, slots=True)
class PointerWeights:
    query: PackedLinear
    key: PackedLinear

    def __call__(self, rows: F32, kind: int) -> F32:
        """Return logits [n] of the rows [n + 1, hidden] of n options and of the answer."""
        return _logits(self.key(rows[:-1]), self.query(rows[-1:]))

    def arrays(self) -> list[Array]:
        return [*self.query.arrays(), *self.key.arrays()]


@dataclass(frozen=True, slots=True)
class ChoiceLayerWeights:
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

    def arrays(self) -> list[Array]:
        parts = (self.norm, self.query, self.key, self.value, self.out, self.mlp_norm, self.up, self.down)
        return [array for part in parts for array in part.arrays()]


@dataclass(frozen=True, slots=True)
class ChoiceWeights:
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

    def arrays(self) -> list[Array]:
        layers = [array for layer in self.layers for array in layer.arrays()]
        ends = [array for part in (self.norm, self.final_norm) for array in part.arrays()]
        return [self.types, *layers, *ends, *self.answer.arrays(), *self.choice.arrays()]


OptionWeights = PointerWeights | ChoiceWeights
