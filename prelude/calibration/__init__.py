"""Calibration: probabilities that agree with frequencies, fitted on labelled answers and applied on purpose.

    PriorCorrection   divides a label's prior out of the probabilities: its probability for an empty state, or its
                      mean probability over many states. A step of its own, before the calibrator.
    Calibrator        temperature, Platt or isotonic, fitted on probabilities and true labels
    metrics           expected calibration error, Brier score, reliability, risk against coverage

An engine never applies either: ``calibrator.apply(answer)`` does. ``prelude calibrate`` fits one from a file.
"""

from __future__ import annotations

from prelude.calibration.calibrator import METHODS, Calibrator, PriorCorrection
from prelude.calibration.metrics import Bin, Summary, brier, ece, reliability, risk_coverage, summary

__all__ = [
    "METHODS",
    "Bin",
    "Calibrator",
    "PriorCorrection",
    "Summary",
    "brier",
    "ece",
    "reliability",
    "risk_coverage",
    "summary",
]
