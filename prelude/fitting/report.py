"""The knowledge of a fit about rows that it had not seen: how well it did, and how far a text lies from its own."""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import Any

from prelude.errors import CheckpointError, shown
from prelude.records import dataclass
from prelude.values.arrays import F32

MOST_PAIRS = 20
_BAR = 30  # characters of a whole bar


@dataclass(frozen=True, slots=True, eq=False)
class Scope:
    """How far a text lies from the rows of a fit. ``rows`` [n, inputs]: the score of a vector is its largest product
    with one of them. ``knots`` ascend: the scores of rows that the fit has not seen, at equal shares of them."""

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


@dataclass(frozen=True, slots=True)
class FitReport:
    """Each row was judged by the fit of the folds that it is not in. ``log_loss`` is the mean of -log of the true
    label's probability, ``calibration_error`` the expected calibration error; both are of calibrated probabilities.
    ``confusions``: (true label, answer, rows), the most frequent first. ``strength`` is scikit-learn's ``C``, and
    ``temperature`` what the logits were divided by. ``cut``: rows longer than the model reads. ``other_script``:
    rows whose letters are mostly of another script than those of most rows. ``curve``: (rows, accuracy) of fits of
    fewer rows. Times are seconds. ``str()`` of a report is for a terminal."""

    rows: int
    labels: int
    named: int
    folds: int
    strength: float
    temperature: float
    accuracy: float
    macro_f1: float
    log_loss: float
    calibration_error: float
    confusions: tuple[tuple[str, str, int], ...]
    curve: tuple[tuple[int, float], ...]
    cut: int
    other_script: int
    embed_seconds: float
    fit_seconds: float

    def __str__(self) -> str:
        lines = [
            f"{self.rows} rows, {self.labels} labels; each row judged by a fit of the other {self.folds - 1} folds",
            f"accuracy {self.accuracy:.4f}, macro F1 {self.macro_f1:.4f}, log loss {self.log_loss:.4f}, "
            f"calibration error {self.calibration_error:.4f}",
            f"strength of the regression {self.strength:g}, logits divided by {self.temperature:.3f}",
            f"embedding {self.embed_seconds:.1f} s, fit {self.fit_seconds:.1f} s",
        ]
        if self.named:
            lines.append("the names of the labels are rows of the fit too, since that answers held-out rows better")
        if self.cut:
            lines.append(f"{self.cut} rows are longer than the model reads and were cut")
        if self.other_script:
            lines.append(f"{self.other_script} rows are in another script than most")
        if self.curve:
            lines.append("accuracy by rows of a fit:")
            points = [*self.curve, (self.rows * (self.folds - 1) // self.folds, self.accuracy)]
            lines += [f"{rows:>7} {_bar(accuracy)} {accuracy:.4f}" for rows, accuracy in points]
        if self.confusions:
            lines.append("most frequent errors:")
            most = self.confusions[0][2]
            for true, said, count in self.confusions:
                lines.append(f"{count:>7} {_bar(count / most)} {true} answered as {said}")
        return "\n".join(lines)


def _bar(share: float) -> str:
    return ("#" * max(1, round(_BAR * share))).ljust(_BAR)


def report_of(found: dict[str, Any], where: str) -> FitReport:
    """Of the object in a file; ``CheckpointError`` where it is no report."""
    pairs = found.get("confusions")
    if not isinstance(pairs, list) or len(pairs) > MOST_PAIRS or not all(map(_pair, pairs)):
        raise CheckpointError(f"{where}: confusions are {shown(pairs)}")
    curve = found.get("curve")
    if not isinstance(curve, list) or len(curve) > MOST_PAIRS or not all(map(_point, curve)):
        raise CheckpointError(f"{where}: curve is {shown(curve)}")
    made = {
        **found,
        "confusions": tuple([tuple(pair) for pair in pairs]),
        "curve": tuple([tuple(at) for at in curve]),
    }
    fields = FitReport.__dataclass_fields__
    if made.keys() != fields.keys():
        raise CheckpointError(f"{where}: fields {shown(sorted(found))}; it takes {', '.join(fields)}")
    for name, value in found.items():
        if name not in ("confusions", "curve") and not _number(value, fields[name].type == "int"):
            raise CheckpointError(f"{where}: {name} is {shown(value)}")
    return FitReport(**made)


def _number(value: Any, whole: bool) -> bool:
    if type(value) is int:
        return abs(value) < 1 << 63
    return not whole and isinstance(value, float) and math.isfinite(value)


def _pair(value: Any) -> bool:
    return isinstance(value, list) and [type(part) for part in value] == [str, str, int]


def _point(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and _number(value[0], True) and _number(value[1], False)
