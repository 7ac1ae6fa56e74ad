"""The trial of the project's own products, the choice between them and the library, and the steps that run them."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from prelude.cuda import kernels, layer_products, own_matmul, own_trial
from prelude.cuda.executor import CudaExecutor
from prelude.cuda.graphs import GraphPolicy
from prelude.cuda.own_matmul import (
    ADD,
    GATE,
    HEADS,
    NARROW,
    NORM,
    WIDE,
    OwnMatmuls,
    Variant,
)
from torch import Tensor

from bench.gpu import stages
from bench.gpu.count import count
from prelude.batch import DecodeRows, MixedBatch, OneShotBatch, PooledRows
from tests.checkpoints import save_model
from tests.cuda import twins
from tests.cuda.conftest import simulated
from tests.cuda.simulated import SimulatedDevice
from tests.cuda.test_own_matmul import BF16, randn
from tests.cuda.timed import TimedDevice
from tests.execution.helpers import Model, Segment, i32, prompts, random_ids, run, sampling, slices


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


def test_the_count_has_every_node_of_a_recorded_step(tmp_path: Path) -> None:
    """Of a lone prompt whose next token is drawn; the numbers of layers and rows are those of the count."""
    model = model_of_tiles(tmp_path / "model")
    executor = executor_with_own(model, tmp_path, cheap, GraphPolicy(at_once=True))
    s = slices([Segment(random_ids(1, 20))])
    run(executor, OneShotBatch(s, sampling([19])))
    (program,) = executor.graphs._programs.values()
    assert program.shape.cut and program.graph is not None
    nodes = [name for name, _ in program.graph.operations]
    counted = list(count(model.config, program.shape.rows, 1))
    assert len(nodes) == sum(row.times for row in counted), (nodes, [row.name for row in counted])
