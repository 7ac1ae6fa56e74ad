"""The project's own products: every mode against its twin by the emulator, which does copies and wgmma as late as the
kernel allows; the choice between them and the library; the compiled code of every variant."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from prelude.cuda import compiler, kernels, layer_products, own_matmul, own_trial
from prelude.cuda.executor import CudaExecutor
from prelude.cuda.graphs import GraphPolicy
from prelude.cuda.own_matmul import (
    ADD,
    GATE,
    HEADS,
    NARROW,
    NORM,
    WIDE,
    NormAfter,
    OwnMatmuls,
    RowFactors,
    Variant,
    scaled,
)
from torch import Tensor

from bench.gpu import stages
from bench.gpu.count import table
from bench.gpu.models import MODELS
from prelude.batch import DecodeRows, MixedBatch, OneShotBatch, PooledRows
from tests.checkpoints import save_model
from tests.cuda import twins
from tests.cuda.conftest import simulated
from tests.cuda.emulated import COMPILER, EmulatedDevice
from tests.cuda.simulated import SimulatedDevice
from tests.cuda.timed import TimedDevice
from tests.execution.helpers import Model, Segment, i32, prompts, random_ids, run, slices

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


# ------------------------------------------------------------------ the trial, and the choice


class Device(TimedDevice):
    """Kernels of ``wrong`` groups give other numbers."""

    def __init__(self, cost: Callable[[str], float] = lambda name: 1.0, wrong: tuple[int, ...] = ()) -> None:
        super().__init__(cost)
        self.wrong = wrong

    def is_wrong(self, kernel: kernels.Kernel) -> bool:
        return kernel.name == "product" and kernel.block // 128 in self.wrong


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
    layer_products.matmul_gated(device, x, weight, None, between, out)
    own.searching = False
    device.calls.clear()
    out.fill_(float("nan"))
    layer_products.matmul_gated(device, x, weight, None, between, out)
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
    layer_products.matmul_gated(later, x, weight, None, later.empty((9, 256), BF16), later.empty((9, 128), BF16))
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
        layer_products.matmul_heads(device, x, weight, None, *args)
        results.append([t.float() for t in (out, *pool)])
        assert device.calls[-1] == ("product" if own else "qk_rope")
    for ours, theirs in zip(*results):
        assert torch.allclose(ours, theirs, rtol=2**-5, atol=2**-5)


def model_of_tiles(folder: Path, **changes: Any) -> Model:
    """Sizes that the kernel takes: heads of 64, and whole stages."""
    sizes = {"hidden_size": 128, "intermediate_size": 192, "head_dim": 64}
    return Model(save_model(folder, **sizes | {"num_attention_heads": 2, "num_key_value_heads": 1} | changes))


def executor_with_own(model: Model, folder: Path, cost: Callable[[str], float], policy: GraphPolicy) -> CudaExecutor:
    device = Device(cost)
    own_on(device, folder, tried=("16x1", "16x2", "32x1", "32x2", "64x1", "64x2"))
    return simulated(model, device=device, policy=policy)


@pytest.mark.parametrize("read", ["last", "every", "none"])
def test_a_layer_is_five_kernels(tmp_path: Path, read: str) -> None:
    """No norm between products has a kernel, up to and with the last layer, and the numbers are those of the
    library's way. (The simulated device has the library alone for a product that nothing follows.)"""
    model = model_of_tiles(tmp_path / "model")
    s = slices([Segment(random_ids(1, 20), write=[2, 3]), Segment(random_ids(2, 9))])
    rows = {"last": [19, 28], "every": list(range(29)), "none": []}[read]
    batch = OneShotBatch(s, PooledRows(i32(rows), i32(range(len(rows) + 1)), "last"))
    if read == "none":
        batch = MixedBatch(s, (), DecodeRows(*[i32([])] * 4, i32([0]), i32([])), None)
    policy = GraphPolicy(at_once=True)
    executor = executor_with_own(model, tmp_path, cheap, policy)
    reference = simulated(model, element=BF16, policy=policy)
    ours, theirs = run(executor, batch), run(reference, batch)
    for a, b in zip(ours.outputs, theirs.outputs):
        assert np.abs(a.vectors - b.vectors).max() < 0.06 * np.abs(b.vectors).max()
    close = (executor.pool[:, :, 32:64].float() - reference.pool[:, :, 32:64].float()).abs().max()
    assert close < 0.05 * reference.pool.float().abs().max()
    (program,) = executor.graphs._programs.values()
    names = [name for name, _ in program.graph.operations]
    layers = names[names.index("embed_norm") + 1 :]
    layer = ["product", "ragged", "product", "product", "product"]
    assert layers[:10] == layer * 2
    last = {
        "last": ["gather_norm", "product", "product", "ragged", "product", "product", "matmul"],
        "every": [*layer[:2], "gather", "gather_norm", "product", "product", "matmul"],
        "none": ["product"],
    }[read]
    assert layers[10 : 10 + len(last)] == last
    assert "rms_norm" not in names and "qk_rope" not in names and "silu_gate" not in names


@pytest.mark.parametrize("library", ["gate", "heads", "norm"])
def test_factors_are_left_only_to_products_that_apply_them(tmp_path: Path, library: str) -> None:
    """Where the library has one of the products, the norm in front of it is a kernel."""
    model = model_of_tiles(tmp_path / "model")
    batch = OneShotBatch(prompts(random_ids(1, 20)), PooledRows(i32([19]), i32([0, 1]), "last"))
    executor = executor_with_own(model, tmp_path, cheap, GraphPolicy(at_once=True))
    own = executor.device.own_matmuls
    assert own is not None
    mode = {"gate": GATE, "heads": HEADS, "norm": NORM}[library]
    offered = own._offered
    own._offered = lambda job, variant: job.mode != mode and offered(job, variant)  # type: ignore[method-assign]
    ours = run(executor, batch)
    theirs = run(simulated(model, element=BF16, policy=GraphPolicy(enabled=False)), batch)
    assert np.abs(ours.outputs[0].vectors - theirs.outputs[0].vectors).max() < 0.06
    (program,) = executor.graphs._programs.values()
    names = [name for name, _ in program.graph.operations]
    assert names.count("rms_norm") == {"gate": 3, "heads": 2, "norm": 5}[library]


def test_kernels_that_share_rows_are_tried_last_and_pass_apart(tmp_path: Path) -> None:
    """Of 64 rows and more. One that is wrong takes nothing from those that share none."""
    twins.HEAD_DIM = 64
    device = Device(cheap)
    own = own_on(device, tmp_path, tried=())
    tried = list[tuple[int, int]]()

    def offered(device: Any, rows: int, groups: int, share: int) -> bool:
        tried.append((groups, share))
        return share != 2

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(own_trial, "passes", offered)
        assert not own_trial.note(own, 64) and own_trial.note(own, 32)
    assert tried == [(1, 1), (2, 1), (1, 2), (2, 2), (1, 4), (2, 4), (1, 1), (2, 1)]
    assert own.passed == {"64x1", "64x2", "64x1x4", "64x2x4", "32x1", "32x2"}
    job = own_matmul.Job(GATE, 64, 1024, 128, 128, 512)
    assert {variant.share for variant in own_matmul.variants(job) if own._offered(job, variant)} == {1, 4}
    assert all(own_trial._agree(device, GATE, 33, 512, 128, Variant(1, 2, 4)))


def test_the_first_run_tells_the_outcome_of_each_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(own_trial, "passes", lambda device, rows, groups, share: share != 4)
    own_trial.note(own_on(Device(cheap), tmp_path, tried=()), 64)
    lines = capsys.readouterr().out.splitlines()
    monkeypatch.setattr(stages, "lines_of", lambda command: lines)
    told = dict[str, bool]()
    stage: Any = SimpleNamespace(tell=lambda key, ok, value: told.update({key: ok}))
    stages.own_products(stage)
    shared = {f"own.64x{outputs}x{share}": share != 4 for share in (2, 4) for outputs in (64, 128)}
    assert told == {"own.64x64": True, "own.64x128": True, **shared}


def test_a_variant_that_shares_rows_is_taken_and_kept(tmp_path: Path) -> None:
    device = Device(cheap)
    own = own_on(device, tmp_path, tried=())
    own.keep_trial(64, 2, True, share=2)
    x, weight, out = randn(device, 60, 128), randn(device, 512, 128), device.empty((60, 256), BF16)

    def library(x: Tensor, to: Tensor) -> None:
        sums = x.float() @ weight.float().t()
        device.enqueue("library", lambda: None)
        to.copy_(torch.nn.functional.silu(sums[:, :256]) * sums[:, 256:])

    own.searching = True
    assert own.run(GATE, x, weight, out, library)
    (entry,) = own._kept.values()
    assert entry["variant"][2] == 2
    again = OwnMatmuls(device, device.seconds, own.path)
    assert again.chosen(GATE, x, weight, out)


def test_the_trial_finds_wrong_kernels(tmp_path: Path) -> None:
    device = Device(cheap, wrong=(2,))
    own = own_on(device, tmp_path, tried=())
    twins.HEAD_DIM = 64
    assert own_trial.passes(device, 16, 1, 1) and not own_trial.passes(device, 16, 2, 1)
    assert not own_trial.note(own, 16)
    assert OwnMatmuls(device, device.seconds, own.path).passed == {"16x1"}
    own.trial_path.write_text('{"16x1": 1, "32x1": {"passed": "yes"}, "64x1": {"passed": true}}')
    assert OwnMatmuls(device, device.seconds, own.path).passed == {"64x1"}


def test_a_trial_that_does_not_end_leaves_no_older_outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(cheap)
    own = own_on(device, tmp_path, tried=("16x1", "16x2", "32x1"))

    def killed(device: Any, rows: int, groups: int, share: int) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(own_trial, "passes", killed)
    with pytest.raises(KeyboardInterrupt):
        own_trial.note(own, 16)
    assert OwnMatmuls(device, device.seconds, own.path).passed == {"32x1"}


def test_an_error_is_no_choice_of_the_next_process(tmp_path: Path) -> None:
    device = Device(cheap)
    own = own_on(device, tmp_path)
    asked = []

    def no_memory(work: Callable[[], object]) -> float:
        asked.append(work)
        raise torch.cuda.OutOfMemoryError

    own._seconds = no_memory
    for _ in range(2):
        gate(device)
        assert device.calls == ["matmul", "silu_gate"]
    assert len(asked) == 1 and not own.path.exists(), "asked once in a process, and not kept"
    own_on(device := Device(cheap), tmp_path, tried=())
    gate(device)
    assert device.calls == ["product"]


def test_launches_fit_the_device_whatever_the_sizes() -> None:
    """Every variant of random products: tiles cover the outputs once, blocks have a part each, limits of a GPU."""
    rng, seen = random.Random(12), 0
    for _ in range(300):
        mode, rows = rng.choice((NARROW, WIDE, ADD, GATE, HEADS, NORM)), rng.randint(1, 256)
        head_dim = rng.choice((64, 128)) if mode == HEADS else 0
        outputs = (head_dim or 8) * rng.randint(1, 2000 // (head_dim or 8) * 8)
        job = own_matmul.Job(mode, rows, outputs, 64 * rng.randint(1, 200), 12800, outputs, head_dim)
        for variant in own_matmul.variants(job):
            made, shared = own_matmul.kernel(next(most for most in own_matmul.ROWS if most >= rows), variant)
            tile, tiles = 64 * variant.groups, variant.tiles(job)
            assert (tiles - 1) * tile < outputs <= tiles * tile and tiles * variant.blocks < 1 << 31
            assert made.block <= 1024 and made.cluster == variant.blocks * variant.share <= 8
            assert tiles % variant.share == 0 and shared <= 227 << 10
            assert job.inner // 64 >= variant.blocks and (mode != HEADS or tile == head_dim)
            assert tiles <= -(-outputs // 64), "room for sums of squares, which is of tiles of 64 outputs"
            seen += 1
    assert seen > 300


def test_shapes_that_the_kernel_does_not_take_are_the_librarys() -> None:
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
