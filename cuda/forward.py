"""The decoder as operations on fixed buffers. The same lines run eagerly and are recorded.

    ids ─ embed+norm ─▶ x, n ─┬─ qkv ─ head norm + rope (+ pool) ─▶ attention ─ out ─▶ x +=
                              └ norm ─ gate_up ─ silu, times ─ down ─▶ x +=    ─ norm ─▶ n of the next layer

The residual stream is float32 and GEMMs add into it. In the last layer K and V are computed for all rows; where its
attention is cut, Q too is computed for the read rows only, and everything behind attention always is.
"""

from __future__ import annotations

from dataclasses import dataclass

from prelude.cuda import kernels
from prelude.cuda.device import Device
from prelude.cuda.levels import StepAttention
from prelude.cuda.own_matmul import matmul_gated, matmul_heads
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


class Forward:
    def __init__(
        self, device: Device, spec: ModelSpec, weights: DeviceWeights, work: Workspace, pool: Tensor
    ) -> None:
        self.device = device
        self.weights = weights
        self.work = work
        self.pool = pool  # [layers, 2, slots, kv_heads, D]
        heads = spec.attention
        self.counts = (heads.heads, heads.kv_heads, heads.kv_heads)
        self.head_dim = heads.head_dim
        self.eps = spec.layers[0].mlp_norm.eps  # of every norm, as ``check_supported`` makes sure

    def run(self, shape: Shape, inputs: Inputs, attention: StepAttention) -> Tensor:
        """Enqueues a step; returns where the read rows will stand, [read, hidden] float32 before the final norm."""
        work, rows = self.work, shape.rows
        layers = self.weights.layers
        x, normed = work.x[:rows], work.normed[:rows]
        first = layers[0].input_gain
        kernels.embed_norm(
            self.device, inputs.ids, inputs.pending_tokens, self.weights.embeddings, first, self.eps, x, normed
        )
        for index, layer in enumerate(layers[:-1]):
            q, k, v = self._project(layer, index, normed, inputs)
            attended = work.attended[:rows]
            attention.run(q, k, v, self._pool(index), attended, last=False)
            self._finish(layer, x, normed, attended, layers[index + 1].input_gain)
        if not shape.read:
            self._write_last(normed, inputs)
            return work.read_x[:0]
        return self._last(shape, x, normed, inputs, attention)

    def _pool(self, layer: int) -> tuple[Tensor, Tensor]:
        return self.pool[layer, 0], self.pool[layer, 1]

    def _project(
        self, layer: DeviceLayer, index: int, normed: Tensor, inputs: Inputs
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Q, K and V of all rows as views of one buffer, [rows, heads, D]; K and V to the pool where slots say."""
        rows = normed.shape[0]
        queries, keys, _ = self.counts
        flat = self.work.heads[:rows]
        heads = flat.view(rows, sum(self.counts), self.head_dim)
        gains = (layer.q_gain, layer.k_gain)
        matmul_heads(
            self.device,
            normed,
            layer.qkv,
            layer.qkv_bias,
            heads,
            self.counts,
            inputs.positions,
            self.weights.rope_table,
            gains,
            self.eps,
            inputs.slots,
            self._pool(index),
        )
        return heads[:, :queries], heads[:, queries : queries + keys], heads[:, queries + keys :]

    def _write_last(self, normed: Tensor, inputs: Inputs) -> None:
        """Nothing is read: the last layer only writes its keys and values to the pool."""
        last = len(self.weights.layers) - 1
        self._project(self.weights.layers[last], last, normed, inputs)

    def _last(self, shape: Shape, x: Tensor, normed: Tensor, inputs: Inputs, attention: StepAttention) -> Tensor:
        work, device = self.work, self.device
        index, layer = len(self.weights.layers) - 1, self.weights.layers[-1]
        read_x, read_normed = work.read_x[: shape.read], work.read_normed[: shape.read]
        attended = work.read_attended[: shape.read]
        if shape.cut:
            kernels.gather_norm(device, inputs.read, x, layer.input_gain, self.eps, picked=read_x, normed=read_normed)
            q, k, v = self._project_cut(layer, index, normed, read_normed, inputs)
            attention.run(q, k, v, self._pool(index), attended, last=True)
        else:
            q, k, v = self._project(layer, index, normed, inputs)
            every = work.attended[: shape.rows]
            attention.run(q, k, v, self._pool(index), every, last=False)
            kernels.gather(device, inputs.read, every, attended)
            kernels.gather_norm(device, inputs.read, x, layer.input_gain, self.eps, picked=read_x)
        self._finish(layer, read_x, read_normed, attended, None)
        return read_x

    def _project_cut(
        self, layer: DeviceLayer, index: int, normed: Tensor, read_normed: Tensor, inputs: Inputs
    ) -> tuple[Tensor, Tensor, Tensor]:
        """K and V of all rows, Q of the read ones."""
        device, rows = self.device, normed.shape[0]
        queries, keys, values = self.counts
        split = queries * self.head_dim
        q_bias = kv_bias = None
        if layer.qkv_bias is not None:
            q_bias, kv_bias = layer.qkv_bias[:split], layer.qkv_bias[split:]
        narrow = (keys + values) * self.head_dim
        # The front of the heads' buffer, as whole rows of fewer heads.
        flat = self.work.heads.view(-1)[: self.work.heads.shape[0] * narrow].view(-1, narrow)[:rows]
        device.matmul(normed, layer.qkv[split:], flat, kv_bias)
        kv = flat.view(rows, keys + values, self.head_dim)
        eps, rope_table = self.eps, self.weights.rope_table
        kernels.qk_rope(
            device,
            kv,
            (0, keys, values),
            inputs.positions,
            rope_table,
            (None, layer.k_gain),
            eps,
            inputs.slots,
            self._pool(index),
        )
        read = read_normed.shape[0]
        flat_q = self.work.read_q[:read]
        device.matmul(read_normed, layer.qkv[:split], flat_q, q_bias)
        q = flat_q.view(read, queries, self.head_dim)
        kernels.qk_rope(
            device, q, (queries, 0, 0), inputs.read_positions, rope_table, (layer.q_gain, None), eps, None, None
        )
        return q, kv[:, :keys], kv[:, keys:]

    def _finish(
        self, layer: DeviceLayer, x: Tensor, normed: Tensor, attended: Tensor, next_gain: Tensor | None
    ) -> None:
        """Everything behind attention, added to ``x``; ``normed`` becomes the next layer's input."""
        device, eps, work = self.device, self.eps, self.work
        device.matmul(attended, layer.out, x, layer.out_bias, add=True)
        kernels.rms_norm(device, x, layer.mlp_gain, eps, normed)
        for start in range(0, x.shape[0], work.mlp_rows):
            stop = min(start + work.mlp_rows, x.shape[0])
            gate_up, gated = work.gate_up[: stop - start], work.gated[: stop - start]
            matmul_gated(device, normed[start:stop], layer.gate_up, layer.gate_up_bias, gate_up, gated)
            device.matmul(gated, layer.down, x[start:stop], layer.down_bias, add=True)
        if next_gain is not None:
            kernels.rms_norm(device, x, next_gain, eps, normed)
