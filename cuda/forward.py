"""The decoder as operations on fixed buffers. The same lines run eagerly and are recorded.

    ids ─ embed+norm ─▶ x, n ─┬─ qkv ─ head norm + rope (+ pool) ─▶ attention ─ out ─▶ x +=
                              └ norm ─ gate_up ─ silu, times ─ down ─▶ x +=    ─ norm ─▶ n of the next layer

The residual stream is float32 and GEMMs add into it. In the last layer K and V are computed for all rows; if its
attention is cut, Q too is computed for the read rows only, and everything behind attention always is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from prelude.cuda import kernels
from prelude.cuda.device import Device
from prelude.cuda.levels import Heads, StepAttention
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
    """Windows of the layers."""
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
        """``windows``: those that leave a key out."""
        self.device = device
        self.weights = weights
        self.work = work
        self.pool = pool  # [layers, 2, slots, kv_heads, D]
        heads = spec.attention
        self.counts = (heads.heads, heads.kv_heads, heads.kv_heads)
        self.head_dim = heads.head_dim
        self.eps = spec.layers[0].mlp_norm.eps  # of every norm, as ``check_supported`` makes sure
        self.windows = [window if window in windows else None for window in windows_of(spec)]

    def run(
        self, shape: Shape, inputs: Inputs, attention: StepAttention, look: Callable[[], None] = lambda: None
    ) -> Tensor:
        """Enqueues a step; returns where the read rows will stand, [read, hidden] float32 before the final norm.
        ``look`` is called in front of every layer, and may raise."""
        work, rows = self.work, shape.rows
        layers = self.weights.layers
        x, normed = work.x[:rows], work.normed[:rows]
        first = layers[0].input_gain
        kernels.embed_norm(
            self.device, inputs.ids, inputs.pending_tokens, self.weights.embeddings, first, self.eps, x, normed
        )
        for index, layer in enumerate(layers[:-1]):
            look()
            q, k, v = self._project(layer, index, normed, inputs)
            attended = work.attended[:rows]
            attention.run(Heads(q, k, v, self._pool(index)), attended, last=False, window=self.windows[index])
            self._finish(layer, x, normed, attended, layers[index + 1].input_gain)
        if not shape.read:  # the last layer only writes its keys and values to the pool
            self._project(layers[-1], len(layers) - 1, normed, inputs)
            return work.read_x[:0]
        return self._last(shape, x, normed, inputs, attention)

    def _pool(self, layer: int) -> tuple[Tensor, Tensor]:
        return self.pool[layer, 0], self.pool[layer, 1]

    def _heads(self, rows: int, count: int) -> Tensor:
        """[rows, count, D] at the front of the heads' buffer."""
        width = count * self.head_dim
        flat = self.work.heads.view(-1)[: self.work.heads.shape[0] * width].view(-1, width)[:rows]
        return flat.view(rows, count, self.head_dim)

    def _product(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        heads: Tensor,
        counts: tuple[int, int, int],
        positions: Tensor,
        layer: DeviceLayer,
        slots: Tensor | None = None,
        pool: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        """``heads`` [rows, count, D] = ``x @ weight.T + bias``, normed, rotated, and keys and values in the pool."""
        self.device.matmul(x, weight, heads.flatten(1), bias)
        gains = (layer.q_gain if counts[0] else None, layer.k_gain if counts[1] else None)
        kernels.qk_rope(self.device, heads, counts, positions, layer.rope_table, gains, self.eps, slots, pool)

    def _project(
        self, layer: DeviceLayer, index: int, normed: Tensor, inputs: Inputs
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Q, K and V of all rows as views of one buffer, [rows, heads, D]; K and V to the pool where slots say."""
        queries, keys, _ = self.counts
        heads = self._heads(normed.shape[0], sum(self.counts))
        at, slots, pool = inputs.positions, inputs.slots, self._pool(index)
        self._product(normed, layer.qkv, layer.qkv_bias, heads, self.counts, at, layer, slots, pool)
        return heads[:, :queries], heads[:, queries : queries + keys], heads[:, queries + keys :]

    def _last(self, shape: Shape, x: Tensor, normed: Tensor, inputs: Inputs, attention: StepAttention) -> Tensor:
        work, device = self.work, self.device
        index, layer = len(self.weights.layers) - 1, self.weights.layers[-1]
        read_x, read_normed = work.read_x[: shape.read], work.read_normed[: shape.read]
        attended = work.read_attended[: shape.read]
        if shape.cut:
            kernels.gather_norm(device, inputs.read, x, layer.input_gain, self.eps, picked=read_x, normed=read_normed)
            q, k, v = self._project_cut(layer, index, normed, read_normed, inputs)
            attention.run(Heads(q, k, v, self._pool(index)), attended, last=True, window=self.windows[index])
        else:
            q, k, v = self._project(layer, index, normed, inputs)
            every = work.attended[: shape.rows]
            attention.run(Heads(q, k, v, self._pool(index)), every, last=False, window=self.windows[index])
            kernels.gather(device, inputs.read, every, attended)
            kernels.gather_norm(device, inputs.read, x, layer.input_gain, self.eps, picked=read_x)
        self._finish(layer, read_x, read_normed, attended, None)
        return read_x

    def _project_cut(
        self, layer: DeviceLayer, index: int, normed: Tensor, read_normed: Tensor, inputs: Inputs
    ) -> tuple[Tensor, Tensor, Tensor]:
        """K and V of all rows, Q of the read ones."""
        queries, keys, values = self.counts
        split, read = queries * self.head_dim, read_normed.shape[0]
        q_bias, kv_bias = (None, None) if layer.qkv_bias is None else (layer.qkv_bias[:split], layer.qkv_bias[split:])
        kv = self._heads(normed.shape[0], keys + values)
        at, slots, pool = inputs.positions, inputs.slots, self._pool(index)
        self._product(normed, layer.qkv[split:], kv_bias, kv, (0, keys, values), at, layer, slots, pool)
        q = self.work.read_q[:read].view(read, queries, self.head_dim)
        self._product(read_normed, layer.qkv[:split], q_bias, q, (queries, 0, 0), inputs.read_positions, layer)
        return q, kv[:, :keys], kv[:, keys:]

    def _add(self, x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
        """``out += x @ weight.T + bias``. One rank of a divided model adds its product to the residual sum, so that
        the sum over the ranks has it once."""
        self.device.matmul(x, weight, out, bias, add=self.device.leads)
        self.device.all_reduce(out)

    def _finish(
        self, layer: DeviceLayer, x: Tensor, normed: Tensor, attended: Tensor, next_gain: Tensor | None
    ) -> None:
        """Everything behind attention, added to ``x``; ``normed`` becomes the next layer's input."""
        device, work = self.device, self.work
        rows = x.shape[0]
        self._add(attended, layer.out, layer.out_bias, x)
        kernels.rms_norm(device, x, layer.mlp_gain, self.eps, normed)
        for start in range(0, rows, work.mlp_rows):
            stop = min(start + work.mlp_rows, rows)
            gate_up, gated, part = work.gate_up[: stop - start], work.gated[: stop - start], x[start:stop]
            device.matmul(normed[start:stop], layer.gate_up, gate_up, layer.gate_up_bias)
            kernels.silu_gate(device, gate_up, gated)
            self._add(gated, layer.down, layer.down_bias, part)
            if next_gain is not None:
                kernels.rms_norm(device, part, next_gain, self.eps, normed[start:stop])
