"""The relative term of DeBERTa, as the attention kernel takes it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from prelude._native import cpu
from prelude.models.packed import PackedLinear
from prelude.models.spec import Attention, Relative


@dataclass(frozen=True, slots=True)
class RelativeWeights:
    """Of one layer. ``keys`` and ``queries`` [heads, panels, head_dim, lanes] float32 hold a vector of a row in each
    lane, those of queries times the scale of scores; ``rows`` [2 * span - 1] int32 is the row of each distance, the
    same in all layers."""

    keys: Tensor
    queries: Tensor
    rows: Tensor
    span: int

    @property
    def panels(self) -> int:
        """Of a head."""
        return self.keys.shape[1]

    def tensors(self) -> list[Tensor]:
        return [self.keys, self.queries, self.rows]


def panels_of(relative: Relative) -> int:
    return -(-2 * relative.buckets // cpu.LANES)


def relative_weights(mixer: Attention, qkv: PackedLinear, vectors: Tensor, rows: Tensor) -> RelativeWeights:
    """``vectors`` [2 * buckets, hidden] float32, after their norm; ``qkv`` is the layer's projection, whose weights
    they are multiplied by in float32."""
    exact = PackedLinear(qkv.gather(torch.arange(qkv.outputs)).numpy(), qkv.bias, "float32")
    made, width = exact(vectors), mixer.query_width
    queries, keys = made[:, :width].mul_(mixer.score_scale), made[:, width : 2 * width]
    return RelativeWeights(_panels(keys, mixer), _panels(queries, mixer), rows, (len(rows) + 1) // 2)


def _panels(vectors: Tensor, mixer: Attention) -> Tensor:
    """[rows, heads * head_dim] as the kernel reads it."""
    rows, lanes = len(vectors), cpu.LANES
    panels = -(-rows // lanes)
    padded = torch.zeros(panels * lanes, mixer.heads, mixer.head_dim)
    padded[:rows] = vectors.reshape(rows, mixer.heads, mixer.head_dim)
    split = padded.view(panels, lanes, mixer.heads, mixer.head_dim)
    return split.permute(2, 0, 3, 1).contiguous()


def rows_of_distances(relative: Relative, span: int) -> Tensor:
    """[2 * span - 1] int32: the row of distance d is at ``span - 1 + d``. Computed with the float32 operations of
    transformers, which decide on the edges of buckets."""
    distance = torch.arange(1 - span, span)
    bucket = distance.to(torch.float32)
    middle = relative.buckets // 2
    if relative.farthest is not None and middle > 0:
        far = distance.abs().clamp(min=max(middle - 1, 1))
        whole = torch.log(torch.tensor((relative.farthest - 1) / middle))
        steps = torch.ceil(torch.log(far / middle) / whole * (middle - 1)) + middle
        bucket = torch.where(far <= middle, bucket, steps * distance.sign())
    rows = (bucket.long() + relative.buckets).clamp(0, 2 * relative.buckets - 1)
    return rows.to(torch.int32)
