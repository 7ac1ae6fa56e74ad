"""The numbers of labels, from those of the edges of their trie."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from prelude.admission.decide import weigh
from prelude.admission.labels import build_trie


@pytest.mark.parametrize("seed", range(20))
def test_labels_are_weighed_by_the_formulas(seed: int) -> None:
    draw = random.Random(seed)
    ids = list({tuple(draw.randrange(6) for _ in range(draw.randint(1, 4))) for _ in range(draw.randint(1, 40))})
    labels = tuple(f"label {i}" for i in range(len(ids)))
    trie = build_trie(ids, labels, "labels")
    edges = len(trie.targets)
    of_edge: dict[tuple[int, ...], float] = {}  # by the tokens up to it
    logprobs = [-draw.expovariate(0.3) for _ in range(2 * edges + 3)]
    for path, tokens in zip(trie.paths, ids):
        for at, edge in enumerate(path):
            assert trie.targets[edge] == tokens[at]
            assert of_edge.setdefault(tokens[: at + 1], edge) == edge
    counted = [not any(other != own[: len(own)] and own[: len(other)] == other for other in ids) for own in ids]
    for alone in (-1, edges + 3):
        for by_length in (False, True):
            joint = [sum(logprobs[2 + e] for e in path) for path in trie.paths]
            other = [sum(logprobs[alone + e] for e in path) if alone >= 0 else 0.0 for path in trie.paths]
            scores = [(a - b) / (len(own) if by_length else 1) for a, b, own in zip(joint, other, ids)]
            best = max(scores)
            weights = [math.exp(score - best) for score in scores]
            shares = [weight / math.fsum(weights) for weight in weights]
            index, found, probabilities, kept, mass = weigh(trie, labels, logprobs, 2, alone, by_length)
            assert index == scores.index(best) and list(probabilities) == list(kept) == list(labels)
            np.testing.assert_allclose(found, shares, rtol=1e-12)
            assert list(probabilities.values()) == found
            np.testing.assert_allclose(list(kept.values()), joint, rtol=1e-12)
            sure = math.fsum(math.exp(one) for one, apart in zip(joint, counted) if apart)
            assert mass == pytest.approx(min(1.0, sure), rel=1e-12)
            *_, relative, none = weigh(trie, labels, logprobs, 2, alone, by_length, True)
            assert math.isnan(none)
            np.testing.assert_allclose(np.exp(list(relative.values())), shares, rtol=1e-9)
