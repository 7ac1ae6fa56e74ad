"""Skinny products, of few rows: the kernels by the emulator, and the steps that they serve."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from prelude.cuda import kernels
from prelude.cuda.graphs import GraphPolicy

from tests.checkpoints import save_model
from tests.cuda.conftest import on_device
from tests.cuda.emulated import both, needs_compiler
from tests.cuda.plans import BLOCKS, random_batch
from tests.cuda.simulated import SimulatedDevice
from tests.cuda.test_parity import same
from tests.execution.helpers import VOCAB, Model, run

BF16 = torch.bfloat16


@needs_compiler
# One piece; a number of pieces that differs by warp; more than one chunk.
@pytest.mark.parametrize(
    ("rows", "width"), [(1, 32), (16, 32), (2, 800), (3, 800), (8, 800), (9, 800), (16, 800), (5, 6208)]
)
def test_the_kernels_are_the_products(rows: int, width: int) -> None:
    torch.manual_seed(rows + width)
    x = torch.randn(rows, width).bfloat16()
    for outputs in (32, 2128) if width == 32 else (16,):  # more blocks than multiprocessors, and fewer
        weight = torch.randn(outputs, width).bfloat16() / width**0.5
        for out in (torch.full((rows, outputs), 7.0, dtype=BF16), torch.ones(rows, outputs)):

            def work(device: SimulatedDevice, *given: torch.Tensor, add: bool = out.dtype != BF16) -> None:
                assert kernels.skinny_gemm(device, *given, add=add)

            ours, theirs = both(work, x, weight, out, element=BF16)[-1]
            assert (ours.float() - theirs.float()).abs().max() <= 1e-2 * theirs.float().abs().max()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(save_model(tmp_path_factory.mktemp("few"), hidden_size=64, head_dim=16))


@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "graphs"])
def test_steps_of_few_rows_are_the_cpus(model: Model, graphs: bool) -> None:
    device = SimulatedDevice()
    device.skinny_gemm = True
    policy = GraphPolicy(enabled=graphs, at_once=True)
    executor = on_device(model, device=device, policy=policy, logits_chunk_rows=16, step_rows=256)
    reference, rng = model.executor(num_blocks=BLOCKS), np.random.default_rng(1)
    for _ in range(30):
        batch = random_batch(rng, VOCAB)
        same(run(executor, batch), run(reference, batch), 2e-4)
    if not graphs:
        ran = Counter(device.calls)
        assert ran["skinny_gemm"] + ran["skinny_gemm_wide"] > 0 < ran["matmul"]


@pytest.mark.parametrize(
    ("rows", "width", "outputs", "add", "dtypes"),  # dtypes: of x and the weight, and of the sums
    [
        (17, 32, 32, False, (BF16, BF16)),
        (2, 40, 32, False, (BF16, BF16)),
        (2, 32, 24, True, (BF16, torch.float32)),
        (2, 32, 32, True, (BF16, BF16)),
        (2, 32, 32, False, (torch.float32, torch.float32)),  # a classification head
    ],
)
def test_other_sizes_are_left_to_the_library(
    rows: int, width: int, outputs: int, add: bool, dtypes: tuple[torch.dtype, torch.dtype]
) -> None:
    device = SimulatedDevice(BF16)
    x, weight = (device.zeros((count, width), dtypes[0]) for count in (rows, outputs))
    out = device.zeros((rows, outputs), dtypes[1])
    assert not kernels.skinny_gemm(device, x, weight, out, add=add) and not device.calls
