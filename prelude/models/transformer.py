"""The forward pass on a CPU: one definition for all families, driven by the model's specification.

    ids ─ embed ─▶ x ─┬─ norm ─ qkv ─ head norm ─ rotate ─▶ attention ─ out ─▶ + ─▶ x
                      └───────────────────────────────────────────────────────┘
                   x ─┬─ norm ─ up ─ activation, gate ─ down ─▶ + ─▶ x
                      └─────────────────────────────────────────┘

This is a layer with ``norm_first``; in others the two norms stand behind the sums.

Everything but attention works on tokens one by one, so it runs over runs of ``token_chunk`` tokens: the wide
intermediates exist for one run at a time and stay in the cache. Attention is the caller's: it knows the pool and
which tokens see which. The last layer computes queries and everything behind them only for ``rows``.

``x`` is float32 in either dtype; the products are in the dtype of the weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from prelude.models.kernels import activate, rotate
from prelude.models.ops import Linear, RotaryTable, RowNorm
from prelude.models.spec import ModelSpec, Rope
from prelude.models.weights import LayerWeights, ModelWeights

AttentionCall: TypeAlias = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""``(layer, q, k, v) -> [queries, heads * head_dim]``; q, k, v are [tokens, heads, head_dim], heads side by side."""


class Transformer:
    def __init__(self, spec: ModelSpec, weights: ModelWeights, token_chunk: int) -> None:
        self.spec = spec
        self.weights = weights
        self.token_chunk = token_chunk
        self.dtype = weights.embeddings.tokens.dtype
        ropes = dict.fromkeys(layer.mixer.rope for layer in spec.layers if layer.mixer.rope is not None)
        pairs = spec.attention.head_dim // 2  # of all layers that rotate
        self._tables = {rope: RotaryTable(*rope.frequencies(), spec.max_positions, pairs) for rope in ropes}
        last = weights.layers[-1].qkv
        width = spec.layers[-1].mixer.query_width
        self._last_q = _rows(last, 0, width)
        self._last_kv = _rows(last, width, last.weight.shape[0])

    def linears(self) -> list[Linear]:
        """Every projection there is, the last layer's parts among them."""
        return [self._last_q, self._last_kv, *self.weights.linears()]

    def pad_products(self, min_rows: int) -> None:
        """Give every product at least so many rows from now on."""
        for linear in self.linears():
            linear.min_rows = min_rows

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        highest: int,
        attention: AttentionCall,
        rows: Tensor | None,
        types: Tensor | None = None,
    ) -> Tensor:
        """Hidden states before the final norm, [tokens or rows, hidden] float32.

        ``highest`` is the largest position; ``rows`` are the tokens that will be read, None for all of them.
        ``types`` [tokens] for models with token types, int64.
        """
        x = self._embed(ids, positions, highest, types)
        tokens, layers = x.shape[0], self.weights.layers
        turns = {rope: table.upto(highest) for rope, table in self._tables.items()}
        room = _Room(self.spec, tokens, min(tokens, self.token_chunk), self.dtype)
        for index, layer in enumerate(layers[:-1]):
            _enter(layer, x, types)
            q, k, v = self._project(layer, x, positions, turns, room)
            self._finish(layer, x, attention(index, q, k, v), room)
        last, index = layers[-1], len(layers) - 1
        _enter(last, x, types)
        width = last.spec.mixer.query_width
        k, v = self._heads(
            self._last_kv, last, x, positions, turns, room, room.qkv[:, width : last.spec.mixer.qkv.outputs]
        ).chunk(2, dim=1)
        if rows is not None:
            x, positions = x.index_select(0, rows), positions.index_select(0, rows)
        q = self._heads(self._last_q, last, x, positions, turns, room, room.qkv[: x.size(0), :width])
        self._finish(last, x, attention(index, q, k, v), room)
        return x

    def final_norm(self, x: Tensor) -> Tensor:
        norm = self.weights.final_norm
        return x if norm is None else norm(x, torch.float32)

    def logits(self, normed: Tensor) -> Tensor:
        """Float32 logits of rows after the final norm."""
        head = self.weights.lm_head
        if head is None:
            raise ValueError("this model has no language-model head, so it has no logits")
        return self._capped(head(normed.to(self.dtype)).to(torch.float32))

    def logits_of(self, normed: Tensor, tokens: Tensor) -> Tensor:
        """Logit n of token ``tokens[n]`` for row n after the final norm; float64, each sum by itself."""
        head = self.weights.lm_head
        if head is None:
            raise ValueError("this model has no language-model head, so it has no logits")
        wide = head.weight[tokens].to(torch.float64)
        return self._capped(wide.mul_(normed.to(self.dtype)).sum(dim=1))

    def _capped(self, logits: Tensor) -> Tensor:
        cap = self.spec.logit_cap
        return logits.div_(cap).tanh_().mul_(cap) if cap else logits

    def scores(self, normed: Tensor) -> Tensor:
        """Logits of the classification head, in float32 whatever the weights are in."""
        head = self.weights.classifier
        if head is None:
            raise ValueError("this model has no classification head")
        rows, spec = normed, self.spec.classifier
        norm_first = spec is not None and spec.norm_first
        if norm_first and head.norm is not None:
            rows = head.norm(rows, torch.float32)
        if head.dense is not None and spec is not None:
            rows = head.dense(rows)
            if spec.activation == "tanh":
                rows = rows.tanh_()
            elif spec.activation is not None:
                rows = activate(rows, rows.shape[1], spec.activation, gated=False)
            if head.norm is not None and not norm_first:
                rows = head.norm(rows, torch.float32)
        return head.out(rows)

    def _embed(self, ids: Tensor, positions: Tensor, highest: int, types: Tensor | None) -> Tensor:
        weights = self.weights.embeddings
        x = weights.tokens.index_select(0, ids).to(torch.float32)
        if self.spec.embeddings.scale != 1.0:
            x.mul_(torch.tensor(self.spec.embeddings.scale, dtype=self.dtype).to(torch.float32))
        if highest >= self.spec.max_positions:
            raise IndexError(f"position {highest} is past the model's last, {self.spec.max_positions - 1}")
        if weights.positions is not None:
            at = positions if types is None else positions + types * self.spec.max_positions
            x.add_(weights.positions.index_select(0, at))
        if weights.norm is not None:
            weights.norm(x, torch.float32, x)
        if weights.projection is not None:
            x = weights.projection(x.to(self.dtype)).to(torch.float32)
        return x

    def _chunks(self, tokens: int) -> list[slice]:
        """Runs of at most ``token_chunk`` tokens, of about one length."""
        runs = max(1, -(-tokens // self.token_chunk))
        step = max(1, -(-tokens // runs))
        return [slice(at, min(at + step, tokens)) for at in range(0, max(tokens, 1), step)]

    def _project(
        self, layer: LayerWeights, x: Tensor, positions: Tensor, turns: dict[Rope, Tensor], room: _Room
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of all tokens, in the room's memory."""
        heads, kv_heads = layer.spec.mixer.heads, layer.spec.mixer.kv_heads
        found = self._heads(layer.qkv, layer, x, positions, turns, room, room.qkv[:, : layer.spec.mixer.qkv.outputs])
        return found[:, :heads], found[:, heads : heads + kv_heads], found[:, heads + kv_heads :]

    def _heads(
        self,
        linear: Linear,
        layer: LayerWeights,
        x: Tensor,
        positions: Tensor,
        turns: dict[Rope, Tensor],
        room: _Room,
        out: Tensor,
    ) -> Tensor:
        """What ``linear`` makes of the normed tokens, as heads [tokens, heads, D] in the memory of ``out``; those of
        q and k after their norm and rotation."""
        mixer, gain = layer.spec.mixer, layer.qk_gain
        width, rope = mixer.head_dim, mixer.rope
        eps = 0.0 if mixer.q_norm is None else mixer.q_norm.eps
        found = out.view(x.size(0), out.shape[1] // width, width)
        first = 0 if linear is not self._last_kv else mixer.heads
        last = mixer.heads + mixer.kv_heads if linear is not self._last_q else mixer.heads
        if gain is not None:
            gain = gain[first:last]
        for chunk in self._chunks(x.size(0)):
            linear.into(self._input(layer, layer.mixer_norm, x[chunk], room), out[chunk])
            if rope is not None:
                rotate(found[chunk, : last - first], gain, eps, turns[rope], positions[chunk])
        return found

    def _input(self, layer: LayerWeights, norm: RowNorm | None, x: Tensor, room: _Room) -> Tensor:
        """Rows of the residual stream as a projection reads them: normed where ``norm`` stands before it."""
        if norm is not None and layer.spec.norm_first:
            return norm(x, self.dtype, room.normed)
        return x if x.dtype == self.dtype else room.normed[: x.size(0)].copy_(x)

    def _finish(self, layer: LayerWeights, x: Tensor, attended: Tensor, room: _Room) -> None:
        """Everything behind attention, added to ``x`` in place."""
        mlp, norm_first = layer.spec.mlp, layer.spec.norm_first
        for chunk in self._chunks(x.size(0)):
            part = x[chunk]
            _add(part, layer.out, attended[chunk], layer.mixer_after)
            if not norm_first and layer.mixer_norm is not None:
                layer.mixer_norm(part, torch.float32, part)
            read = self._input(layer, layer.mlp_norm, part, room)
            up = layer.up.into(read, room.up[: part.size(0), : mlp.up.outputs])
            _add(part, layer.down, activate(up, mlp.inner, mlp.activation, mlp.gated), layer.mlp_after)
            if not norm_first:
                layer.mlp_norm(part, torch.float32, part)


class _Room:
    """Memory of a forward pass, the same in every layer: fresh memory would cost a fault for each page of it."""

    __slots__ = ("normed", "qkv", "up")

    def __init__(self, spec: ModelSpec, tokens: int, longest: int, dtype: torch.dtype) -> None:
        width = max(layer.mixer.qkv.outputs for layer in spec.layers)
        inner = max(layer.mlp.up.outputs for layer in spec.layers)
        self.qkv = torch.empty(tokens, width, dtype=dtype)
        self.normed = torch.empty(longest, spec.hidden, dtype=dtype)
        self.up = torch.empty(longest, inner, dtype=dtype)


def _enter(layer: LayerWeights, x: Tensor, types: Tensor | None) -> None:
    """What stands in front of the layer, in place."""
    entry = layer.entry
    if entry is not None:
        entry.norm(x, torch.float32, x)
        x.add_(entry.types[0] if types is None else entry.types.index_select(0, types))


def _add(x: Tensor, linear: Linear, read: Tensor, after: RowNorm | None) -> None:
    """``x += linear(read)``, in place; normed before it is added where there is ``after``."""
    if after is None:
        linear.add_to(x, read)
        return
    made = linear(read).to(torch.float32)
    x.add_(after(made, torch.float32, made))


def _rows(linear: Linear, start: int, stop: int) -> Linear:
    """A view of some of a projection's outputs."""
    bias = None if linear.bias is None else linear.bias[start:stop]
    return Linear(linear.weight[start:stop], bias)
