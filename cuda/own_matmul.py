"""Products of up to 256 rows by this project's own kernel (``kernels/matmul.cu``), for compute capability 9.0.

A product is one of five modes: bfloat16 out, float32 out, added to float32, gated SiLU of gate and up, or heads with
their norm, rotation and pool. The kernel has variants: outputs of a block, blocks of a cluster. Behind the search of
cuBLASLt's algorithms, ``OwnMatmuls`` tries each variant on the same shape. A variant is used only where it gave the
library's numbers and took less time than the library with the kernels that follow it. Choices are kept on disk. Only
kernels that passed ``own_trial.py`` on this GPU are tried.

    {"gate:128x6144x1024:1024,3072": {"variant": [2, 2], "us": ..., "library_us": ...}}

``"variant": null``: the library was as fast, or no variant gave its numbers.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from prelude.cuda import compiler, kernels
from prelude.cuda.kernels import Argument, Kernel
from torch import Tensor

if TYPE_CHECKING:
    from prelude.cuda.device import Device

log = logging.getLogger("prelude.cuda")

NARROW, WIDE, ADD, GATE, HEADS = range(5)
_MODES = ("bf16", "f32", "f32+", "gate", "heads")
ROWS = (16, 32, 64, 128, 256)
_STEP = 64  # columns of ``inner`` that a stage has
BLOCKS = (1, 2, 4, 8)
_MULTIPROCESSORS = 132
_SCRATCH = 64 << 20
"""Bytes of results that a search may allocate; products with more are left to the library."""
_TOLERANCE = 2e-2
"""Of the largest value of the library's result, as in ``matmul_search.py``."""


def _extents(tiles: int, mode: int, *args: Any) -> tuple[int, ...]:
    x_stride, rows, outputs, inner, out_stride = args[1], args[3], args[4], args[5], args[8]
    width = outputs // 2 if mode == GATE else outputs
    result = (rows - 1) * out_stride + width
    wide = mode in (WIDE, ADD)
    heads = rows if mode == HEADS else 0
    sizes = [(rows - 1) * x_stride + inner, outputs * inner, 0 if wide else result, result if wide else 0]
    return (*sizes, heads, min(heads, 1), 0, 0, heads, 0, 0)


_KINDS = "int element int element int int int element? f32? int"
_HEAD_KINDS = "int int int i32? f32? f32? f32? float i32? element? element?"
PRODUCT = Kernel("product", "matmul", 128, (*_KINDS.split(), *_HEAD_KINDS.split()), _extents)


@dataclass(frozen=True, slots=True)
class Job:
    """The sizes that a choice depends on. ``outputs`` counts rows of the weights."""

    mode: int
    rows: int
    outputs: int
    inner: int
    x_stride: int
    out_stride: int
    head_dim: int = 0

    @property
    def key(self) -> str:
        sizes = f"{self.rows}x{self.outputs}x{self.inner}:{self.x_stride},{self.out_stride}"
        return f"{_MODES[self.mode]}{self.head_dim or ''}:{sizes}"


@dataclass(frozen=True, slots=True)
class Variant:
    groups: int  # of 64 outputs a block
    blocks: int  # of a cluster: parts of ``inner``

    def tiles(self, job: Job) -> int:
        return -(-job.outputs // (64 * self.groups))


@functools.cache
def kernel(rows: int, variant: Variant) -> tuple[Kernel, int]:
    """The kernel for up to ``rows`` rows, one of ``ROWS``, and its dynamic shared memory in bytes. Up to 128 rows two
    blocks fit on a multiprocessor: the next product fills its ring while this one ends."""
    ring = 96 << 10 if rows <= 128 else 196 << 10
    flags = (f"-DROWS={rows}", f"-DGROUPS={variant.groups}", f"-DRING={ring}")
    made = replace(PRODUCT, block=128 * variant.groups, cluster=variant.blocks, flags=flags)
    return made, ring + 1024


def job_of(mode: int, x: Tensor, weight: Tensor, out: Tensor, head_dim: int = 0) -> Job | None:
    """None for products that the kernel does not do: other types, more rows, sizes or addresses that its 16-byte
    copies do not fit."""
    rows, inner = x.shape
    outputs = weight.shape[0]
    if not 0 < rows <= ROWS[-1]:  # first: eager steps ask for every product
        return None
    if x.dtype != torch.bfloat16 or weight.dtype != torch.bfloat16 or not weight.is_contiguous():
        return None
    if (
        out.dtype != (torch.float32 if mode in (WIDE, ADD) else torch.bfloat16)
        or x.stride(1) != 1
        or out.stride(1) != 1
    ):
        return None
    if inner % _STEP or outputs % 8 or x.stride(0) % 8 or out.stride(0) % 8:
        return None
    if mode == HEADS and (head_dim not in (64, 128) or outputs % head_dim or out.stride(0) != outputs):
        return None
    if any(tensor.data_ptr() % 16 for tensor in (x, weight, out)) or rows * outputs * 4 > _SCRATCH:
        return None
    return Job(mode, rows, outputs, inner, x.stride(0), out.stride(0), head_dim)


def variants(job: Job) -> Iterator[Variant]:
    """Those worth timing: clusters only as far as the blocks fit on the multiprocessors twice."""
    for groups in (1, 2):
        if job.mode == HEADS and groups * 64 != job.head_dim:
            continue
        for blocks in BLOCKS:
            variant = Variant(groups, blocks)
            fits = variant.tiles(job) * blocks <= 2 * _MULTIPROCESSORS
            if blocks == 1 or (fits and job.inner >= 2 * _STEP * blocks):
                yield variant


def _rows_of(job: Job) -> int:
    return next(rows for rows in ROWS if rows >= job.rows)


Rest: TypeAlias = "tuple[Argument, ...]"
NO_HEADS: Rest = (0, 0, 0, None, None, None, None, 0.0, None, None, None)


def run(device: Device, job: Job, variant: Variant, x: Tensor, weight: Tensor, out: Tensor, rest: Rest) -> None:
    """Enqueues the product. ``rest``: the arguments of HEADS behind the strides, ``NO_HEADS`` for the other modes."""
    chosen, shared = kernel(_rows_of(job), variant)
    places = (None, out) if job.mode in (WIDE, ADD) else (out, None)
    sizes = (job.rows, job.outputs, job.inner)
    args = (job.mode, x, job.x_stride, weight, *sizes, *places, job.out_stride, *rest)
    device.launch(chosen, (variant.tiles(job),), args, shared=shared)


class OwnMatmuls:
    """The chosen variants of one device. ``seconds(work)``: device time of the kernels that ``work`` enqueues, cache
    cold. ``path``: of the choices; the outcomes of the trial lie beside it."""

    def __init__(self, device: Device, seconds: Callable[[Callable[[], None]], float], path: Path) -> None:
        self.device = device
        self.path = path
        self.trial_path = path.with_name(f"{path.stem}-trial.json")
        self.passed = {key for key, entry in _read(self.trial_path, _tried).items() if entry["passed"]}
        self.searching = False
        """Whether shapes without a choice are searched; outside of it they are the library's."""
        self._seconds = seconds
        self._kept = _read(path, _sound)
        self._chosen: dict[Job, Variant | None] = {}

    def run(
        self,
        mode: int,
        x: Tensor,
        weight: Tensor,
        out: Tensor,
        otherwise: Callable[[Tensor, Tensor], None],
        rest: Rest = NO_HEADS,
        head_dim: int = 0,
    ) -> bool:
        """Enqueues the product by the variant that was chosen; False where there is none. ``otherwise(x, out)``: the
        library's way to the same result."""
        job = job_of(mode, x, weight, out, head_dim)
        if job is None:
            return False
        if self.searching and job.key not in self._kept:
            self._search(job, x, weight, out, otherwise, rest)
        variant = self._choice(job)
        if variant is None:
            return False
        run(self.device, job, variant, x, weight, out, rest)
        return True

    def keep_trial(self, rows: int, groups: int, passed: bool) -> None:
        key = f"{rows}x{groups}"
        (self.passed.add if passed else self.passed.discard)(key)
        _write(self.trial_path, {**_read(self.trial_path, _tried), key: {"passed": passed}})

    def _offered(self, job: Job, variant: Variant) -> bool:
        return f"{_rows_of(job)}x{variant.groups}" in self.passed

    def _choice(self, job: Job) -> Variant | None:
        if job not in self._chosen:
            kept = self._kept.get(job.key, {}).get("variant")
            variant = None if kept is None else Variant(*kept)
            self._chosen[job] = variant if variant is not None and self._offered(job, variant) else None
        return self._chosen[job]

    def _search(
        self,
        job: Job,
        x: Tensor,
        weight: Tensor,
        out: Tensor,
        otherwise: Callable[[Tensor, Tensor], None],
        rest: Rest,
    ) -> None:
        offered = [variant for variant in variants(job) if self._offered(job, variant)]
        if not offered:
            return
        entry: dict[str, Any] = {"variant": None}
        try:
            some, theirs, ours = (_like(self.device, rows) for rows in (x, out, out))
            some.normal_()
            library = self._seconds(lambda: otherwise(some, ours))
            theirs.fill_(1.0)
            otherwise(some, theirs)
            best = library
            for variant in offered:
                ours.fill_(1.0 if job.mode == ADD else float("nan"))

                def work(variant: Variant = variant) -> None:
                    run(self.device, job, variant, some, weight, ours, rest)

                work()
                if not same(ours, theirs):
                    log.warning("%s: variant %s gives other numbers than the library", job.key, variant)
                    continue
                taken = self._seconds(work)
                if taken < best:
                    best, entry["variant"] = taken, [variant.groups, variant.blocks]
            entry |= {"us": best * 1e6, "library_us": library * 1e6}
        except RuntimeError as error:  # no memory, no compiler: the library serves this shape
            log.warning("%s is left to the library: %s", job.key, error)
            entry["variant"] = None
        self._kept[job.key] = entry
        self._chosen.pop(job, None)
        _write(self.path, {**_read(self.path, _sound), **self._kept})


def path_beside(choices: Path) -> Path:
    """Where choices lie for the GPU and library that ``choices`` names: by this kernel's source and compiler."""
    text = compiler.source(PRODUCT.file) + compiler.nvrtc_version()
    return choices.with_name(f"{choices.stem}-own-{hashlib.sha256(text.encode()).hexdigest()[:12]}.json")


def same(ours: Tensor, theirs: Tensor) -> bool:
    """Whether the largest difference is at most ``_TOLERANCE`` of the largest value; a NaN is not."""
    difference = (ours.float() - theirs.float()).abs().max()
    return bool(difference <= _TOLERANCE * theirs.float().abs().max())


def _like(device: Device, rows: Tensor) -> Tensor:
    """Other memory, laid out alike."""
    return device.empty((rows.shape[0], rows.stride(0)), rows.dtype)[:, : rows.shape[1]]


def _write(path: Path, entries: dict[str, dict[str, Any]]) -> None:
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "w") as file:
            json.dump(entries, file, indent=1)
        os.replace(temporary, path)


def _read(path: Path, sound: Callable[[Any], bool]) -> dict[str, dict[str, Any]]:
    """The sound entries of a file; all others are searched again."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return {key: entry for key, entry in found.items() if sound(entry)} if isinstance(found, dict) else {}


def _tried(entry: Any) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("passed"), bool)


def _sound(entry: Any) -> bool:
    if not isinstance(entry, dict) or "variant" not in entry:
        return False
    chosen = entry["variant"]
    if chosen is None:
        return True
    return isinstance(chosen, list) and len(chosen) == 2 and chosen[0] in (1, 2) and chosen[1] in BLOCKS


# ------------------------------------------------------------------ a layer's products


def matmul_gated(
    device: Device, x: Tensor, weight: Tensor, bias: Tensor | None, between: Tensor, out: Tensor
) -> None:
    """``out = silu(gate) * up`` [rows, inner], gate and up the halves of ``x @ weight.T + bias``, for which
    ``between`` [rows, 2 inner] has room."""

    def otherwise(x: Tensor, out: Tensor) -> None:
        device.matmul(x, weight, between, bias)
        kernels.silu_gate(device, between, out)

    own = device.own_matmuls
    if own is None or bias is not None or not own.run(GATE, x, weight, out, otherwise):
        otherwise(x, out)


def matmul_heads(
    device: Device,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor,
    counts: tuple[int, int, int],
    positions: Tensor,
    rope_table: Tensor,
    gains: tuple[Tensor | None, Tensor | None],
    eps: float,
    slots: Tensor | None,
    pool: tuple[Tensor, Tensor] | None,
) -> None:
    """``out`` [rows, queries + keys + values, D] = ``x @ weight.T + bias``, then ``kernels.qk_rope`` on it."""
    head_dim = out.shape[2]

    def otherwise(x: Tensor, flat: Tensor) -> None:
        device.matmul(x, weight, flat, bias)
        heads = flat.view(out.shape)
        kernels.qk_rope(device, heads, counts, positions, rope_table, gains, eps, slots, pool)

    flat, own = out.view(out.shape[0], out.shape[1] * head_dim), device.own_matmuls
    rest: Rest = (*counts, positions, rope_table, *gains, eps, slots, *(pool or (None, None)))
    if own is None or bias is not None or not own.run(HEADS, x, weight, flat, otherwise, rest, head_dim):
        otherwise(x, flat)
