"""The project's own attention of short prompts: the kernel by the emulator, the steps that it serves, its trial, and
the compiled code."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from prelude.cuda import compiler, kernels, own_attention, own_trial
from prelude.cuda.graphs import GraphPolicy
from prelude.cuda.kept_choices import Trials
from prelude.cuda.own_attention import ATTEND_PROMPTS
from torch import Tensor

from bench.gpu import first
from prelude.batch import MixedBatch, OneShotBatch, PooledRows
from tests.checkpoints import save_model
from tests.cuda import twins
from tests.cuda.conftest import on_device
from tests.cuda.emulated import COMPILER, EmulatedDevice
from tests.cuda.plans import BLOCKS
from tests.cuda.simulated import SimulatedDevice
from tests.cuda.test_parity import same
from tests.execution.helpers import Model, Segment, decode_rows, i32, prompts, random_ids, run, sampling, slices

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
        own_attention.run(device, q, k, v, starts, out)
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
    own_attention.run(device, q, k, v, starts, out)
    device.close()
    wanted, _ = twins.attention(q, k, v, causal=True)
    assert own_attention.same(out, wanted) and bool(out.isfinite().all())


# ------------------------------------------------------------------ where it serves


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    sizes = {"hidden_size": 64, "head_dim": 64, "num_attention_heads": 2, "num_key_value_heads": 1}
    return Model(save_model(tmp_path_factory.mktemp("heads-of-64"), **sizes))


@pytest.mark.parametrize("levels", [True, False], ids=["flashinfer", "without"])
@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "graphs"])
def test_prompts_alone_need_nothing_of_flashinfer(model: Model, levels: bool, graphs: bool) -> None:
    """In every layer, also of prompts that write blocks; in none of a step that reads more than itself."""
    device = SimulatedDevice()
    device.own_attention = True
    policy = GraphPolicy(enabled=graphs, at_once=True)
    executor = on_device(model, device=device, levels=levels, policy=policy, logits_chunk_rows=16)
    reference = model.executor(num_blocks=BLOCKS)
    layers = len(model.config.spec.layers)

    def attended(batch: Any) -> dict[str, int]:
        before = len(device.calls)
        same(run(executor, batch), run(reference, batch), 2e-4)
        if graphs:
            program = max(executor.graphs._programs.values(), key=lambda program: program.used)
            return Counter(name for name, _ in program.graph.operations)
        return Counter(device.calls[before:])

    two = slices([Segment(random_ids(1, 20), write=[2, 3]), Segment(random_ids(2, 9))])
    for alone in (
        OneShotBatch(two, PooledRows(i32([19, 28]), i32([0, 1, 2]), "last")),
        OneShotBatch(prompts(random_ids(3, 256)), sampling([255])),
        OneShotBatch(prompts(random_ids(4, 1), random_ids(5, 70)), sampling([0, 70])),
    ):
        names = attended(alone)
        assert names["attend_prompts"] == layers and not names.keys() & {"ragged", "attend"}
    made: Any = executor.calls
    assert made is None or not made.made, "FlashInfer was not asked"
    hit = slices([Segment(random_ids(6, 5), context=20, blocks=[2, 3])])
    decode = decode_rows([1], [3], [[9]])
    for other in (
        OneShotBatch(prompts(random_ids(7, 257)), sampling([256])),
        OneShotBatch(hit, sampling([4])),
        OneShotBatch(slices([Segment(random_ids(8, 9)), Segment(random_ids(9, 4), 0)]), sampling([12])),
        MixedBatch(two, (sampling([28]),), decode, sampling([0])),
    ):
        names = attended(other)
        assert "attend_prompts" not in names and ("attend" in names) != levels


def test_warming_up_records_prompts_alone_with_and_without_flashinfer(model: Model) -> None:
    for levels in (True, False):
        device = SimulatedDevice()
        device.own_attention = True
        executor = on_device(model, device=device, levels=levels, policy=GraphPolicy())
        executor.choices = replace(executor.choices, long_query=300 if levels else 1 << 30)
        found = {(s.prompts, s.alone, s.long_query) for s in executor.recorder._expected() if s.prompts}
        short = {(n, True, False) for n in range(32, 257, 32)}
        longer = {(320, False, False), (320, False, True), (384, False, True), (448, False, True), (512, False, True)}
        assert found == short | (longer if levels else set())


def wrong_device(wrong: bool) -> SimulatedDevice:
    """Whose attention writes nothing if it is ``wrong``."""

    class Device(SimulatedDevice):
        def launch(self, kernel: kernels.Kernel, grid: Any, args: Any, shared: int = 0) -> None:
            if not (wrong and kernel is ATTEND_PROMPTS):
                super().launch(kernel, grid, args, shared)

    return Device(BF16)


def test_the_trial_finds_a_wrong_kernel_and_a_process_that_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = Trials(tmp_path / "trials.json")
    for wrong in (True, False):
        assert own_trial.note_attention(wrong_device(wrong), trials, 64) is not wrong
        assert trials.outcomes() == {"64": not wrong}

    def killed(device: Any, head_dim: int) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(own_trial, "attends", killed)
    with pytest.raises(KeyboardInterrupt):
        own_trial.note_attention(wrong_device(False), trials, 64)
    assert trials.outcomes() == {"64": False}


def test_outcomes_are_of_one_binary_on_one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another compiler makes another kernel: it was not tried yet."""
    names = set[Path]()
    for version in ("nvrtc 13.0", "nvrtc 13.5"):
        monkeypatch.setattr(compiler, "nvrtc_version", lambda version=version: version)
        names |= {own_attention.trials(gpu).path for gpu in ("NVIDIA H200", "NVIDIA H100")}
    assert len(names) == 4


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
    options = [f"-DHEAD_DIM={head_dim}", "-o", str(tmp_path / "out"), str(source)]
    done = subprocess.run([*command, "-Werror", "all-warnings", *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in done.stderr
    used = re.search(r"Used (\d+) registers", done.stderr)
    assert used is not None
    shared = own_attention.shared_bytes(head_dim)
    assert int(used[1]) * ATTEND_PROMPTS.block * 2 <= 65536 and shared * 2 <= 227 << 10, "two blocks a multiprocessor"
