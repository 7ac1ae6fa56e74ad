"""The relative term of DeBERTa, as the attention kernel takes it."""

from __future__ import annotations

import numpy as np

from prelude._native import cpu
from prelude.models.arrays import F32, Array, aligned
from prelude.models.ops import Weights
from prelude.models.packed import PackedLinear
from prelude.models.spec import Attention, Relative
from prelude.records import dataclass


@dataclass(frozen=True, slots=True)
class RelativeWeights(Weights):
    """Term of a layer. ``keys`` and ``queries`` [heads, panels, head_dim, lanes] float32 hold a row's vector in each
    lane, those of queries times the scale of scores; ``rows`` [2 * span - 1] int32 is the row of each distance, the
    same in all layers."""

    keys: F32
    queries: F32
    rows: Array
    span: int


def panels_of(relative: Relative) -> int:
    return -(-2 * relative.buckets // cpu.LANES)


def relative_weights(mixer: Attention, qkv: PackedLinear, vectors: F32, rows: Array) -> RelativeWeights:
    """``vectors`` [2 * buckets, hidden] float32, after their norm; ``qkv`` is the layer's projection, whose weights
    they are multiplied by in float32."""
    exact = PackedLinear(qkv.gather(np.arange(qkv.outputs)), qkv.bias, "float32")
    made, width = exact(vectors), mixer.query_width
    queries, keys = made[:, :width] * np.float32(mixer.score_scale), made[:, width : 2 * width]
    return RelativeWeights(_panels(keys, mixer), _panels(queries, mixer), rows, (len(rows) + 1) // 2)


def _panels(vectors: F32, mixer: Attention) -> F32:
    """[rows, heads * head_dim] as the kernel reads it."""
    rows, lanes = len(vectors), cpu.LANES
    panels = -(-rows // lanes)
    padded = np.zeros((panels * lanes, mixer.heads, mixer.head_dim), np.float32)
    padded[:rows] = vectors.reshape(rows, mixer.heads, mixer.head_dim)
    made = aligned((mixer.heads, panels, mixer.head_dim, lanes))
    made[:] = padded.reshape(panels, lanes, mixer.heads, mixer.head_dim).transpose(2, 0, 3, 1)
    return made


def rows_of_distances(relative: Relative, span: int) -> Array:
    """[2 * span - 1] int32: the row of distance d is at ``span - 1 + d``. Computed with the float32 operations of
    transformers, which decide on the edges of buckets."""
    distance = np.arange(1 - span, span)
    bucket = distance.astype(np.float32)
    middle = relative.buckets // 2
    if relative.farthest is not None and middle > 0:
        far = np.maximum(np.abs(distance), max(middle - 1, 1)).astype(np.float32)
        whole = np.log(np.float32((relative.farthest - 1) / middle))
        steps = np.ceil(np.log(far / np.float32(middle)) / whole * np.float32(middle - 1)) + np.float32(middle)
        bucket = np.where(far <= middle, bucket, steps * np.sign(bucket))
    rows = (bucket.astype(np.int64) + relative.buckets).clip(0, 2 * relative.buckets - 1)
    return rows.astype(np.int32)
