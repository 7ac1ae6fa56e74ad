"""Attention of whole prompts by this project's own kernel (``kernels/prompts.cu``).

FlashInfer gives a lone prompt of 128 tokens 16 blocks at 16 query heads; this kernel has a block for each query head
and each 16 rows of a prompt. It serves steps of at most ``ROWS`` rows of prompts that read nothing but themselves, in
bfloat16, for heads of 64 or 128 values, if it passed ``own_trial.py`` on this GPU. It needs nothing of FlashInfer.
"""

from __future__ import annotations

import functools
import hashlib
import math
from typing import TYPE_CHECKING, Any

import torch
from prelude.cuda import compiler, kept_choices
from prelude.cuda.kernels import Kernel
from torch import Tensor

if TYPE_CHECKING:
    from prelude.cuda.device import Device

ROWS = 256
"""Rows of all prompts of a step. Longer prompts fill the device by FlashInfer's tiles too."""
HEAD_DIMS = (64, 128)
TILE = 16
"""Rows of a block, at most; all of one prompt."""
_TOLERANCE = 2e-2
"""Tolerance as a part of the largest value, as in ``matmul_search.py``."""
_KEYS = 32
_WARPS = 4


def _extents(tiles: int, *args: Any) -> tuple[int, ...]:
    q_stride, stride, prompts, rows, out_stride = args[1], args[4], args[6], args[7], args[11]
    before = rows - 1
    return (before * q_stride + 1, before * stride + 1, before * stride + 1, prompts + 1, before * out_stride + 1)


_KINDS = "element int element element int i32 int int int float element int"
ATTEND_PROMPTS = Kernel(
    "attend_prompts",
    "prompts",
    32 * _WARPS,
    tuple(_KINDS.split()),
    _extents,
)


@functools.cache
def shared_bytes(head_dim: int) -> int:
    """Keys and values of each warp, the queries, the tile's place, and each warp's sums of the rows."""
    row = 2 * (head_dim + 8)
    return _WARPS * 2 * _KEYS * row + TILE * row + 4 * 4 + 2 * 4 * _WARPS * TILE


def run(device: Device, q: Tensor, k: Tensor, v: Tensor, starts: Tensor, out: Tensor) -> None:
    """Enqueues it. [rows, heads, D] each; prompt p's rows are ``starts[p]`` to ``starts[p + 1]``, and other rows of
    ``out`` stay."""
    rows, heads, width = q.shape
    prompts = starts.shape[0] - 1
    scale = width**-0.5 * math.log2(math.e)
    args = (q, q.stride(0), k, v, k.stride(0), starts, prompts, rows, heads // k.shape[1], scale, out, out.stride(0))
    device.launch(ATTEND_PROMPTS, (tiles(rows, prompts), heads), args, shared=shared_bytes(width))


def tiles(rows: int, prompts: int) -> int:
    """Blocks of a head. Each prompt begins a tile, so its last tile may lack up to 15 rows."""
    return (rows + (TILE - 1) * prompts) // TILE


def in_float32(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
    """Return the attention of ``q`` [n, heads, D] to ``k``, ``v`` [m, KV heads, D], by torch."""
    k, v = (x.float().repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = torch.einsum("nhd,mhd->hnm", q.float(), k) * q.shape[2] ** -0.5
    if causal:
        later = torch.ones(scores.shape[1:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, float("-inf"))
    return torch.einsum("hnm,mhd->nhd", scores.softmax(-1), v)


def same(ours: Tensor, theirs: Tensor) -> bool:
    """Return whether the largest difference is at most ``_TOLERANCE`` of the largest value; a NaN is not."""
    difference = (ours.float() - theirs.float()).abs().max()
    return bool(difference <= _TOLERANCE * theirs.float().abs().max())


def trials(gpu: str) -> kept_choices.Trials:
    """Return the trials of widths of heads on ``gpu``, of this source by this compiler."""
    text = compiler.source(ATTEND_PROMPTS.file) + compiler.nvrtc_version()
    return kept_choices.Trials(kept_choices.path_of("attention", gpu, hashlib.sha256(text.encode()).hexdigest()[:12]))
