"""The numbers of labels, from those of their paths."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from prelude._native.core import LabelPaths


@pytest.mark.parametrize("seed", range(20))
def test_labels_are_weighed_by_the_formulas(seed: int) -> None:
    draw = random.Random(seed)
    edges, count = draw.randint(1, 80), draw.randint(1, 40)
    paths = [[draw.randrange(edges) for _ in range(draw.randint(1, 4))] for _ in range(count)]
    counted = sorted(draw.sample(range(count), draw.randint(0, count)))
    labels = tuple(f"label {i}" for i in range(count))
    logprobs = [-draw.expovariate(0.3) for _ in range(2 * edges + 3)]
    for alone in (-1, edges + 3):
        for by_length in (False, True):
            joint = [
                sum(logprobs[2 + e] for e in path) if alone < 0 else sum(logprobs[e] for e in path) for path in paths
            ]
            first = 2 if alone < 0 else 0
            other = [sum(logprobs[alone + e] for e in path) if alone >= 0 else 0.0 for path in paths]
            scores = [(a - b) / (len(path) if by_length else 1) for a, b, path in zip(joint, other, paths)]
            best = max(scores)
            weights = [math.exp(score - best) for score in scores]
            shares = [weight / math.fsum(weights) for weight in weights]
            weighed = LabelPaths(paths, counted, edges).weigh(labels, logprobs, first, alone, by_length)
            index, found, probabilities, kept, mass = weighed
            assert index == scores.index(best) and list(probabilities) == list(kept) == list(labels)
            np.testing.assert_allclose(found, shares, rtol=1e-12)
            assert list(probabilities.values()) == found
            np.testing.assert_allclose(list(kept.values()), joint, rtol=1e-12)
            assert mass == pytest.approx(min(1.0, math.fsum(math.exp(joint[i]) for i in counted)), rel=1e-12)
            *_, relative, none = LabelPaths(paths, counted, edges).weigh(
                labels, logprobs, first, alone, by_length, True
            )
            assert math.isnan(none)
            np.testing.assert_allclose(np.exp(list(relative.values())), shares, rtol=1e-9)
