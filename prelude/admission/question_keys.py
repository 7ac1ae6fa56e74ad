"""Keys that are equal for decisions that ask the same."""

from __future__ import annotations

from typing import Any

from prelude.admission.template import DecisionTemplate
from prelude.tasks import Choice, Decide, Noul, Score

_TEXT, _NOTE = {str}, {str, type(None)}


def question_key(task: Decide, questions: Any) -> tuple[Any, ...] | None:
    """The key of a decision that asks ``questions``. None if a value is of a type that is equal to others (``True``
    and 1, a string of an enumeration) or may change."""
    if type(questions) is not tuple and type(questions) is not list:
        return None
    if type(task.mass) is not bool or type(task.length_norm) is not str or type(task.truncation) is not str:
        return None
    if type(task.template) not in (DecisionTemplate, type(None)) or type(task.orders) not in (str, int, range):
        return None
    keys = tuple([_key(question) for question in questions])
    if None in keys:
        return None
    return keys, task.template, task.length_norm, task.mass, task.truncation, task.orders


def _key(question: Any) -> tuple[Any, ...] | None:
    kind = type(question)
    if kind not in (Choice, Noul, Score) or type(question.question) not in _NOTE:
        return None
    if kind is Noul:
        return _noul(question.question, question.criteria)
    values = question.labels if kind is Choice else question.levels
    held = type(values)
    if kind is Score and held is int:
        return "score", question.question, values
    if held is list or held is tuple:
        return (kind, question.question, tuple(values)) if values and set(map(type, values)) == _TEXT else None
    if kind is Score or held is not dict:
        return None
    names, notes = tuple(values), tuple(values.values())
    plain = names and set(map(type, names)) == _TEXT and set(map(type, notes)) <= _NOTE
    return (kind, question.question, names, notes) if plain else None


def _noul(text: str | None, sides: Any) -> tuple[Any, ...] | None:
    if sides is None:
        return None if text is None else ("noul", text)
    if type(sides) is not dict or set(sides) - {"true", "false"}:
        return None
    if not set(map(type, sides.values())) <= _NOTE:
        return None
    return "noul", text, sides.get("true"), sides.get("false")
