"""All memory a forward works in, taken once: nothing is allocated on the path of a step.

Graphs share it, for one runs at a time. Capacities are whole tiles of ``FIXED_ROWS`` rows. The wide intermediates of
the MLP exist for ``mlp_rows`` tokens at a time.

    x [rows, hidden] f32        the residual stream
    normed, heads, attended     one layer's, in the element type; heads [rows, (q + 2 kv) D]
    part, lse, part_lse         of an attention level that is joined to another
    read_*                      the rows that are read, behind the last layer's attention
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from prelude.cuda.device import FIXED_ROWS, Device
from torch import Tensor

from prelude.errors import InsufficientMemory

if TYPE_CHECKING:
    from prelude.models.spec import ModelSpec

MLP_ROWS = 8192


def whole_tiles(rows: int) -> int:
    return -(-max(rows, 1) // FIXED_ROWS) * FIXED_ROWS


@dataclass(slots=True)
class Workspace:
    block_size: int
    mlp_rows: int
    x: Tensor
    normed: Tensor
    heads: Tensor
    attended: Tensor
    part: Tensor
    lse: Tensor
    part_lse: Tensor
    gate_up: Tensor
    gated: Tensor
    read_x: Tensor
    read_normed: Tensor
    read_q: Tensor
    read_attended: Tensor
    final: Tensor  # [chunk, hidden] rows behind the final norm
    logits: Tensor  # [chunk, vocab] f32

    @classmethod
    def of(
        cls, device: Device, spec: ModelSpec, *, rows: int, block_size: int, chunk_rows: int, vocab: int
    ) -> Workspace:
        """``rows`` tokens a step; ``vocab`` is 0 without a language-model head. ``InsufficientMemory`` if it does
        not fit into the free memory of the device."""
        sizes = _sizes(spec, device.element, rows, chunk_rows, vocab)
        needed = sum(count * columns * dtype.itemsize for count, columns, dtype in sizes)
        free, total = device.memory()
        if needed > free:
            raise InsufficientMemory(
                f"steps of {rows:,} rows work in {needed:,} bytes of GPU memory; {free:,} of {total:,} are left "
                "behind the weights: lower max_step_tokens or logits_bytes",
                needed=needed,
                available=free,
            )
        mlp_rows = min(whole_tiles(rows), whole_tiles(MLP_ROWS))
        return cls(block_size, mlp_rows, *(device.zeros((count, columns), dtype) for count, columns, dtype in sizes))

    @property
    def nbytes(self) -> int:
        tensors = (getattr(self, name) for name in self.__slots__)
        return sum(t.untyped_storage().nbytes() for t in tensors if isinstance(t, Tensor))

    def partial(self, rows: int, heads: torch.Size) -> tuple[Tensor, Tensor, Tensor]:
        """``(lse, part, part_lse)`` for so many rows of [heads, D]."""
        return self.lse[:rows], self.part[:rows].view(rows, *heads), self.part_lse[:rows]

    def pages(self, pool: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return a layer's pool [slots, kv_heads, D] as [blocks, block_size, kv_heads, D]."""
        k, v = (half.view(-1, self.block_size, *half.shape[1:]) for half in pool)
        return k, v


def workspace_bytes(spec: ModelSpec, element: torch.dtype, rows: int, chunk_rows: int, vocab: int) -> int:
    """Return bytes of the workspace of ``Workspace.of``."""
    return sum(
        count * columns * dtype.itemsize for count, columns, dtype in _sizes(spec, element, rows, chunk_rows, vocab)
    )


def _sizes(
    spec: ModelSpec, element: torch.dtype, rows: int, chunk_rows: int, vocab: int
) -> tuple[tuple[int, int, torch.dtype], ...]:
    """Rows, columns and type of each tensor, in the order of the fields."""
    many, mlp = whole_tiles(rows), min(whole_tiles(rows), whole_tiles(MLP_ROWS))
    chunk = whole_tiles(chunk_rows)
    mixer, mlp_spec = spec.attention, spec.layers[0].mlp
    hidden, inner, queries, width = spec.hidden, mlp_spec.inner, mixer.query_width, mixer.qkv.outputs
    f32 = torch.float32
    return (
        (many, hidden, f32),
        (many, hidden, element),
        (many, width, element),
        (many, queries, element),
        (many, queries, element),
        (many, mixer.heads, f32),
        (many, mixer.heads, f32),
        (mlp, mlp_spec.up.outputs, element),
        (mlp, inner, element),
        (many, hidden, f32),
        (many, hidden, element),
        (many, queries, element),
        (many, queries, element),
        (chunk, hidden, element),
        (chunk if vocab else 0, vocab, f32),
    )
