"""A labelled file: one JSON object a line, either to be answered by a model or answered already.

{"state": "…", "question": "…", "labels": ["a", "b"], "label": "a"}     a Choice; "levels" for a Score, neither
                                                                        for a Noul, whose label is yes or no
{"state": "…", "head": "team.head", "label": "a"}                       a question of prelude fit
{"probabilities": {"a": 0.7, "b": 0.3}, "label": "a"}                   answered already: no model is needed
{"logprobs": {"a": -0.4, "b": -1.2}, "label": "a"}                      the same, normalised here; with a "question",
                                                                        the calibrator is of that question alone
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from prelude.errors import CalibrationError, reason, shown
from prelude.records import dataclass, replace
from prelude.results import Answer, AskedQuestion
from prelude.tasks import Choice, Decide, Noul, Score
from prelude.values.strict_json import parse

MAX_BYTES = 1 << 28
Head: TypeAlias = Callable[[str], Any]
_LARGEST = 1e100  # of a number: sums of a row stay finite


@dataclass(frozen=True, slots=True)
class Row:
    """``task`` or ``answer``, and the true label."""

    label: str
    task: Decide | None = None
    answer: Answer | None = None


def read_rows(path: str | Path, head: Head | None = None) -> list[Row]:
    """``CalibrationError`` names the line. ``head`` reads the file of a fitted question, if rows may name one."""
    file = Path(path)
    try:
        if file.stat().st_size > MAX_BYTES:
            raise CalibrationError(f"{path}: {file.stat().st_size} bytes; the limit is {MAX_BYTES}")
        lines = file.read_text(encoding="utf-8").split("\n")  # a text may hold other ends of lines, as U+2028
    except (OSError, UnicodeDecodeError) as error:
        raise CalibrationError(f"{path}: cannot be read: {reason(error)}") from error
    head = None if head is None else cache(head)
    rows = [_row(line, f"{path}:{number}", head) for number, line in enumerate(lines, start=1) if line.strip()]
    if not rows:
        raise CalibrationError(f"{path}: no rows")
    return rows


def _row(line: str, where: str, head: Head | None) -> Row:
    found = parse(line, where, CalibrationError)
    if not isinstance(found, dict) or "label" not in found:
        raise CalibrationError(f"{where}: an object with a label is expected")
    label = found["label"]
    if not isinstance(label, str | int):
        raise CalibrationError(f"{where}: label {shown(label)} is not text, a number, true or false")
    if isinstance(label, bool):
        label = "yes" if label else "no"
    label = str(label)
    for one_of in (("probabilities", "logprobs"), ("labels", "levels", "criteria", "head")):
        if len(both := [name for name in one_of if name in found]) > 1:
            raise CalibrationError(f"{where}: it has {' and '.join(both)}; give one of them")
    for name in ("probabilities", "logprobs"):
        if name in found:
            answer = _answered(found[name], name, label, where)
            if isinstance(question := found.get("question"), str):
                answer = replace(answer, asked=AskedQuestion(question, answer.labels))
            return Row(label, answer=answer)
    if "state" not in found or not ("question" in found or (head and "head" in found)):
        raise CalibrationError(f"{where}: it has neither probabilities nor logprobs, nor a state and a question")
    return Row(label, task=Decide(found["state"], [_question(found, head, where)]))


def _question(found: dict[str, Any], head: Head | None, where: str) -> Any:
    if head and "head" in found:
        return head(str(found["head"]))
    if "labels" in found:
        return Choice(found["question"], found["labels"])
    if "levels" in found:
        return Score(found["question"], found["levels"])
    if unknown := sorted(found.keys() - {"state", "question", "criteria", "label"}):
        raise CalibrationError(
            f"{where}: {shown(unknown[0])} is no field of a question of yes or no, and the row has neither labels "
            "nor levels, which make it another one; leave it out, or correct its name"
        )
    return Noul(found["question"], found.get("criteria"))


def _answered(values: Any, name: str, label: str, where: str) -> Answer:
    if not isinstance(values, dict) or len(values) < 2 or not all(map(_number, values.values())):
        raise CalibrationError(f"{where}: {name} {shown(values)} is not an object of finite numbers by label")
    if label not in values:
        raise CalibrationError(f"{where}: label {shown(label)} is none of {shown(list(values))}")
    if name == "logprobs":
        top = max(values.values())
        values = {key: math.exp(value - top) for key, value in values.items()}
    total = math.fsum(values.values())
    if min(values.values()) < 0 or total <= 0:
        raise CalibrationError(f"{where}: probabilities are not negative and not all zero")
    shares = {key: value / total for key, value in values.items()}
    best = max(shares, key=shares.__getitem__)
    logs = {key: math.log(max(share, 1e-300)) for key, share in shares.items()}
    labels = tuple(shares)
    return Answer(best, labels.index(best), labels, shares, logs, math.nan, shares[best])


def _number(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, int | float) and abs(value) <= _LARGEST


def answers_of(rows: Sequence[Row], engine: Any) -> list[Answer]:
    """Return the answers that rows bring, and those of ``engine`` (an ``Engine``) for the other rows."""
    tasks = [row.task for row in rows if row.task is not None]
    asked = iter(engine.run_many(tasks)) if tasks else iter(())
    return [row.answer if row.answer is not None else next(asked)[0] for row in rows]
