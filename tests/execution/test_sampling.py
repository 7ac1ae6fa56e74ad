"""Sampling against definitions written a second time, and against the analytic distribution."""

from __future__ import annotations

import numpy as np
import pytest

from prelude.readouts.batch import LogprobRows, OneShotBatch
from prelude.readouts.draw import distribution, draw, uniforms
from tests.execution.helpers import Model, i32, prompts, random_ids, run, sampling


def reference(logits: np.ndarray, t: float, k: int, p: float, m: float) -> np.ndarray:
    """Token by token, as the definitions are worded."""
    x = logits.astype(np.float64) / t
    probabilities = np.exp(x - x.max())
    probabilities /= probabilities.sum()
    order = sorted(range(len(x)), key=lambda i: (-logits[i], i))
    if k:
        order = order[:k]
    if p < 1:
        total, kept = probabilities[order].sum(), list[int]()
        for i in order:
            kept.append(i)
            if probabilities[kept].sum() >= p * total:
                break
        order = kept
    order = [i for i in order if probabilities[i] >= m * probabilities[order[0]]]
    out = np.zeros(len(x))
    out[order] = probabilities[order]
    return out / out.sum()


@pytest.mark.feature("H3")
@pytest.mark.parametrize("shape", [(1, 0, 1, 0), (0.7, 5, 1, 0), (1.3, 0, 0.8, 0), (1, 0, 1, 0.2), (2, 20, 0.5, 0.1)])
def test_definitions(shape: tuple[float, int, float, float]) -> None:
    rng = np.random.default_rng(0)
    for _ in range(30):
        logits = rng.normal(size=40).astype(np.float32).round(1)  # rounded: with ties
        ours = distribution(logits, *shape)
        theirs = reference(logits, *shape)
        assert np.array_equal(ours > 0, theirs > 0)
        assert np.abs(ours - theirs).max() < 1e-12
        for u in (0.0, 0.3, 1 - 2**-53):
            assert draw(ours, u) == int(np.flatnonzero((np.cumsum(theirs) > u) & (theirs > 0))[:1].sum()) or u > 0.9


@pytest.mark.feature("H3")
@pytest.mark.parametrize("p,kept", [(0.25, 1), (0.5, 2), (0.75, 3), (0.76, 4), (0.2, 1), (1.0, 4)])
def test_top_p_keeps_the_smallest_set_that_reaches_p(p: float, kept: int) -> None:
    """Four equal logits are four exact quarters. A set whose sum equals p reaches it; of equal ones the smaller ids
    are kept."""
    ours = distribution(np.full(4, 2.0, np.float32), 1.0, top_p=p)
    assert ours.tolist() == [1 / kept] * kept + [0.0] * (4 - kept)


@pytest.mark.feature("H3")
@pytest.mark.parametrize("shape", [(1.0, 0, 1.0, 0.0), (0.8, 12, 0.9, 0.05)])
def test_exact_distribution(shape: tuple[float, int, float, float]) -> None:
    """A chi-square test of 40,000 draws. The bound is far in the tail: it is a fixed seed, not a lottery."""
    logits = np.random.default_rng(1).normal(size=30).astype(np.float32)
    probabilities = distribution(logits, *shape)
    draws = 40_000
    u = uniforms(np.full(draws, 7, np.uint64), np.arange(draws, dtype=np.int32))
    counts = np.bincount([draw(probabilities, float(x)) for x in u], minlength=30)
    kept = reference(logits, *shape) > 0
    assert not counts[~kept].any()
    expected = reference(logits, *shape)[kept] * draws
    statistic = ((counts[kept] - expected) ** 2 / expected).sum()
    degrees = kept.sum() - 1
    assert statistic < degrees + 4 * np.sqrt(2 * degrees)


def test_uniforms_are_a_function_of_seed_and_step() -> None:
    seeds = np.array([0, 1, 2**63, 2**64 - 1], np.uint64)
    steps = i32([0, 0, 5, 5])
    together = uniforms(seeds, steps)
    assert all(uniforms(seeds[i : i + 1], steps[i : i + 1])[0] == together[i] for i in range(4))
    many = uniforms(np.arange(20_000, dtype=np.uint64), np.zeros(20_000, np.int32))
    assert many.min() >= 0 and many.max() < 1 and abs(many.mean() - 0.5) < 0.01
    assert abs(np.corrcoef(many[:-1], many[1:])[0, 1]) < 0.03
    # Written down once: a stored request must draw the same tokens in later versions.
    stored = uniforms(np.array([42], np.uint64), i32([3]))[0]
    assert stored == 0.04802579547595631


@pytest.mark.parametrize("temperature", [1e-12, 1e-38, 1e38])
def test_temperatures_at_the_edge(temperature: float) -> None:
    logits = np.array([1, 5, 5, -1e4, 1e4], np.float32)
    probabilities = distribution(logits, temperature)
    assert np.isfinite(probabilities).all() and abs(probabilities.sum() - 1) < 1e-12
    assert (probabilities[4] == 1) == (temperature < 1)


@pytest.mark.feature("H3")
def test_rows_of_a_step(model: Model) -> None:
    """Greedy and sampled rows side by side; each as alone, and as computed from the logprobs."""
    executor = model.executor(deterministic=True)
    ids = [random_ids(i, 10 + i) for i in range(5)]
    s = prompts(*ids)
    rows = s.starts[1:] - 1
    heat, seeds, steps = [0, 0.5, 1, 2, 1], [1, 2, 3, 4, 3], [0, 1, 2, 3, 2]
    shape = {"top_k": [0, 3, 0, 50, 0], "top_p": [1, 1, 0.6, 0.9, 0.6], "min_p": [0, 0, 0, 0.01, 0]}
    together = run(executor, OneShotBatch(s, sampling(rows, heat, seeds, steps, top=3, **shape))).outputs[0]
    for i, x in enumerate(ids):
        one = {name: values[i] for name, values in shape.items()}
        alone = run(executor, OneShotBatch(prompts(x), sampling([len(x) - 1], heat[i], seeds[i], steps[i], **one)))
        assert alone.outputs[0].token_ids[0] == together.token_ids[i]
        every = np.arange(211)
        asked = LogprobRows(i32([len(x) - 1]), i32(0 * every), i32(every), ranks=True)
        logprobs, ranks = (
            getattr(run(executor, OneShotBatch(prompts(x), asked)).outputs[0], n) for n in ("logprobs", "ranks")
        )
        token = together.token_ids[i]
        assert together.logprobs[i] == pytest.approx(logprobs[token], abs=1e-6)
        assert ranks[together.top_ids[i]].tolist() == [1, 2, 3]
        if heat[i] == 0:
            assert ranks[token] == 1
        else:
            p = reference(logprobs.astype(np.float32), heat[i], one["top_k"], one["top_p"], one["min_p"])
            u = uniforms(np.array([seeds[i]], np.uint64), i32([steps[i]]))[0]
            assert token == np.searchsorted(np.cumsum(p), u, side="right")
