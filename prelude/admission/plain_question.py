"""A question as the text that a template shows, for every form in which a caller may give it.

Plans of questions are kept and found by this value. It is hashable and holds plain strings only: attributes that one
caller sets on a subclass of ``str`` must not reach another caller.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, TypeAlias

from prelude.admission.context import AdmissionContext
from prelude.admission.structured import MAX_TEXT, text_of
from prelude.errors import InvalidRequest, shown
from prelude.records import dataclass, replace
from prelude.tasks import Choice, Noul, Score
from prelude.values import validation
from prelude.values.model_settings import Layout

MAX_LEVELS = 10
Kind: TypeAlias = Literal["choice", "noul", "score"]
log = logging.getLogger("prelude.engine")
_SIDES = ("true", "false")  # of a Noul, in the order of its labels


@dataclass(frozen=True, slots=True)
class PlainQuestion:
    """``text`` is empty if the criteria alone ask. ``labels`` are empty for a ``Noul``, whose two labels the
    template names. ``notes`` describe the labels in their order ("" is no description); ``()`` if none has one.
    ``first`` is the number of the first level."""

    kind: Kind
    text: str
    labels: tuple[str, ...]
    notes: tuple[str, ...] = ()
    first: int = 1

    @property
    def chars(self) -> int:
        return len(self.text) + sum(map(len, self.labels)) + sum(map(len, self.notes))

    def arranged(self, order: Sequence[int]) -> PlainQuestion:
        """Return the same with its labels, and their descriptions, in another order."""
        notes = tuple([self.notes[at] for at in order]) if self.notes else ()
        labels = tuple([self.labels[at] for at in order]) if self.labels else ()
        return replace(self, labels=labels, notes=notes)


def plain_question(ctx: AdmissionContext, question: Any, field: str) -> PlainQuestion:
    """Return the question checked: its types, and the number and length of its texts."""
    kind = type(question)
    if kind is Choice or isinstance(question, Choice):
        return _choice(ctx, question, field)
    if isinstance(question, Noul):
        return _noul(ctx, question, field)
    if isinstance(question, Score):
        return _score(ctx, question, field)
    raise InvalidRequest(f"{shown(question)} is not a Choice, Noul (YesNo) or Score", field=field)


def _choice(ctx: AdmissionContext, question: Choice, field: str) -> PlainQuestion:
    labels, here = question.labels, f"{field}.labels"
    described = isinstance(labels, Mapping)
    if not described and (isinstance(labels, str | bytes) or not isinstance(labels, Sequence)):
        raise InvalidRequest(f"{shown(labels)} is not a list of labels, or a mapping to descriptions", field=here)
    most = ctx.config.expert.max_labels
    if not 1 <= len(labels) <= most:
        raise InvalidRequest(f"{len(labels)} labels; it takes 1 to {most} (EngineConfig.max_labels)", field=here)
    given = tuple(labels)
    for index, label in enumerate(given):
        if type(label) is not str and not isinstance(label, str):
            raise InvalidRequest(f"{shown(label)} is not a string", field=f"{here}[{index}]")
    notes: tuple[str, ...] = ()
    if isinstance(labels, Mapping) and any(labels.values()):
        written = [_note(ctx, labels[label], f"{here}[{index}]") for index, label in enumerate(given)]
        notes = tuple(written) if any(written) else ()
    text = _text(question.question, field, ctx.layout, needed=False)
    if len(given) == 1:
        warn_of_one_label(str(text), str(given[0]))
    return PlainQuestion("choice", text, tuple([str.__str__(label) for label in given]), notes)


@lru_cache
def warn_of_one_label(question: str, label: str) -> None:
    """Warn once for each: a program may narrow its labels down to one, and a list of labels may be written as one."""
    log.warning(
        "question %s has the one label %s, whose probability is 1 for any state", shown(question), shown(label)
    )


def _noul(ctx: AdmissionContext, question: Noul, field: str) -> PlainQuestion:
    sides, here = question.criteria, f"{field}.criteria"
    notes: tuple[str, ...] = ()
    if sides is not None:
        if not isinstance(sides, Mapping) or any(key not in _SIDES for key in sides):
            raise InvalidRequest(f'{shown(sides)} is not a mapping with "true", "false" or both', field=here)
        written = [_note(ctx, sides.get(side), f"{here}.{side}") for side in _SIDES]
        notes = tuple(written) if any(written) else ()
    return PlainQuestion("noul", _text(question.question, field, ctx.layout, needed=not notes), (), notes)


def _score(ctx: AdmissionContext, question: Score, field: str) -> PlainQuestion:
    levels, here = question.levels, f"{field}.levels"
    if isinstance(levels, str | bytes | Mapping) or not isinstance(levels, Sequence):
        count = validation.integer(levels, here, 2, MAX_LEVELS)
        text = _text(question.question, field, ctx.layout, needed=True)
        return PlainQuestion("score", text, tuple([str(level) for level in range(1, count + 1)]))
    if not 2 <= len(levels) <= MAX_LEVELS:
        raise InvalidRequest(f"{len(levels)} levels; it takes 2 to {MAX_LEVELS}", field=here)
    notes = tuple([_note(ctx, level, f"{here}[{index}]", empty=False) for index, level in enumerate(levels)])
    labels = tuple([str(level) for level in range(len(levels))])
    return PlainQuestion("score", _text(question.question, field, ctx.layout, needed=False), labels, notes, first=0)


def _text(value: Any, field: str, layout: Layout, *, needed: bool) -> str:
    """Return the question's own text; longer than a prompt may be, since truncation may yet cut it."""
    here = f"{field}.question"
    if value is None and not needed:
        return ""
    if value is None:
        raise InvalidRequest("it is None, and no criteria ask instead; give the question's text", field=here)
    return text_of(value, here, MAX_TEXT, empty=False, layout=layout)


def _note(ctx: AdmissionContext, value: Any, field: str, *, empty: bool = True) -> str:
    if value is None and empty:
        return ""
    return text_of(value, field, ctx.max_chars, empty=empty, layout=ctx.layout)


def check_characters(ctx: AdmissionContext, plain: PlainQuestion, field: str) -> int:
    """Characters of the question and its labels, each of them checked."""
    validation.text(plain.text, f"{field}.question", ctx.max_chars)
    if plain.kind == "choice":
        seen: dict[str, int] = {}
        for index, label in enumerate(plain.labels):
            here = f"{field}.labels[{index}]"
            validation.text(label, here, ctx.max_chars, empty=False)
            if seen.setdefault(label, index) != index:
                raise InvalidRequest(f"{shown(label)} is given twice, first as label {seen[label]}", field=here)
    return plain.chars
