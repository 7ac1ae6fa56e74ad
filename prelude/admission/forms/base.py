"""The interface of a text form: from a question and a state to the tokens that the model was trained on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from prelude.admission.plain_question import PlainQuestion
from prelude.admission.prepared import TokenTree
from prelude.admission.tokenization import TokenizationScope
from prelude.readouts import RequestReadout
from prelude.readouts.head import HeadRows, OptionRows
from prelude.records import dataclass
from prelude.values.arrays import I32
from prelude.values.model_settings import OptionSettings


@dataclass(frozen=True, slots=True)
class State:
    ids: list[int]
    text: str
    from_left: bool
    """Whether a too long state loses its beginning, as a list does."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """A question's own tokens. ``read`` are the places among them that the head reads, one for each option and, if
    it reads them together, the answer's behind them. ``parts``: where each segment ends, for forms with several."""

    plain: PlainQuestion
    ids: list[int]
    read: list[int]
    cut: int
    """Tokens that were left out."""
    parts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Asked:
    """One question of a request, with its state. ``most``: tokens that a prompt may have. ``field``: the question's
    place in the request, for errors."""

    scope: TokenizationScope
    settings: OptionSettings
    plain: PlainQuestion
    state: State
    most: int
    field: str


class Form:
    """Each question is a prompt of its own, with the state in it; the head reads single rows. Forms that do it
    otherwise override it."""

    together = False
    """Whether the head reads the rows of a question together."""
    yes_first = False
    """Whether a ``Noul`` lists yes before no."""

    def state(self, scope: TokenizationScope, settings: OptionSettings, text: str, from_left: bool) -> State:
        return State(encode(scope, settings, text), text, from_left)

    def render(self, asked: Asked) -> Rendered:
        """Cut the state to ``asked.most`` tokens, and leave the rest longer if it does not fit."""
        raise NotImplementedError

    def kind(self, plain: PlainQuestion) -> int:
        """Return the number of the question's type, if the model has types."""
        return 0

    def tree(self, settings: OptionSettings, state: State, questions: Sequence[Rendered]) -> tuple[TokenTree, I32]:
        """The tokens of all questions, and the rows that are read. The type of a token counts the segments above its
        own, so a question of type t stands below t empty segments."""
        segments: list[tuple[int, I32]] = []
        rows: list[int] = []
        tokens = 0
        for one in questions:
            parent = -1
            for _ in range(self.kind(one.plain)):
                segments.append((parent, as_ids([])))
                parent = len(segments) - 1
            segments.append((parent, as_ids(one.ids)))
            rows += [tokens + place for place in one.read]
            tokens += len(one.ids)
        return TokenTree.build(segments), as_ids(rows)

    def readout(self, rows: I32, questions: Sequence[Rendered]) -> RequestReadout:
        if not self.together:
            return HeadRows(rows, several=True)
        ends = np.cumsum([0, *(len(one.read) for one in questions)])
        return OptionRows(rows, as_ids(ends), as_ids([self.kind(one.plain) for one in questions]))


def as_ids(values: Sequence[int] | np.ndarray) -> I32:
    return np.asarray(values, dtype=np.int32)


def encode(scope: TokenizationScope, settings: OptionSettings, text: str) -> list[int]:
    found: list[int] = scope.encode(text.replace(settings.mask_text, " ") if settings.mask_text else text).tolist()
    return found


def described(plain: PlainQuestion) -> list[str]:
    """Return ``label: description`` of a choice, or the label if it has no description."""
    notes = plain.notes or ("",) * len(plain.labels)
    return [f"{label}: {note}" if note else label for label, note in zip(plain.labels, notes)]


def options_of(
    plain: PlainQuestion, level: str, names: tuple[str, str], usual: tuple[str, str] = ("", "")
) -> list[str]:
    """Return the texts of the options: a choice ``described``, a score as ``level`` writes the number and the text of
    a level, a noul by ``names`` and its descriptions, or the ``usual`` ones."""
    if plain.kind == "choice":
        return described(plain)
    if plain.kind == "score":
        return [level.format(index, text) for index, text in enumerate(levels(plain))]
    notes = (note or told for note, told in zip(sides(plain), usual))
    return [f"{name}: {note}" if note else name for name, note in zip(names, notes)]


def levels(plain: PlainQuestion) -> tuple[str, ...]:
    """Return the texts of a score, lowest first."""
    return plain.notes or plain.labels


def sides(plain: PlainQuestion) -> tuple[str, str]:
    """Return the descriptions of false and true, "" if there is none."""
    true, false = plain.notes or ("", "")
    return false, true
