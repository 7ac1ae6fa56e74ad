"""The forward pass on a CPU: one definition for all families, driven by the model's specification.

    ids ─ embed ─▶ x ─┬─ norm ─ qkv ─ head norm ─ rotate ─▶ attention ─ out ─▶ + ─▶ x
                      └───────────────────────────────────────────────────────┘
                   x ─┬─ norm ─ up ─ activation, gate ─ down ─▶ + ─▶ x
                      └─────────────────────────────────────────┘

This is a layer with ``norm_first``; in others the two norms stand behind the sums.

Everything but attention works on tokens one by one, so it runs over chunks of ``token_chunk`` tokens: the wide
intermediates exist for one chunk at a time and stay in the cache. Keys and values of a layer are made for all tokens
first. Then each run of chunks goes through its queries, attention over all keys, and everything behind it: queries
exist for one run at a time. A step of one run makes queries, keys and values in one product.

Attention is the caller's: it knows the pool and which tokens see which. In place of attention, a layer may keep a
state of each sequence (``recurrent.py``). The last layer computes queries and everything behind them only for
``rows``; one that keeps a state goes through all tokens.

``x`` is float32 in either dtype; the products are in the dtype of the weights, of int8, or of weights of bfloat16
with rows of float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import torch
from torch import Tensor

from prelude._native import cpu
from prelude.models.kernels import rotate
from prelude.models.ops import Linear, RotaryTable, RowNorm, activate
from prelude.models.packed import PackedLinear
from prelude.models.recurrent import StepStates, gate_heads, room_of
from prelude.models.spec import Attention, ModelSpec, Rope
from prelude.models.summed import AnyLinear, OutLinear
from prelude.models.weights import LayerWeights, ModelWeights

Which: TypeAlias = Literal["all", "queries", "keys"]
"""Outputs of a layer's first projection: queries (with their gates), keys and values, or all of them."""


@dataclass(frozen=True, slots=True)
class Run:
    """Tokens whose queries exist at the same time. ``chunks`` are counted from the run's first token."""

    tokens: slice
    chunks: list[slice]


class StepAttention(Protocol):
    """Attention of one step. ``runs``: of all tokens; ``last_runs``: of the rows that the last layer computes.

    q, k, v are [tokens, heads, head_dim], heads side by side."""

    runs: list[Run]
    last_runs: list[Run]

    def keep(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Keys and values of all tokens of the step, before the first run's queries."""

    def run(self, layer: int, number: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """[queries, heads * head_dim] for the queries of run ``number``; it may have the memory of ``q``."""


class Transformer:
    def __init__(self, spec: ModelSpec, weights: ModelWeights, token_chunk: int) -> None:
        self.spec = spec
        self.weights = weights
        self.token_chunk = token_chunk
        self.run_chunks = 1  # of a run, at least
        self.dtype = weights.dtype
        ropes = dict.fromkeys(mixer.rope for mixer in spec.attentions if mixer.rope is not None)
        pairs = spec.attention.head_dim // 2  # of all layers that rotate
        self._tables = {rope: RotaryTable(*rope.frequencies(), spec.max_positions, pairs) for rope in ropes}
        self._apart = [_apart(layer) for layer in weights.layers]
        recurrent = (index for index, layer in enumerate(spec.layers) if not isinstance(layer.mixer, Attention))
        self._places = {index: place for place, index in enumerate(recurrent)}

    def take_whole(self) -> None:
        """Make queries, and keys and values, by the product of all of them where torch computes it."""
        for index, layer in enumerate(self.weights.layers):
            mixer, whole = layer.spec.mixer, layer.in_proj
            if isinstance(mixer, Attention) and isinstance(whole, Linear):
                self._apart[index] = _Outputs(whole, 0), _Outputs(whole, _query_width(mixer))

    def linears(self) -> list[Linear]:
        """Every projection that torch may compute, those of queries and of keys and values among them."""
        apart = (part for both in self._apart if both is not None for part in both)
        return [linear for linear in (*apart, *self.weights.linears()) if isinstance(linear, Linear)]

    def taken_apart(self) -> list[tuple[Linear, Linear, Linear]]:
        """The projections of queries, keys and values that torch may compute, each with its two parts."""
        found = []
        for layer, both in zip(self.weights.layers, self._apart):
            if both is not None and isinstance(layer.in_proj, Linear):
                queries, keys = both
                if isinstance(queries, Linear) and isinstance(keys, Linear):
                    found.append((layer.in_proj, queries, keys))
        return found

    def runs(self, tokens: int, cut: bool) -> list[Run]:
        """``tokens`` as runs of whole chunks; one run unless ``cut``."""
        chunks = self._chunks(tokens)
        size = max(1, self.run_chunks) if cut else len(chunks)
        made = []
        for at in range(0, len(chunks), size):
            some = chunks[at : at + size]
            first = some[0].start
            made.append(
                Run(slice(first, some[-1].stop), [slice(one.start - first, one.stop - first) for one in some])
            )
        return made

    def pad_matmuls(self, min_rows: int) -> None:
        """Give every product at least so many rows from now on."""
        for linear in self.linears():
            linear.min_rows = min_rows

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        highest: int,
        attention: StepAttention,
        rows: Tensor | None,
        types: Tensor | None = None,
        states: StepStates | None = None,
    ) -> Tensor:
        """Hidden states before the final norm, [tokens or rows, hidden] float32.

        ``highest`` is the largest position; ``rows`` are the tokens that will be read, None for all of them.
        ``types`` [tokens] for models with token types, int64; ``states`` for models with recurrent layers.
        """
        x = self._embed(ids, positions, highest, types)
        layers, runs = self.weights.layers, attention.runs
        rope_tables = {rope: table.upto(highest) for rope, table in self._tables.items()}
        tokens, longest = x.shape[0], min(x.shape[0], self.token_chunk)
        most = tokens if len(runs) == 1 else longest * self.run_chunks
        workspace = _Workspace(self.spec, tokens, longest, most, self.dtype)
        last = len(layers) - 1
        for index, layer in enumerate(layers):
            _enter(layer, x, types)
            if layer.recurrent is not None:
                mixed = self._recur(index, layer, x, states, workspace)
                if index == last and rows is not None:
                    x, mixed, runs = x.index_select(0, rows), mixed.index_select(0, rows), attention.last_runs
                for run in runs:
                    self._finish(layer, _part(x, run.tokens), _part(mixed, run.tokens), run.chunks, workspace)
            elif index < last and len(runs) == 1:
                q, k, v, gates = self._project(layer, x, positions, rope_tables, workspace)
                attention.keep(index, k, v)
                self._finish(layer, x, _gated(attention.run(index, 0, q, k, v), gates), runs[0].chunks, workspace)
            else:
                k, v = self._keys(index, x, positions, rope_tables, workspace)
                attention.keep(index, k, v)
                if index == last:
                    if rows is not None:
                        x, positions = x.index_select(0, rows), positions.index_select(0, rows)
                    runs = attention.last_runs
                for number, run in enumerate(runs):
                    some, at = _part(x, run.tokens), _part(positions, run.tokens)
                    q, gates = self._queries(index, some, at, rope_tables, run, workspace)
                    mixed = _gated(attention.run(index, number, q, k, v), gates)
                    self._finish(layer, some, mixed, run.chunks, workspace)
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
        mixer = layer.spec.attention
        out, chunks = workspace.kept[:, : mixer.in_proj.outputs], self._chunks(x.size(0))
        found = self._heads("all", layer.in_proj, layer, x, positions, rope_tables, chunks, workspace, out)
        gates, found = _parted(found, layer)
        keys = mixer.heads + mixer.kv_heads
        return found[:, : mixer.heads], found[:, mixer.heads : keys], found[:, keys:], gates

    def _keys(
        self, index: int, x: Tensor, positions: Tensor, rope_tables: dict[Rope, Tensor], workspace: _Workspace
    ) -> tuple[Tensor, Tensor]:
        """Keys and values of all tokens, in the workspace's memory."""
        layer, (_, linear) = self.weights.layers[index], self._parts_of(index)
        mixer = layer.spec.attention
        out, chunks = workspace.keys(mixer), self._chunks(x.size(0))
        found = self._heads("keys", linear, layer, x, positions, rope_tables, chunks, workspace, out)
        return found[:, : mixer.kv_heads], found[:, mixer.kv_heads :]

    def _queries(
        self,
        index: int,
        x: Tensor,
        positions: Tensor,
        rope_tables: dict[Rope, Tensor],
        run: Run,
        workspace: _Workspace,
    ) -> tuple[Tensor, Tensor | None]:
        """Queries of a run's tokens ``x``, and gates where heads have them; in the workspace's memory."""
        layer, (linear, _) = self.weights.layers[index], self._parts_of(index)
        out = workspace.queries(layer.spec.attention, x.size(0))
        found = self._heads("queries", linear, layer, x, positions, rope_tables, run.chunks, workspace, out)
        gates, q = _parted(found, layer)
        return q, gates

    def _parts_of(self, index: int) -> tuple[_InProj, _InProj]:
        both = self._apart[index]
        if both is None:
            raise TypeError(f"layer {index} has no attention")
        return both

    def _recur(
        self, index: int, layer: LayerWeights, x: Tensor, states: StepStates | None, workspace: _Workspace
    ) -> Tensor:
        """The output of a layer with a state for all tokens, in the workspace's memory."""
        if states is None or layer.recurrent is None:
            raise ValueError("a model with recurrent layers runs on the states of its sequences")
        projected = workspace.kept[:, : layer.spec.mixer.in_proj.outputs]
        for chunk in self._chunks(x.size(0)):
            layer.in_proj.into(self._input(layer, layer.mixer_norm, x[chunk], workspace), projected[chunk])
        return states.mix(self._places[index], layer.recurrent, projected, workspace.made)

    def _heads(
        self,
        which: Which,
        linear: _InProj,
        layer: LayerWeights,
        x: Tensor,
        positions: Tensor,
        rope_tables: dict[Rope, Tensor],
        chunks: list[slice],
        workspace: _Workspace,
        out: Tensor,
    ) -> Tensor:
        """The output of ``linear`` for the normed tokens, as heads [tokens, heads, D] in the memory of ``out``; those
        of q and k after their norm and rotation."""
        mixer, gain = layer.spec.attention, layer.qk_gain
        width, rope = mixer.head_dim, mixer.rope
        eps = 0.0 if mixer.q_norm is None else mixer.q_norm.eps
        found = out.view(x.size(0), out.shape[1] // width, width)
        first = mixer.heads if which == "keys" else 0
        last = mixer.heads if which == "queries" else mixer.heads + mixer.kv_heads
        gates = mixer.heads if mixer.gate and which != "keys" else 0  # heads in front of those that turn
        if gain is not None:
            gain = gain[first:last]
        for chunk in chunks:
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

    def _finish(
        self, layer: LayerWeights, x: Tensor, attended: Tensor, chunks: list[slice], workspace: _Workspace
    ) -> None:
        """Everything behind attention, added to ``x`` in place."""
        mlp, norm_first = layer.spec.mlp, layer.spec.norm_first
        for chunk in chunks:
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
    """Memory of a forward pass, the same in every layer: fresh memory would cost a fault for each page of it.

    ``kept``: of all tokens: what a layer with a state reads, and keys and values; behind queries where there is one
    run. ``apart``: queries of one run where there are several."""

    __slots__ = ("apart", "kept", "made", "normed", "up")

    def __init__(self, spec: ModelSpec, tokens: int, longest: int, run: int, dtype: torch.dtype) -> None:
        """``longest``: tokens of the longest chunk; ``run``: of the longest run, which are all where there is one."""
        inner = max(layer.mlp.up.outputs for layer in spec.layers)
        self.kept = torch.empty(tokens, kept_width(spec, run < tokens), dtype=dtype)
        self.apart: Tensor | None = None
        if run < tokens:
            self.apart = torch.empty(run, max(map(_query_width, spec.attentions)), dtype=dtype)
        self.normed = torch.empty(longest, spec.hidden, dtype=dtype)
        self.up = torch.empty(longest, inner, dtype=dtype)
        self.made = torch.empty(tokens, room_of(spec))

    def keys(self, mixer: Attention) -> Tensor:
        """[tokens, keys and values of a token]"""
        width = _query_width(mixer)
        first = 0 if self.apart is not None else width
        return self.kept[:, first : first + mixer.in_proj.outputs - width]

    def queries(self, mixer: Attention, count: int) -> Tensor:
        """[count, queries and gates of a token]"""
        memory = self.kept if self.apart is None else self.apart
        return memory[:count, : _query_width(mixer)]


def kept_width(spec: ModelSpec, cut: bool) -> int:
    """Values that exist of each token for a whole layer. ``cut``: its queries exist for one run at a time."""
    return max(
        layer.mixer.in_proj.outputs - (_query_width(layer.mixer) if cut and isinstance(layer.mixer, Attention) else 0)
        for layer in spec.layers
    )


def _query_width(mixer: Attention) -> int:
    return mixer.query_width * (2 if mixer.gate else 1)


class _Outputs:
    """Some outputs of a projection, made by a product of more of them: with the bits that all outputs have."""

    __slots__ = ("_first", "_of")

    def __init__(self, of: AnyLinear, first: int) -> None:
        """The outputs from ``first`` on, as many as the memory that they go to has."""
        self._of = of
        self._first = first

    def into(self, x: Tensor, out: Tensor) -> Tensor:
        made = self._of.into(x, out.new_empty(x.shape[0], self._of.outputs))
        return out.copy_(made[:, self._first : self._first + out.shape[1]])


_InProj: TypeAlias = AnyLinear | _Outputs


def _apart(layer: LayerWeights) -> tuple[_InProj, _InProj] | None:
    """The projection of queries and gates, and that of keys and values, in the layer's memory; None for a layer
    without attention."""
    mixer = layer.spec.mixer
    if not isinstance(mixer, Attention):
        return None
    whole, width, outputs = layer.in_proj, _query_width(mixer), mixer.in_proj.outputs
    behind = width % cpu.PACKED_GROUP if isinstance(whole, PackedLinear) else 0
    # Where packed keys begin within a group of outputs, the queries before them in it are made once more.
    keys = whole.rows(width - behind, outputs)
    return whole.rows(0, width), _Outputs(keys, behind) if behind else keys


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
