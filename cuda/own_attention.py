"""Attention of whole prompts by this project's own kernel (``kernels/prompts.cu``), where FlashInfer's is slower.

FlashInfer gives a lone prompt of 128 tokens 16 blocks at 16 query heads; this kernel has a block for each query head
and each 16 rows of a prompt. It serves recorded steps of at most ``ROWS`` rows of prompts that read nothing but
themselves, in bfloat16, for heads of 64 or 128 values. ``OwnAttention`` compares it with FlashInfer when a shape is
recorded, on the lengths of that recording, and times both; the choice is kept on disk. Only a kernel that passed
``own_trial.py`` on this GPU is tried.

    {"128x16x8x128:1": {"own": true, "us": ..., "library_us": ...}}
    {"256x16x8x128:1:long": ...}   against FlashInfer's kernel of long queries
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from prelude.cuda import kept_choices
from prelude.cuda.kernels import Kernel
from torch import Tensor

if TYPE_CHECKING:
    from prelude.cuda.device import Device

log = logging.getLogger("prelude.cuda")

ROWS = 256
"""Of all prompts of a step. Longer ones fill the device by FlashInfer's tiles too."""
HEAD_DIMS = (64, 128)
TILE = 16
"""Rows of a block, at most; all of one prompt."""
_TOLERANCE = 2e-2
"""Of the largest value of the library's result, as in ``matmul_search.py``."""
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
    (*_KINDS.split(),),
    _extents,
    flags=(f"-DWARPS={_WARPS}",),
)


@functools.cache
def shared_bytes(head_dim: int) -> int:
    """Keys and values of each warp, the queries, the tile's place, and each warp's sums of the rows."""
    row = 2 * (head_dim + 8)
    return _WARPS * 2 * _KEYS * row + TILE * row + 4 * 4 + 2 * 4 * _WARPS * TILE


@dataclass(frozen=True, slots=True)
class Prompts:
    """The operands, [rows, heads, D] each. Prompt p's rows are ``starts[p]`` to ``starts[p + 1]``; other rows of
    ``out`` stay."""

    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    starts: Tensor

    @property
    def count(self) -> int:
        return self.starts.shape[0] - 1

    @property
    def key(self) -> str:
        """The sizes that a choice depends on."""
        rows, heads, width = self.q.shape
        return f"{rows}x{heads}x{self.k.shape[1]}x{width}:{self.count}"

    def fit(self) -> bool:
        """Whether the kernel takes them."""
        rows, heads, width = self.q.shape
        given = (self.q, self.k, self.v, self.out)
        if not 0 < rows <= ROWS or width not in HEAD_DIMS or self.k.shape[0] < rows or heads % self.k.shape[1]:
            return False
        if any(tensor.dtype != torch.bfloat16 for tensor in given) or self.k.stride() != self.v.stride():
            return False
        if any(tensor.stride(2) != 1 or tensor.stride(1) != width for tensor in given):
            return False
        # 16 bytes are read at a time
        return not any(tensor.data_ptr() % 16 or tensor.stride(0) % 8 for tensor in given)

    def like(self, device: Device) -> Prompts:
        """Random values in other memory, laid out alike; the rows of ``out`` are 0."""
        q, k, v, out = (_like(device, rows) for rows in (self.q, self.k, self.v, self.out))
        for rows in (q, k, v):
            rows.normal_()
        return Prompts(q, k, v, out.zero_(), self.starts)


def run(device: Device, prompts: Prompts) -> None:
    """Enqueues it."""
    q, k, out = prompts.q, prompts.k, prompts.out
    rows, heads, width = q.shape
    scale = width**-0.5 * math.log2(math.e)
    sizes = (prompts.count, rows, heads // k.shape[1], scale)
    args = (q, q.stride(0), k, prompts.v, k.stride(0), prompts.starts, *sizes, out, out.stride(0))
    device.launch(ATTEND_PROMPTS, (tiles(rows, prompts.count), heads), args, shared=shared_bytes(width))


def tiles(rows: int, prompts: int) -> int:
    """Blocks of a head. Each prompt begins a tile, so its last tile may lack up to 15 rows."""
    return (rows + (TILE - 1) * prompts) // TILE


class OwnAttention:
    """The choices of one device. ``seconds(work)``: device time of the kernels that ``work`` enqueues, cache cold.
    ``path``: beside it lie the trial's outcome, and the choices of each release ``library`` of FlashInfer."""

    def __init__(
        self, device: Device, seconds: Callable[[Callable[[], object]], float], path: Path, library: str
    ) -> None:
        self.device = device
        self.path = path.with_name(f"{path.stem}-{library}.json")
        self.trial_path = kept_choices.trial_path(path)
        self.passed = {int(width) for width in kept_choices.passed(self.trial_path)}
        """Widths of heads."""
        self.searching = False
        """Whether shapes without a choice are searched; outside of it they are FlashInfer's."""
        self._seconds = seconds
        self._kept = kept_choices.read(self.path, _sound)
        self._failed = set[str]()  # searches of this process, which the next one tries again

    def run(self, prompts: Prompts, library: Callable[[Prompts], None], *, long: bool) -> bool:
        """Enqueues the attention where this kernel was chosen. ``library``: FlashInfer's call, which is another
        kernel for ``long`` queries."""
        if prompts.q.shape[2] not in self.passed or not prompts.fit():
            return False
        key = prompts.key + (":long" if long else "")
        if self.searching and key not in self._kept and key not in self._failed:
            self._search(key, prompts, library)
        if not self._kept.get(key, {}).get("own"):
            return False
        run(self.device, prompts)
        return True

    def keep_trial(self, head_dim: int, passed: bool) -> None:
        (self.passed.add if passed else self.passed.discard)(head_dim)
        kept_choices.keep_trial(self.trial_path, str(head_dim), passed)

    def _search(self, key: str, prompts: Prompts, library: Callable[[Prompts], None]) -> None:
        """On random values: those of the idle step that is recorded are alike in every row."""
        entry: dict[str, Any] = {"own": False}
        try:
            some = prompts.like(self.device)
            beside = replace(some, out=_like(self.device, prompts.out).zero_())  # rows behind the last prompt stay

            def theirs() -> None:
                library(beside)

            def ours() -> None:
                run(self.device, some)

            theirs()
            ours()
            if same(some.out, beside.out):
                library_seconds, own_seconds = self._seconds(theirs), self._seconds(ours)
                entry = {
                    "own": own_seconds < library_seconds,
                    "us": own_seconds * 1e6,
                    "library_us": library_seconds * 1e6,
                }
            else:
                log.warning("attention %s: this project's kernel gives other numbers than FlashInfer", key)
        except RuntimeError as error:  # no memory, no compiler: FlashInfer serves this shape in this process
            log.warning("attention %s is left to FlashInfer: %s", key, error)
            self._failed.add(key)
            return
        self._kept[key] = entry
        kept_choices.write(self.path, {**kept_choices.read(self.path, _sound), **self._kept})


def same(ours: Tensor, theirs: Tensor) -> bool:
    """Whether the largest difference is at most ``_TOLERANCE`` of the largest value; a NaN is not."""
    difference = (ours.float() - theirs.float()).abs().max()
    return bool(difference <= _TOLERANCE * theirs.float().abs().max())


def library() -> str:
    """The release of FlashInfer that is installed."""
    try:
        return metadata.version("flashinfer-python")
    except metadata.PackageNotFoundError:
        return "none"


def path_beside(choices: Path) -> Path:
    """The place of choices for the GPU and cuBLASLt that ``choices`` names."""
    return kept_choices.path_beside(choices, "attention", ATTEND_PROMPTS.file, [ATTEND_PROMPTS.flags])


def _like(device: Device, rows: Tensor) -> Tensor:
    """Other memory, laid out alike."""
    count, heads, width = rows.shape
    flat = device.empty((count, rows.stride(0)), rows.dtype)
    return flat[:, : heads * width].view(count, heads, width)


def _sound(entry: Any) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("own"), bool)
