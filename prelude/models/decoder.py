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
from prelude.models.kernels import rms_norm, rotate, silu_gate
from prelude.models.ops import Linear, RotaryTable
from prelude.models.weights import DecoderWeights, LayerWeights

Attention: TypeAlias = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""``(layer, q, k, v) -> [queries, heads * head_dim]``; q, k, v are [tokens, heads, head_dim], heads side by side."""


class Decoder:
    def __init__(self, config: ModelConfig, weights: DecoderWeights, token_chunk: int) -> None:
        self.config = config
        self.weights = weights
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

    def pad_products(self, min_rows: int) -> None:
        """Give every product at least so many rows from now on."""
        for linear in self.linears():
            linear.min_rows = min_rows

    def forward(
        self, ids: Tensor, positions: Tensor, highest: int, attention: Attention, rows: Tensor | None
    ) -> Tensor:
        """Hidden states before the final norm, [tokens or rows, hidden] float32.

        ``highest`` is the largest position; ``rows`` are the tokens that will be read, None for all of them.
        """
        x = self.weights.embeddings.index_select(0, ids).to(torch.float32)
        tokens, layers = x.shape[0], self.weights.layers
        turns = self._rotary.upto(highest)
        room = _Room(self.config, tokens, min(tokens, self.token_chunk), self.dtype)
        for index, layer in enumerate(layers[:-1]):
            q, k, v = self._project(layer, x, positions, turns, room)
            self._finish(layer, x, attention(index, q, k, v), room)
        last, index = layers[-1], len(layers) - 1
        kv = self._heads(self._last_kv, last, x, positions, turns, room, room.qkv[:, self._query_width :])
        k, v = kv.chunk(2, dim=1)
        if rows is not None:
            x, positions = x.index_select(0, rows), positions.index_select(0, rows)
        q = self._heads(self._last_q, last, x, positions, turns, room, room.qkv[: x.size(0), : self._query_width])
        self._finish(last, x, attention(index, q, k, v), room)
        return x

    def final_norm(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.config.rms_eps, self.weights.final_gain, torch.float32)

    def logits(self, normed: Tensor) -> Tensor:
        """Float32 logits of rows after the final norm."""
        head = self.weights.lm_head
        if head is None:
            raise ValueError("this model has no language-model head, so it has no logits")
        return head(normed.to(self.dtype)).to(torch.float32)

    def logits_of(self, normed: Tensor, tokens: Tensor) -> Tensor:
        """Logit n of token ``tokens[n]`` for row n after the final norm; float64, each sum by itself."""
        head = self.weights.lm_head
        if head is None:
            raise ValueError("this model has no language-model head, so it has no logits")
        wide = head.weight[tokens].to(torch.float64)
        return wide.mul_(normed.to(self.dtype)).sum(dim=1)

    def scores(self, normed: Tensor) -> Tensor:
        """Logits of the classification head, in float32 whatever the weights are in."""
        head = self.weights.score
        if head is None:
            raise ValueError("this model has no classification head")
        return head(normed)

    def _chunks(self, tokens: int) -> list[slice]:
        """Runs of at most ``token_chunk`` tokens, of about one length."""
        runs = max(1, -(-tokens // self.token_chunk))
        step = max(1, -(-tokens // runs))
        return [slice(at, min(at + step, tokens)) for at in range(0, max(tokens, 1), step)]

    def _project(
        self, layer: LayerWeights, x: Tensor, positions: Tensor, turns: Tensor, room: _Room
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of all tokens, in the room's memory."""
        heads, kv_heads = self.config.num_heads, self.config.num_kv_heads
        found = self._heads(layer.qkv, layer, x, positions, turns, room, room.qkv)
        return found[:, :heads], found[:, heads : heads + kv_heads], found[:, heads + kv_heads :]

    def _heads(
        self,
        linear: Linear,
        layer: LayerWeights,
        x: Tensor,
        positions: Tensor,
        turns: Tensor,
        room: _Room,
        out: Tensor,
    ) -> Tensor:
        """What ``linear`` makes of the normed tokens, as heads [tokens, heads, D] in the memory of ``out``; those of
        q and k after their norm and rotation."""
        heads, kv_heads, width = self.config.num_heads, self.config.num_kv_heads, self.config.head_dim
        eps, gain = self.config.rms_eps, layer.qk_gain
        found = out.view(x.size(0), out.shape[1] // width, width)
        first = 0 if linear is not self._last_kv else heads
        last = heads + kv_heads if linear is not self._last_q else heads
        if gain is not None:
            gain = gain[first:last]
        for chunk in self._chunks(x.size(0)):
            linear.into(rms_norm(x[chunk], eps, layer.input_gain, self.dtype, room.normed), out[chunk])
            rotate(found[chunk, : last - first], gain, eps, turns, positions[chunk])
        return found

    def _finish(self, layer: LayerWeights, x: Tensor, attended: Tensor, room: _Room) -> None:
        """Everything behind attention, added to ``x`` in place."""
        inner, eps = self.config.intermediate_size, self.config.rms_eps
        for chunk in self._chunks(x.size(0)):
            part = x[chunk]
            layer.out.add_to(part, attended[chunk])
            normed = rms_norm(part, eps, layer.mlp_gain, self.dtype, room.normed)
            layer.down.add_to(part, silu_gate(layer.gate_up.into(normed, room.gate_up[: part.size(0)]), inner))


class _Room:
    """Memory of a forward pass, the same in every layer: fresh memory would cost a fault for each page of it."""

    __slots__ = ("gate_up", "normed", "qkv")

    def __init__(self, config: ModelConfig, tokens: int, longest: int, dtype: torch.dtype) -> None:
        heads = config.num_heads + 2 * config.num_kv_heads
        self.qkv = torch.empty(tokens, heads * config.head_dim, dtype=dtype)
        self.normed = torch.empty(longest, config.hidden_size, dtype=dtype)
        self.gate_up = torch.empty(longest, 2 * config.intermediate_size, dtype=dtype)


def _rows(linear: Linear, start: int, stop: int) -> Linear:
    """A view of some of a projection's outputs."""
    bias = None if linear.bias is None else linear.bias[start:stop]
    return Linear(linear.weight[start:stop], bias)
