"""What every benchmark shares: paired timing, medians with spread, one JSON shape, tables."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds of one variant over repeats."""

    name: str
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> tuple[float, float]:
        return min(self.seconds), max(self.seconds)


def paired(variants: dict[str, Callable[[], Any]], repeats: int, warmup: int = 1) -> dict[str, Measured]:
    """Runs the variants in turn (A B A B ...), so that a drift of the machine meets all of them alike."""
    for _ in range(warmup):
        for run in variants.values():
            run()
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(repeats):
        for name, run in variants.items():
            began = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - began)
    return {name: Measured(name, tuple(times)) for name, times in seconds.items()}


def three(values: Sequence[float], scale: float = 1.0) -> tuple[float, float, float]:
    """Median, minimum and maximum."""
    return statistics.median(values) * scale, min(values) * scale, max(values) * scale


def ratio(base: Measured, ours: Measured) -> tuple[float, float, float]:
    """Median, minimum and maximum of base / ours, pair by pair."""
    return three([b / o for b, o in zip(base.seconds, ours.seconds)])


@dataclass(slots=True)
class Row:
    """One line of a table. ``reach`` is what the project aims at, in the unit of ``value``."""

    load: str
    measure: str
    value: float
    low: float
    high: float
    unit: str
    reach: str = ""
    note: str = ""


@dataclass(slots=True)
class Report:
    title: str
    command: str
    rows: list[Row] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    def add(self, load: str, measure: str, values: tuple[float, float, float], unit: str, **extra: str) -> None:
        self.rows.append(Row(load, measure, *values, unit, **extra))

    def show(self) -> None:
        print(f"\n{self.title}")
        print("  " + ", ".join(f"{key} {value}" for key, value in self.facts.items()))
        width = max(len(row.load) for row in self.rows)
        middle = max(len(row.measure) for row in self.rows)
        for row in self.rows:
            line = f"  {row.load:<{width}}  {row.measure:<{middle}}  {row.value:9.2f} {row.unit:<8}"
            line += f" [{row.low:.2f} .. {row.high:.2f}]"
            line += f"  reach {row.reach}" if row.reach else ""
            print(line + (f"  ({row.note})" if row.note else ""))

    def write(self, path: str | Path) -> None:
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(asdict(self), indent=1) + "\n")

    def plot(self, path: str | Path, unit: str = "x") -> None:
        """Bars of every row in ``unit``, with the spread of its pairs."""
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt

        rows = [row for row in self.rows if row.unit == unit]
        figure, axes = plt.subplots(figsize=(8, 0.6 * len(rows) + 1.4))
        names = [f"{row.load}\n{row.measure}" for row in rows]
        values = [row.value for row in rows]
        errors = [[row.value - row.low for row in rows], [row.high - row.value for row in rows]]
        axes.barh(names, values, xerr=errors, color="#3b6ea5", ecolor="#555555", capsize=3)
        axes.axvline(1.0, color="#999999", linewidth=0.8)
        axes.set_xlabel("times faster (median of pairs, spread)")
        axes.set_title(self.title, loc="left", fontsize=10)
        axes.invert_yaxis()
        figure.tight_layout()
        figure.savefig(path, dpi=120)


def machine_facts(extra: Sequence[tuple[str, Any]] = ()) -> dict[str, Any]:
    """Hardware and versions of a run, without names of hosts or paths."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if "model name" in line]
        model = lines[0] if lines else model
    return {"cpu": model, "cores": os.cpu_count(), "python": platform.python_version(), **dict(extra)}


class Part(Protocol):
    report: Report
    us: dict[str, float]


def part_of_planning(doc: str | None, measured: Callable[[bool], Part], key: str) -> None:
    """The command line of a part of ``bench.planning`` alone; ``key``: where its microseconds stand in the JSON."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="write all rows here")
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    options = parser.parse_args()
    part = measured(options.quick)
    part.report.show()
    if options.json:
        rows = {**asdict(part.report), key: part.us}
        Path(options.json).write_text(json.dumps(rows, indent=1) + "\n")
