"""What a model directory says about its marker head, as admission needs it.

A marker head gives a logit to each option of a question: it reads the row of a mask token that stands in front of the
option's text. One question is one prompt:

    [CLS] choice question: <text> [SEP] [MASK] <option> [MASK] <option> … [SEP] <state> [SEP]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

KINDS = ("choice", "score", "noul")
"""By the number of a question's type in the model."""
COLDEST, HOTTEST = 0.5, 5.0


@dataclass(frozen=True, slots=True)
class MarkerSettings:
    """``max_length``: tokens of a prompt; ``head_length``: of those, what question and options may take."""

    max_length: int
    head_length: int
    cls: int
    sep: int
    mask: int
    mask_text: str
    """In a caller's text it becomes a space."""
    temperatures: tuple[float, float, float] = (1.0, 1.0, 1.0)
    """By kind."""
    by_options: Mapping[str, float] = field(default_factory=dict)
    """By kind and number of options, as ``choice:3-5``: instead of the one of the kind."""

    def temperature(self, kind: str, options: int) -> float:
        """What the logits of a question are divided by; within 0.5 and 5, as Laya's own program holds it."""
        found = self.by_options.get(f"{kind}:{_bucket(options)}", self.temperatures[KINDS.index(kind)])
        return min(max(found, COLDEST), HOTTEST)


def _bucket(options: int) -> str:
    for most, name in ((2, "2"), (5, "3-5"), (10, "6-10")):
        if options <= most:
            return name
    return "11+"
