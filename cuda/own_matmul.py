"""Products of up to 256 rows by this project's own kernel (``kernels/matmul.cu``), for compute capability 9.0.

A product is one of six modes: bfloat16 out, float32 out, added to float32, gated SiLU of gate and up, heads with
their norm, rotation and pool, or added to float32 with the RMSNorm that follows. That norm leaves out a factor of
each row (``RowFactors``), by which the product behind it multiplies its sums. The kernel has variants: outputs of a
block, blocks of a tile, tiles of a cluster that read the rows together. Behind the search of cuBLASLt's algorithms,
``OwnMatmuls`` tries each variant on the same shape. A variant is used only where it gave the library's numbers and
took less time than the library with the kernels that follow it. Choices are kept on disk. Only kernels that passed
``own_trial.py`` on this GPU are tried.

    {"gate:128x6144x1024:1024,3072": {"variant": [2, 2, 1], "us": ..., "library_us": ...}}

``"variant": null``: the library was as fast, or no variant gave its numbers.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from prelude.cuda import kept_choices
from prelude.cuda.kernels import Argument, Kernel, RowBoxes
from torch import Tensor

if TYPE_CHECKING:
    from prelude.cuda.device import Device

log = logging.getLogger("prelude.cuda")

NARROW, WIDE, ADD, GATE, HEADS, NORM = range(6)
_MODES = ("bf16", "f32", "f32+", "gate", "heads", "f32+norm")
_INTO_FLOAT32 = (WIDE, ADD, NORM)
_TAKE_FACTORS = (GATE, HEADS)
ROWS = (16, 32, 64, 128, 256)
_STEP = 64  # columns of ``inner`` that a stage has
BLOCKS = (1, 2, 4, 8)
SHARES = (1, 2, 4)
_SHARED_ROWS = 64
"""Of a kernel, at the least: fewer rows are few bytes beside the weights."""
_CLUSTER = 8
"""Blocks that every GPU of compute capability 9.0 puts into a cluster."""
_MULTIPROCESSORS = 132
_SCRATCH = 64 << 20
"""Bytes of results that a search may allocate; products with more are left to the library."""
_TOLERANCE = 2e-2
"""Of the largest value of the library's result, as in ``matmul_search.py``."""


def _extents(tiles: int, mode: int, *args: Any) -> tuple[int, ...]:
    if isinstance(args[-1], RowBoxes):
        tiles *= args[-1].blocks
    x_stride, rows, outputs, inner, out_stride = args[1], args[3], args[4], args[5], args[8]
    width = outputs // 2 if mode == GATE else outputs
    result = (rows - 1) * out_stride + width
    heads, normed = rows if mode == HEADS else 0, mode == NORM
    narrow, wide = (0 if mode in (WIDE, ADD) else result), (result if mode in _INTO_FLOAT32 else 0)
    norm = (outputs, rows * tiles) if normed else (0, 0)
    sizes = ((rows - 1) * x_stride + inner, outputs * inner, narrow, wide, *norm, rows * args[12])
    return (*sizes, heads, min(heads, 1), 0, 0, heads, 0, 0)


_KINDS = "int element int element int int int element? f32? int f32? f32? f32? int float"
_HEAD_KINDS = "int int int i32? f32? f32? f32? float i32? element? element?"
PRODUCT = Kernel("product", "matmul", 128, (*_KINDS.split(), *_HEAD_KINDS.split()), _extents)


@dataclass(frozen=True, slots=True)
class RowFactors:
    """Rows that await a factor each: the reciprocal root of the mean of their squares and ``eps``."""

    squares: Tensor  # [rows, parts] float32: sums of squares of the parts of a row
    eps: float


@dataclass(frozen=True, slots=True)
class NormAfter:
    """The RMSNorm behind a product that is added to the residual stream."""

    gain: Tensor
    eps: float
    normed: Tensor
    room: Tensor
    """Float32 values for the sums of squares: those of ``ROWS[-1]`` rows in tiles of 64 outputs."""


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
    blocks: int  # of a tile: parts of ``inner``
    share: int = 1  # tiles of a cluster, which read the rows of x together

    def tiles(self, job: Job) -> int:
        return -(-job.outputs // (64 * self.groups))


@functools.cache
def kernel(rows: int, variant: Variant) -> tuple[Kernel, int]:
    """The kernel for up to ``rows`` rows, one of ``ROWS``, and its dynamic shared memory in bytes. Up to 128 rows two
    blocks fit on a multiprocessor: the next product fills its ring while this one ends."""
    ring = ring_bytes(rows)
    flags = (f"-DROWS={rows}", f"-DGROUPS={variant.groups}", f"-DRING={ring}", f"-DSHARE={variant.share}")
    made = replace(PRODUCT, block=128 * variant.groups, cluster=variant.blocks * variant.share, flags=flags)
    shared = ring + 1024 + 4 * rows
    if variant.share == 1:
        return made, shared
    return replace(made, kinds=(*PRODUCT.kinds, "map")), shared + 16 * stages(rows, variant)


def stages(rows: int, variant: Variant) -> int:
    """Of the ring."""
    return ring_bytes(rows) // (128 * (64 * variant.groups + rows))


def stages_of(job: Job, variant: Variant) -> int:
    return stages(_rows_of(job), variant)


def ring_bytes(rows: int) -> int:
    return 96 << 10 if rows <= 128 else 196 << 10


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
        out.dtype != (torch.float32 if mode in _INTO_FLOAT32 else torch.bfloat16)
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
            if blocks > 1 and not (fits and job.inner >= 2 * _STEP * blocks):
                continue
            for share in shares(_rows_of(job)):
                if variant.tiles(job) % share == 0 and fits_cluster(blocks, share):
                    yield replace(variant, share=share)


def fits_cluster(blocks: int, share: int) -> bool:
    return blocks * share <= _CLUSTER


def shares(rows: int) -> tuple[int, ...]:
    """Of the kernel for ``rows`` rows."""
    return SHARES if rows >= _SHARED_ROWS else SHARES[:1]


def _rows_of(job: Job) -> int:
    return next(rows for rows in ROWS if rows >= job.rows)


Rest: TypeAlias = "tuple[Argument, ...]"
NO_HEADS: Rest = (0, 0, 0, None, None, None, None, 0.0, None, None, None)


def run(
    device: Device,
    job: Job,
    variant: Variant,
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    rest: Rest = NO_HEADS,
    *,
    factors: RowFactors | None = None,
    norm: NormAfter | None = None,
) -> RowFactors | None:
    """Enqueues the product. ``rest``: the arguments of HEADS behind the strides, ``NO_HEADS`` for the other modes.
    ``factors`` of the rows of ``x``. ``norm``: of mode NORM, whose rows' factors are returned."""
    chosen, shared = kernel(_rows_of(job), variant)
    tiles, left = variant.tiles(job), None
    places: tuple[Argument, ...] = (None, out) if job.mode in _INTO_FLOAT32 else (out, None)
    after: tuple[Argument, ...] = (None, None)
    if norm is not None:
        left = RowFactors(norm.room[: job.rows * tiles].view(job.rows, tiles), norm.eps)
        places, after = (norm.normed, out), (norm.gain, left.squares)
    before: tuple[Argument, ...] = (None, 0, 0.0)
    if factors is not None:
        before = (factors.squares, factors.squares.shape[1], factors.eps)
    sizes = (job.rows, job.outputs, job.inner)
    share = variant.share
    boxes = (RowBoxes(x, _rows_of(job) // share, share),) if share > 1 else ()
    args = (job.mode, x, job.x_stride, weight, *sizes, *places, job.out_stride, *after, *before, *rest, *boxes)
    device.launch(chosen, (tiles // share,), args, shared=shared)
    return left


class OwnMatmuls:
    """The chosen variants of one device. ``seconds(work)``: device time of the kernels that ``work`` enqueues, cache
    cold. ``path``: of the choices; the outcomes of the trial lie beside it."""

    def __init__(self, device: Device, seconds: Callable[[Callable[[], object]], float], path: Path) -> None:
        self.device = device
        self.path = path
        self.trial_path = kept_choices.trial_path(path)
        self.passed = kept_choices.passed(self.trial_path)
        self.searching = False
        """Whether shapes without a choice are searched; outside of it they are the library's."""
        self._seconds = seconds
        self._kept = kept_choices.read(path, _sound)
        self._failed = set[str]()  # searches of this process, which the next one tries again
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
        factors: RowFactors | None = None,
    ) -> bool:
        """Enqueues the product by the variant that was chosen; False where there is none. ``otherwise(x, out)``: the
        library's way to the same result, without ``factors``."""
        job = job_of(mode, x, weight, out, head_dim)
        variant = None if job is None else self._searched(job, x, weight, out, otherwise, rest)
        if job is None or variant is None:
            return False
        run(self.device, job, variant, x, weight, out, rest, factors=factors)
        return True

    def run_norm(
        self, x: Tensor, weight: Tensor, out: Tensor, otherwise: Callable[[Tensor, Tensor], None], norm: NormAfter
    ) -> RowFactors | None:
        """``out += x @ weight.T`` and the norm behind it without its rows' factors, which are returned; None where
        no variant was chosen. ``otherwise(x, out)`` does both, and writes ``norm.normed``."""
        job = job_of(NORM, x, weight, out)
        if job is None or norm.normed.stride() != out.stride() or norm.normed.data_ptr() % 16:
            return None
        variant = self._searched(job, x, weight, out, otherwise, NO_HEADS, norm)
        return None if variant is None else run(self.device, job, variant, x, weight, out, norm=norm)

    def chosen(self, mode: int, x: Tensor, weight: Tensor, out: Tensor, head_dim: int = 0) -> bool:
        """Whether ``run`` has a variant for these operands without a search."""
        job = job_of(mode, x, weight, out, head_dim)
        return job is not None and self._choice(job) is not None

    def _searched(
        self,
        job: Job,
        x: Tensor,
        weight: Tensor,
        out: Tensor,
        otherwise: Callable[[Tensor, Tensor], None],
        rest: Rest,
        norm: NormAfter | None = None,
    ) -> Variant | None:
        if self.searching and job.key not in self._kept and job.key not in self._failed:
            self._search(job, x, weight, out, otherwise, rest, norm)
        return self._choice(job)

    def keep_trial(self, rows: int, groups: int, passed: bool, share: int = 1) -> None:
        key = _trial_key(rows, groups, share)
        (self.passed.add if passed else self.passed.discard)(key)
        kept_choices.keep_trial(self.trial_path, key, passed)

    def _offered(self, job: Job, variant: Variant) -> bool:
        return _trial_key(_rows_of(job), variant.groups, variant.share) in self.passed

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
        norm: NormAfter | None,
    ) -> None:
        offered = [variant for variant in variants(job) if self._offered(job, variant)]
        if not offered:
            return
        entry: dict[str, Any] = {"variant": None}
        try:
            some, theirs, ours = (_like(self.device, rows) for rows in (x, out, out))
            some.normal_()
            library = self._seconds(lambda: otherwise(some, ours))
            factors, theirs_normed = None, None
            start = 1.0 if job.mode in (ADD, NORM) else float("nan")
            theirs.fill_(1.0)
            if job.mode in _TAKE_FACTORS:  # of 2 for every row: a power of two loses no bit
                factors = RowFactors(self.device.empty((job.rows, 1), torch.float32), 0.0)
                factors.squares.fill_(job.inner / 4)
                twice = _like(self.device, x)
                torch.mul(some, 2, out=twice)
                otherwise(twice, theirs)
            else:
                otherwise(some, theirs)
            if norm is not None:
                theirs_normed = _like(self.device, norm.normed)
                theirs_normed.copy_(norm.normed)
            best = library
            for variant in offered:
                ours.fill_(start)

                def work(variant: Variant = variant) -> RowFactors | None:
                    return run(self.device, job, variant, some, weight, ours, rest, factors=factors, norm=norm)

                left = work()
                right = same(ours, theirs)
                if norm is not None and left is not None and theirs_normed is not None:
                    right &= same(scaled(norm.normed, left), theirs_normed)
                if not right:
                    log.warning("%s: variant %s gives other numbers than the library", job.key, variant)
                    continue
                taken = self._seconds(work)
                if taken < best:
                    best, entry["variant"] = taken, [variant.groups, variant.blocks, variant.share]
            entry |= {"us": best * 1e6, "library_us": library * 1e6}
        except RuntimeError as error:  # no memory, no compiler: the library serves this shape in this process
            log.warning("%s is left to the library: %s", job.key, error)
            self._failed.add(job.key)
            return
        self._kept[job.key] = entry
        self._chosen.pop(job, None)
        kept_choices.write(self.path, {**kept_choices.read(self.path, _sound), **self._kept})


def scaled(rows: Tensor, factors: RowFactors) -> Tensor:
    """``rows`` in float32 with their factors."""
    mean = factors.squares.sum(1, keepdim=True) / rows.shape[1]
    return rows.float() * torch.rsqrt(mean + factors.eps)


def _trial_key(rows: int, groups: int, share: int) -> str:
    return f"{rows}x{groups}" + (f"x{share}" if share > 1 else "")


def path_beside(choices: Path) -> Path:
    """Where choices lie for the GPU and library that ``choices`` names."""
    flags = (
        kernel(rows, Variant(groups, 1, share))[0].flags
        for rows in ROWS
        for groups in (1, 2)
        for share in shares(rows)
    )
    return kept_choices.path_beside(choices, "own", PRODUCT.file, flags)


def same(ours: Tensor, theirs: Tensor) -> bool:
    """Whether the largest difference is at most ``_TOLERANCE`` of the largest value; a NaN is not."""
    difference = (ours.float() - theirs.float()).abs().max()
    return bool(difference <= _TOLERANCE * theirs.float().abs().max())


def _like(device: Device, rows: Tensor) -> Tensor:
    """Other memory, laid out alike."""
    return device.empty((rows.shape[0], rows.stride(0)), rows.dtype)[:, : rows.shape[1]]


def _sound(entry: Any) -> bool:
    if not isinstance(entry, dict) or "variant" not in entry:
        return False
    chosen = entry["variant"]
    if chosen is None:
        return True
    if not isinstance(chosen, list) or len(chosen) != 3:
        return False
    groups, blocks, share = chosen
    return groups in (1, 2) and blocks in BLOCKS and share in SHARES and fits_cluster(blocks, share)
