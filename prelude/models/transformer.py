"""The forward pass on a CPU: one definition for all families, driven by the model's specification.

    ids ─ embed ─▶ x ─┬─ norm ─ qkv ─ head norm ─ rotate ─▶ attention ─ out ─▶ + ─▶ x
                      └───────────────────────────────────────────────────────┘
                   x ─┬─ norm ─ up ─ activation, gate ─ down ─▶ + ─▶ x
                      └─────────────────────────────────────────┘

This is a layer with ``norm_first``; in others the two norms stand behind the sums.

Everything but attention works on tokens one by one, so it runs over runs of ``token_chunk`` tokens: the wide
intermediates exist for one run at a time and stay in the cache. Attention is the caller's: it knows the pool and
which tokens see which. In place of attention, a layer may keep a state of each sequence (``recurrent.py``). The last
layer computes queries and everything behind them only for ``rows``; one that keeps a state goes through all tokens.

``x`` is float32 in either dtype; the products are in the dtype of the weights, of int8, or of weights of bfloat16
with rows of float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from prelude.models.kernels import rotate
from prelude.models.ops import Linear, RotaryTable, RowNorm, activate
from prelude.models.recurrent import StepStates, gate_heads, room_of
from prelude.models.spec import Attention, ModelSpec, Rope
from prelude.models.summed import AnyLinear, OutLinear
from prelude.models.weights import LayerWeights, ModelWeights

AttentionCall: TypeAlias = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""``(layer, q, k, v) -> [queries, heads * head_dim]``; q, k, v are [tokens, heads, head_dim], heads side by side."""


class Transformer:
    def __init__(self, spec: ModelSpec, weights: ModelWeights, token_chunk: int) -> None:
        self.spec = spec
        self.weights = weights
        self.token_chunk = token_chunk
        self.dtype = weights.dtype
        ropes = dict.fromkeys(mixer.rope for mixer in spec.attentions if mixer.rope is not None)
        pairs = spec.attention.head_dim // 2  # of all layers that rotate
        self._tables = {rope: RotaryTable(*rope.frequencies(), spec.max_positions, pairs) for rope in ropes}
        mixer = spec.layers[-1].mixer
        self._last: tuple[AnyLinear, AnyLinear] | None = None  # projections for the rows, and for all tokens
        if isinstance(mixer, Attention):
            last = weights.layers[-1].in_proj
            width = mixer.query_width * (2 if mixer.gate else 1)
            self._last = last.rows(0, width), last.rows(width, mixer.in_proj.outputs)
        recurrent = (index for index, layer in enumerate(spec.layers) if not isinstance(layer.mixer, Attention))
        self._places = {index: place for place, index in enumerate(recurrent)}

    def linears(self) -> list[Linear]:
        """Every projection that torch may compute, the last layer's parts among them."""
        every = (*(self._last or ()), *self.weights.linears())
        return [linear for linear in every if isinstance(linear, Linear)]

    def pad_matmuls(self, min_rows: int) -> None:
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
        states: StepStates | None = None,
    ) -> Tensor:
        """Hidden states before the final norm, [tokens or rows, hidden] float32.

        ``highest`` is the largest position; ``rows`` are the tokens that will be read, None for all of them.
        ``types`` [tokens] for models with token types, int64; ``states`` for models with recurrent layers.
        """
        x = self._embed(ids, positions, highest, types)
        tokens, layers = x.shape[0], self.weights.layers
        rope_tables = {rope: table.upto(highest) for rope, table in self._tables.items()}
        workspace = _Workspace(self.spec, tokens, min(tokens, self.token_chunk), self.dtype)
        for index, layer in enumerate(layers[:-1]):
            _enter(layer, x, types)
            if layer.recurrent is None:
                q, k, v, gates = self._project(layer, x, positions, rope_tables, workspace)
                mixed = _gated(attention(index, q, k, v), gates)
            else:
                mixed = self._recur(index, layer, x, states, workspace)
            self._finish(layer, x, mixed, workspace)
        last, index = layers[-1], len(layers) - 1
        _enter(last, x, types)
        if self._last is None:
            mixed = self._recur(index, last, x, states, workspace)
            if rows is not None:
                x, mixed = x.index_select(0, rows), mixed.index_select(0, rows)
            self._finish(last, x, mixed, workspace)
            return x
        of_rows, of_all = self._last
        mixer = last.spec.attention
        width = mixer.query_width * (2 if mixer.gate else 1)
        found = workspace.qkv[:, width : mixer.in_proj.outputs]
        k, v = self._heads(of_all, last, x, positions, rope_tables, workspace, found).chunk(2, dim=1)
        if rows is not None:
            x, positions = x.index_select(0, rows), positions.index_select(0, rows)
        q = self._heads(of_rows, last, x, positions, rope_tables, workspace, workspace.qkv[: x.size(0), :width])
        gates, q = _parted(q, last)
        self._finish(last, x, _gated(attention(index, q, k, v), gates), workspace)
        return x

    def final_norm(self, x: Tensor) -> Tensor:
        norm = self.weights.final_norm
        return x if norm is None else norm(x, torch.float32)

    def logits(self, normed: Tensor) -> Tensor:
        """Float32 logits of rows after the final norm."""
        head = self.weights.lm_head
        if head is None:
            raise ValueError("this model has no language-model head, so it has no logits")
        masked = self.weights.masked
        if masked is not None:
            return head(masked(normed).to(self.dtype)).to(torch.float32).add_(masked.bias)
        return self._capped(head(normed.to(self.dtype)).to(torch.float32))

    def logits_of(self, normed: Tensor, tokens: Tensor) -> Tensor:
        """Logit n of token ``tokens[n]`` for row n after the final norm, float64."""
        head = self.weights.lm_head
        if head is None:
            raise ValueError("this model has no language-model head, so it has no logits")
        masked = self.weights.masked
        if masked is not None:
            return head.of_pairs(masked(normed), tokens).add_(masked.bias[tokens])
        return self._capped(head.of_pairs(normed, tokens))

    def _capped(self, logits: Tensor) -> Tensor:
        cap = self.spec.logit_cap
        return logits.div_(cap).tanh_().mul_(cap) if cap else logits

    def scores(self, normed: Tensor) -> Tensor:
        """Logits of the classification head, in float32 with weights of any type."""
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

    def option_logits(self, rows: Tensor, kind: int) -> Tensor:
        """Logits [n] of the rows [n + 1, hidden] of a question's options and of its answer, after the final norm."""
        head = self.weights.options
        if head is None:
            raise ValueError("this model has no head that reads options together")
        return head(rows, kind)

    def _embed(self, ids: Tensor, positions: Tensor, highest: int, types: Tensor | None) -> Tensor:
        weights = self.weights.embeddings
        x = weights.of(ids)
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
        if tokens <= self.token_chunk:
            return [slice(0, tokens)]
        runs = -(-tokens // self.token_chunk)
        step = -(-tokens // runs)
        return [slice(at, min(at + step, tokens)) for at in range(0, tokens, step)]

    def _project(
        self,
        layer: LayerWeights,
        x: Tensor,
        positions: Tensor,
        rope_tables: dict[Rope, Tensor],
        workspace: _Workspace,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Queries, keys and values of all tokens, and gates where heads have them; in the workspace's memory."""
        linear, mixer = layer.in_proj, layer.spec.attention
        found = self._heads(
            linear, layer, x, positions, rope_tables, workspace, workspace.qkv[:, : mixer.in_proj.outputs]
        )
        gates, found = _parted(found, layer)
        keys = mixer.heads + mixer.kv_heads
        return found[:, : mixer.heads], found[:, mixer.heads : keys], found[:, keys:], gates

    def _recur(
        self, index: int, layer: LayerWeights, x: Tensor, states: StepStates | None, workspace: _Workspace
    ) -> Tensor:
        """The output of a layer with a state for all tokens, in the workspace's memory."""
        if states is None or layer.recurrent is None:
            raise ValueError("a model with recurrent layers runs on the states of its sequences")
        projected = workspace.qkv[:, : layer.spec.mixer.in_proj.outputs]
        for chunk in self._chunks(x.size(0)):
            layer.in_proj.into(self._input(layer, layer.mixer_norm, x[chunk], workspace), projected[chunk])
        return states.mix(self._places[index], layer.recurrent, projected, workspace.made)

    def _heads(
        self,
        linear: AnyLinear,
        layer: LayerWeights,
        x: Tensor,
        positions: Tensor,
        rope_tables: dict[Rope, Tensor],
        workspace: _Workspace,
        out: Tensor,
    ) -> Tensor:
        """The output of ``linear`` for the normed tokens, as heads [tokens, heads, D] in the memory of ``out``; those
        of q and k after their norm and rotation."""
        mixer, gain = layer.spec.attention, layer.qk_gain
        of_rows, of_all = (None, None) if self._last is None else self._last
        width, rope = mixer.head_dim, mixer.rope
        eps = 0.0 if mixer.q_norm is None else mixer.q_norm.eps
        found = out.view(x.size(0), out.shape[1] // width, width)
        first = 0 if linear is not of_all else mixer.heads
        last = mixer.heads + mixer.kv_heads if linear is not of_rows else mixer.heads
        gates = mixer.heads if mixer.gate and linear is not of_all else 0  # heads in front of those that turn
        if gain is not None:
            gain = gain[first:last]
        for chunk in self._chunks(x.size(0)):
            linear.into(self._input(layer, layer.mixer_norm, _part(x, chunk), workspace), _part(out, chunk))
            if rope is not None:
                turning = found[chunk, gates : gates + last - first]
                rotate(turning, gain, eps, rope_tables[rope], _part(positions, chunk))
        return found

    def _input(self, layer: LayerWeights, norm: RowNorm | None, x: Tensor, workspace: _Workspace) -> Tensor:
        """Rows of the residual stream as a projection reads them: normed where ``norm`` stands before it."""
        if norm is not None and layer.spec.norm_first:
            return norm(x, self.dtype, workspace.normed)
        return x if x.dtype == self.dtype else workspace.normed[: x.size(0)].copy_(x)

    def _finish(self, layer: LayerWeights, x: Tensor, attended: Tensor, workspace: _Workspace) -> None:
        """Everything behind attention, added to ``x`` in place."""
        mlp, norm_first = layer.spec.mlp, layer.spec.norm_first
        for chunk in self._chunks(x.size(0)):
            part = _part(x, chunk)
            _add(part, layer.out, _part(attended, chunk), layer.mixer_after)
            if not norm_first and layer.mixer_norm is not None:
                layer.mixer_norm(part, torch.float32, part)
            read = self._input(layer, layer.mlp_norm, part, workspace)
            up = layer.up.into(read, workspace.up[: part.size(0), : mlp.up.outputs])
            _add(part, layer.down, activate(up, mlp.inner, mlp.activation, mlp.gated), layer.mlp_after)
            if not norm_first:
                layer.mlp_norm(part, torch.float32, part)


class _Workspace:
    """Memory of a forward pass, the same in every layer: fresh memory would cost a fault for each page of it."""

    __slots__ = ("made", "normed", "qkv", "up")

    def __init__(self, spec: ModelSpec, tokens: int, longest: int, dtype: torch.dtype) -> None:
        width = max(layer.mixer.in_proj.outputs for layer in spec.layers)
        inner = max(layer.mlp.up.outputs for layer in spec.layers)
        self.qkv = torch.empty(tokens, width, dtype=dtype)
        self.normed = torch.empty(longest, spec.hidden, dtype=dtype)
        self.up = torch.empty(longest, inner, dtype=dtype)
        self.made = torch.empty(tokens, room_of(spec))


def _part(x: Tensor, rows: slice) -> Tensor:
    """Those rows of ``x``, which is no new view where they are all of them."""
    return x if rows.start == 0 and rows.stop == x.shape[0] else x[rows]


def _enter(layer: LayerWeights, x: Tensor, types: Tensor | None) -> None:
    """The operation before the layer, in place."""
    entry = layer.entry
    if entry is not None:
        entry.norm(x, torch.float32, x)
        x.add_(entry.types[0] if types is None else entry.types.index_select(0, types))


def _parted(heads: Tensor, layer: LayerWeights) -> tuple[Tensor | None, Tensor]:
    """``heads`` [tokens, heads, D] as gates [tokens, query heads * D], None without, and the heads behind them."""
    mixer = layer.spec.attention
    if not mixer.gate:
        return None, heads
    return heads[:, : mixer.heads].flatten(1), heads[:, mixer.heads :]


def _gated(attended: Tensor, gates: Tensor | None) -> Tensor:
    if gates is not None:
        gate_heads(attended, gates)
    return attended


def _add(x: Tensor, linear: OutLinear, read: Tensor, after: RowNorm | None) -> None:
    """``x += linear(read)``, in place; normed before it is added where there is ``after``."""
    if after is None:
        linear.add_to(x, read)
        return
    made = linear(read).to(torch.float32)
    x.add_(after(made, torch.float32, made))
