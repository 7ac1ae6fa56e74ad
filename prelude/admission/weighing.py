"""The numbers of a question whose options are shown in several orders, or in another order than the caller's."""

from __future__ import annotations

import math
from typing import TypeAlias

from prelude.admission.questions import QuestionPlan

# As ``LabelPaths.weigh`` gives them: the best label's index, shares in order, the same by label, logprobs, mass.
Weighed: TypeAlias = tuple[int, list[float], dict[str, float], dict[str, float], float]


def weigh_shifts(
    plan: QuestionPlan, logprobs: list[float], at: int, alone: int, by_length: bool, relative: bool
) -> Weighed:
    """The means over the plan's shifts, whose edges stand one after another from ``at`` on, and without the state
    from ``alone`` on (-1: nowhere). The logarithms of the probabilities are averaged, and the joint logprobs, and the
    masses. Letters are read as the labels in their places. The first label in the plan's order wins a tie."""
    weigh, labels, edges = plan.trie.paths.weigh, plan.labels, len(plan.trie.targets)
    logs: list[dict[str, float]] = []
    joints: list[dict[str, float]] = []
    masses: list[float] = []
    for shift, start in enumerate(plan.starts):
        here, without = at + shift * edges, alone + shift * edges if alone >= 0 else -1
        read = labels[start:] + labels[:start] if plan.lettered else labels
        logs.append(weigh(read, logprobs, here, without, by_length, True)[3])
        if not relative:
            _, _, _, joint, mass = weigh(read, logprobs, here)
            joints.append(joint)
            masses.append(mass)
    scores = [_mean([log[label] for log in logs]) for label in labels]
    best = max(scores)
    weights = [math.exp(score - best) for score in scores]
    total = math.fsum(weights)
    shares = [weight / total for weight in weights]
    if relative:
        level = best + math.log(total)
        means, mass = [score - level for score in scores], math.nan
    else:
        means, mass = [_mean([joint[label] for joint in joints]) for label in labels], _mean(masses)
    return scores.index(best), shares, dict(zip(labels, shares)), dict(zip(labels, means)), mass


def replaced(labels: tuple[str, ...], places: tuple[int, ...], found: Weighed) -> tuple[tuple[str, ...], Weighed]:
    """Put numbers in the caller's order: ``places[i]`` is where the caller's label i is in ``labels``."""
    index, shares, probabilities, logprobs, mass = found
    order = tuple([labels[at] for at in places])
    by_label = {label: probabilities[label] for label in order}
    logs = {label: logprobs[label] for label in order}
    return order, (places.index(index), [shares[at] for at in places], by_label, logs, mass)


def _mean(values: list[float]) -> float:
    """Sum with one rounding: the order of the values makes no difference."""
    return math.fsum(values) / len(values)
