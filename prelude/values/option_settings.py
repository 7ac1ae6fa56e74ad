"""The settings of a head that reads the options of a question, as admission needs them.

Such a head gives a logit to each option: it reads the hidden state of a token that stands in front of or behind the
option's text. The text around it is the form that the model was trained on, which ``form`` names
(``prelude/admission/forms``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from prelude.records import dataclass, field

KINDS = ("choice", "score", "noul")
"""The kinds by the number of a question's type in the models that have one."""
COLDEST, HOTTEST = 0.5, 5.0
Layout: TypeAlias = Literal["json", "indented", "lines"]


@dataclass(frozen=True, slots=True)
class OptionSettings:
    """``max_length``: tokens of a prompt; ``head_length``: of those, the most for question and options."""

    form: str
    max_length: int
    tokens: Mapping[str, int] = field(default_factory=dict)
    """Control tokens by their use in the form."""
    head_length: int = 0
    option_length: int = 0
    state_length: int = 0
    mask_text: str = ""
    """A token that becomes a space in a caller's text."""
    static: bool = False
    """Whether a token has the same vector in any text."""
    layout: Layout = "json"
    """The form in which objects and arrays are written."""
    temperatures: tuple[float, float, float] = (1.0, 1.0, 1.0)
    """The temperature by kind."""
    by_options: Mapping[str, float] = field(default_factory=dict)
    """The temperature by kind and number of options, as ``choice:3-5``: instead of the one of the kind."""

    def temperature(self, kind: str, options: int) -> float:
        """Return the divisor of a question's logits, within 0.5 and 5 as in Laya's own program."""
        found = self.by_options.get(f"{kind}:{_bucket(options)}", self.temperatures[KINDS.index(kind)])
        return min(max(found, COLDEST), HOTTEST)


def _bucket(options: int) -> str:
    for most, name in ((2, "2"), (5, "3-5"), (10, "6-10")):
        if options <= most:
            return name
    return "11+"
