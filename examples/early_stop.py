"""A choice asked with its options in shifted orders until the answer is clear.

    python examples/early_stop.py

Models prefer some places in a list, so ``orders="all"`` asks in every shift of the options and takes the mean. Often
the first two shifts agree. Here the shifts are asked in waves of two. Each wave is a decision of its own about the
same state, which comes out of the prefix cache. Prints the label, its probability and the number of shifts.
"""

from __future__ import annotations

import math

from prelude import Choice, Engine


def decide_by_margin(
    engine: Engine, state: str, question: Choice, margin: float = 8.5, wave: int = 2
) -> tuple[dict[str, float], int]:
    """The probability of each label, and how many shifts were asked: all, or as many as it took until the mean
    logprob of the best label was ``margin`` above that of the second."""
    labels, shifts = list(question.labels), 0
    means = dict.fromkeys(labels, 0.0)
    while shifts < len(labels):
        more = min(wave, len(labels) - shifts)
        [answer] = engine.decide(state, [question], orders=range(shifts, shifts + more))
        for label in labels:
            means[label] = (shifts * means[label] + more * answer.logprobs[label]) / (shifts + more)
        shifts += more
        best, second = sorted(means.values())[:-3:-1]
        if best - second >= margin:
            break
    weights = {label: math.exp(mean - best) for label, mean in means.items()}
    return {label: weight / sum(weights.values()) for label, weight in weights.items()}, shifts


if __name__ == "__main__":
    asked = Choice("Which language is it?", ["English", "French", "German", "Spanish"])
    with Engine.from_pretrained() as packaged:
        shares, count = decide_by_margin(packaged, "The harbour was quiet that morning.", asked)
    name = max(shares, key=lambda label: shares[label])
    print(name, f"{shares[name]:.2f}", count)
