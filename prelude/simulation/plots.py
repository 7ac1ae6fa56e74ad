"""Figures of runs. matplotlib is imported here alone, when a figure is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prelude.errors import ConfigError
from prelude.simulation.compare import Sweep
from prelude.simulation.report import Report

_COLOURS = ("#3b6ea5", "#c8553d", "#588157", "#8d6a9f", "#b08900", "#555555", "#2a9d8f")


def bars(reports: Sequence[Report], path: str | Path, title: str) -> None:
    """Mean, P50 and P99 latency of each report, on a logarithmic scale; hit rate beside its name."""
    plt = _pyplot()
    figure, axes = plt.subplots(figsize=(8, 0.7 * len(reports) + 1.6))
    for offset, (name, colour) in enumerate(zip(("mean", "p50", "p99"), _COLOURS)):
        places = [number + 0.26 * (offset - 1) for number in range(len(reports))]
        axes.barh(places, [getattr(r.latency, name) for r in reports], 0.24, color=colour, label=name)
    names = [f"{r.label}\n{r.hit_rate + r.folded_rate:.0%} reused" for r in reports]
    axes.set_yticks(range(len(reports)), names, fontsize=8)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("latency, seconds")
    axes.legend(fontsize=8)
    _save(figure, axes, path, title)


def curves(sweeps: Sequence[Sweep], path: str | Path, title: str) -> None:
    """Mean and P99 latency against the rate of arrivals."""
    plt = _pyplot()
    figure, both = plt.subplots(1, 2, figsize=(10, 4))
    for axes, name in zip(both, ("mean", "p99")):
        for sweep, colour in zip(sweeps, _COLOURS):
            values = [getattr(report.latency, name) for report in sweep.reports]
            axes.plot(sweep.rates, values, marker="o", markersize=3, color=colour, label=sweep.label)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("requests a second")
        axes.set_ylabel(f"{name} latency, seconds")
    both[0].legend(fontsize=8)
    _save(figure, both[0], path, title)


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise ConfigError("a plot needs matplotlib: pip install 'prelude-engine[bench]'") from error
    matplotlib.use("Agg")
    import matplotlib.pyplot

    return matplotlib.pyplot


def _save(figure: Any, axes: Any, path: str | Path, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
