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

from typing import Any, Protocol, TypeVar

import numpy as np

from prelude._native import cpu
from prelude.models.arrays import F32, FLOAT32, Array, as_type, side_by_side, widen
from prelude.models.mixer_sides import BeforeMixer, BehindMixer, InProj, SomeOutputs, before_attention, part_of
from prelude.models.ops import RotaryTable, activate
from prelude.models.packed import PackedLinear
from prelude.models.recurrent import StepStates, room_of
from prelude.models.spec import Attention, ModelSpec
from prelude.models.weights import LayerWeights, ModelWeights
from prelude.records import dataclass
from prelude.values.arrays import F64

Logits = TypeVar("Logits", F32, F64)


@dataclass(frozen=True, slots=True)
class Run:
    """Tokens whose queries exist at the same time, ``chunk`` of them at a time between two attentions."""

    tokens: slice
    chunk: int


class StepAttention(Protocol):
    """Attention of one step. ``runs``: of all tokens; ``last_runs``: of the rows that the last layer computes.

    q, k, v are [tokens, heads, head_dim], heads side by side."""

    runs: list[Run]
    last_runs: list[Run]

    def keep(self, layer: int, k: Array, v: Array) -> None:
        """Keys and values of all tokens of the step, before the first run's queries."""

    def run(self, layer: int, number: int, q: Array, k: Array, v: Array) -> Array:
        """[queries, heads * head_dim] for the queries of run ``number``; it may have the memory of ``q``."""


class Transformer:
    def __init__(self, spec: ModelSpec, weights: ModelWeights, token_chunk: int) -> None:
        self.spec = spec
        self.weights = weights
        self.token_chunk = token_chunk
        self.run_chunks = 1  # of a run, at least
        self.forward_bytes = 0  # of the last forward pass: its stream and its workspace
        self.dtype = weights.dtype
        self._attentions = spec.attentions
        pairs = spec.attention.head_dim // 2  # of all layers that rotate
        tables = {one.rope: RotaryTable(one.rope, spec.max_positions, pairs) for one in spec.attentions if one.rope}
        self._tables = [tables[one.rope] if one.rope else None for one in spec.attentions]
        self._apart = [_apart(layer) for layer in weights.layers]
        self.before = [self._sides_before(index) for index in range(len(weights.layers))]
        self.behind = [BehindMixer(layer, self.dtype) for layer in weights.layers]
        recurrent = (index for index, layer in enumerate(spec.layers) if not isinstance(layer.mixer, Attention))
        self.sizes = Sizes.of(spec, any(behind.makes for behind in self.behind))
        self._places = {index: place for place, index in enumerate(recurrent)}

    def _sides_before(self, index: int) -> tuple[BeforeMixer, ...]:
        """Return ``before_attention`` of a layer with attention, or the projection of another layer."""
        layer, both = self.weights.layers[index], self._apart[index]
        if both is None:
            return (BeforeMixer(layer, layer.in_proj, self.dtype, None),)
        return before_attention(layer, *both, self.dtype)

    def runs(self, tokens: int) -> list[Run]:
        """``tokens`` as runs of whole chunks."""
        chunk = self._chunk(tokens)
        step = chunk * self.run_chunks
        if step >= tokens:
            return [Run(slice(0, tokens), chunk)]
        return [Run(slice(at, min(at + step, tokens)), chunk) for at in range(0, tokens, step)]

    def forward(
        self,
        ids: Array,
        positions: Array,
        highest: int,
        attention: StepAttention,
        rows: Array | None,
        types: Array | None = None,
        states: StepStates | None = None,
    ) -> F32:
        """Hidden states before the final norm, [tokens or rows, hidden] float32.

        ``highest`` is the largest position; ``rows`` are the tokens that will be read, None for all of them.
        ``types`` [tokens] for models with token types, int64; ``states`` for models with recurrent layers.
        """
        x = self._embed(ids, positions, highest, types)
        layers, runs = self.weights.layers, attention.runs
        tables = [None if table is None else table.upto(highest) for table in self._tables]
        tokens, longest = len(x), min(len(x), self.token_chunk)
        most = tokens if len(runs) == 1 else longest * self.run_chunks
        workspace = _Workspace(self.sizes, tokens, longest, most, self.dtype)
        self.forward_bytes = x.nbytes + workspace.nbytes
        chunk, last, place = self._chunk(tokens), len(layers) - 1, 0
        for index, layer in enumerate(layers):
            _enter(layer, x, types)
            behind = self.behind[index]
            if layer.recurrent is not None:
                mixed = self._recur(index, layer, x, chunk, states, workspace)
                if index == last and rows is not None:
                    x, mixed, runs = x[rows], mixed[rows], attention.last_runs
                for run in runs:
                    workspace.finish(behind, part_of(x, run.tokens), part_of(mixed, run.tokens), run.chunk)
                continue
            mixer, table = self._attentions[place], tables[place]
            all_heads, query_heads, key_heads = self.before[index]
            place += 1
            if len(runs) == 1 and (index < last or rows is None):
                heads = workspace.heads(mixer)
                all_heads(x, heads.rows, chunk, workspace.normed, table, positions)
                attention.keep(index, heads.k, heads.v)
                mixed = _gated(attention.run(index, 0, heads.q, heads.k, heads.v), heads.gates)
                workspace.finish(behind, x, mixed, chunk)
                continue
            out, k, v = workspace.keys(mixer)
            key_heads(x, out, chunk, workspace.normed, table, positions)
            attention.keep(index, k, v)
            if index == last:
                if rows is not None:
                    x, positions = x[rows], positions[rows]
                runs = attention.last_runs
            for number, run in enumerate(runs):
                some, at = part_of(x, run.tokens), part_of(positions, run.tokens)
                out, gates, q = workspace.queries(mixer, len(some))
                query_heads(some, out, run.chunk, workspace.normed, table, at)
                mixed = _gated(attention.run(index, number, q, k, v), gates)
                workspace.finish(behind, some, mixed, run.chunk)
        return x

    def final_norm(self, x: F32) -> F32:
        norm = self.weights.final_norm
        return x if norm is None else norm(x)

    def logits(self, normed: F32) -> F32:
        """Float32 logits of rows after the final norm."""
        head, rows = self._head(normed)
        logits = head(self._rows(rows))
        if self.weights.masked is not None:
            logits += self.weights.masked.bias
        return self._capped(logits)

    def logits_of(self, normed: F32, tokens: Array) -> F64:
        """Logit n of token ``tokens[n]``, int64, for row n after the final norm."""
        head, rows = self._head(normed)
        logits = head.of_pairs(rows, tokens)
        if self.weights.masked is not None:
            logits += self.weights.masked.bias[tokens]
        return self._capped(logits)

    def _head(self, normed: F32) -> tuple[PackedLinear, F32]:
        """Return the language-model head and the rows that it reads."""
        head, masked = self.weights.lm_head, self.weights.masked
        if head is None:
            raise ValueError("this model has no language-model head, so it has no logits")
        return head, normed if masked is None else masked(normed)

    def _capped(self, logits: Logits) -> Logits:
        """Return ``cap * tanh(logits / cap)``, in the memory of ``logits``."""
        if self.spec.logit_cap:
            cap = logits.dtype.type(self.spec.logit_cap)
            np.divide(logits, cap, out=logits)
            np.tanh(logits, out=logits)
            np.multiply(logits, cap, out=logits)
        return logits

    def _rows(self, rows: F32) -> Array:
        """Return rows as projections read them."""
        return as_type(rows, self.dtype)

    def scores(self, normed: F32) -> F32:
        """Return logits of the classification head, in float32 with weights of any type."""
        head = self.weights.classifier
        if head is None:
            raise ValueError("this model has no classification head")
        rows, spec = normed, self.spec.classifier
        norm_first = spec is not None and spec.norm_first
        if norm_first and head.norm is not None:
            rows = head.norm(rows)
        if head.dense is not None and spec is not None:
            rows = head.dense(rows)
            if spec.activation == "tanh":
                rows = np.tanh(rows)
            elif spec.activation is not None:
                rows = activate(rows, rows.shape[1], spec.activation, gated=False)
            if head.norm is not None and not norm_first:
                rows = head.norm(rows)
        return head.out(rows)

    def option_logits(self, rows: F32, kind: int) -> F32:
        """Logits [n] of the rows [n + 1, hidden] of a question's options and of its answer, after the final norm."""
        head = self.weights.options
        if head is None:
            raise ValueError("this model has no head that reads options together")
        return head(rows, kind)

    def _embed(self, ids: Array, positions: Array, highest: int, types: Array | None) -> F32:
        weights = self.weights.embeddings
        x = weights.of(ids)
        if self.spec.embeddings.scale != 1.0:
            x *= widen(self._rows(np.array([self.spec.embeddings.scale], np.float32)))
        if highest >= self.spec.max_positions:
            raise IndexError(f"position {highest} is past the model's last, {self.spec.max_positions - 1}")
        if weights.positions is not None:
            rows = len(weights.positions) // max(1, self.spec.embeddings.num_types)
            at = positions if types is None else positions + types * rows
            x += weights.positions[at]
        if weights.norm is not None:
            weights.norm(x, x)
        if weights.projection is not None:
            x = weights.projection(x)
        return x

    def _chunk(self, tokens: int) -> int:
        """Return tokens at a time between two attentions: at most ``token_chunk``, in chunks of about one length."""
        chunks = -(-tokens // self.token_chunk)
        return -(-tokens // chunks) if chunks > 1 else max(1, tokens)

    def _recur(
        self,
        index: int,
        layer: LayerWeights,
        x: F32,
        chunk: int,
        states: StepStates | None,
        workspace: _Workspace,
    ) -> Array:
        """Return the output of a layer with a state for all tokens, in the workspace's memory."""
        if states is None or layer.recurrent is None:
            raise ValueError("a model with recurrent layers runs on the states of its sequences")
        projected = workspace.kept[:, : layer.spec.mixer.in_proj.outputs]
        self.before[index][0](x, projected, chunk, workspace.normed)
        return states.mix(self._places[index], layer.recurrent, projected, workspace.room)


@dataclass(frozen=True, slots=True)
class _Heads:
    """A layer's queries, keys and values of all tokens [tokens, heads, D], in the memory of ``rows``; its gates
    [tokens, query heads * D], or None."""

    rows: Array
    q: Array
    k: Array
    v: Array
    gates: Array | None


@dataclass(frozen=True, slots=True)
class Sizes:
    """Values of a token in the memory that the layers share."""

    hidden: int
    up: int  # of the widest MLP
    kept: int  # for a whole layer,
    kept_cut: int  # if its queries exist for one run at a time
    queries: int  # with gates
    room: int  # for the arithmetic of a state
    sums: bool  # some layer norms a product before it is added

    @classmethod
    def of(cls, spec: ModelSpec, sums: bool) -> Sizes:
        return cls(
            spec.hidden,
            max(layer.mlp.up.outputs for layer in spec.layers),
            kept_width(spec, False),
            kept_width(spec, True),
            max(map(_query_width, spec.attentions), default=0),
            room_of(spec),
            sums,
        )


class _Workspace:
    """Memory of a forward pass, the same in every layer: fresh memory would cost a fault for each page of it.

    ``room``: for the arithmetic of a state. ``kept``: of all tokens: rows read by a layer with a state, and keys and
    values; behind queries if there is one run. ``apart``: queries of one run if there are several. ``sums``: of
    products that are normed before they are added."""

    __slots__ = ("_heads", "_up", "apart", "kept", "nbytes", "normed", "room", "sums", "up")

    def __init__(self, sizes: Sizes, tokens: int, longest: int, run: int, dtype: np.dtype[Any]) -> None:
        """``longest``: tokens of the longest chunk; ``run``: of the longest run, which are all if there is one."""
        cut = run < tokens
        parts = [
            ((tokens, sizes.kept_cut if cut else sizes.kept), dtype),
            ((longest, sizes.hidden), dtype),
            ((longest, sizes.up), dtype),
            ((tokens, sizes.room), FLOAT32),
            ((run if cut else 0, sizes.queries), dtype),
            ((longest if sizes.sums else 0, sizes.hidden), FLOAT32),
        ]
        self.kept, self.normed, self.up, self.room, apart, sums = arrays = side_by_side(parts)
        self.apart, self.sums = apart if cut else None, sums if sizes.sums else None
        self._heads: dict[tuple[int, int, int, bool], _Heads] = {}
        self._up = {sizes.up: self.up}
        self.nbytes = sum([one.nbytes for one in arrays])

    def heads(self, mixer: Attention) -> _Heads:
        """Rows of all tokens; the same memory for all layers, and the same views for those with the same heads."""
        key = mixer.heads, mixer.kv_heads, mixer.head_dim, mixer.gate
        found = self._heads.get(key)
        if found is None:
            rows = self.kept[:, : mixer.in_proj.outputs]
            gates, heads = _parted(rows, mixer)
            keys = mixer.heads + mixer.kv_heads
            q, k, v = heads[:, : mixer.heads], heads[:, mixer.heads : keys], heads[:, keys:]
            found = self._heads[key] = _Heads(rows, q, k, v, gates)
        return found

    def keys(self, mixer: Attention) -> tuple[Array, Array, Array]:
        """[tokens, keys and values of a token], and its keys and values by heads."""
        width = _query_width(mixer)
        first = 0 if self.apart is not None else width
        out = self.kept[:, first : first + mixer.in_proj.outputs - width]
        heads = _by_heads(out, mixer)
        return out, heads[:, : mixer.kv_heads], heads[:, mixer.kv_heads :]

    def queries(self, mixer: Attention, count: int) -> tuple[Array, Array | None, Array]:
        """[count, queries and gates of a token], its gates, and its queries by heads."""
        memory = self.kept if self.apart is None else self.apart
        out = memory[:count, : _query_width(mixer)]
        return out, *_parted(out, mixer)

    def finish(self, behind: BehindMixer, x: F32, mixed: Array, chunk: int) -> None:
        up = self._up.get(behind.inner)
        if up is None:
            up = self._up[behind.inner] = self.up[:, : behind.inner]
        behind(x, mixed, chunk, self.normed, up, self.sums)


def kept_width(spec: ModelSpec, cut: bool) -> int:
    """Return values that exist of each token for a whole layer. ``cut``: its queries exist for one run at a time."""
    return max(
        layer.mixer.in_proj.outputs - (_query_width(layer.mixer) if cut and isinstance(layer.mixer, Attention) else 0)
        for layer in spec.layers
    )


def _query_width(mixer: Attention) -> int:
    return mixer.query_width * (2 if mixer.gate else 1)


def _apart(layer: LayerWeights) -> tuple[InProj, InProj] | None:
    """The projection of queries and gates, and that of keys and values, in the layer's memory; None for a layer
    without attention."""
    mixer = layer.spec.mixer
    if not isinstance(mixer, Attention):
        return None
    whole, width, outputs = layer.in_proj, _query_width(mixer), mixer.in_proj.outputs
    behind = width % cpu.PACKED_GROUP
    # Where keys begin within a group of outputs, the queries before them in it are made once more.
    keys = whole.rows(width - behind, outputs)
    return whole.rows(0, width), SomeOutputs(keys, behind) if behind else keys


def _enter(layer: LayerWeights, x: F32, types: Array | None) -> None:
    """Run the operation before the layer, in place."""
    entry = layer.entry
    if entry is not None:
        entry.norm(x, x)
        x += entry.types[0 if types is None else types]


def _by_heads(rows: Array, mixer: Attention) -> Array:
    """[tokens, heads, D] in the memory of ``rows``."""
    return rows.reshape(len(rows), rows.shape[1] // mixer.head_dim, mixer.head_dim)


def _parted(rows: Array, mixer: Attention) -> tuple[Array | None, Array]:
    """Gates [tokens, query heads * D], None without, and the heads behind them, in the memory of ``rows``."""
    heads = _by_heads(rows, mixer)
    if not mixer.gate:
        return None, heads
    return rows[:, : mixer.query_width], heads[:, mixer.heads :]


def _gated(attended: Array, gates: Array | None) -> Array:
    if gates is not None:
        cpu.gate(attended, gates, attended)
    return attended
