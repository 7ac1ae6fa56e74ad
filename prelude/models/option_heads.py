"""Heads that read the rows of one question together, on the CPU, in float32."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from prelude.models.ops import Linear, RowNorm
from prelude.models.packed import PackedLinear


@dataclass(frozen=True, slots=True)
class PointerWeights:
    query: Linear | PackedLinear
    key: Linear | PackedLinear

    def __call__(self, rows: Tensor, kind: int) -> Tensor:
        """Logits [n] of the rows [n + 1, hidden] of n options and of the answer."""
        query = self.query(rows[-1:].contiguous())
        return (self.key(rows[:-1]) @ query[0]) / math.sqrt(query.shape[1])

    def tensors(self) -> list[Tensor]:
        return [*self.query.tensors(), *self.key.tensors()]


@dataclass(frozen=True, slots=True)
class ChoiceLayerWeights:
    norm: RowNorm
    query: Linear | PackedLinear
    key: Linear | PackedLinear
    value: Linear | PackedLinear
    out: Linear | PackedLinear
    mlp_norm: RowNorm
    up: Linear | PackedLinear
    down: Linear | PackedLinear

    def __call__(self, x: Tensor) -> Tensor:
        normed = self.norm(x, torch.float32)
        query, key, value = self.query(normed), self.key(normed), self.value(normed)
        shares = (query @ key.t() / math.sqrt(query.shape[1])).softmax(dim=1)
        x = x + self.out(shares @ value)
        return x + self.down(F.gelu(self.up(self.mlp_norm(x, torch.float32))))

    def tensors(self) -> list[Tensor]:
        parts = (self.norm, self.query, self.key, self.value, self.out, self.mlp_norm, self.up, self.down)
        return [tensor for part in parts for tensor in part.tensors()]


@dataclass(frozen=True, slots=True)
class ChoiceWeights:
    types: Tensor  # [num_types, hidden]
    norm: RowNorm
    layers: tuple[ChoiceLayerWeights, ...]
    final_norm: RowNorm
    answer: Linear | PackedLinear
    choice: Linear | PackedLinear

    def __call__(self, rows: Tensor, kind: int) -> Tensor:
        """Logits [n] of the rows [n + 1, hidden] of n options and of the answer."""
        x = self.norm(torch.cat([self.types[kind : kind + 1], rows]), torch.float32)
        for layer in self.layers:
            x = layer(x)
        x = self.final_norm(x, torch.float32)
        answer = self.answer(x[-1:].contiguous())
        return (self.choice(x[1:-1].contiguous()) @ answer[0]) / math.sqrt(answer.shape[1])

    def tensors(self) -> list[Tensor]:
        layers = [tensor for layer in self.layers for tensor in layer.tensors()]
        ends = [tensor for part in (self.norm, self.final_norm) for tensor in part.tensors()]
        return [self.types, *layers, *ends, *self.answer.tensors(), *self.choice.tensors()]


OptionWeights = PointerWeights | ChoiceWeights
