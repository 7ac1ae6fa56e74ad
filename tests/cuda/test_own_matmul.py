"""The project's own products: every mode against its twin by the emulator, which does copies and wgmma as late as the
kernel allows; the compiled code of every variant. ``test_own_choice.py``: the trial, and the choice."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from prelude.cuda import compiler, own_matmul, own_trial
from prelude.cuda.own_matmul import (
    ADD,
    GATE,
    HEADS,
    NARROW,
    NORM,
    WIDE,
    NormAfter,
    RowFactors,
    Variant,
    scaled,
)
from torch import Tensor

from bench.gpu.count import table
from bench.gpu.models import MODELS
from tests.cuda import twins
from tests.cuda.emulated import COMPILER, EmulatedDevice
from tests.cuda.simulated import SimulatedDevice

emulated = pytest.mark.skipif(COMPILER is None, reason="no g++ to run kernels on the host")
NVCC = shutil.which("nvcc")
BF16 = torch.bfloat16


def randn(device: SimulatedDevice, *shape: int, dtype: torch.dtype = BF16, scale: float = 1.0) -> Tensor:
    place = device.empty(shape, dtype)
    place.copy_(torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))) * scale)
    return place


def product(
    device: SimulatedDevice, mode: int, rows: int, outputs: int, inner: int, variant: Variant, spare: int = 8
) -> Tensor:
    """By ``variant``, into the front of wider rows, whose other columns must stay."""
    x = randn(device, rows, inner + spare)[:, :inner]
    weight = randn(device, outputs, inner, scale=inner**-0.5)
    width = outputs // 2 if mode == GATE else outputs
    dtype = torch.float32 if mode in (WIDE, ADD, NORM) else BF16
    whole = device.empty((rows, width + spare), dtype)
    whole.fill_(0.5)
    out = whole[:, :width]
    job = own_matmul.job_of(mode, x, weight, out)
    assert job is not None
    factors = norm = None
    if mode not in (ADD, NORM):
        factors = RowFactors(device.empty((rows, 3), torch.float32), 1e-6)
        factors.squares.copy_(torch.rand(rows, 3, generator=torch.Generator().manual_seed(rows)) * inner)
    if mode == NORM:
        normed = device.zeros((rows, width + spare), BF16)
        room = device.zeros((rows * variant.tiles(job) + 8, 1), torch.float32)
        norm = NormAfter(randn(device, width, dtype=torch.float32), 1e-6, normed[:, :width], room)
    left = own_matmul.run(device, job, variant, x, weight, out, factors=factors, norm=norm)
    device.close()
    assert (whole[:, width:] == 0.5).all()
    if norm is None:
        return out.float()
    assert left is not None and not normed[:, width:].any() and not room[-8:].any()
    return torch.cat([out, scaled(norm.normed, left)], dim=1)


@emulated
@pytest.mark.parametrize(
    ("mode", "rows", "outputs", "inner", "variant"),
    [
        (NARROW, 5, 64, 64, Variant(1, 1)),  # fewer steps than stages
        (WIDE, 16, 136, 448, Variant(1, 2)),  # a tile with eight outputs; parts of three and four steps
        (ADD, 1, 64, 1024, Variant(1, 8)),  # blocks of a cluster without a row of their own
        (GATE, 14, 144, 192, Variant(1, 1)),  # 72 gates: a tile of 32 with eight of them
        (ADD, 11, 128, 1024, Variant(2, 1)),  # the ring comes round
        (GATE, 15, 256, 256, Variant(2, 4)),
        (NARROW, 70, 64, 448, Variant(1, 1)),  # two chunks of rows; the ring comes round
        (GATE, 128, 64, 64, Variant(1, 1)),
        (NORM, 1, 64, 64, Variant(1, 1)),
        (NORM, 13, 136, 448, Variant(1, 4)),  # the last tile has eight outputs
        (NORM, 16, 136, 256, Variant(2, 2)),
        (NARROW, 64, 128, 64, Variant(1, 1, 2)),  # one step
        (ADD, 33, 256, 576, Variant(1, 1, 4)),  # rows of four tiles; the ring comes round; a part without a row
        (GATE, 61, 512, 960, Variant(1, 2, 2)),  # two clusters, parts of seven and eight steps
        (NORM, 50, 248, 448, Variant(1, 1, 2)),  # the last tile has 56 outputs
    ],
)
def test_modes_are_their_twins(mode: int, rows: int, outputs: int, inner: int, variant: Variant) -> None:
    ours = product(EmulatedDevice(BF16, 32), mode, rows, outputs, inner, variant)
    theirs = product(SimulatedDevice(BF16), mode, rows, outputs, inner, variant)
    tolerance = 1e-5 if mode in (WIDE, ADD) else 2**-7
    assert torch.allclose(ours, theirs, rtol=tolerance, atol=tolerance), (ours - theirs).abs().max()


@emulated
@pytest.mark.parametrize(("blocks", "share"), [(2, 2), (1, 4)])
def test_heads_of_shared_rows_are_normed_and_turned(blocks: int, share: int) -> None:
    torch.manual_seed(6)
    assert all(own_trial._agree(EmulatedDevice(BF16, 64), HEADS, 35, 256, 192, Variant(1, blocks, share)))


@emulated
def test_random_sizes_are_their_twins() -> None:
    """Rows, outputs, parts of ``inner`` and tiles in any combination that the kernel takes."""
    rng, modes = random.Random(11), [NARROW, WIDE, ADD, GATE, NORM] * 4
    for mode in modes:
        blocks, groups = rng.choice((1, 1, 2, 4)), rng.choice((1, 2))
        rows, outputs = rng.randint(1, 16), 8 * rng.randint(1, 18) * (2 if mode == GATE else 1)
        inner = 64 * rng.randint(blocks, blocks + 7)
        sizes = (mode, rows, outputs, inner, Variant(groups, blocks))
        ours, theirs = (product(device, *sizes) for device in (EmulatedDevice(BF16, 32), SimulatedDevice(BF16)))
        tolerance = 1e-5 if mode in (WIDE, ADD) else 2**-7
        assert torch.allclose(ours, theirs, rtol=tolerance, atol=tolerance), (sizes, (ours - theirs).abs().max())


@emulated
def test_a_norm_of_two_products_is_the_norm_between_them() -> None:
    """The values that NORM stores and GATE applies, against a norm of its own."""
    device, rows, hidden, inner = EmulatedDevice(BF16, 32), 6, 192, 128
    x, first = randn(device, rows, 256), randn(device, hidden, 256, scale=0.1)
    second = randn(device, 2 * inner, hidden, scale=0.1)
    stream, out = randn(device, rows, hidden, dtype=torch.float32), device.empty((rows, inner), BF16)
    gain, normed = randn(device, hidden, dtype=torch.float32), device.empty((rows, hidden), BF16)
    wanted = stream + x.float() @ first.float().t()
    norm = NormAfter(gain, 1e-6, normed, device.empty((rows * 3, 1), torch.float32))
    job = own_matmul.job_of(NORM, x, first, stream)
    behind = own_matmul.job_of(GATE, normed, second, out)
    assert job is not None and behind is not None
    left = own_matmul.run(device, job, Variant(1, 2), x, first, stream, norm=norm)
    own_matmul.run(device, behind, Variant(2, 1), normed, second, out, factors=left)
    device.close()
    assert torch.allclose(stream, wanted, atol=1e-4)
    sums = twins._normed(wanted, gain, 1e-6) @ second.float().t()
    assert own_matmul.same(out, torch.nn.functional.silu(sums[:, :inner]) * sums[:, inner:])


@emulated
@pytest.mark.parametrize(("width", "gains"), [(64, True), (128, True), (64, False)])
def test_heads_are_normed_turned_and_kept(width: int, gains: bool) -> None:
    counts, rows, inner, results = (2, 1, 1), 5, 128, []
    twins.HEAD_DIM = width
    for device in (EmulatedDevice(BF16, 32), SimulatedDevice(BF16)):
        x, weight = randn(device, rows, inner), randn(device, sum(counts) * width, inner, scale=inner**-0.5)
        table = randn(device, 9, width, dtype=torch.float32)
        positions, slots = (device.empty((rows,), torch.int32) for _ in range(2))
        positions.copy_(torch.tensor([8, 0, 3, 4, 1]))
        slots.copy_(torch.tensor([5, -1, 0, 2, -1]))
        q_gain, k_gain = randn(device, 2, width, dtype=torch.float32) if gains else (None, None)
        pool = [device.zeros((6, 1, width), BF16) for _ in range(2)]
        out = device.empty((rows, sum(counts) * width), BF16)
        job = own_matmul.job_of(HEADS, x, weight, out, width)
        assert job is not None
        rest = (*counts, positions, table, q_gain, k_gain, 1e-6, slots, *pool)
        factors = RowFactors(device.empty((rows, 2), torch.float32), 1e-5)
        factors.squares.copy_(torch.tensor([[0.5, 1.0], [9.0, 0.0], [3.0, 4.0], [1.0, 1.0], [100.0, 7.0]]) * inner)
        own_matmul.run(device, job, Variant(width // 64, 2), x, weight, out, rest, factors=factors)
        device.close()
        results.append([out.float(), *(p.float() for p in pool)])
    for ours, theirs in zip(*results):
        assert torch.allclose(ours, theirs, rtol=2**-5, atol=2**-6), (ours - theirs).abs().max()
    assert not results[0][1][[1, 3, 4]].any() and results[0][2][[0, 2, 5]].any()
    assert torch.equal(results[0][2][5, 0], results[0][0][0, 3 * width :])


@emulated
def test_a_rows_bits_do_not_depend_on_the_others() -> None:
    device, variant = EmulatedDevice(BF16, 32), Variant(1, 2)
    weight, x = randn(device, 64, 256), randn(device, 9, 256)
    outs = []
    for rows in (slice(0, 9), slice(3, 6)):
        out = device.empty((9, 64), torch.float32)[rows]
        job = own_matmul.job_of(WIDE, x[rows], weight, out)
        assert job is not None
        own_matmul.run(device, job, variant, x[rows], weight, out, own_matmul.NO_HEADS)
        device.close()
        outs.append(out)
    assert torch.equal(outs[0][3:6], outs[1])


# ------------------------------------------------------------------ the compiled code

REGISTERS = {(16, 1): 64, (16, 2): 64, (32, 1): 64, (32, 2): 64, (64, 1): 80, (64, 2): 80}
"""At most, of a thread; the others' accumulators leave room for one block or two of 65,536 registers."""


@pytest.mark.skipif(NVCC is None, reason="no nvcc")
@pytest.mark.parametrize(
    ("rows", "groups", "share"),
    [
        pytest.param(
            rows,
            groups,
            share,
            marks=[] if (rows, groups) in ((16, 1), (128, 2), (256, 2)) and share != 2 else pytest.mark.slow,
        )
        for rows in own_matmul.ROWS
        for groups in (1, 2)
        for share in own_matmul.shares(rows)
    ],
)
def test_every_variant_compiles_without_spills(tmp_path: Path, rows: int, groups: int, share: int) -> None:
    kernel, shared = own_matmul.kernel(rows, Variant(groups, 1, share))
    source = tmp_path / "matmul.cu"
    source.write_text(compiler.source(kernel.file))
    command = [str(NVCC), "-gencode=arch=compute_90a,code=sm_90a", "-std=c++17", "-cubin", "-Xptxas", "-v", "-Werror"]
    options = [*kernel.flags, "-DHEAD_DIM=128", "-o", str(tmp_path / "out"), str(source)]
    done = subprocess.run([*command, "all-warnings", *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in done.stderr
    assert "serialized" not in done.stderr, "the compiler waits for each wgmma"
    used = re.search(r"Used (\d+) registers", done.stderr)
    assert used is not None
    blocks = 2 if rows <= 128 else 1
    assert int(used[1]) * kernel.block * blocks <= 65536 and shared * blocks <= 227 << 10
    assert int(used[1]) <= REGISTERS.get((rows, groups), 65536 // kernel.block // blocks)


def test_the_documented_count_is_the_computed_one() -> None:
    page = (Path(__file__).parents[2] / "docs" / "CUDA.md").read_text(encoding="utf-8")
    assert "\n".join(table(MODELS["06b"], 128)) in page, "python -m bench gpu_count prints the table"
