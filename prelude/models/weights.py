"""Decoder weights as the forward pass wants them: copied out of the files once, merged, one resident copy.

qkv       q, k and v projections stacked; rows of q and k permuted so that the two halves of a head lie
          interleaved (a rotation is then one complex product; scores do not see the order)
gate_up   the two projections of SwiGLU stacked
float32   the gain of a norm is inside the weight behind it: one pass over the tokens less
bfloat16  gains stay apart, in float32: rounding their product again would double the weights' noise
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from prelude.models.config import ModelConfig
from prelude.models.ops import Linear
from prelude.progress import watched

SCORE = "score.weight"
LM_HEAD = "lm_head.weight"


class WeightSource(Protocol):
    """What is needed of a checkpoint."""

    def names(self) -> Sequence[str]: ...

    def tensor(self, name: str) -> Tensor: ...

    def finite(self, name: str) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class LayerWeights:
    qkv: Linear
    out: Linear
    gate_up: Linear
    down: Linear
    input_gain: Tensor | None  # None where it is folded into qkv
    mlp_gain: Tensor | None  # None where it is folded into gate_up
    qk_gain: Tensor | None  # [heads + kv_heads, head_dim], interleaved; None for models without it


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    embeddings: Tensor  # [vocab, hidden]
    layers: tuple[LayerWeights, ...]
    final_gain: Tensor  # [hidden], float32
    lm_head: Linear | None  # shares the embeddings' memory where it is tied
    score: Linear | None  # a classification head

    @property
    def nbytes(self) -> int:
        """Resident bytes, shared memory counted once."""
        tensors = [self.embeddings, self.final_gain]
        for linear in (self.lm_head, self.score):
            if linear is not None:
                tensors += [linear.weight] if linear.bias is None else [linear.weight, linear.bias]
        for layer in self.layers:
            for part in (layer.qkv, layer.out, layer.gate_up, layer.down):
                tensors += [part.weight] if part.bias is None else [part.weight, part.bias]
            tensors += [g for g in (layer.input_gain, layer.mlp_gain, layer.qk_gain) if g is not None]
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
        return sum(storages.values())


class _Reader:
    """Reads weights of one layer after another into merged tensors of the working dtype."""

    def __init__(self, source: WeightSource, config: ModelConfig, dtype: torch.dtype) -> None:
        self.source = source
        self.config = config
        self.dtype = dtype
        self.names = frozenset(source.names())
        self.folds = dtype == torch.float32

    def gain(self, name: str) -> Tensor:
        return self.source.finite(name).to(torch.float32, copy=True)

    def linear(self, prefix: str, parts: Sequence[str], gain: Tensor | None = None) -> Linear:
        """The projections ``parts`` stacked, inputs scaled by ``gain``. Only one source tensor is alive at a time."""
        shapes = [self.source.tensor(f"{prefix}.{part}.weight").shape for part in parts]
        weight = torch.empty(sum(s[0] for s in shapes), shapes[0][1], dtype=self.dtype)
        at = 0
        for part, shape in zip(parts, shapes):
            rows = self._ordered(part, self.source.finite(f"{prefix}.{part}.weight"))
            weight[at : at + shape[0]].copy_(rows)
            at += shape[0]
        if gain is not None:
            weight.mul_(gain)
        return Linear(weight, self._bias(prefix, parts))

    def _bias(self, prefix: str, parts: Sequence[str]) -> Tensor | None:
        if f"{prefix}.{parts[0]}.bias" not in self.names:
            return None
        biases = [self._ordered(part, self.source.finite(f"{prefix}.{part}.bias")) for part in parts]
        return torch.cat(biases).to(self.dtype)

    def _ordered(self, part: str, rows: Tensor) -> Tensor:
        return interleave(rows, self.config.head_dim) if part in ("q_proj", "k_proj") else rows

    def layer(self, index: int) -> LayerWeights:
        prefix = f"model.layers.{index}"
        before = self.gain(f"{prefix}.input_layernorm.weight")
        after = self.gain(f"{prefix}.post_attention_layernorm.weight")
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        return LayerWeights(
            qkv=self.linear(attention, ("q_proj", "k_proj", "v_proj"), before if self.folds else None),
            out=self.linear(attention, ("o_proj",)),
            gate_up=self.linear(mlp, ("gate_proj", "up_proj"), after if self.folds else None),
            down=self.linear(mlp, ("down_proj",)),
            input_gain=None if self.folds else before,
            mlp_gain=None if self.folds else after,
            qk_gain=self._qk_gain(attention) if self.config.qk_norm else None,
        )

    def _qk_gain(self, prefix: str) -> Tensor:
        heads, kv_heads, width = self.config.num_heads, self.config.num_kv_heads, self.config.head_dim
        q = interleave(self.gain(f"{prefix}.q_norm.weight"), width).expand(heads, width)
        k = interleave(self.gain(f"{prefix}.k_norm.weight"), width).expand(kv_heads, width)
        return torch.cat([q, k]).contiguous()


def interleave(rows: Tensor, head_dim: int) -> Tensor:
    """Rows of each head from ``[a0 a1 … b0 b1 …]`` to ``[a0 b0 a1 b1 …]``."""
    heads = rows.shape[0] // head_dim
    split = rows.reshape(heads, 2, head_dim // 2, *rows.shape[1:])
    return split.transpose(1, 2).reshape(rows.shape)


def load_weights(source: WeightSource, config: ModelConfig, dtype: torch.dtype) -> DecoderWeights:
    """Read everything ``config`` needs out of ``source``, which may be closed afterwards."""
    reader = _Reader(source, config, dtype)
    embeddings = source.finite("model.embed_tokens.weight").to(dtype, copy=True)
    lm_head: Linear | None = None
    if LM_HEAD in reader.names:
        lm_head = Linear(source.finite(LM_HEAD).to(dtype, copy=True))
    elif config.lm_head and config.tie_word_embeddings:
        lm_head = Linear(embeddings)
    score: Linear | None = None
    if SCORE in reader.names:
        # A handful of rows: float32 costs nothing and spares the answer one rounding.
        score = Linear(source.finite(SCORE).to(torch.float32, copy=True))
    return DecoderWeights(
        embeddings=embeddings,
        layers=tuple(map(reader.layer, watched(range(config.num_layers), "loading", "layers", config.num_layers))),
        final_gain=reader.gain("model.norm.weight"),
        lm_head=lm_head,
        score=score,
    )
