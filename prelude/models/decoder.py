"""The decoder: one definition, driven by its config.

    ids ─ embed ─▶ x ─┬─ norm ─ qkv ─ head norm ─ rotate ─▶ attention ─ out ─▶ + ─▶ x
                      └───────────────────────────────────────────────────────┘
                   x ─┬─ norm ─ gate_up ─ silu, times ─ down ─▶ + ─▶ x
                      └─────────────────────────────────────────┘

Everything but attention works on tokens one by one, so it runs over runs of ``token_chunk`` tokens: the wide
intermediates exist for one run at a time and stay in the cache. Attention is the caller's: it knows the pool and
who may read what. The last layer computes queries and everything behind them only for ``rows``.

``x`` is float32 in either dtype; the products are in the dtype of the weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from prelude.models.config import ModelConfig
from prelude.models.ops import Bits, Linear, RotaryTable, inverse_rms, rms_norm, rotate_, silu_gate
from prelude.models.weights import DecoderWeights, LayerWeights

Attention: TypeAlias = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""``(layer, q, k, v) -> [queries, heads * head_dim]``; q, k, v are [tokens, heads, head_dim]."""


class Decoder:
    def __init__(self, config: ModelConfig, weights: DecoderWeights, token_chunk: int) -> None:
        self.config = config
        self.weights = weights
        self.bits = Bits()
        self.token_chunk = token_chunk
        self.dtype = weights.embeddings.dtype
        frequencies, factor = config.inverse_frequencies()
        self._rotary = RotaryTable(frequencies, factor, config.max_positions)
        self._query_width = config.num_heads * config.head_dim
        last = weights.layers[-1].qkv
        self._last_q = _rows(last, 0, self._query_width)
        self._last_kv = _rows(last, self._query_width, last.weight.shape[0])

    def linears(self) -> list[Linear]:
        """Every projection there is, the last layer's parts among them."""
        found = [self._last_q, self._last_kv]
        for layer in self.weights.layers:
            found += [layer.qkv, layer.out, layer.gate_up, layer.down]
        return found + [head for head in (self.weights.lm_head, self.weights.score) if head is not None]

    def use(self, bits: Bits) -> None:
        """Shape kernel calls as ``bits`` says from now on."""
        self.bits = bits
        for linear in self.linears():
            linear.bits = bits

    def forward(
        self, ids: Tensor, positions: Tensor, highest: int, attention: Attention, rows: Tensor | None
    ) -> Tensor:
        """Hidden states before the final norm, [tokens or rows, hidden] float32.

        ``highest`` is the largest position; ``rows`` are the tokens that will be read, None for all of them.
        """
        x = self.weights.embeddings.index_select(0, ids).to(torch.float32)
        turns = self._rotary(positions, highest)
        layers = self.weights.layers
        for index, layer in enumerate(layers[:-1]):
            attended = attention(index, *self._project(layer, x, turns))
            self._finish(layer, x, attended)
        last, index = layers[-1], len(layers) - 1
        q, k, v = self._project_last(last, x, turns, rows)
        if rows is not None:
            x = x.index_select(0, rows)
        self._finish(last, x, attention(index, q, k, v))
        return x

    def final_norm(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.config.rms_eps, self.weights.final_gain, torch.float32)

    def logits(self, normed: Tensor) -> Tensor:
        """Float32 logits of rows after the final norm."""
        head = self.weights.lm_head
        if head is None:
            raise ValueError("this model has no language-model head, so it has no logits")
        return head(normed.to(self.dtype)).to(torch.float32)

    def scores(self, normed: Tensor) -> Tensor:
        """Logits of the classification head, in float32 whatever the weights are in."""
        head = self.weights.score
        if head is None:
            raise ValueError("this model has no classification head")
        return head(normed)

    def _chunks(self, tokens: int) -> list[slice]:
        step = self.token_chunk
        return [slice(at, min(at + step, tokens)) for at in range(0, max(tokens, 1), step)]

    def _project(self, layer: LayerWeights, x: Tensor, turns: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of all tokens."""
        heads, kv_heads, width = self.config.num_heads, self.config.num_kv_heads, self.config.head_dim
        tokens, turning = x.shape[0], heads + kv_heads
        turned = x.new_empty(tokens, turning, width)
        if tokens <= self.token_chunk:
            qkv = self._qkv(layer, x)
            values = qkv[:, turning:]
            self._turn(qkv[:, :turning], layer.qk_gain, turns, turned)
        else:
            values = x.new_empty(tokens, kv_heads, width, dtype=self.dtype)
            for chunk in self._chunks(tokens):
                qkv = self._qkv(layer, x[chunk])
                values[chunk].copy_(qkv[:, turning:])
                self._turn(qkv[:, :turning], layer.qk_gain, turns[chunk], turned[chunk])
        turned = turned.to(self.dtype)
        return turned[:, :heads], turned[:, heads:], values

    def _qkv(self, layer: LayerWeights, x: Tensor) -> Tensor:
        """All heads of q, k and v side by side, before norm and rotation."""
        normed = rms_norm(x, self.config.rms_eps, layer.input_gain, self.dtype)
        return layer.qkv(normed).view(x.shape[0], -1, self.config.head_dim)

    def _project_last(
        self, layer: LayerWeights, x: Tensor, turns: Tensor, rows: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """As ``_project``, with queries for ``rows`` only."""
        heads, kv_heads, width = self.config.num_heads, self.config.num_kv_heads, self.config.head_dim
        tokens = x.shape[0]
        gain = layer.qk_gain
        keys = x.new_empty(tokens, kv_heads, width)
        values = x.new_empty(tokens, kv_heads, width, dtype=self.dtype)
        for chunk in self._chunks(tokens):
            normed = rms_norm(x[chunk], self.config.rms_eps, layer.input_gain, self.dtype)
            kv = self._last_kv(normed).view(-1, 2 * kv_heads, width)
            values[chunk].copy_(kv[:, kv_heads:])
            self._turn(kv[:, :kv_heads], None if gain is None else gain[heads:], turns[chunk], keys[chunk])
        if rows is not None:
            x, turns = x.index_select(0, rows), turns.index_select(0, rows)
        queries = x.new_empty(x.shape[0], heads, width)
        for chunk in self._chunks(x.shape[0]):
            normed = rms_norm(x[chunk], self.config.rms_eps, layer.input_gain, self.dtype)
            q = self._last_q(normed).view(-1, heads, width)
            self._turn(q, None if gain is None else gain[:heads], turns[chunk], queries[chunk])
        return queries.to(self.dtype), keys.to(self.dtype), values

    def _turn(self, heads: Tensor, gain: Tensor | None, turns: Tensor, out: Tensor) -> None:
        """Norm per head and rotary embedding, into ``out`` (float32)."""
        if gain is None:
            out.copy_(heads)
        else:
            heads = heads.to(torch.float32)
            torch.mul(heads, inverse_rms(heads, self.config.rms_eps), out=out).mul_(gain)
        rotate_(out, turns, self.bits)

    def _finish(self, layer: LayerWeights, x: Tensor, attended: Tensor) -> None:
        """Everything behind attention, added to ``x`` in place."""
        inner = self.config.intermediate_size
        if x.shape[0] <= self.token_chunk:
            chunks = [(x, attended)]
        else:
            chunks = [(x[chunk], attended[chunk]) for chunk in self._chunks(x.shape[0])]
        for part, heads in chunks:
            layer.out.add_to(part, heads)
            normed = rms_norm(part, self.config.rms_eps, layer.mlp_gain, self.dtype)
            layer.down.add_to(part, silu_gate(layer.gate_up(normed), inner, self.bits))


def _rows(linear: Linear, start: int, stop: int) -> Linear:
    """A view of some of a projection's outputs."""
    bias = None if linear.bias is None else linear.bias[start:stop]
    return Linear(linear.weight[start:stop], bias)
