"""The confidence of an answer, by the formulas of the System One reference.

With probabilities p over n options, k the first of the largest:

    choice   (max p - 1/n) / (1 - 1/n)
    score    max(0, 1 - sum p_i |i - k| / D),  D = sum |i - (n - 1)/2| / n

Both are 1 for a certain answer and 0 for an even spread over two options; n = 1 gives 1. Other libraries call other
numbers confidence (the entropy, the margin, the largest probability): a threshold for one of them does not fit
another. Neither formula looks at ``mass``.
"""

from __future__ import annotations

from collections.abc import Sequence


def of(kind: str, probabilities: Sequence[float]) -> float | None:
    """Return the confidence of an answer of this kind; ``None`` for a "noul", whose probability says it all."""
    if kind == "noul":
        return None
    return of_score(probabilities) if kind == "score" else of_choice(probabilities)


def of_choice(probabilities: Sequence[float]) -> float:
    """``probabilities`` sum to 1."""
    n = len(probabilities)
    return 1.0 if n < 2 else _bounded((max(probabilities) - 1 / n) / (1 - 1 / n))


def of_score(probabilities: Sequence[float]) -> float:
    """``probabilities`` of the levels in order, which sum to 1."""
    n = len(probabilities)
    if n < 2:
        return 1.0
    mode, distance, spread = probabilities.index(max(probabilities)), 0.0, 0.0
    for level, share in enumerate(probabilities):
        distance += share * abs(level - mode)
        spread += abs(level - (n - 1) / 2)
    return _bounded(1 - distance / (spread / n))


def _bounded(value: float) -> float:
    return min(1.0, max(0.0, value))
