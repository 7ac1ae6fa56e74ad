"""In which orders the options of a question are shown to the model.

    given     once, as the caller listed them: ties go to the first, and another order may give another answer
    sorted    once, in the order of their code points
    k         k cyclic shifts of the sorted options; the scores of an option are averaged
    all       all of them: each option stands once in each place, so that a preference for a place cancels out
    range     some of the shifts alone, by their number: for reading them in several requests

But for "given" the caller's order never reaches the model, so that no order can change a bit of an answer. The levels
of a ``Score`` keep their order, which is their meaning. The shifts are siblings under the tokens that they share:

    Question: Which team?\\nOptions:            computed once
        ├─ Billing, Sales, Technical\\nAnswer:    shift 0, its labels behind it
        ├─ Technical, Billing, Sales\\nAnswer:
        └─ Sales, Technical, Billing\\nAnswer:

Shifts are numbered so that the first ones are far apart (van der Corput's sequence): k of them spread evenly.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from prelude.admission.plain_question import PlainQuestion
from prelude.admission.template import DecisionTemplate
from prelude.errors import InvalidRequest, TemplateError, shown
from prelude.readouts.batch import I32
from prelude.records import dataclass
from prelude.tasks import Orders

ONCE = (0,)


@dataclass(frozen=True, slots=True)
class Arranged:
    """``asked`` with its labels in the order of shift 0; ``starts``: the shifts that are shown; ``places[i]``: the
    place of the caller's label i, ``None`` if all are where they were."""

    plain: PlainQuestion
    starts: tuple[int, ...] = ONCE
    places: tuple[int, ...] | None = None


def check_orders(value: Any) -> Orders:
    if isinstance(value, str) and value in ("given", "sorted", "all"):
        return str(value)  # type: ignore[return-value]
    if type(value) is int and value >= 1:
        return value
    if type(value) is range and len(value) and value.step == 1 and value.start >= 0:
        return value
    raise InvalidRequest(
        f'{shown(value)} is not "given", "sorted", "all", a number of shifts of at least 1, or a range of them',
        field="orders",
    )


def arranged(plain: PlainQuestion, orders: Orders, template: DecisionTemplate, field: str) -> Arranged:
    if orders == "given" or plain.kind == "score":
        return Arranged(plain)
    places: tuple[int, ...] | None = None
    if plain.kind == "choice":
        order = sorted(range(len(plain.labels)), key=plain.labels.__getitem__)
        plain = plain.arranged(order)
        places = tuple(np.argsort(order).tolist())
    if orders == "sorted":
        return Arranged(plain, ONCE, places)
    count = shift_count(plain, template)
    starts = spread(count)
    if orders != "all":
        starts = starts[:orders] if isinstance(orders, int) else starts[orders.start : orders.stop]
    if not starts:
        raise InvalidRequest(f"{orders} has none of the {count} shifts of {field}", field="orders")
    return Arranged(plain, starts, places)


def shift_count(plain: PlainQuestion, template: DecisionTemplate) -> int:
    """Return in how many orders the question can be shown."""
    if plain.kind == "score" or not template.shows_labels(plain):
        return 1
    return len(template.labels_of(plain))


@lru_cache(maxsize=8)  # a tuple may have thousands of places
def spread(count: int) -> tuple[int, ...]:
    """0 to ``count`` - 1 in van der Corput's order: the first k are about evenly far apart, for every k."""
    bits = count.bit_length()
    reversed_bits = (int(format(index, f"0{bits}b")[::-1], 2) for index in range(1 << bits))
    return tuple([index for index in reversed_bits if index < count])


def shifted(plain: PlainQuestion, labels: tuple[str, ...], start: int) -> tuple[PlainQuestion, tuple[str, ...]]:
    """Return the question and its labels with the label at ``start`` first."""
    if not start:
        return plain, labels
    order = [*range(start, len(labels)), *range(start)]
    return plain.arranged(order), tuple([labels[at] for at in order])


def split(rows: Sequence[I32]) -> tuple[I32, tuple[I32, ...]]:
    """Return the common beginning of all rows, and the rest of each, at least one token; a lone row has no rest."""
    if len(rows) == 1:
        return rows[0], ()
    least = min(map(len, rows)) - 1
    same = np.logical_and.reduce([row[:least] == rows[0][:least] for row in rows[1:]])
    common = least if same.all() else int(np.argmin(same))
    if common < 1:
        raise TemplateError(
            "its question part begins with the labels, so that their orders share nothing; put text before {labels}",
            field="template",
        )
    return rows[0][:common], tuple([row[common:] for row in rows])
