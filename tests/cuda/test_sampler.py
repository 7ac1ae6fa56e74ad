"""The sampling kernel against the reference sampler: the same token for the same uniform number, on every path
through the kernel (a list of few tokens, sums over the row, greedy), in clusters of one block and of
several."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from prelude.cuda import kernels
from torch import Tensor

from tests.cuda import emulated
from tests.cuda.emulated import both, needs_compiler

pytestmark = needs_compiler
UNIFORM = (0.0, 0.31, 0.77, 1 - 2**-53)


def settings_of(rows: int, *values: float) -> tuple[Tensor, ...]:
    """Temperature, top_k, top_p and min_p of each row, which is drawn at ``UNIFORM``."""
    temperature, top_k, top_p, min_p = (torch.full((rows,), value) for value in values)
    return temperature, top_k.int(), top_p, min_p, torch.tensor(UNIFORM[:rows], dtype=torch.float64)


def drawn(logits: Tensor, settings: tuple[Tensor, ...], finite: Tensor | None = None) -> list[int]:
    """The tokens of the kernel, which are those of the reference sampler."""
    tokens = torch.full((len(logits),), -1, dtype=torch.int32)
    finite = torch.ones_like(tokens) if finite is None else finite
    ours, reference = both(kernels.sample, logits, settings, finite, tokens)[-1]
    assert ours.tolist() == reference.tolist()
    found: list[int] = ours.tolist()
    return found


def check(logits: Tensor, temperature: float, top_k: float = 0, top_p: float = 1.0, min_p: float = 0.0) -> list[int]:
    return drawn(logits, settings_of(len(logits), temperature, float(top_k), top_p, min_p))


def random_logits(vocab: int, seed: int, scale: float = 4.0) -> Tensor:
    """Four rows: with ties among the best; all values halves, so ties at every cut; plain ones."""
    logits = torch.randn(4, vocab, generator=torch.Generator().manual_seed(seed)) * scale
    logits[0, 3] = logits[0, 7] = logits[0].max() + 1
    logits[3] = (logits[3] * 2).round() / 2
    return logits


SETTINGS = [
    (0.0, 0, 1.0, 0.0), (1.0, 0, 1.0, 0.0), (0.7, 1, 1.0, 0.0), (0.7, 5, 1.0, 0.0), (1.3, 0, 0.5, 0.0),
    (1.3, 0, 1e-6, 0.0), (0.9, 12, 0.8, 0.02), (1e-3, 4, 0.9, 0.0), (2.0, 0, 0.999, 0.3), (1.0, 150, 1.0, 0.0),
    (1.0, 1000, 1.0, 0.0),
]  # fmt: skip


@pytest.mark.feature("H3")
@pytest.mark.parametrize("settings", SETTINGS)
def test_samples_are_the_reference_samplers(settings: tuple[float, int, float, float]) -> None:
    check(random_logits(150, 6), *settings)


@pytest.mark.parametrize(
    "settings",
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
def test_rows_that_keep_more_than_a_list(settings: tuple[float, int, float, float]) -> None:
    assert len(set(check(random_logits(2999, 7), *settings))) > 1


def test_equal_logits_are_cut_by_id() -> None:
    """With halves a cut by mass is exact, so the kept ids are known: the first half, the first three quarters."""
    for vocab in (64, 2048):
        logits = torch.zeros(4, vocab)
        assert check(logits, 1.0, top_p=0.5)[3] == vocab // 2 - 1
        assert check(logits, 1.0, top_k=vocab // 4 * 3)[3] == vocab // 4 * 3 - 1
        assert check(logits, 1.0)[3] == vocab - 1
    logits = torch.zeros(4, 2048)
    logits[:, ::2] = 1.0
    assert check(logits, 1.0, top_k=1536)[0] == 0
    assert check(logits, 1.0, top_k=1024, top_p=0.5)[3] == 1022


def test_masked_and_extreme_logits() -> None:
    logits = random_logits(150, 8)
    logits[:, 20:] = float("-inf")
    logits[1, 4:] = float("-inf")
    logits[2] = -3e38
    logits[2, 149] = 3e38
    for settings in ((0.0, 0, 1.0), (0.5, 0, 1.0), (0.5, 30, 0.9), (1e-6, 30, 1.0), (1e-6, 0, 0.9)):
        check(logits, *settings)
    logits = torch.tensor([[-0.0, 0.0, -1.0, 0.0]] * 4)  # zeros of either sign are equal
    assert check(logits, 0.0) == [0, 0, 0, 0]
    check(logits, 1.0, top_k=2)


def test_rows_that_are_not_finite_get_token_zero() -> None:
    logits = random_logits(150, 9)
    logits[0, 5], logits[2, 6] = float("nan"), float("inf")
    finite = torch.tensor([0, 1, 0, 1], dtype=torch.int32)
    _, *others = settings_of(4, 1.0, 0.0, 1.0, 0.0)
    found = drawn(logits, (torch.tensor([0.0, 0.0, 1.0, 0.7]), *others), finite)
    assert found[0] == found[2] == 0


@pytest.mark.parametrize("cluster", [1, 4])
def test_any_cluster_draws_the_same(cluster: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One block a row is how GPUs without clusters run it."""
    monkeypatch.setattr(emulated, "CLUSTER", cluster)
    for top_k, top_p in ((0, 1.0), (20, 0.95), (0, 0.7)):
        check(random_logits(1500, 10), 3.0, top_k=top_k, top_p=top_p)


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
        drawn(logits, tuple(settings))
