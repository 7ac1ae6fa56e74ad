"""Labelled texts, checked before any of them is computed: each refusal names rows and the way out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from prelude.errors import InvalidRequest, shown
from prelude.fitting.question import check_labels, label_of, listed
from prelude.records import dataclass
from prelude.values.arrays import I32

MOST_ROWS = 1 << 20
_NAMED = 5  # rows in a message


@dataclass(frozen=True, slots=True)
class LabelledTexts:
    """``labels`` are those of an answer, in its order, and ``truth`` [rows] the number of each text's own."""

    texts: tuple[str, ...]
    labels: tuple[str, ...]
    truth: I32

    @classmethod
    def of(cls, kind: str, texts: Any, labels: Any) -> LabelledTexts:
        texts, labels = listed(texts, "texts"), listed(labels, "labels")
        if len(texts) != len(labels):
            raise InvalidRequest(f"{len(labels)} labels of {len(texts)} texts; give one a text", field="labels")
        if len(texts) > MOST_ROWS:
            raise InvalidRequest(f"{len(texts)} rows; the limit is {MOST_ROWS}", field="texts")
        for at, one in enumerate(texts):
            if not isinstance(one, str):
                raise InvalidRequest(f"{shown(one)} is not a string; write objects as JSON", field=f"texts[{at}]")
        empty = [at for at, one in enumerate(texts) if not one.strip()]
        if empty:
            raise InvalidRequest(f"{_said(empty)} without text; leave out such rows", field="texts")
        names = [label_of(kind, label, f"labels[{at}]") for at, label in enumerate(labels)]
        known = sorted(set(names))
        _check_spelling(names, known)
        if len(known) < 2:
            said = f"all rows have the label {shown(known[0])}" if known else "there is no row"
            raise InvalidRequest(f"{said}; add rows of others", field="labels")
        order = check_labels(kind, known)
        single = [label for label, count in Counter(names).items() if count == 1]
        if single:
            where = _said([names.index(label) for label in single])
            raise InvalidRequest(
                f"{where}: the only one of its label ({shown(single[0])}); a label needs 2 rows: "
                "add one, or leave it out",
                field="labels",
            )
        _check_duplicates(texts, names)
        found = tuple([known[at] for at in order])
        number = {label: at for at, label in enumerate(found)}
        return cls(tuple(map(str.__str__, texts)), found, np.array([number[name] for name in names], np.int32))


def _said(rows: Sequence[int]) -> str:
    more = f" and {len(rows) - _NAMED} more" if len(rows) > _NAMED else ""
    return f"row{'s' * (len(rows) > 1)} {', '.join(map(str, rows[:_NAMED]))}{more}"


def _check_spelling(names: Sequence[str], known: Sequence[str]) -> None:
    spelt: dict[str, str] = {}
    for label in known:
        other = spelt.setdefault(" ".join(label.casefold().split()), label)
        if other != label:
            rows = f"{_said([names.index(other)])} and {_said([names.index(label)])}"
            raise InvalidRequest(
                f"labels {shown(other)} and {shown(label)} ({rows}) differ in case or spaces alone; spell them alike",
                field="labels",
            )


def _check_duplicates(texts: Sequence[str], names: Sequence[str]) -> None:
    seen: dict[str, int] = {}
    pairs = [(first, at) for at, one in enumerate(texts) if names[first := seen.setdefault(one, at)] != names[at]]
    if pairs:
        (first, at), more = pairs[0], f", and {len(pairs) - 1} more such rows" if len(pairs) > 1 else ""
        raise InvalidRequest(
            f"rows {first} and {at} have the same text and the labels {shown(names[first])} and {shown(names[at])}"
            f"{more}; keep one of each",
            field="labels",
        )
