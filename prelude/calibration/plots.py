"""Figures. matplotlib is imported when a figure is drawn."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from prelude.calibration.metrics import BINS, F64, ece, reliability, risk_coverage

Curves = Mapping[str, tuple[F64, F64]]  # name -> (confidence, correct)
_COLOURS = ("#c8553d", "#3b6ea5", "#588157", "#8d6a9f")


def reliability_plot(curves: Curves, path: str | Path, *, bins: int = BINS, title: str = "") -> None:
    """Accuracy against confidence with the number of answers below: a calibrated model lies on the diagonal."""
    plt = _pyplot()
    figure, (above, below) = plt.subplots(
        2, 1, figsize=(5.2, 6.0), sharex=True, height_ratios=(3, 1), layout="constrained"
    )
    above.plot([0, 1], [0, 1], color="#888888", linewidth=1, linestyle="--", label="calibrated")
    for (name, (confidence, correct)), colour in zip(curves.items(), _COLOURS):
        found = [one for one in reliability(confidence, correct, bins) if one.count]
        label = f"{name}: ECE {ece(confidence, correct, bins):.3f}"
        above.plot([b.confidence for b in found], [b.accuracy for b in found], "o-", color=colour, label=label)
        below.hist(confidence, bins=list(np.linspace(0, 1, bins + 1)), color=colour, alpha=0.5, label=name)
    above.set(ylabel="accuracy", ylim=(0, 1.02), title=title)
    below.set(xlabel="confidence (largest probability)", ylabel="answers", xlim=(0, 1))
    above.legend(fontsize=8, loc="upper left")
    _save(plt, figure, path)


def risk_coverage_plot(curves: Curves, path: str | Path, *, title: str = "") -> None:
    """The share of errors among the answers that are kept, when the least confident ones are left out."""
    plt = _pyplot()
    figure, axes = plt.subplots(figsize=(5.2, 4.0), layout="constrained")
    for (name, (confidence, correct)), colour in zip(curves.items(), _COLOURS):
        coverage, risk = risk_coverage(confidence, correct)
        axes.plot(coverage, risk, color=colour, label=f"{name}: area {risk.mean():.4f}")
    axes.set(xlabel="coverage: share of answers kept", ylabel="risk: share of errors among them", title=title)
    axes.set(xlim=(0, 1), ylim=(0, None))
    axes.legend(fontsize=8, loc="upper left")
    _save(plt, figure, path)


def _save(plt: Any, figure: Any, path: str | Path) -> None:
    figure.savefig(path, dpi=140)
    plt.close(figure)


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt
