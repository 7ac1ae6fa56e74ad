"""The parts of bench/gpu that run without a GPU: floors, the checks of correctness, the loads' own code."""

from __future__ import annotations

import pytest
import torch
from prelude.cuda import weights
from prelude.cuda.executor import CudaExecutor
from prelude.cuda.graphs import GraphPolicy

from bench.gpu import chips
from bench.gpu import exactness as gpu_exactness
from bench.gpu import loads as gpu_loads
from bench.gpu.models import MODELS, Floor, RandomSource, Reference, causal, qwen3
from prelude.models.config import ModelConfig
from tests.cuda.simulated import SimulatedDevice
from tests.cuda.test_flashinfer_trial import Broken


def test_floors_are_those_that_were_reckoned() -> None:
    """128 tokens in and one out: 0.277 ms; 512 of the 4B: 208 a second; a decode step of four: 0.305 ms."""
    small, large = Floor(MODELS["06b"], chips.H200), Floor(MODELS["4b"], chips.H200)
    assert small.prefill(128, 1, causal(128)) * 1e3 == pytest.approx(0.277, abs=0.001)
    assert 1 / large.prefill(512, 1, causal(512)) == pytest.approx(208, abs=1)
    assert small.decode(4, 256) * 1e3 == pytest.approx(0.305, abs=0.001)


def test_floors_and_aims_are_those_of_the_gpu_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """An H100's memory is slower: its floor is its own, and the table's aims are not for it. Any other GPU is
    measured."""
    named = "NVIDIA H200"
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: named)
    monkeypatch.setattr(chips, "measured", lambda name: chips.Chip(name, 1e12, 1e12))
    aimed = gpu_loads.Bench(1)
    assert aimed.chip is chips.H200
    load = aimed.load("x.ms", "ms", [1.0], aimed.floor("06b").decode(4, 144), 0.75, {"prelude": 2.1})
    assert load.reach == 0.75 and load.paper == {"prelude": 2.1}
    named = "NVIDIA H100 80GB HBM3"
    other = gpu_loads.Bench(1)
    load = other.load("x.ms", "ms", [1.0], other.floor("06b").decode(4, 144), 0.75, {"prelude": 2.1})
    assert load.reach is None and not load.paper
    assert load.floor == pytest.approx(aimed.floor("06b").decode(4, 144) * 4.3 / 3.0)
    named = "NVIDIA H100 PCIe"
    assert gpu_loads.Bench(1).chip == chips.Chip(named, 1e12, 1e12)


def small_model(layers: int = 2, vocab: int = 300, eps: float = 1e-6) -> ModelConfig:
    return qwen3(64, layers, 8, 512, head_dim=16, vocab=vocab, eps=eps)


def executor(source: RandomSource, kind: str = "none", wrong: bool = False) -> CudaExecutor:
    """With ``wrong`` values from the calls of attention of one ``kind``."""
    config = source.config
    device = SimulatedDevice(torch.float32)
    with device.scope():
        loaded = weights.load(device, source, config.spec, 1024)
    heads = config.spec.attention
    calls = Broken(device, heads.heads, heads.kv_heads, heads.head_dim, kind=kind, wrong=wrong)
    policy = GraphPolicy(at_once=True)
    return CudaExecutor(config, loaded, device, num_blocks=80, step_tokens=1280, calls=calls, policy=policy)


def test_the_check_of_correctness_passes_right_products_and_finds_wrong_ones() -> None:
    config = small_model()
    reference = Reference(RandomSource(config, "cpu", torch.bfloat16))
    right = executor(RandomSource(config, "cpu", torch.bfloat16))
    assert gpu_exactness.worst_error(right, reference, 0, exact=True) < 1e-4
    assert gpu_exactness.worst_error(right, reference, 1, exact=False) < gpu_exactness.LIMIT_ULPS
    assert right.graphs.replays > 5
    wrong = executor(RandomSource(config, "cpu", torch.bfloat16))
    with torch.inference_mode():
        wrong.weights.layers[1].down[3].mul_(1.5)
    assert gpu_exactness.worst_error(wrong, reference, 0, exact=True) > 1e-3
    wrong = executor(RandomSource(config, "cpu", torch.bfloat16), kind="decode", wrong=True)
    assert gpu_exactness.worst_error(wrong, reference, 0, exact=True) > 1e-3


def test_references_differ_by_rounding_alone() -> None:
    """What is allowed is reckoned with it."""
    assert 0 < gpu_exactness.transformers_error(small_model(), "cpu") < 8
