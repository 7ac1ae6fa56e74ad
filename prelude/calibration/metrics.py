"""The agreement of probabilities with the true labels. Rows may have different numbers of labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from prelude.errors import CalibrationError, shown
from prelude.records import dataclass

F64 = npt.NDArray[np.float64]
Rows = Sequence[F64]  # a row's probabilities over its own labels
BINS = 15
LEAST = 1e-12  # a probability of 0 counts as this in a logarithm


@dataclass(frozen=True, slots=True)
class Bin:
    """Answers whose confidence lies in (low, high]; ``accuracy`` and ``confidence`` are means, 0 without answers."""

    low: float
    high: float
    count: int
    accuracy: float
    confidence: float


@dataclass(frozen=True, slots=True)
class Summary:
    """``ece``: expected calibration error of the largest probability. ``brier``: mean squared distance of the
    probabilities from the true label, 0 to 2. ``nll``: mean negative logarithm of the true label's probability.
    ``aurc``: mean error over all coverages, of answers taken in the order of their confidence."""

    count: int
    accuracy: float
    confidence: float
    ece: float
    brier: float
    nll: float
    aurc: float


def row_of(given: Any, where: str) -> F64:
    """One row of probabilities, float64 [labels]. ``CalibrationError`` that begins with ``where`` if it is none."""
    try:
        row: F64 = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        row = np.empty((0, 0))
    if row.ndim != 1 or not row.size or not np.isfinite(row).all() or row.min() < 0 or row.sum() <= 0:
        raise CalibrationError(
            f"{where}: probabilities are finite, not negative, and not all zero; {shown(given)} is no list of such"
        )
    return row


def check_rows(rows: Rows, truth: Sequence[int]) -> None:
    """``CalibrationError`` unless there is a true label in range for each row, and a row at all."""
    if len(rows) == 0 or len(rows) != len(truth):
        raise CalibrationError(
            f"{len(rows)} rows of probabilities and {len(truth)} labels; one label a row, at least one"
        )
    for at, (row, label) in enumerate(zip(rows, truth)):
        if not isinstance(label, int | np.integer) or not 0 <= label < len(row):
            raise CalibrationError(
                f"rows[{at}]: label {shown(label)} of {len(row)} labels; it takes the index of one"
            )
        row_of(row, f"rows[{at}]")


def confident(rows: Rows, truth: Sequence[int]) -> tuple[F64, F64]:
    """The largest probability of each row, and whether its label (the first of equals) is the true one, 0 or 1."""
    best = [int(np.argmax(row)) for row in rows]
    confidence = np.array([float(row[at]) for row, at in zip(rows, best)])
    return confidence, np.array([float(at == int(label)) for at, label in zip(best, truth)])


def reliability(confidence: F64, correct: F64, bins: int = BINS) -> list[Bin]:
    """Answers by their confidence, in ``bins`` bins of equal width."""
    edges = np.arange(bins + 1) / bins  # those of decimals are the decimals: 0.07 lies in (0.06, 0.07]
    places = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, bins - 1)
    found = []
    for at in range(bins):
        inside = places == at
        count = int(inside.sum())
        means = (float(correct[inside].mean()), float(confidence[inside].mean())) if count else (0.0, 0.0)
        found.append(Bin(at / bins, (at + 1) / bins, count, *means))
    return found


def ece(confidence: F64, correct: F64, bins: int = BINS) -> float:
    """Return the mean over the answers of their bin's distance between accuracy and confidence."""
    found = reliability(confidence, correct, bins)
    return float(sum(one.count * abs(one.accuracy - one.confidence) for one in found) / max(1, len(confidence)))


def brier(rows: Rows, truth: Sequence[int]) -> float:
    """Return the mean over the rows of the sum over the labels of (probability - truth) squared."""
    total = 0.0
    for row, label in zip(rows, truth):
        hot = np.zeros(len(row))
        hot[int(label)] = 1.0
        total += float(((row - hot) ** 2).sum())
    return total / len(rows)


def risk_coverage(confidence: F64, correct: F64) -> tuple[F64, F64]:
    """Coverage and the share of errors in it, when the answers are taken from the most confident one on."""
    order = np.argsort(-np.asarray(confidence), kind="stable")
    counts = np.arange(1, len(order) + 1)
    return counts / len(order), np.cumsum(1.0 - correct[order]) / counts


def worsened(before: Summary, after: Summary) -> str:
    """Return the figures that rose, in words; "" for none."""
    pairs = [(name.upper(), getattr(before, name), getattr(after, name)) for name in ("ece", "brier", "nll")]
    return ", ".join([f"{name} {was:.4f} to {now:.4f}" for name, was, now in pairs if now > was])


def summary(rows: Rows, truth: Sequence[int], bins: int = BINS) -> Summary:
    check_rows(rows, truth)
    confidence, correct = confident(rows, truth)
    chosen = np.array([float(row[int(label)]) for row, label in zip(rows, truth)])
    return Summary(
        count=len(rows),
        accuracy=float(correct.mean()),
        confidence=float(confidence.mean()),
        ece=ece(confidence, correct, bins),
        brier=brier(rows, truth),
        nll=float(-np.log(np.maximum(chosen, LEAST)).mean()),
        aurc=float(risk_coverage(confidence, correct)[1].mean()),
    )
