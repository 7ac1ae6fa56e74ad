"""The three fits. Each takes rows of log-probabilities and the index of each row's true label."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from prelude.calibration.metrics import F64
from prelude.errors import CalibrationError

LEAST_T, MOST_T = 0.05, 20.0
PRIOR = 1.0  # weight of the Platt fit's pull towards "change nothing", in rows: it keeps separable data finite
NOTHING_TO_CALIBRATE = (
    "the true labels are no likelier where their probabilities are higher, so that there is nothing to calibrate"
)
_STEPS = 100


def softmax(logits: F64) -> F64:
    wide = np.exp(logits - logits.max())
    found: F64 = wide / wide.sum()
    return found


def mean_nll(table: F64, truth: Sequence[int]) -> float:
    """Take logits [rows, labels], with -inf behind the labels of a row that has fewer."""
    top = table.max(axis=1)
    total = top + np.log(np.exp(table - top[:, None]).sum(axis=1)) - table[np.arange(len(table)), truth]
    return float(total.mean())


def fit_temperature(rows: Sequence[F64], truth: Sequence[int]) -> float:
    """The T in [0.05, 20] with the least negative log-likelihood of softmax(row / T), which is convex in 1 / T."""
    table = np.full((len(rows), max(map(len, rows))), -np.inf)
    for at, row in enumerate(rows):
        table[at, : len(row)] = row

    def loss(log_slope: float) -> float:
        return mean_nll(table * np.exp(log_slope), truth)

    low, high = -np.log(MOST_T), -np.log(LEAST_T)
    ratio = (np.sqrt(5.0) - 1) / 2
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    at_left, at_right = loss(left), loss(right)
    while high - low >= 1e-7:
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - ratio * (high - low)
            at_left = loss(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + ratio * (high - low)
            at_right = loss(right)
    return float(np.exp(-(low + high) / 2))


def fit_platt(rows: Sequence[F64], truth: Sequence[int], labels: int) -> tuple[float, list[float]]:
    """Slope a and one offset b a label of softmax(a * row + b), by Newton's method; the last offset is 0. A small
    quadratic pull towards a = 1, b = 0 keeps it finite if the labels are separable."""
    table = np.stack(rows)
    n = len(table)
    hot = np.zeros((n, labels))
    hot[np.arange(n), list(truth)] = 1.0
    found = np.zeros(labels)  # a, b_0 .. b_{labels - 2}
    found[0] = 1.0
    middle = found.copy()
    features = np.zeros((n, labels, labels))  # [row, label, parameter]
    features[:, :, 0] = table
    for at in range(labels - 1):
        features[:, at, 1 + at] = 1.0

    def loss(parameters: F64) -> float:
        pull = PRIOR / (2 * n) * float(((parameters - middle) ** 2).sum())
        return mean_nll(features @ parameters, truth) + pull

    value = loss(found)
    for _ in range(_STEPS):
        logits = features @ found
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        gradient = np.einsum("nk,nkp->p", shares - hot, features) / n + PRIOR / n * (found - middle)
        mean = np.einsum("nk,nkp->np", shares, features)
        curvature = np.einsum("nk,nkp,nkq->pq", shares, features, features) / n - mean.T @ mean / n
        step = np.linalg.solve(curvature + PRIOR / n * np.eye(labels), gradient)
        size = 1.0
        while size > 1e-6 and loss(found - size * step) > value:
            size /= 2
        found = found - size * step
        now = loss(found)
        if value - now < 1e-12:
            break
        value = now
    if found[0] <= 0:
        raise CalibrationError(f"the fitted slope is {found[0]:.3g}: {NOTHING_TO_CALIBRATE}")
    return float(found[0]), [*map(float, found[1:]), 0.0]


def fit_isotonic(rows: Sequence[F64], truth: Sequence[int]) -> tuple[list[float], list[float]]:
    """The ascending step function of a probability that fits best whether its label is the true one, over all labels
    of all rows, by pooling adjacent violators. Its knots: ``x`` ascending, ``y`` in [0, 1]."""
    x = np.concatenate([np.exp(row) for row in rows])
    y = np.concatenate([np.arange(len(row)) == label for row, label in zip(rows, truth)]).astype(np.float64)
    order = np.argsort(x, kind="stable")
    x, y = x[order], y[order]
    values, first = np.unique(x, return_index=True)
    weights = np.diff(np.append(first, len(x))).astype(np.float64)
    means = np.add.reduceat(y, first) / weights
    level: list[float] = []
    weight: list[float] = []
    span: list[int] = []
    for mean, some in zip(means.tolist(), weights.tolist()):
        level.append(mean)
        weight.append(some)
        span.append(1)
        while len(level) > 1 and level[-2] >= level[-1]:
            both = weight[-2] + weight[-1]
            level[-2:] = [(level[-2] * weight[-2] + level[-1] * weight[-1]) / both]
            weight[-2:] = [both]
            span[-2:] = [span[-2] + span[-1]]
    fitted = np.repeat(level, span)
    # Of a run of equal values its ends are enough: between knots the function is a straight line.
    keep = np.ones(len(values), dtype=bool)
    keep[1:-1] = (fitted[1:-1] != fitted[:-2]) | (fitted[1:-1] != fitted[2:])
    return values[keep].tolist(), fitted[keep].tolist()
