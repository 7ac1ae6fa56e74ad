"""Statements timed against each other in alternating blocks.

A block is some milliseconds of calls of one side, after one call that is not counted; then comes the next side's, and
so on for several rounds, so that other load on the machine meets all alike, and each is timed with its own data in
the caches, as the same call made again is. Times are CPU seconds of the process, all its threads.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from timeit import Timer
from typing import Any

from prelude.terminal.progress import watched

Run = Callable[[int], float]  # CPU seconds of so many calls
Three = tuple[float, float, float]


def statement(code: str, names: Mapping[str, Any]) -> Run:
    """Of Python as users write it: no call around it is timed. The collector rests meanwhile."""
    return Timer(code, globals=dict(names), timer=time.process_time).timeit


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of a call of each side, a value a round."""

    of: dict[str, list[float]]

    def median(self, side: str) -> float:
        return statistics.median(self.of[side])

    def least(self, side: str) -> float:
        return min(self.of[side])

    def ratios(self, base: str, side: str) -> list[float]:
        """How many times as fast as ``base``, round by round."""
        return [b / s for b, s in zip(self.of[base], self.of[side])]

    def best(self, ours: str) -> str:
        """The fastest of the other sides that took part in each round."""
        rounds = len(self.of[ours])
        return min((side for side in self.of if side != ours and len(self.of[side]) == rounds), key=self.median)

    def join(self, way: str, side: str) -> None:
        """``way`` is no side any more: if it is faster than ``side``, its times are that side's."""
        if way in self.of:
            self.of[side] = min(self.of.pop(way), self.of.get(side, [float("inf")]), key=statistics.median)


def blocks(
    runs: Mapping[str, Run], rounds: int, seconds: float = 0.004, warm: bool = True, rest: float = 0.0
) -> Times:
    """``warm``: each side is called once more before the call that says how many make a block. ``rest``: seconds
    before each side's turn, for libraries whose threads go on spinning after one."""
    counts = {}
    for name, run in runs.items():
        if warm:
            run(1)
        counts[name] = max(1, round(seconds / max(run(1), 1e-7)))
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for _ in watched(range(rounds), "measuring", "rounds", rounds):
        for name, run in runs.items():
            if rest:
                time.sleep(rest)
            if counts[name] > 1:
                run(1)
            taken[name].append(max(run(counts[name]), 1e-9) / counts[name])
    return Times(taken)


def means(rows: Sequence[Sequence[float]]) -> list[float]:
    """Geometric means of several inputs' ratios, a value a round."""
    return [statistics.geometric_mean(row) for row in zip(*rows)]
