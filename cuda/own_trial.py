"""Tries this project's products and its attention on the GPU before any engine uses them:

    python -m prelude.cuda.own_trial

Each kernel of ``own_matmul.ROWS``, in every mode, and the attention of each width of heads run in a process of their
own with a time limit, and are compared with float32 results of torch. The names of passed kernels are stored by GPU,
kernel source and compiler. ``OwnMatmuls`` and ``OwnAttention`` offer only kernels that passed: a kernel that hangs or
ends its process does so here, and not in an engine.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from prelude.cuda import own_attention, own_matmul
from prelude.cuda.own_attention import OwnAttention, Prompts
from prelude.cuda.own_matmul import (
    ADD,
    GATE,
    HEADS,
    NARROW,
    NORM,
    ROWS,
    WIDE,
    NormAfter,
    OwnMatmuls,
    Rest,
    RowFactors,
    Variant,
)
from torch import Tensor

if TYPE_CHECKING:
    from prelude.cuda.device import Device

LIMIT = 40.0
"""Seconds of one process: up to six compilations among them, of about a second each. ``bench gpu_first`` has time for
two that hang and a third."""
_ENDING = 5.0
"""Seconds until a process is gone that was ended; one that waits for its device may stay for longer."""
_SIZES = ((256, 1024), (128, 448))
"""Rows of the weights and columns of x: whole parts for every cluster, and parts of unequal length."""


def trials(groups: int, share: int) -> Iterator[tuple[int, int, int, Variant]]:
    """(mode, outputs, inner, variant)"""
    for mode in (NARROW, WIDE, ADD, GATE, HEADS, NORM):
        for outputs, inner in _SIZES:
            for blocks in own_matmul.BLOCKS:
                if inner >= 64 * blocks and own_matmul.fits_cluster(blocks, share):
                    # Tiles come in whole clusters, two of them in the first size.
                    yield mode, outputs * share * (2 if mode == GATE else 1), inner, Variant(groups, blocks, share)


def passes(device: Device, rows: int, groups: int, share: int) -> bool:
    """Whether every mode of the kernel for ``rows`` rows, ``groups`` and ``share`` gives the numbers of float32
    products, with all of the rows and with some; of shared rows with whole parts that no row is in."""
    for count in (rows, rows - 3, *((rows // 2 + 1,) if share > 1 else ())):
        for mode, outputs, inner, variant in trials(groups, share):
            if not all(_agree(device, mode, count, outputs, inner, variant)):
                return False
    return True


def _agree(device: Device, mode: int, rows: int, outputs: int, inner: int, variant: Variant) -> Iterator[bool]:
    """Whether each result of one product is that of float32 products. Rows of x have factors that differ where the
    mode applies some."""

    def randn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return device.zeros(shape, dtype).normal_()

    x, weight = randn(rows, inner, dtype=torch.bfloat16), randn(outputs, inner, dtype=torch.bfloat16)
    weight *= inner**-0.5
    sums = x.float() @ weight.float().t()
    factors: RowFactors | None = None
    if mode in (GATE, HEADS):
        factors = RowFactors(device.zeros((rows, 5), torch.float32).uniform_(0.1, inner), 1e-6)
        sums = own_matmul.scaled(x, factors) @ weight.float().t()
    width = outputs // 2 if mode == GATE else outputs
    into_float32 = mode in (WIDE, ADD, NORM)
    out = device.empty((rows, width), torch.float32 if into_float32 else torch.bfloat16)
    out.fill_(1.0 if mode in (ADD, NORM) else float("nan"))
    rest, head_dim, norm = own_matmul.NO_HEADS, 0, None
    if mode in (ADD, NORM):
        sums = sums + 1.0
    elif mode == GATE:
        sums = torch.nn.functional.silu(sums[:, :width]) * sums[:, width:]
    elif mode == HEADS:
        head_dim = 64 * variant.groups
        rest, sums = _heads(device, sums, head_dim, randn(8, head_dim), randn(2, head_dim))
    if mode == NORM:
        normed = device.empty((rows, width), torch.bfloat16)
        room = device.empty((ROWS[-1] * -(-outputs // 64), 1), torch.float32)
        norm = NormAfter(randn(width), 1e-6, normed, room)
    job = own_matmul.job_of(mode, x, weight, out, head_dim)
    if job is None:
        raise ValueError(f"mode {mode} at {rows} x {outputs} x {inner} is not one of the kernel's")
    left = own_matmul.run(device, job, variant, x, weight, out, rest, factors=factors, norm=norm)
    device.mark().wait()
    yield own_matmul.same(out, sums)
    if norm is not None and left is not None:
        wanted = sums * torch.rsqrt(sums.square().mean(1, keepdim=True) + norm.eps) * norm.gain
        yield own_matmul.same(own_matmul.scaled(norm.normed, left), wanted)


def _heads(device: Device, sums: Tensor, width: int, table: Tensor, gains: Tensor) -> tuple[Rest, Tensor]:
    """The arguments of HEADS and its result. Of several heads the last is of values, the one before it of keys."""
    rows, half = sums.shape[0], width // 2
    counts = (sums.shape[1] // width - 2, 1, 1) if sums.shape[1] > width else (1, 0, 0)
    positions = device.empty((rows,), torch.int32)
    positions.copy_(torch.arange(rows) % table.shape[0])
    rest: Rest = (*counts, positions, table, gains[0], gains[1], 1e-6, None, None, None)
    heads = sums.view(rows, -1, width).clone()
    turn = table[positions.long()][:, None]
    cosine, sine = turn[..., :half], turn[..., half:]
    for part, gain in ((slice(0, counts[0]), gains[0]), (slice(counts[0], counts[0] + counts[1]), gains[1])):
        values = heads[:, part]
        values = values * torch.rsqrt(values.square().mean(-1, keepdim=True) + 1e-6) * gain
        a, b = values[..., :half], values[..., half:]
        heads[:, part] = torch.cat([a * cosine - b * sine, b * cosine + a * sine], -1)
    return rest, heads.view(rows, -1)


_PROMPTS = ((128,), (1,), (256,), (17, 0, 1, 94), (5, 16, 33, 64, 130), (0, 77, 0, 100, 0))
"""Lengths of the prompts of a step. Some steps have three rows more, which belong to no prompt, and some have NaN in
every other prompt and in those rows: the prompts beside it must not see it."""


def attends(device: Device, head_dim: int) -> bool:
    """Whether the attention of heads of ``head_dim`` is that of float32, for several heads that share keys."""
    return all(
        _attends(device, lengths, heads, kv_heads, head_dim, spare, broken)
        for lengths in _PROMPTS
        for broken in ((None, 0, 1) if len(lengths) > 1 else (None,))
        for heads, kv_heads in ((2, 2), (4, 2), (8, 1))
        for spare in (0, 3)
        if sum(lengths) + spare <= own_attention.ROWS
    )


def _attends(
    device: Device,
    lengths: tuple[int, ...],
    heads: int,
    kv_heads: int,
    head_dim: int,
    spare: int,
    broken: int | None = None,
) -> bool:
    """``broken``: the first prompt, or the second, of those whose rows are NaN; every other prompt with rows is."""
    rows = sum(lengths) + spare
    both = device.empty((rows, (heads + 2 * kv_heads) * head_dim), torch.bfloat16)
    both.normal_()
    ends = [sum(lengths[: i + 1]) for i in range(len(lengths))]
    prompts = [slice(end - length, end) for length, end in zip(lengths, ends) if length]
    whole = prompts if broken is None else prompts[1 - broken :: 2]
    if broken is not None:
        for part in (*prompts[broken::2], slice(ends[-1], rows)):
            both[part] = float("nan")
    values = both.view(rows, -1, head_dim)
    q, k, v = values[:, :heads], values[:, heads : heads + kv_heads], values[:, heads + kv_heads :]
    out = device.empty((rows, heads, head_dim), torch.bfloat16)
    out.fill_(7.0)
    starts = device.empty((len(lengths) + 1,), torch.int32)
    starts.copy_(torch.tensor([0, *ends]))
    own_attention.run(device, Prompts(q, k, v, out, starts))
    device.mark().wait()
    wanted = torch.full_like(out, 7.0, dtype=torch.float32)
    group = heads // kv_heads
    for part in whole:
        length = part.stop - part.start
        keys, held = (x[part].float().repeat_interleave(group, 1) for x in (k, v))
        scores = torch.einsum("nhd,mhd->hnm", q[part].float(), keys) * head_dim**-0.5
        later = torch.ones(length, length, dtype=torch.bool, device=scores.device).triu(1)
        weights = scores.masked_fill(later, float("-inf")).softmax(-1)
        wanted[part] = torch.einsum("hnm,mhd->nhd", weights, held)
    right = all(own_matmul.same(out[part], wanted[part]) for part in whole)
    return right and bool((out[ends[-1] :] == 7.0).all())


def note_attention(own: OwnAttention, head_dim: int) -> bool:
    """Tries the attention of heads of ``head_dim`` and keeps the outcome, which it returns. A process that does not
    come back from the trial leaves it failed."""
    own.keep_trial(head_dim, False)
    try:
        passed = attends(own.device, head_dim)
    except RuntimeError as error:  # of the compiler or the driver
        print(f"attention, heads of {head_dim}: {error}", flush=True)
        passed = False
    own.keep_trial(head_dim, passed)
    print(f"attention, heads of {head_dim}: {'passed' if passed else 'FAILED'}", flush=True)
    return passed


def note(own: OwnMatmuls, rows: int) -> bool:
    """Tries the kernels for ``rows`` rows and keeps the outcome; whether all passed. A process that does not come
    back from a trial leaves it failed, and those behind it. Those that share rows come last."""
    passed = True
    kinds = [(groups, share) for share in own_matmul.shares(rows) for groups in (1, 2)]
    for groups, share in kinds:
        own.keep_trial(rows, groups, False, share)
    for groups, share in kinds:
        named = f"{rows} rows, {64 * groups} outputs a block" + (f", rows of {share} tiles" if share > 1 else "")
        try:
            well = passes(own.device, rows, groups, share)
        except RuntimeError as error:  # of the compiler or the driver
            print(f"trial of {named}: {error}", flush=True)
            well = False
        own.keep_trial(rows, groups, well, share)
        print(f"{named}: {'passed' if well else 'FAILED'}", flush=True)
        passed &= well
    return passed


def one(part: str, size: int) -> int:
    """In a process of its own."""
    from prelude.cuda.cuda_device import CudaDevice

    device = CudaDevice(torch.bfloat16, head_dim=size if part == "attention" else 128)
    own = device.own_attention if part == "attention" else device.own_matmuls
    if own is None:
        print(f"this GPU, or this build of torch, has no place for this project's {part}")
        return 1
    with device.scope():
        passed = note_attention(own, size) if isinstance(own, OwnAttention) else note(own, size)
        return 0 if passed else 1


def parts() -> list[tuple[str, int]]:
    """What is tried, in this order: a prompt of 128 tokens first, and attention before other numbers of rows."""
    rows = [("rows", size) for size in sorted(ROWS, key=lambda rows: rows != 128)]
    return [rows[0], *(("attention", size) for size in reversed(own_attention.HEAD_DIMS)), *rows[1:]]


def main(arguments: list[str]) -> int:
    if arguments:
        return one(arguments[0], int(arguments[1]))
    failed = 0
    for part, size in parts():
        command = [sys.executable, "-m", "prelude.cuda.own_trial", part, str(size)]
        process = subprocess.Popen(command)
        try:
            failed += process.wait(LIMIT) != 0
        except subprocess.TimeoutExpired:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_ENDING)
            named = f"{size} rows" if part == "rows" else f"attention, heads of {size}"
            print(f"{named}: no end after {LIMIT:.0f} s", flush=True)
            failed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
