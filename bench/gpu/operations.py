"""The operations of one decoder layer, each by itself, with the weights of another layer every time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from prelude.cuda import kernels
from prelude.cuda.executor import CudaExecutor

from bench.gpu.chips import Chip


def operations_of(
    executor: CudaExecutor, rows: int, chip: Chip
) -> Iterator[tuple[str, Callable[[int], None], float]]:
    """(name, ``work(i)`` that enqueues the operation once, floor in microseconds) at ``rows`` tokens. The floor is of
    the bytes of weights and activations, or of the arithmetic of a matmul."""
    device, model = executor.device, executor.weights
    layers = model.layers
    heads = executor.config.spec.attention
    hidden, inner = executor.config.hidden_size, executor.config.spec.layers[0].mlp.inner
    eps = executor.config.spec.layers[0].mlp_norm.eps
    element = device.element

    def full(*shape: int, dtype: torch.dtype = element) -> torch.Tensor:
        return device.zeros(shape, dtype).fill_(0.5)

    with device.scope():
        normed, x = full(rows, hidden), full(rows, hidden, dtype=torch.float32)
        attended, gated = full(rows, layers[0].out.shape[1]), full(rows, inner)
        flat, gate_up = full(rows, layers[0].qkv.shape[0]), full(rows, 2 * inner)
        positions = device.zeros((rows,), torch.int32)
        table = model.rope_table

    def matmul(name: str, source: torch.Tensor, out: torch.Tensor, add: bool) -> Any:
        def work(i: int) -> None:
            device.matmul(source, getattr(layers[i % len(layers)], name), out, add=add)

        weight = getattr(layers[0], name)
        moved = (weight.numel() + source.numel()) * element.itemsize + out.numel() * out.itemsize * (1 + add)
        return name, work, max(2 * rows * weight.numel() / chip.flops, moved / chip.bytes) * 1e6

    yield matmul("qkv", normed, flat, False)
    yield matmul("out", attended, x, True)
    yield matmul("gate_up", normed, gate_up, False)
    yield matmul("down", gated, x, True)

    def norm(i: int) -> None:
        kernels.rms_norm(device, x, layers[i % len(layers)].mlp_gain, eps, normed)

    yield "rms_norm", norm, (x.nbytes + normed.nbytes) / chip.bytes * 1e6
    counts = (heads.heads, heads.kv_heads, heads.kv_heads)

    def rope(i: int) -> None:
        layer = layers[i % len(layers)]
        view = flat.view(rows, sum(counts), heads.head_dim)
        kernels.qk_rope(device, view, counts, positions, table, (layer.q_gain, layer.k_gain), eps, None, None)

    yield "qk_rope", rope, 2 * flat.nbytes / chip.bytes * 1e6
    yield (
        "silu_gate",
        lambda i: kernels.silu_gate(device, gate_up, gated),
        (gate_up.nbytes + gated.nbytes) / chip.bytes * 1e6,
    )
