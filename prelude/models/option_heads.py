"""Heads that read the rows of one question together, on the CPU, in float32; products of two activations are summed
in float64, by one thread."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from prelude.arrays import F64
from prelude.models.ops import RowNorm, activate
from prelude.models.packed import PackedLinear


def _products(x: Tensor, y: Tensor) -> F64:
    """[rows of x, rows of y], over the root of their width."""
    found: F64 = np.einsum("id,jd->ij", x.numpy(), y.numpy(), dtype=np.float64) / math.sqrt(x.shape[1])
    return found


def _logits(options: Tensor, answer: Tensor) -> Tensor:
    return torch.from_numpy(_products(options, answer)[:, 0].astype(np.float32))


@dataclass(frozen=True, slots=True)
class PointerWeights:
    query: PackedLinear
    key: PackedLinear

    def __call__(self, rows: Tensor, kind: int) -> Tensor:
        """Logits [n] of the rows [n + 1, hidden] of n options and of the answer."""
        return _logits(self.key(rows[:-1]), self.query(rows[-1:]))

    def tensors(self) -> list[Tensor]:
        return [*self.query.tensors(), *self.key.tensors()]


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

    def __call__(self, x: Tensor) -> Tensor:
        normed = self.norm(x, torch.float32)
        query, key, value = self.query(normed), self.key(normed), self.value(normed)
        scores = _products(query, key)
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        mixed = np.einsum("ij,jd->id", shares, value.numpy()).astype(np.float32)
        x = x + self.out(torch.from_numpy(mixed))
        wide = self.up(self.mlp_norm(x, torch.float32))
        return x + self.down(activate(wide, wide.shape[1], "gelu", gated=False))

    def tensors(self) -> list[Tensor]:
        parts = (self.norm, self.query, self.key, self.value, self.out, self.mlp_norm, self.up, self.down)
        return [tensor for part in parts for tensor in part.tensors()]


@dataclass(frozen=True, slots=True)
class ChoiceWeights:
    types: Tensor  # [num_types, hidden]
    norm: RowNorm
    layers: tuple[ChoiceLayerWeights, ...]
    final_norm: RowNorm
    answer: PackedLinear
    choice: PackedLinear

    def __call__(self, rows: Tensor, kind: int) -> Tensor:
        """Logits [n] of the rows [n + 1, hidden] of n options and of the answer."""
        x = self.norm(torch.cat([self.types[kind : kind + 1], rows]), torch.float32)
        for layer in self.layers:
            x = layer(x)
        x = self.final_norm(x, torch.float32)
        return _logits(self.choice(x[1:-1]), self.answer(x[-1:]))

    def tensors(self) -> list[Tensor]:
        layers = [tensor for layer in self.layers for tensor in layer.tensors()]
        ends = [tensor for part in (self.norm, self.final_norm) for tensor in part.tensors()]
        return [self.types, *layers, *ends, *self.answer.tensors(), *self.choice.tensors()]


OptionWeights = PointerWeights | ChoiceWeights
