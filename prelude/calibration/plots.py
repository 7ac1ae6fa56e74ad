"""Figures. They alone import matplotlib."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from prelude.calibration.metrics import BINS, F64, ece, reliability, risk_coverage

Curves = Mapping[str, tuple[F64, F64]]  # name -> (confidence, correct)
_COLOURS = ("#c8553d", "#3b6ea5", "#588157", "#8d6a9f")
_Z = 1.96  # of a 95 % interval
_FEWEST, _DOTS = 20, 40  # answers behind a dot of the risk, and dots


def reliability_plot(curves: Curves, path: str | Path, *, bins: int = BINS, title: str) -> None:
    """Accuracy against confidence, a point a bin with its 95 % interval, its area by the bin's answers; their number
    below. A calibrated model lies on the diagonal."""
    figure = Figure(figsize=(6.0, 6.6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    above.plot([0, 1], [0, 1], color="#888888", linewidth=1, linestyle="--", label="calibrated")
    width = 1 / bins / (len(curves) + 0.5)
    for at, ((name, (confidence, correct)), colour) in enumerate(zip(curves.items(), _COLOURS)):
        found = [one for one in reliability(confidence, correct, bins) if one.count]
        x, y, count = (np.array([getattr(one, of) for one in found]) for of in ("confidence", "accuracy", "count"))
        low, high = interval(y, count)
        above.vlines(x, low, high, color=colour, linewidth=1, alpha=0.6)
        label = f"{name}: ECE {ece(confidence, correct, bins):.3f}"
        above.scatter(x, y, 8 + 150 * count / count.max(), color=colour, alpha=0.8, label=label, zorder=3)
        middles = np.array([(one.low + one.high) / 2 for one in found]) + (at - (len(curves) - 1) / 2) * width
        below.bar(middles, count, width, color=colour, label=name)
    above.set(ylabel="accuracy, 95 % interval", ylim=(-0.03, 1.03))
    above.set_title(f"Reliability\n{title}", fontsize=9)
    below.set(xlabel="confidence (largest probability)", ylabel="answers", xlim=(-0.02, 1.02))
    for axes in (above, below):
        axes.legend(fontsize=8, loc="upper left")
    figure.savefig(path, dpi=140)


def risk_coverage_plot(curves: Curves, path: str | Path, *, title: str) -> None:
    """The share of errors among the answers that are kept, with its 95 % interval, when the least confident ones are
    left out; from 20 kept answers on."""
    figure = Figure(figsize=(6.0, 4.4), layout="constrained")
    axes = figure.subplots()
    for at, ((name, (confidence, correct)), colour) in enumerate(zip(curves.items(), _COLOURS)):
        coverage, risk = risk_coverage(confidence, correct)
        kept = np.unique(np.linspace(min(_FEWEST, len(risk)), len(risk), _DOTS).astype(int))
        x = coverage[kept - 1] + 0.004 * at  # beside each other if both have the same order
        low, high = interval(risk[kept - 1], kept)
        axes.vlines(x, low, high, color=colour, linewidth=1, alpha=0.4)
        axes.plot(x, risk[kept - 1], "o", markersize=3.5, color=colour, label=f"{name}: area {risk.mean():.4f}")
    axes.set(xlabel="coverage: share of answers kept", ylabel="risk: share of errors among them, 95 % interval")
    axes.set_ylim(bottom=0)
    axes.set_title(f"Risk by coverage\n{title}", fontsize=9)
    axes.legend(fontsize=8, loc="upper left")
    figure.savefig(path, dpi=140)


def interval(share: F64, count: Any) -> tuple[F64, F64]:
    """Wilson's 95 % interval of shares of ``count`` answers each."""
    square = _Z * _Z / count
    middle = (share + square / 2) / (1 + square)
    half = _Z * np.sqrt(share * (1 - share) / count + square / (4 * count)) / (1 + square)
    return middle - half, middle + half
