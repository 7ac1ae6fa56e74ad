"""The project's own attention of short prompts: the kernel by the emulator, the steps that it serves, and its
trial."""

from __future__ import annotations

from collections import Counter
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
from prelude.readouts.batch import MixedBatch, OneShotBatch, PooledRows
from tests.checkpoints import save_model
from tests.cuda import twins
from tests.cuda.conftest import on_device
from tests.cuda.emulated import EmulatedDevice, needs_compiler
from tests.cuda.plans import BLOCKS
from tests.cuda.simulated import SimulatedDevice
from tests.cuda.test_parity import same
from tests.execution.helpers import Model, Segment, decode_rows, i32, prompts, random_ids, run, sampling, slices

BF16 = torch.bfloat16


@needs_compiler
@pytest.mark.parametrize(
    "given",  # lengths, heads, kv_heads, head_dim, rows of no prompt, the prompts that are NaN as those rows are
    [
        ((16,), 1, 1, 64, 0),
        ((1,), 2, 1, 128, 0),
        ((40,), 2, 2, 128, 3),  # a tile with rows that belong to no prompt
        ((15,), 1, 1, 64, 20),  # a tile of such rows alone
        ((130,), 2, 1, 64, 0),  # every warp has a second turn, the last of two keys
        ((5, 0, 16, 33, 1), 4, 2, 64, 1),  # tiles with several prompts, and prompts with several tiles
        ((0, 97, 0), 2, 1, 128, 0),
        *(((5, 0, 16, 33, 1, 40), 2, 1, 64, 5, broken) for broken in (0, 1)),  # ends lie between those of tiles
    ],
)
def test_the_kernel_is_causal_attention_of_each_prompt(given: tuple[Any, ...]) -> None:
    torch.manual_seed(1)
    assert own_trial._attends(EmulatedDevice(BF16, given[3]), *given)


def attended(q: Tensor, k: Tensor, v: Tensor, *lengths: int) -> Tensor:
    device = EmulatedDevice(BF16, 64)
    starts = torch.tensor([sum(lengths[:i]) for i in range(len(lengths) + 1)], dtype=torch.int32)
    out = device.zeros(q.shape, BF16)
    own_attention.run(device, *(device.put(one) for one in (q, k, v, starts)), out)
    device.close()
    return out


@needs_compiler
def test_a_rows_bits_are_its_prompts_alone() -> None:
    """Behind prompts of any length, and in the place of any prompt."""
    torch.manual_seed(4)
    own = torch.randn(3, 37, 1, 64).bfloat16()
    alone = attended(*own, 37)
    for before in ((1,), (16,), (3, 0, 40), (0, 31)):
        others = torch.randn(3, sum(before), 1, 64).bfloat16()
        assert torch.equal(attended(*torch.cat([others, own], 1), *before, 37)[sum(before) :], alone), before


@needs_compiler
def test_scores_of_any_size_leave_no_nan() -> None:
    """Scores far above and below those that exponentials hold: the largest alone counts."""
    q, k, v = torch.randn(3, 20, 1, 64).bfloat16()
    q.fill_(60.0)
    out, wanted = attended(q, k * 50, v, 20), twins.attention(q, k * 50, v, causal=True)[0]
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
