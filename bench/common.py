"""Parts that all benchmarks share: paired timing, medians with spread, one JSON shape, tables, figures.

A row is printed to stderr as soon as it is measured; the table of all rows goes to stdout at the end.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any, Protocol

from bench import record
from bench.command_line import command_line, options_parser
from bench.record import machine_facts as machine_facts  # of a report's facts, for its benchmark
from prelude.terminal.progress import watched

TABLE_WIDTH = 120
FIGURES = (".png", ".svg", ".pdf")


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


def rounds(count: int) -> Iterator[int]:
    """``range(count)`` with a bar in a terminal, which moves between the rounds and not within one."""
    return watched(range(count), "measuring", "rounds", count)


REST, BRIEF = 0.1, 0.5
"""Seconds before a run: libraries have threads that go on spinning after one. Seconds of a run that is too short to
warm itself up behind a rest."""


def paired(
    variants: dict[str, Callable[[], Any]], repeats: int, warmup: int = 1, rest: float = 0.0
) -> dict[str, Measured]:
    """Runs the variants in turn (A B A B ...), so that a drift of the machine meets all of them alike. ``rest``:
    seconds before each run, for libraries whose threads go on spinning after one and would slow the next variant. A
    brief run is made once more behind them and not counted: its threads have gone to sleep, and caches are cold."""
    for _ in range(warmup):
        for run in variants.values():
            run()
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for _ in rounds(repeats):
        for name, run in variants.items():
            time.sleep(rest)
            if rest and min(seconds[name], default=0.0) < BRIEF:
                run()
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
    """One line of a table. ``reach`` is the project's aim, in the unit of ``value``."""

    load: str
    measure: str
    value: float
    low: float
    high: float
    unit: str
    reach: str = ""
    note: str = ""

    @property
    def amount(self) -> str:
        return f"{self.value:.2f} {self.unit}"

    @property
    def range(self) -> str:
        return f"[{self.low:.2f} .. {self.high:.2f}]"


COLUMN_PANELS = 3  # more panels than these stand side by side in two columns
Panels = dict[str, list[tuple[str, Row]]]
"""The panels of a figure by title: each row with its label."""


@dataclass(slots=True)
class Report:
    title: str
    command: str = field(default_factory=lambda: command_line())
    rows: list[Row] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """The commit is that of the beginning: the tree may change while a benchmark runs."""
        self.facts = {"date": time.strftime("%Y-%m-%d"), "commit": record.commit(), **self.facts}
        print(f"{self.title}\n  {self.command}", file=sys.stderr, flush=True)

    def add(
        self,
        load: str,
        measure: str,
        values: tuple[float, float, float],
        unit: str,
        reach: str = "",
        note: str = "",
    ) -> None:
        """``values``: median, lowest and highest."""
        self.rows.append(row := Row(load, measure, *values, unit, reach, note))
        print(f"  {row.load}: {row.measure}: {row.amount} {row.range}", file=sys.stderr, flush=True)

    def show(self) -> None:
        """The table of all rows on stdout, at most ``TABLE_WIDTH`` columns wide; a note stands below its row."""
        facts = ", ".join(f"{key} {value}" for key, value in self.facts.items())
        print(f"\n{self.title}\n{textwrap.fill(facts, TABLE_WIDTH, initial_indent='  ', subsequent_indent='  ')}")
        cells = [(row.load, row.measure, row.amount, row.range, row.reach) for row in self.rows]
        widths = [max(map(len, column)) for column in zip(("load", "measure", "", "", " "), *cells)]
        fixed = sum(widths[2:]) + 2 * len(widths)
        for column in (1, 0):  # the texts that are cut where the numbers leave too little room
            widths[column] = min(widths[column], max(20, TABLE_WIDTH - fixed - widths[1 - column]))
        for row, texts in zip(self.rows, cells):
            wrapped = [textwrap.wrap(text, width) or [""] for text, width in zip(texts, widths)]
            for line in zip_longest(*wrapped, fillvalue=""):
                parts = [text.ljust(width) for text, width in zip(line, widths)]
                parts[2] = line[2].rjust(widths[2])
                print(("  " + "  ".join(parts)).rstrip())
            if row.note:
                print(textwrap.fill(row.note, TABLE_WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6))

    def write(self, path: str | Path) -> None:
        record.write(path, asdict(self))

    def panels(self, unit: str) -> Panels:
        """The rows in ``unit`` by measure; measures of one row share a panel."""
        by_measure: dict[str, list[Row]] = {}
        for row in self.rows:
            if row.unit == unit:
                by_measure.setdefault(row.measure, []).append(row)
        found = {name: [(row.load, row) for row in rows] for name, rows in by_measure.items() if len(rows) > 1}
        single = [(f"{rows[0].load}, {name}", rows[0]) for name, rows in by_measure.items() if len(rows) == 1]
        return found | ({"others" if found else "": single} if single else {})

    def plot(self, path: str | Path, unit: str = "x", panels: Panels | None = None) -> None:
        """Dots, each with its value and the spread of its pairs. A panel whose values span more than a factor of 20
        has a logarithmic axis, other panels begin at 0."""
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt

        panels = self.panels(unit) if panels is None else panels
        if not panels:
            raise SystemExit(f"--plot: there is no row in {unit!r} to draw")
        columns = 2 if len(panels) > COLUMN_PANELS else 1
        lines = [list(panels.items())[at : at + columns] for at in range(0, len(panels), columns)]
        heights = [0.8 + 0.25 * max(len(rows) for _, rows in line) for line in lines]
        figure, all_axes = plt.subplots(
            len(lines),
            columns,
            figsize=(9 if columns == 1 else 15, sum(heights) + 0.5),
            height_ratios=heights,
            squeeze=False,
            layout="constrained",
        )
        for axes in all_axes.flat[len(panels) :]:
            axes.remove()
        for axes, (title, rows) in zip(all_axes.flat, panels.items()):
            draw_panel(axes, f"{title} ({unit})", rows)
        figure.suptitle(self.title, x=0.01, ha="left", fontsize=11)
        figure.savefig(path, dpi=110)
        plt.close(figure)

    def finish(self, options: argparse.Namespace, unit: str = "x") -> None:
        """Shows the table, and writes the files that :func:`add_outputs` asked for."""
        self.show()
        if options.json:
            self.write(options.json)
        if getattr(options, "plot", None):
            self.plot(options.plot, unit)


def draw_panel(axes: Any, title: str, rows: Sequence[tuple[str, Row]]) -> None:
    """One panel of a figure: a dot for each labelled row, on matplotlib's ``axes``."""
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    values = [row.value for _, row in rows]
    spread = [[max(0.0, r.value - r.low) for _, r in rows], [max(0.0, r.high - r.value) for _, r in rows]]
    axes.errorbar(values, range(len(rows)), xerr=spread, fmt="o", color="#3b6ea5", ecolor="#888888", capsize=2)
    axes.set_yticks(range(len(rows)), [label for label, _ in rows], fontsize=8)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    if min(values) > 0 and max(values) > 20 * min(values):
        axes.set_xscale("log")
        left = min(1.0, min(values) / 2)
        axes.set_xlim(left=left)
        close = max(values) < 2000 * left  # beyond it the digits of so many ticks stand into one another
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if close else (1,), numticks=20))
        axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    end = min(max(row.high for _, row in rows), 1.5 * max(values))  # one row's spread does not squeeze all dots
    for at, (_, row) in enumerate(rows):
        text = f"{row.value:,.0f}" if row.value >= 100 else f"{row.value:.3g}"
        beside = (min(max(row.value, row.high), end), at)
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}  # a spread may go on behind it
        axes.annotate(text, beside, (4, 0), textcoords="offset points", va="center", fontsize=8, bbox=box)
    if axes.get_xscale() == "linear":
        axes.set_xlim(min(0.0, *values), 1.15 * end)
    else:
        axes.set_xlim(right=2 * end)
    axes.axvline(1.0, color="#444444", linewidth=0.8, zorder=0)
    axes.set_title(title, loc="left", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)


def add_outputs(parser: argparse.ArgumentParser, *, plot: bool = True) -> None:
    """The options for result files: ``--json`` and, where the benchmark draws one, ``--plot``."""
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all rows, facts and the command here")
    if plot:
        parser.add_argument(
            "--plot", type=figure_path, metavar="FILE", help=f"draw the rows here ({', '.join(FIGURES)})"
        )


def figure_path(value: str) -> Path:
    """The argument of ``--plot``, checked before any work is done."""
    path = Path(value)
    if path.suffix.lower() not in FIGURES:
        raise argparse.ArgumentTypeError(f"{value!r} does not end in {', '.join(FIGURES)}")
    if importlib.util.find_spec("matplotlib") is None:
        raise argparse.ArgumentTypeError("matplotlib is not installed: pip install matplotlib")
    return path


def use_threads(count: int) -> None:
    """Threads of this process's engines that are given none, and of torch."""
    import torch
    from prelude._native import cpu

    torch.set_num_threads(count)
    cpu.set_threads(count)


class Part(Protocol):
    report: Report
    us: dict[str, float]


def run_alone(doc: str | None, measured: Callable[[bool], Part], key: str) -> None:
    """A benchmark's command line; ``key``: where its microseconds stand in the JSON."""
    parser = options_parser(doc)
    add_outputs(parser, plot=False)
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    options = parser.parse_args()
    part = measured(options.quick)
    part.report.show()
    if options.json:
        record.write(options.json, {**asdict(part.report), key: part.us})
