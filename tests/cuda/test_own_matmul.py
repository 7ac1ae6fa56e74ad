"""The project's own products: every mode against its twin by the emulator, which does copies and wgmma as late as the
kernel allows; the choice between them and the library; the compiled code of every variant."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from prelude.cuda import compiler, kernels, own_matmul, own_trial
from prelude.cuda.own_matmul import ADD, GATE, HEADS, NARROW, WIDE, OwnMatmuls, Variant
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
    dtype = torch.float32 if mode in (WIDE, ADD) else BF16
    whole = device.empty((rows, width + spare), dtype)
    whole.fill_(0.5)
    out = whole[:, :width]
    job = own_matmul.job_of(mode, x, weight, out)
    assert job is not None
    own_matmul.run(device, job, variant, x, weight, out, own_matmul.NO_HEADS)
    device.close()
    assert (whole[:, width:] == 0.5).all()
    return out.float()


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
    ],
)
def test_modes_are_their_twins(mode: int, rows: int, outputs: int, inner: int, variant: Variant) -> None:
    ours = product(EmulatedDevice(BF16, 32), mode, rows, outputs, inner, variant)
    theirs = product(SimulatedDevice(BF16), mode, rows, outputs, inner, variant)
    tolerance = 1e-5 if mode in (WIDE, ADD) else 2**-7
    assert torch.allclose(ours, theirs, rtol=tolerance, atol=tolerance), (ours - theirs).abs().max()


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
        own_matmul.run(device, job, Variant(width // 64, 2), x, weight, out, rest)
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


# ------------------------------------------------------------------ the trial, and the choice


class Device(SimulatedDevice):
    """Runs each operation at once, in time that ``cost`` states; kernels of ``wrong`` groups give other numbers."""

    def __init__(self, cost: Callable[[str], float] = lambda name: 1.0, wrong: tuple[int, ...] = ()) -> None:
        super().__init__(BF16)
        self.cost, self.wrong, self.elapsed = cost, wrong, 0.0

    def enqueue(self, name: str, operation: Callable[[], None]) -> None:
        super().enqueue(name, operation)
        self.elapsed += self.cost(name)
        self.close()

    def launch(self, kernel: kernels.Kernel, grid: Any, args: Any, shared: int = 0) -> None:
        if kernel.name == "product" and kernel.block // 128 in self.wrong:
            self.enqueue("wrong", lambda: None)
            return
        super().launch(kernel, grid, args, shared)

    def seconds(self, work: Callable[[], None]) -> float:
        before = self.elapsed
        work()
        return self.elapsed - before


def own_on(device: Device, folder: Path, tried: tuple[str, ...] = ("16x1", "16x2")) -> OwnMatmuls:
    own = OwnMatmuls(device, device.seconds, folder / "matmuls-some.json")
    for key in tried:
        rows, groups = key.split("x")
        own.keep_trial(int(rows), int(groups), True)
    device.own_matmuls = own
    return own


def gate(device: Device) -> tuple[Tensor, Tensor]:
    """Twice: the search, and a step."""
    x, weight = randn(device, 9, 128), randn(device, 256, 128, scale=0.1)
    between, out = device.empty((9, 256), BF16), device.empty((9, 128), BF16)
    own = device.own_matmuls
    assert own is not None
    own.searching = True
    own_matmul.matmul_gated(device, x, weight, None, between, out)
    own.searching = False
    device.calls.clear()
    out.fill_(float("nan"))
    own_matmul.matmul_gated(device, x, weight, None, between, out)
    sums = x.float() @ weight.float().t()
    return out, torch.nn.functional.silu(sums[:, :128]) * sums[:, 128:]


def cheap(name: str) -> float:
    return {"product": 1.0, "silu_gate": 0.5}.get(name, 3.0)


def test_a_faster_variant_with_the_librarys_numbers_is_taken_and_kept(tmp_path: Path) -> None:
    device = Device(cheap)
    own_on(device, tmp_path)
    out, wanted = gate(device)
    assert device.calls == ["product"], "one kernel does product and gate"
    assert own_matmul.same(out, wanted)
    later = Device(cheap)
    own = own_on(later, tmp_path, tried=())
    x, weight = randn(later, 9, 128), randn(later, 256, 128)
    own_matmul.matmul_gated(later, x, weight, None, later.empty((9, 256), BF16), later.empty((9, 128), BF16))
    assert later.calls == ["product"], "kept for the next process"
    assert not own.run(GATE, x[:8], weight, later.empty((8, 128), BF16), lambda x, out: None), "for one shape"


@pytest.mark.parametrize(
    ("cost", "wrong", "tried"),
    [
        (lambda name: {"product": 9.0}.get(name, 1.0), (), ("16x1", "16x2")),  # slower than the library
        (cheap, (1, 2), ("16x1", "16x2")),  # other numbers
        (cheap, (), ("128x1",)),  # not tried for so few rows
    ],
)
def test_the_library_stays_otherwise(tmp_path: Path, cost: Any, wrong: Any, tried: Any) -> None:
    device = Device(cost, wrong)
    own_on(device, tmp_path, tried)
    out, wanted = gate(device)
    assert device.calls == ["matmul", "silu_gate"]
    assert own_matmul.same(out, wanted)


def test_heads_are_one_kernel_too(tmp_path: Path) -> None:
    """By the same arguments as the kernels that they stand for."""
    counts, width = (2, 1, 1), 64
    twins.HEAD_DIM = width
    results = []
    for own in (False, True):
        device = Device(cheap)
        x, weight = randn(device, 5, 128), randn(device, 256, 128, scale=0.1)
        table, gain = randn(device, 9, width, dtype=torch.float32), randn(device, width, dtype=torch.float32)
        positions, slots = (device.zeros((5,), torch.int32) for _ in range(2))
        positions.copy_(torch.tensor([8, 0, 3, 4, 1]))
        slots.copy_(torch.tensor([5, -1, 0, 2, -1]))
        pool = (device.zeros((6, 1, width), BF16), device.zeros((6, 1, width), BF16))
        out = device.empty((5, 4, width), BF16)
        if own:
            own_on(device, tmp_path).searching = True
        args = (out, counts, positions, table, (gain, None), 1e-6, slots, pool)
        own_matmul.matmul_heads(device, x, weight, None, *args)
        results.append([t.float() for t in (out, *pool)])
        assert device.calls[-1] == ("product" if own else "qk_rope")
    for ours, theirs in zip(*results):
        assert torch.allclose(ours, theirs, rtol=2**-5, atol=2**-5)


def test_the_trial_finds_wrong_kernels(tmp_path: Path) -> None:
    device = Device(cheap, wrong=(2,))
    own = own_on(device, tmp_path, tried=())
    twins.HEAD_DIM = 64
    assert own_trial.passes(device, 16, 1) and not own_trial.passes(device, 16, 2)
    assert not own_trial.note(own, 16)
    assert OwnMatmuls(device, device.seconds, own.path).passed == {"16x1"}
    own.trial_path.write_text('{"16x1": 1, "32x1": {"passed": "yes"}, "64x1": {"passed": true}}')
    assert OwnMatmuls(device, device.seconds, own.path).passed == {"64x1"}


def test_what_the_kernel_does_not_do_is_the_librarys() -> None:
    device = SimulatedDevice(BF16)
    x, weight, out = randn(device, 16, 128), randn(device, 64, 128), device.empty((16, 64), BF16)
    assert own_matmul.job_of(NARROW, x, weight, out) is not None
    odd = randn(device, 16, 96)
    for args in (
        (NARROW, x.float(), weight, out),
        (WIDE, x, weight, out),
        (NARROW, x[:0], weight, out[:0]),
        (NARROW, odd, randn(device, 64, 96), out),  # 96 columns
        (NARROW, x[:, 1:65], weight[:, :64].contiguous(), out),  # an odd address
        (NARROW, x, weight.t().contiguous().t(), out),
        (NARROW, randn(device, 257, 128), weight, randn(device, 257, 64)),
        (HEADS, x, weight, out, 96),
    ):
        assert own_matmul.job_of(*args) is None


# ------------------------------------------------------------------ the compiled code

REGISTERS = {(16, 1): 64, (16, 2): 64, (32, 1): 64, (32, 2): 64, (64, 1): 80, (64, 2): 80}
"""At most, of a thread; the others' accumulators leave room for one block or two of 65,536 registers."""


@pytest.mark.skipif(NVCC is None, reason="no nvcc")
@pytest.mark.parametrize(
    ("rows", "groups"),
    [
        pytest.param(rows, groups, marks=[] if (rows, groups) in ((16, 1), (128, 2), (256, 2)) else pytest.mark.slow)
        for rows in own_matmul.ROWS
        for groups in (1, 2)
    ],
)
def test_every_variant_compiles_without_spills(tmp_path: Path, rows: int, groups: int) -> None:
    kernel, shared = own_matmul.kernel(rows, Variant(groups, 1))
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
