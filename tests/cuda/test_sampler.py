"""The sampling kernel against the reference sampler: the same token for the same uniform number, on every path
through the kernel (a list of few tokens, sums over the row, greedy), in clusters of one block and of
several."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from prelude.cuda import kernels
from torch import Tensor

from tests.cuda import emulated
from tests.cuda.emulated import COMPILER, EmulatedDevice
from tests.cuda.simulated import SimulatedDevice

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no g++ to run kernels on the host")
UNIFORM = (0.0, 0.31, 0.77, 1 - 2**-53)


def sampled(device: SimulatedDevice, logits: Tensor, settings: list[Tensor], finite: Tensor) -> list[int]:
    def placed(value: Tensor) -> Tensor:
        there = device.empty(tuple(value.shape), value.dtype)
        there.copy_(value)
        return there

    tokens = placed(torch.full((logits.shape[0],), -1, dtype=torch.int32))
    kernels.sample(device, placed(logits), [placed(s) for s in settings], placed(finite), tokens)
    device.close()
    return tokens.tolist()


def check(logits: Tensor, *, temperature: float, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> list[int]:
    """Row r is drawn at UNIFORM[r]."""
    rows = logits.shape[0]
    settings = [
        torch.full((rows,), temperature),
        torch.full((rows,), top_k, dtype=torch.int32),
        torch.full((rows,), top_p),
        torch.full((rows,), min_p),
        torch.tensor(UNIFORM[:rows], dtype=torch.float64),
    ]
    finite = torch.ones(rows, dtype=torch.int32)
    ours = sampled(EmulatedDevice(torch.float32, 32), logits, settings, finite)
    assert ours == sampled(SimulatedDevice(torch.float32), logits, settings, finite)
    return ours


def random_logits(vocab: int, seed: int, scale: float = 4.0) -> Tensor:
    """Four rows: with ties among the best; all values halves, so ties at every cut; plain ones."""
    logits = torch.randn(4, vocab, generator=torch.Generator().manual_seed(seed)) * scale
    logits[0, 3] = logits[0, 7] = logits[0].max() + 1
    logits[3] = (logits[3] * 2).round() / 2
    return logits


SETTINGS = [
    (0.0, 0, 1.0, 0.0),
    (1.0, 0, 1.0, 0.0),
    (0.7, 1, 1.0, 0.0),
    (0.7, 5, 1.0, 0.0),
    (1.3, 0, 0.5, 0.0),
    (1.3, 0, 1e-6, 0.0),
    (0.9, 12, 0.8, 0.02),
    (1e-3, 4, 0.9, 0.0),
    (2.0, 0, 0.999, 0.3),
    (1.0, 150, 1.0, 0.0),
    (1.0, 1000, 1.0, 0.0),
]


@pytest.mark.feature("H3")
@pytest.mark.parametrize("settings", SETTINGS)
def test_samples_are_the_reference_samplers(settings: tuple[float, int, float, float]) -> None:
    temperature, top_k, top_p, min_p = settings
    check(random_logits(150, 6), temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "min_p"),
    [
        (0.8, 20, 0.95, 0.0),
        (0.3, 0, 0.9, 0.0),  # the best 1,024 have the mass
        (50.0, 0, 0.9, 0.0),  # they have not: selection by sums of weights
        (50.0, 2000, 0.9, 0.0),  # the same behind a top-k cut among ties
        (50.0, 2000, 1.0, 0.0),
        (5.0, 0, 0.9999, 0.01),
        (1.0, 0, 1.0, 0.001),
    ],
)
def test_rows_that_keep_more_than_a_list(temperature: float, top_k: int, top_p: float, min_p: float) -> None:
    drawn = check(random_logits(2999, 7), temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    assert len(set(drawn)) > 1


def test_equal_logits_are_cut_by_id() -> None:
    """With halves a cut by mass is exact, so the kept ids are known: the first half, the first three quarters."""
    for vocab in (64, 2048):
        logits = torch.zeros(4, vocab)
        assert check(logits, temperature=1.0, top_p=0.5)[3] == vocab // 2 - 1
        assert check(logits, temperature=1.0, top_k=vocab // 4 * 3)[3] == vocab // 4 * 3 - 1
        assert check(logits, temperature=1.0)[3] == vocab - 1
    logits = torch.zeros(4, 2048)
    logits[:, ::2] = 1.0
    assert check(logits, temperature=1.0, top_k=1536)[0] == 0
    assert check(logits, temperature=1.0, top_k=1024, top_p=0.5)[3] == 1022


def test_masked_and_extreme_logits() -> None:
    logits = random_logits(150, 8)
    logits[:, 20:] = float("-inf")
    logits[1, 4:] = float("-inf")
    logits[2] = -3e38
    logits[2, 149] = 3e38
    for temperature, top_k, top_p in ((0.0, 0, 1.0), (0.5, 0, 1.0), (0.5, 30, 0.9), (1e-6, 30, 1.0), (1e-6, 0, 0.9)):
        check(logits, temperature=temperature, top_k=top_k, top_p=top_p)
    logits = torch.tensor([[-0.0, 0.0, -1.0, 0.0]] * 4)  # zeros of either sign are equal
    assert check(logits, temperature=0.0) == [0, 0, 0, 0]
    check(logits, temperature=1.0, top_k=2)


def test_rows_that_are_not_finite_get_token_zero() -> None:
    logits = random_logits(150, 9)
    logits[0, 5], logits[2, 6] = float("nan"), float("inf")
    finite = torch.tensor([0, 1, 0, 1], dtype=torch.int32)
    settings = [
        torch.tensor([0.0, 0.0, 1.0, 0.7]),
        torch.zeros(4, dtype=torch.int32),
        torch.ones(4),
        torch.zeros(4),
        torch.tensor(UNIFORM, dtype=torch.float64),
    ]
    ours = sampled(EmulatedDevice(torch.float32, 32), logits, settings, finite)
    assert ours == sampled(SimulatedDevice(torch.float32), logits, settings, finite)
    assert ours[0] == ours[2] == 0


@pytest.mark.parametrize("cluster", [1, 4])
def test_any_cluster_draws_the_same(cluster: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One block a row is how GPUs without clusters run it."""
    monkeypatch.setattr(emulated, "CLUSTER", cluster)
    for top_k, top_p in ((0, 1.0), (20, 0.95), (0, 0.7)):
        check(random_logits(1500, 10), temperature=3.0, top_k=top_k, top_p=top_p)


def test_random_rows() -> None:
    """Each row has its own settings; vocabularies whose rows are not aligned to 16 bytes among them."""
    rng = np.random.default_rng(11)
    for vocab in (5, 127):
        rows = 12
        logits = torch.from_numpy(rng.normal(size=(rows, vocab)).astype(np.float32) * 5)
        logits[::3] = (logits[::3] * 2).round() / 2
        settings = [
            torch.from_numpy(rng.choice([0.0, 0.2, 1.0, 3.0], rows).astype(np.float32)),
            torch.from_numpy(rng.integers(0, vocab + 2, rows).astype(np.int32)),
            torch.from_numpy(rng.choice([1.0, 0.9, 0.3], rows).astype(np.float32)),
            torch.from_numpy(rng.choice([0.0, 0.05], rows).astype(np.float32)),
            torch.from_numpy(rng.random(rows)),
        ]
        finite = torch.ones(rows, dtype=torch.int32)
        ours = sampled(EmulatedDevice(torch.float32, 32), logits, settings, finite)
        assert ours == sampled(SimulatedDevice(torch.float32), logits, settings, finite), vocab


def test_the_list_has_the_size_that_the_launch_counts_on() -> None:
    source = (Path(kernels.__file__).parent / "kernels" / "sample.cu").read_text(encoding="utf-8")
    assert "constexpr int LIST = 1024;" in source
    sums, lists = 8 * (4 * 32 + 2 * 4 + 2 * 4), 1024 * (8 + 4 + 4 + 2 + 2)
    assert sums + lists == kernels._SAMPLE_BYTES
