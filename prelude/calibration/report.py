"""One run: split the labelled answers, fit on one part, measure on the other."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from prelude.calibration.calibrator import LEAST_ROWS, Calibrator, Method, PriorCorrection, log, rows_of
from prelude.calibration.metrics import F64, Summary, confident, ece, summary, worsened
from prelude.errors import CalibrationError, shown
from prelude.records import dataclass
from prelude.results import Answer

Prior = Literal["none", "labels"] | PriorCorrection


@dataclass(frozen=True, slots=True)
class Report:
    """``before`` and ``after`` are of the held-out rows, which the fit did not see; ``interval`` is the range in
    which the middle 95 % of ``resamples`` bootstrap samples of the held-out rows have their ECE."""

    fitted: int
    held_out: int
    before: Summary
    after: Summary
    before_interval: tuple[float, float]
    after_interval: tuple[float, float]
    calibrator: Calibrator
    prior: PriorCorrection | None
    curves: dict[str, tuple[F64, F64]]

    def as_json(self) -> dict[str, Any]:
        found = {
            "fitted": self.fitted,
            "held_out": self.held_out,
            "method": self.calibrator.method,
            "before": dataclasses.asdict(self.before),
            "after": dataclasses.asdict(self.after),
            "before_ece_95": self.before_interval,
            "after_ece_95": self.after_interval,
        }
        if self.calibrator.method != "isotonic":
            found["parameters"] = dict(self.calibrator.parameters)
        return found


def calibrate(
    answers: Sequence[Answer],
    truth: Sequence[str],
    *,
    labels: int | None = None,
    method: Method = "temperature",
    prior: Prior = "none",
    seed: int = 0,
    resamples: int = 1000,
) -> Report:
    """``labels`` answers, drawn at random, are fitted on (``None``: half of them); the others are held out."""
    rows_of(answers, truth)  # every label is one of its answer's
    count = len(answers) // 2 if labels is None else labels
    if not LEAST_ROWS <= count <= len(answers) - LEAST_ROWS:
        raise CalibrationError(
            f"{count} of {len(answers)} rows to fit on; it takes at least {LEAST_ROWS}, and leaves {LEAST_ROWS} to "
            "measure on: label more rows"
        )
    order = list(range(len(answers)))
    random.Random(seed).shuffle(order)
    ours, theirs = order[:count], order[count:]
    corrected = list(answers)
    correction = prior if isinstance(prior, PriorCorrection) else None
    if prior == "labels":
        correction = PriorCorrection.of_answers([answers[at] for at in ours])
    elif correction is None and prior != "none":
        raise CalibrationError(f"prior {shown(prior)} is not 'none', 'labels' or a PriorCorrection")
    if correction is not None:
        corrected = [correction.apply(answer) for answer in answers]
    calibrator = Calibrator.fit_answers([corrected[at] for at in ours], [truth[at] for at in ours], method=method)
    held = [truth[at] for at in theirs]
    before, index = rows_of([answers[at] for at in theirs], held)
    after, _ = rows_of([calibrator.apply(corrected[at]) for at in theirs], held)
    was, now = ([np.array(row) for row in rows] for rows in (before, after))
    curves = {"before": confident(was, index), "after": confident(now, index)}
    summaries = summary(was, index), summary(now, index)
    if worse := worsened(*summaries):
        log.warning("calibration makes the %d held-out answers worse: %s", len(theirs), worse)
    return Report(
        count,
        len(theirs),
        *summaries,
        interval(*curves["before"], resamples, seed),
        interval(*curves["after"], resamples, seed),
        calibrator,
        correction,
        curves,
    )


def interval(confidence: F64, correct: F64, resamples: int, seed: int) -> tuple[float, float]:
    """Return the range of 95 % of the bootstrap's ECEs. A resample's own errors make small ECEs appear too high."""
    draw = np.random.default_rng(seed)
    n = len(confidence)
    found = [ece(confidence[some], correct[some]) for some in (draw.integers(0, n, n) for _ in range(resamples))]
    low, high = np.quantile(found, [0.025, 0.975]) if found else (0.0, 0.0)
    return float(low), float(high)
