"""The rows of the tokenizer bench: the figure and its aim."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.blocks import Times
from bench.common import Report, three


@dataclass(slots=True)
class Table:
    report: Report

    def row(
        self,
        load: str,
        measure: str,
        values: Sequence[float],
        unit: str = "x",
        *,
        least: float | None = None,
        most: float | None = None,
        note: str = "",
    ) -> None:
        """The median of ``values`` and their range; ``least`` or ``most``: the aim of the median."""
        reach = f">= {least:g}" if least is not None else f"<= {most:g}" if most is not None else ""
        self.report.add(load, measure, three(values), unit, reach=reach, note=note)

    def beside_best(self, load: str, measure: str, times: Times, ours: str) -> None:
        """Microseconds of ours, and how many times as fast as the peer with the best median."""
        note = ", ".join(f"{name} {times.median(name) * 1e6:.1f}" for name in times.of if name != ours)
        self.row(load, measure, [one * 1e6 for one in times.of[ours]], "us", note=note)
        best = times.best(ours)
        self.row(load, f"{measure}, times the best peer", times.ratios(best, ours), least=1, note=best)
