"""How far a text lies from the rows of a fit."""

from __future__ import annotations

from bisect import bisect_right

from prelude.records import dataclass
from prelude.values.arrays import F32


@dataclass(frozen=True, slots=True, eq=False)
class Scope:
    """``rows`` [n, inputs]: the score of a vector is its largest product with one of them. ``knots`` ascend: the
    scores of rows that the fit has not seen, at equal shares of them."""

    rows: F32
    knots: tuple[float, ...]
    keep: float

    def share(self, score: float) -> float:
        """Of rows like those of the fit: how many have this score or less."""
        knots, most = self.knots, len(self.knots) - 1
        at = bisect_right(knots, score) - 1
        if not 0 <= at < most:
            return 0.0 if at < 0 else 1.0
        return (at + (score - knots[at]) / (knots[at + 1] - knots[at])) / most
