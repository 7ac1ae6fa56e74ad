"""The project's own attention of short prompts: the kernel by the emulator, the choice between it and FlashInfer, and
the compiled code."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from prelude.cuda import compiler, kernels, own_attention, own_trial
from prelude.cuda.cuda_device import CudaDevice
from prelude.cuda.executor import CudaExecutor
from prelude.cuda.graphs import GraphPolicy
from prelude.cuda.own_attention import ATTEND_PROMPTS, OwnAttention, Prompts
from torch import Tensor

from bench.gpu import first
from prelude.batch import OneShotBatch, PooledRows
from tests.checkpoints import save_model
from tests.cuda import twins
from tests.cuda.conftest import simulated
from tests.cuda.emulated import COMPILER, EmulatedDevice
from tests.cuda.simulated import SimulatedDevice
from tests.cuda.timed import TimedDevice
from tests.execution.helpers import Model, Segment, i32, random_ids, run, slices

emulated = pytest.mark.skipif(COMPILER is None, reason="no g++ to run kernels on the host")
NVCC = shutil.which("nvcc")
BF16 = torch.bfloat16


@emulated
@pytest.mark.parametrize(
    ("lengths", "heads", "kv_heads", "head_dim", "spare"),
    [
        ((16,), 1, 1, 64, 0),
        ((1,), 2, 1, 128, 0),
        ((40,), 2, 2, 128, 3),  # a tile with rows that belong to no prompt
        ((15,), 1, 1, 64, 20),  # a tile of such rows alone
        ((130,), 2, 1, 64, 0),  # every warp has a second turn, the last of two keys
        ((5, 0, 16, 33, 1), 4, 2, 64, 1),  # tiles with several prompts, and prompts with several tiles
        ((0, 97, 0), 2, 1, 128, 0),
    ],
)
def test_the_kernel_is_causal_attention_of_each_prompt(
    lengths: tuple[int, ...], heads: int, kv_heads: int, head_dim: int, spare: int
) -> None:
    torch.manual_seed(1)
    assert own_trial._attends(EmulatedDevice(BF16, head_dim), lengths, heads, kv_heads, head_dim, spare)


@emulated
def test_random_prompts() -> None:
    rng = random.Random(7)
    torch.manual_seed(2)
    for _ in range(12):
        left, lengths = rng.randint(1, 200), list[int]()
        while left > 0:
            lengths.append(min(left, rng.choice((0, 1, 3, 16, 31, 70, 200))))
            left -= lengths[-1]
        kv_heads = rng.choice((1, 2))
        given = (tuple(lengths), kv_heads * rng.choice((1, 2, 4)), kv_heads, 64, rng.randint(0, 17))
        assert own_trial._attends(EmulatedDevice(BF16, 64), *given), given


@emulated
@pytest.mark.parametrize("broken", [0, 1])
def test_values_that_are_not_finite_stay_in_their_prompt(broken: int) -> None:
    """Of prompts whose ends lie between those of tiles, every other one is NaN, and so are the rows of no prompt."""
    torch.manual_seed(3)
    assert own_trial._attends(EmulatedDevice(BF16, 64), (5, 0, 16, 33, 1, 40), 2, 1, 64, 5, broken)


@emulated
def test_a_rows_bits_are_its_prompts_alone() -> None:
    """Behind prompts of any length, and in the place of any prompt."""
    torch.manual_seed(4)
    device = EmulatedDevice(BF16, 64)
    own = [device.empty((37, 1, 64), BF16) for _ in range(3)]
    for rows in own:
        rows.normal_()

    def attended(before: tuple[int, ...]) -> Tensor:
        at = sum(before)
        q, k, v, out = (device.zeros((at + 37, 1, 64), BF16) for _ in range(4))
        for all_rows, rows in zip((q, k, v), own):
            all_rows.normal_()
            all_rows[at:] = rows
        ends = [sum(before[:i]) for i in range(len(before) + 1)]
        starts = device.empty((len(ends) + 1,), torch.int32)
        starts.copy_(torch.tensor([*ends, at + 37]))
        own_attention.run(device, Prompts(q, k, v, out, starts))
        device.close()
        return out[at:]

    alone = attended(())
    for before in ((1,), (16,), (3, 0, 40), (0, 31)):
        assert torch.equal(attended(before), alone), before


def test_each_tile_of_each_prompt_has_a_block_of_its_own() -> None:
    """By the formula in the kernel's head: no block twice, none behind the grid, for a lone prompt none without a
    tile."""
    rng = random.Random(5)
    for _ in range(300):
        lengths = [rng.choice((0, 1, 15, 16, 17, rng.randint(0, 99))) for _ in range(rng.randint(1, 12))]
        starts = [sum(lengths[:i]) for i in range(len(lengths))]
        blocks = [
            (start + 15 * p) // 16 + tile
            for p, (start, length) in enumerate(zip(starts, lengths))
            for tile in range(-(-length // 16))
        ]
        grid = own_attention.tiles(sum(lengths) + rng.randint(0, 20), len(lengths))
        assert len(set(blocks)) == len(blocks) and all(block < grid for block in blocks)
        if len(lengths) == 1:
            assert len(blocks) == own_attention.tiles(lengths[0], 1)


@emulated
def test_scores_of_any_size_leave_no_nan() -> None:
    """Scores far above and below those that exponentials hold: the largest alone counts."""
    device = EmulatedDevice(BF16, 64)
    q, k, v = (device.empty((20, 1, 64), BF16) for _ in range(3))
    q.fill_(60.0)
    k.normal_().mul_(50)
    v.normal_()
    out, starts = device.zeros((20, 1, 64), BF16), device.empty((2,), torch.int32)
    starts.copy_(torch.tensor([0, 20]))
    own_attention.run(device, Prompts(q, k, v, out, starts))
    device.close()
    wanted, _ = twins.attention(q, k, v, causal=True)
    assert own_attention.same(out, wanted) and bool(out.isfinite().all())


# ------------------------------------------------------------------ the choice


class Device(TimedDevice):
    """With ``wrong`` this project's attention gives other numbers."""

    def __init__(self, cost: Callable[[str], float], wrong: bool = False) -> None:
        super().__init__(cost)
        self.wrong = wrong

    def is_wrong(self, kernel: kernels.Kernel) -> bool:
        return kernel is ATTEND_PROMPTS and self.wrong


def own_on(device: Device, folder: Path, tried: bool = True, library: str = "1") -> OwnAttention:
    own = device.own_attention = OwnAttention(device, device.seconds, folder / "choices.json", library)
    if tried:
        own.keep_trial(64, True)
    return own


def cheap(name: str) -> float:
    return 1.0 if name == "attend_prompts" else 2.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    sizes = {"hidden_size": 64, "head_dim": 64, "num_attention_heads": 2, "num_key_value_heads": 1}
    return Model(save_model(tmp_path_factory.mktemp("heads-of-64"), **sizes))


def recorded(model: Model, device: Device) -> CudaExecutor:
    return simulated(model, device=device, policy=GraphPolicy(at_once=True))


def two_prompts() -> OneShotBatch:
    s = slices([Segment(random_ids(1, 20), write=[2, 3]), Segment(random_ids(2, 9))])
    return OneShotBatch(s, PooledRows(i32([19, 28]), i32([0, 1, 2]), "last"))


def names_of(executor: CudaExecutor) -> list[str]:
    (program,) = executor.graphs._programs.values()
    return [name for name, _ in program.graph.operations]


def test_a_faster_kernel_with_the_librarys_numbers_is_taken_and_kept(model: Model, tmp_path: Path) -> None:
    """In every layer but the last, whose rows are the read ones; in a step with fewer tokens than its shape has."""
    own = own_on(device := Device(cheap), tmp_path)
    executor = recorded(model, device)
    ours, theirs = (run(e, two_prompts()).outputs for e in (executor, simulated(model, element=BF16)))
    for a, b in zip(ours, theirs):
        assert np.abs(a.vectors - b.vectors).max() < 0.06 * np.abs(b.vectors).max()
    names = names_of(executor)
    layers = len(model.config.spec.layers)
    assert names.count("attend_prompts") == layers - 1 and names.count("ragged") == 1
    (key,) = own._kept
    assert key == "32x2x1x64:2"
    later = Device(lambda name: 9.0)
    own_on(later, tmp_path, tried=False)
    executor = recorded(model, later)
    run(executor, two_prompts())
    assert names_of(executor).count("attend_prompts") == layers - 1, "kept for the next process"


@pytest.mark.parametrize(
    ("cost", "wrong", "tried"),
    [(lambda name: 1.0, False, True), (cheap, True, True), (cheap, False, False)],
    ids=["as fast", "other numbers", "not tried"],
)
def test_flashinfer_stays_otherwise(model: Model, tmp_path: Path, cost: Any, wrong: bool, tried: bool) -> None:
    device = Device(cost, wrong)
    own_on(device, tmp_path, tried)
    executor = recorded(model, device)
    run(executor, two_prompts())
    assert "attend_prompts" not in names_of(executor)


def test_a_choice_is_of_one_of_flashinfers_kernels(model: Model, tmp_path: Path) -> None:
    """A prompt of 255 tokens has the shape of one of 256 but for the kernel that attends."""
    own = own_on(device := Device(cheap), tmp_path)
    executor = recorded(model, device)
    executor.choices = replace(executor.choices, long_query=256)
    for tokens in (255, 256):
        s = slices([Segment(random_ids(1, tokens))])
        run(executor, OneShotBatch(s, PooledRows(i32([tokens - 1]), i32([0, 1]), "last")))
    assert set(own._kept) == {"256x2x1x64:1", "256x2x1x64:1:long"}


def test_a_bucket_with_both_kernels_is_recorded_with_both(model: Model) -> None:
    executor = simulated(model, policy=GraphPolicy())
    executor.choices = replace(executor.choices, long_query=250)
    found = {(shape.prompts, shape.long_query) for shape in executor.recorder._expected() if shape.prompts >= 224}
    assert {(224, False), (256, False), (256, True), (320, True)} <= found
    assert not {(224, True), (320, False)} & found


def test_a_shape_that_is_recorded_when_idle_is_searched_too(model: Model, tmp_path: Path) -> None:
    own = own_on(device := Device(cheap), tmp_path)
    executor = simulated(model, device=device, policy=GraphPolicy())
    run(executor, two_prompts())
    assert not own._kept
    executor.recorder.idle()
    assert set(own._kept) == {"32x2x1x64:2"} and "attend_prompts" in names_of(executor)


def test_recording_searches_attention_without_matmuls(tmp_path: Path) -> None:
    """The real device, up to the end of its first run of the work."""
    device = object.__new__(CudaDevice)
    own = device.own_attention = OwnAttention(device, lambda work: 0.0, tmp_path / "choices.json", "1")
    seen = []

    def work() -> None:
        seen.append((device._searching, own.searching))
        raise KeyError

    for search in (False, True):
        with pytest.raises(KeyError):
            device.capture(work, search=search)
        assert not own.searching and not device._searching
    assert seen == [(False, True), (True, True)]


def test_an_error_is_no_choice_of_the_next_process(model: Model, tmp_path: Path) -> None:
    own = own_on(device := Device(cheap), tmp_path)
    asked = []

    def no_memory(work: Callable[[], object]) -> float:
        asked.append(work)
        raise torch.cuda.OutOfMemoryError

    own._seconds = no_memory
    executor = recorded(model, device)
    run(executor, two_prompts())
    assert len(asked) == 1 and "attend_prompts" not in names_of(executor), "FlashInfer's, without a second search"
    assert not own.path.exists()
    own_on(device := Device(cheap), tmp_path, tried=False)
    executor = recorded(model, device)
    run(executor, two_prompts())
    assert "attend_prompts" in names_of(executor)


def test_another_release_of_flashinfer_has_choices_of_its_own(model: Model, tmp_path: Path) -> None:
    own_on(device := Device(cheap), tmp_path)
    run(recorded(model, device), two_prompts())
    assert own_on(Device(cheap), tmp_path, tried=False)._kept
    other = own_on(Device(cheap), tmp_path, tried=False, library="2")
    assert not other._kept and other.passed == {64}, "the trial's outcome does not depend on it"


def test_outcomes_and_choices_are_of_one_binary(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another compiler, or another flag, makes another kernel: it was not tried yet."""
    names = set[Path]()
    attention = ATTEND_PROMPTS
    for version in ("nvrtc 13.0", "nvrtc 13.5"):
        monkeypatch.setattr(compiler, "nvrtc_version", lambda version=version: version)
        for flags in (attention.flags, ("-DWARPS=8",)):
            monkeypatch.setattr(own_attention, "ATTEND_PROMPTS", replace(attention, flags=flags))
            names.add(own_attention.path_beside(Path("matmuls.json")))
    assert len(names) == 4


def test_other_operands_are_flashinfers() -> None:
    device = SimulatedDevice(BF16)

    def rows(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
        return device.empty(shape, dtype)

    q, k = rows(32, 4, 64), rows(32, 2, 64)
    starts = rows(2, dtype=torch.int32)
    assert Prompts(q, k, rows(32, 2, 64), rows(32, 4, 64), starts).fit()
    wide = rows(32, 2, 72)[..., :64]
    for given in (
        (rows(257, 4, 64), rows(257, 2, 64), rows(257, 2, 64), rows(257, 4, 64)),
        (rows(32, 4, 96), rows(32, 2, 96), rows(32, 2, 96), rows(32, 4, 96)),
        (rows(32, 4, 64, dtype=torch.float32), k, k, q),
        (rows(32, 3, 64), k, k, rows(32, 3, 64)),  # heads that share no keys evenly
        (q, wide, wide, q),
        (q, k, rows(32, 4, 64)[:, :2], q),  # keys and values strided apart
        (q[:0], k, k, q[:0]),
    ):
        assert not Prompts(*given, starts).fit()


def test_the_trial_finds_a_wrong_kernel(tmp_path: Path) -> None:
    twins.HEAD_DIM = 64
    for wrong in (False, True):
        device = Device(cheap, wrong)
        own = own_on(device, tmp_path, tried=False)
        assert own_trial.note_attention(own, 64) is not wrong
        assert own_on(device, tmp_path, tried=False).passed == (set() if wrong else {64})


def test_a_trial_that_does_not_end_leaves_no_older_outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = own_on(Device(cheap), tmp_path)

    def killed(device: Any, head_dim: int) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(own_trial, "attends", killed)
    with pytest.raises(KeyboardInterrupt):
        own_trial.note_attention(own, 64)
    assert own_on(Device(cheap), tmp_path, tried=False).passed == set()


def test_two_trials_that_hang_leave_the_third_its_time() -> None:
    assert first.LIMITS["own_trial"] >= 3 * own_trial.LIMIT


# ------------------------------------------------------------------ the compiled code


@pytest.mark.skipif(NVCC is None, reason="no nvcc")
@pytest.mark.parametrize("arch", ["80", "90a"])
@pytest.mark.parametrize("head_dim", own_attention.HEAD_DIMS)
def test_own_attention_compiles_without_spills(tmp_path: Path, arch: str, head_dim: int) -> None:
    source = tmp_path / "prompts.cu"
    source.write_text(compiler.source(ATTEND_PROMPTS.file), encoding="utf-8")
    command = [str(NVCC), f"-gencode=arch=compute_{arch},code=sm_{arch}", "-std=c++17", "-cubin", "-Xptxas", "-v"]
    options = [*ATTEND_PROMPTS.flags, f"-DHEAD_DIM={head_dim}", "-o", str(tmp_path / "out"), str(source)]
    done = subprocess.run([*command, "-Werror", "all-warnings", *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in done.stderr
    used = re.search(r"Used (\d+) registers", done.stderr)
    assert used is not None
    shared = own_attention.shared_bytes(head_dim)
    assert int(used[1]) * ATTEND_PROMPTS.block * 2 <= 65536 and shared * 2 <= 227 << 10, "two blocks a multiprocessor"
