"""Figures of runs. matplotlib is imported here alone, when a figure is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from prelude.errors import TraceError
from prelude.simulation.compare import EqualP99, Sweep
from prelude.simulation.report import Report, seconds_text

_COLOURS = ("#3b6ea5", "#c8553d", "#588157", "#8d6a9f", "#b08900", "#555555", "#2a9d8f")
_NAMES = {"mean": "mean", "p50": "P50", "p99": "P99"}


def dots(reports: Sequence[Report], path: str | Path, title: str) -> None:
    """Mean, P50 and P99 latency of each report, each with its value; the share of reused tokens beside its name."""
    plt = _pyplot()
    figure, axes = plt.subplots(figsize=(9, 0.75 * len(reports) + 1.8), layout="constrained")
    for offset, (name, colour) in enumerate(zip(("mean", "p50", "p99"), _COLOURS)):
        places = [number + 0.26 * (offset - 1) for number in range(len(reports))]
        values = [getattr(report.latency, name) for report in reports]
        axes.plot(values, places, "o", markersize=5, color=colour, label=_NAMES[name])
        for place, value in zip(places, values):  # none is drawn at NaN
            axes.annotate(
                seconds_text(value), (value, place), (6, 0), textcoords="offset points", va="center", fontsize=7
            )
    names = [f"{r.label}\n{r.hit_rate + r.folded_rate:.0%} of prompt tokens reused" for r in reports]
    axes.set_yticks(range(len(reports)), names, fontsize=8)
    axes.invert_yaxis()
    _logarithmic(axes, "x")
    axes.margins(x=0.12)
    axes.set_xlabel("latency of finished requests, seconds (logarithmic)")
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    figure.legend(fontsize=8, loc="outside lower center", ncols=3)
    _save(figure, path, f"Simulated latency: {title}")


def curves(sweeps: Sequence[Sweep], path: str | Path, title: str) -> None:
    """Mean and P99 latency against the rate of arrivals."""
    plt = _pyplot()
    figure, both = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
    for axes, name in zip(both, ("mean", "p99")):
        for sweep, colour in zip(sweeps, _COLOURS):
            values = [getattr(report.latency, name) for report in sweep.reports]
            axes.plot(sweep.rates, values, marker="o", markersize=3, color=colour, label=sweep.label)
        _logarithmic(axes, "y")
        axes.set_xlim(left=0)
        axes.set_xlabel("requests a second")
        axes.set_ylabel(f"{_NAMES[name]} latency, seconds (logarithmic)")
        axes.grid(axis="y", color="#dddddd", linewidth=0.6)
        axes.legend(fontsize=8)
    _save(figure, path, f"Simulated latency by rate of arrivals: {title}")


def rates(found: EqualP99, path: str | Path, title: str) -> None:
    """Plot the rate that each of two engines carries at one P99."""
    plt = _pyplot()
    figure, axes = plt.subplots(figsize=(8, 2.2), layout="constrained")
    drawn = axes.barh([found.base, found.ours], [found.base_rate, found.our_rate], 0.5, color=_COLOURS[0])
    labels = [f"{found.base_rate:.4g}/s", f"{found.our_rate:.4g}/s, {found.ratio:.2f} times"]
    axes.bar_label(drawn, labels, padding=3, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(right=1.3 * max(found.base_rate, found.our_rate))
    axes.set_xlabel("requests a second")
    _save(figure, path, f"Simulated rate with a P99 latency of {seconds_text(found.bound)}: {title}")


def _logarithmic(axes: Any, which: str) -> None:
    """Make a logarithmic axis whose ticks are plain numbers: 0.5, 1, 2, 5, 10, and those between if it is short."""
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    if not np.isfinite(axes.dataLim.get_points()).all():
        raise TraceError("no request finished, so that there is no latency to draw; leave out --plot")
    getattr(axes, f"set_{which}scale")("log")
    axis = getattr(axes, f"{which}axis")
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high > 30 * low else (1, 2, 3, 5, 7), numticks=20))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot

    return matplotlib.pyplot


def _save(figure: Any, path: str | Path, title: str) -> None:
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=120)
