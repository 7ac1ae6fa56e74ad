"""The decoder as operations on fixed buffers. The same lines run eagerly and are recorded.

    ids ─ embed+norm ─▶ x, n ─┬─ qkv ─ head norm + rope (+ pool) ─▶ attention ─ out ─▶ x +=
                              └ norm ─ gate_up ─ silu, times ─ down ─▶ x +=    ─ norm ─▶ n of the next layer

A product and the operations behind it are one kernel where it is this project's own: five kernels a layer.

The residual stream is float32 and GEMMs add into it. In the last layer K and V are computed for all rows; where its
attention is cut, Q too is computed for the read rows only, and everything behind attention always is.
"""

from __future__ import annotations

from dataclasses import dataclass

from prelude.cuda import kernels
from prelude.cuda.device import Device
from prelude.cuda.layer_products import add_and_norm, add_over_ranks, matmul_gated, matmul_heads, takes_factors
from prelude.cuda.levels import StepAttention
from prelude.cuda.own_matmul import GATE, HEADS, NormAfter, RowFactors
from prelude.cuda.shapes import Shape
from prelude.cuda.staging import Fields
from prelude.cuda.weights import DeviceLayer, DeviceWeights
from prelude.cuda.workspace import Workspace
from torch import Tensor

from prelude.models.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Inputs:
    """A step's arrays on the device."""

    ids: Tensor
    positions: Tensor
    slots: Tensor
    read: Tensor
    read_positions: Tensor
    pending_tokens: Tensor  # tokens that the last sampling step drew

    @classmethod
    def of(cls, fields: Fields, area: Tensor, pending_tokens: Tensor) -> Inputs:
        def on(name: str) -> Tensor:
            return fields.on(area, name)

        return cls(on("ids"), on("positions"), on("slots"), on("read"), on("read_positions"), pending_tokens)


def windows_of(spec: ModelSpec) -> list[int | None]:
    """Of each layer."""
    return [heads.window for heads in spec.attentions]


class Forward:
    def __init__(
        self,
        device: Device,
        spec: ModelSpec,
        weights: DeviceWeights,
        work: Workspace,
        pool: Tensor,
        windows: tuple[int, ...],
    ) -> None:
        """``windows``: those that leave something out."""
        self.device = device
        self.weights = weights
        self.work = work
        self.pool = pool  # [layers, 2, slots, kv_heads, D]
        heads = spec.attention
        self.counts = (heads.heads, heads.kv_heads, heads.kv_heads)
        self.head_dim = heads.head_dim
        self.eps = spec.layers[0].mlp_norm.eps  # of every norm, as ``check_supported`` makes sure
        self.windows = [window if window in windows else None for window in windows_of(spec)]

    def run(self, shape: Shape, inputs: Inputs, attention: StepAttention) -> Tensor:
        """Enqueues a step; returns where the read rows will stand, [read, hidden] float32 before the final norm."""
        work, rows = self.work, shape.rows
        layers = self.weights.layers
        x, normed = work.x[:rows], work.normed[:rows]
        first = layers[0].input_gain
        kernels.embed_norm(
            self.device, inputs.ids, inputs.pending_tokens, self.weights.embeddings, first, self.eps, x, normed
        )
        factors: RowFactors | None = None  # of ``normed``; embed_norm leaves none
        for index, layer in enumerate(layers[:-1]):
            q, k, v = self._project(layer, index, normed, factors, inputs)
            attended = work.attended[:rows]
            attention.run(q, k, v, self._pool(index), attended, last=False, window=self.windows[index])
            cut = shape.cut and index + 2 == len(layers)
            following = layers[index + 1]
            factors = self._finish(
                layer, x, normed, attended, following.input_gain, self._takes(following, normed, cut)
            )
        if not shape.read:
            self._write_last(normed, factors, inputs)
            return work.read_x[:0]
        return self._last(shape, x, normed, factors, inputs, attention)

    def _pool(self, layer: int) -> tuple[Tensor, Tensor]:
        return self.pool[layer, 0], self.pool[layer, 1]

    def _heads(self, rows: int, count: int) -> Tensor:
        """[rows, count, D] at the front of the heads' buffer."""
        width = count * self.head_dim
        flat = self.work.heads.view(-1)[: self.work.heads.shape[0] * width].view(-1, width)[:rows]
        return flat.view(rows, count, self.head_dim)

    def _key_values(self, layer: DeviceLayer) -> tuple[Tensor, Tensor | None]:
        """The weights and the bias behind those of the queries."""
        split = self.counts[0] * self.head_dim
        return layer.qkv[split:], None if layer.qkv_bias is None else layer.qkv_bias[split:]

    def _takes(self, layer: DeviceLayer, normed: Tensor, cut: bool) -> bool:
        """Whether the projection of ``layer`` applies factors of rows. ``cut``: that of its keys and values."""
        weight, bias = self._key_values(layer) if cut else (layer.qkv, layer.qkv_bias)
        heads = self._heads(normed.shape[0], weight.shape[0] // self.head_dim)
        return takes_factors(self.device, HEADS, normed, weight, bias, heads.flatten(1), self.head_dim)

    def _project(
        self, layer: DeviceLayer, index: int, normed: Tensor, factors: RowFactors | None, inputs: Inputs
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Q, K and V of all rows as views of one buffer, [rows, heads, D]; K and V to the pool where slots say."""
        queries, keys, _ = self.counts
        heads = self._heads(normed.shape[0], sum(self.counts))
        matmul_heads(
            self.device,
            normed,
            layer.qkv,
            layer.qkv_bias,
            heads,
            self.counts,
            inputs.positions,
            layer.rope_table,
            (layer.q_gain, layer.k_gain),
            self.eps,
            inputs.slots,
            self._pool(index),
            factors,
        )
        return heads[:, :queries], heads[:, queries : queries + keys], heads[:, queries + keys :]

    def _write_last(self, normed: Tensor, factors: RowFactors | None, inputs: Inputs) -> None:
        """Nothing is read: the last layer only writes its keys and values to the pool."""
        last = len(self.weights.layers) - 1
        self._project(self.weights.layers[last], last, normed, factors, inputs)

    def _last(
        self,
        shape: Shape,
        x: Tensor,
        normed: Tensor,
        factors: RowFactors | None,
        inputs: Inputs,
        attention: StepAttention,
    ) -> Tensor:
        work, device = self.work, self.device
        index, layer = len(self.weights.layers) - 1, self.weights.layers[-1]
        read_x, read_normed = work.read_x[: shape.read], work.read_normed[: shape.read]
        attended = work.read_attended[: shape.read]
        if shape.cut:
            kernels.gather_norm(device, inputs.read, x, layer.input_gain, self.eps, picked=read_x, normed=read_normed)
            q, k, v = self._project_cut(layer, index, normed, factors, read_normed, inputs)
            attention.run(q, k, v, self._pool(index), attended, last=True, window=self.windows[index])
        else:
            q, k, v = self._project(layer, index, normed, factors, inputs)
            every = work.attended[: shape.rows]
            attention.run(q, k, v, self._pool(index), every, last=False, window=self.windows[index])
            kernels.gather(device, inputs.read, every, attended)
            kernels.gather_norm(device, inputs.read, x, layer.input_gain, self.eps, picked=read_x)
        self._finish(layer, read_x, read_normed, attended, None, False)
        return read_x

    def _project_cut(
        self,
        layer: DeviceLayer,
        index: int,
        normed: Tensor,
        factors: RowFactors | None,
        read_normed: Tensor,
        inputs: Inputs,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """K and V of all rows, Q of the read ones."""
        queries, keys, values = self.counts
        split, table = queries * self.head_dim, layer.rope_table
        kv = self._heads(normed.shape[0], keys + values)
        counts, gains = (0, keys, values), (None, layer.k_gain)
        pool, slots = self._pool(index), inputs.slots
        weight, bias = self._key_values(layer)
        matmul_heads(
            self.device,
            normed,
            weight,
            bias,
            kv,
            counts,
            inputs.positions,
            table,
            gains,
            self.eps,
            slots,
            pool,
            factors,
        )
        read = read_normed.shape[0]
        q = self.work.read_q[:read].view(read, queries, self.head_dim)
        bias = None if layer.qkv_bias is None else layer.qkv_bias[:split]
        q_counts, q_gains = (queries, 0, 0), (layer.q_gain, None)
        at = inputs.read_positions
        matmul_heads(
            self.device, read_normed, layer.qkv[:split], bias, q, q_counts, at, table, q_gains, self.eps, None, None
        )
        return q, kv[:, :keys], kv[:, keys:]

    def _finish(
        self,
        layer: DeviceLayer,
        x: Tensor,
        normed: Tensor,
        attended: Tensor,
        next_gain: Tensor | None,
        leave_factors: bool,
    ) -> RowFactors | None:
        """Everything behind attention, added to ``x``; ``normed`` becomes the next layer's input. With
        ``leave_factors`` it may await the factors that are returned."""
        device, work, eps = self.device, self.work, self.eps
        rows = x.shape[0]
        takes = rows <= work.mlp_rows and takes_factors(
            device, GATE, normed, layer.gate_up, layer.gate_up_bias, work.gated[:rows]
        )
        norm = NormAfter(layer.mlp_gain, eps, normed, work.squares)
        factors = add_and_norm(device, attended, layer.out, layer.out_bias, x, norm, takes)
        left: RowFactors | None = None
        for start in range(0, rows, work.mlp_rows):
            stop = min(start + work.mlp_rows, rows)
            gate_up, gated = work.gate_up[: stop - start], work.gated[: stop - start]
            matmul_gated(device, normed[start:stop], layer.gate_up, layer.gate_up_bias, gate_up, gated, factors)
            if next_gain is None:
                add_over_ranks(device, gated, layer.down, layer.down_bias, x[start:stop])
                continue
            norm = NormAfter(next_gain, eps, normed[start:stop], work.squares)
            left = add_and_norm(device, gated, layer.down, layer.down_bias, x[start:stop], norm, leave_factors)
        return left
