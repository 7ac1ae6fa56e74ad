"""The body of a System One request: checked whole, so that an error lists all that is wrong; its questions; and its
answers. Fields that the protocol does not have begin with ``x_``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from prelude.admission.conversation import is_conversation
from prelude.admission.structured import json_of
from prelude.errors import InvalidRequest, shown
from prelude.fitting.question import FittedQuestion
from prelude.records import dataclass
from prelude.results import Answer, Answers
from prelude.systemone.errors import (
    MAX_ERROR_BYTES,
    MAX_ERRORS,
    Loc,
    SystemOneError,
    fault,
    place_in,
    placed,
)
from prelude.tasks import Choice, Noul, Question, Score

MAX_QUESTIONS = 400
MAX_OPTIONS = 255
MIN_LEVELS, MAX_LEVELS = 2, 10
_FIELDS = frozenset(["type", "instructions", "criteria"])
FITTED = "x_fitted"
_ASSETS = frozenset(["assets", "images", "image", "audio", "videos", "video", "files"])  # of any dialect


@dataclass(frozen=True, slots=True)
class Parsed:
    """``state`` is text, an object or a list of messages. ``raw`` are the questions as they were sent."""

    state: Any
    names: tuple[str, ...]
    questions: tuple[Question, ...]
    raw: tuple[dict[str, Any], ...]


class Checker:
    """Collects the errors of a body, which are raised together. At ``MAX_ERRORS`` of them, or ``MAX_ERROR_BYTES`` of
    JSON, the check ends at once."""

    def __init__(self) -> None:
        self.errors: list[dict[str, Any]] = []
        self._left = MAX_ERROR_BYTES

    def wrong(self, loc: Loc, message: str, kind: str) -> None:
        found = fault(loc, message, kind)
        self._left -= len(json.dumps(found))
        if self._left < 0 or len(self.errors) == MAX_ERRORS - 1:
            message = f"and more: the check ends after {len(self.errors)} errors"
            self.errors.append(fault((), message, "too_many_errors"))
            self.finish()
        self.errors.append(found)

    def missing(self, body: Mapping[str, Any], *keys: str) -> None:
        for key in keys:
            if key not in body:
                self.wrong((key,), "Field required", "missing")

    def text(self, value: Any, loc: Loc, *, null: bool = True) -> None:
        if not (isinstance(value, str | list | tuple | Mapping) or (null and value is None)):
            self.wrong(loc, f"{shown(value)} is not a string, an object or an array", "union_type")

    def finish(self) -> None:
        if self.errors:
            raise SystemOneError(self.errors)


def parse(body: Any, fitted: Mapping[str, FittedQuestion]) -> Parsed:
    """``SystemOneError`` lists all that is wrong with the shape of the body. ``fitted``: the questions that a field
    ``x_fitted`` may name."""
    if not isinstance(body, Mapping):
        raise SystemOneError([fault((), f"{shown(body)} is not an object", "dict_type")])
    check = Checker()
    check.missing(body, "state", "questions")
    if "state" in body:
        check.text(body["state"], ("state",), null=False)
    for name in filter(body.get, sorted(_ASSETS)):
        check.wrong((name,), "this model reads text only; leave out images, sounds and files", "unsupported")
    questions = body.get("questions")
    if "questions" in body and not (isinstance(questions, Mapping) and questions):
        check.wrong(("questions",), f"{shown(questions)} is not an object of 1 or more questions", "too_short")
    elif isinstance(questions, Mapping):
        if len(questions) > MAX_QUESTIONS:
            check.wrong(("questions",), f"{len(questions)} questions; it takes 1 to {MAX_QUESTIONS}", "too_long")
            check.finish()
        for name, question in questions.items():
            _check_question(check, name, question, fitted)
    check.finish()
    asked = body["questions"]
    questions = tuple([fitted[one[FITTED]] if FITTED in one else question_of(one) for one in asked.values()])
    return Parsed(state_of(body["state"], ("state",)), tuple(asked), questions, tuple(asked.values()))


def _check_question(check: Checker, name: Any, question: Any, fitted: Mapping[str, FittedQuestion]) -> None:
    loc: Loc = ("questions", name)
    if not isinstance(name, str) or not name:
        return check.wrong(loc, "the id of a question is a string of 1 or more characters", "string_type")
    if not isinstance(question, Mapping):
        return check.wrong(loc, f"{shown(question)} is not an object", "dict_type")
    kind = question.get("type")
    checked = _CRITERIA.get(kind) if isinstance(kind, str) else None
    if checked is None:
        here = "Field required: noul, choice or score" if "type" not in question else f"{shown(kind)} is not a type"
        return check.wrong((*loc, "type"), f"{here}; the types are noul, choice and score", "union_tag_invalid")
    loc = (*loc, kind)
    for key in question:
        if key not in _FIELDS and not is_private(key):
            message = f"a {kind} has no such field; it has {', '.join(sorted(_FIELDS))}"
            check.wrong((*loc, key), message, "extra_forbidden")
    check.text(question.get("instructions"), (*loc, "instructions"))
    if FITTED in question:
        asked, known = question[FITTED], {name: one.kind for name, one in fitted.items()}
        if not isinstance(asked, str) or known.get(asked) != kind:
            message = f"{shown(asked)} is no fitted {kind} of this service, which has {shown(known)}"
            check.wrong((*loc, FITTED), message, "value_error")
        return None
    checked(check, question, (*loc, "criteria"))
    return None


def _noul(check: Checker, question: Mapping[str, Any], loc: Loc) -> None:
    sides = question.get("criteria")
    if sides is not None and (not isinstance(sides, Mapping) or set(sides) - {"true", "false"}):
        return check.wrong(loc, 'it is null, or an object with "true", "false" or both', "dict_type")
    for side, text in (sides or {}).items():
        check.text(text, (*loc, side))
    if not question.get("instructions") and not any((sides or {}).values()):
        check.wrong(loc[:-1], "a noul needs instructions, or criteria with a description", "missing")
    return None


def _choice(check: Checker, question: Mapping[str, Any], loc: Loc) -> None:
    options = question.get("criteria")
    if not isinstance(options, Mapping):
        return check.wrong(loc, f"{shown(options)} is not an object of options", "dict_type")
    if not 1 <= len(options) <= MAX_OPTIONS:
        return check.wrong(loc, f"{len(options)} options; it takes 1 to {MAX_OPTIONS}", "too_long")
    for option, text in options.items():
        if not isinstance(option, str) or not option:
            check.wrong((*loc, option), "an option is a string of 1 or more characters", "string_type")
        check.text(text, (*loc, option))
    return None


def _score(check: Checker, question: Mapping[str, Any], loc: Loc) -> None:
    levels = question.get("criteria")
    if not isinstance(levels, list | tuple):
        return check.wrong(loc, f"{shown(levels)} is not an array of levels, lowest first", "list_type")
    if not MIN_LEVELS <= len(levels) <= MAX_LEVELS:
        return check.wrong(loc, f"{len(levels)} levels; it takes {MIN_LEVELS} to {MAX_LEVELS}", "too_long")
    for index, text in enumerate(levels):
        check.text(text, (*loc, index), null=False)
    return None


_CRITERIA: Mapping[str, Callable[[Checker, Mapping[str, Any], Loc], None]] = {
    "noul": _noul,
    "choice": _choice,
    "score": _score,
}


def state_of(state: Any, loc: Loc) -> Any:
    """Text, an object and a conversation stay unchanged: the engine writes them in the model's own form. Any
    other array is written as JSON, since the engine would take one of integers for token ids, which no JSON body
    means."""
    if isinstance(state, str | Mapping) or is_conversation(state):
        return state
    return written(state, loc)


def written(value: Any, loc: Loc) -> str:
    """Return a value of the body as JSON; ``SystemOneError`` if it is too deep, too large or not finite."""
    try:
        return json_of(value, "state")
    except InvalidRequest as error:
        raise placed(error, (*loc, *place_in(error.field))) from error


def is_private(key: Any) -> bool:
    """Return whether a field of a body is the caller's own."""
    return isinstance(key, str) and key.startswith("x_")


def question_of(question: Mapping[str, Any]) -> Question:
    """Return the task's question of one that was checked. An empty text is none."""
    instructions = question.get("instructions") or None
    criteria: Any = question.get("criteria")
    if question["type"] == "noul":
        return Noul(instructions, criteria)
    return Choice(instructions, criteria) if question["type"] == "choice" else Score(instructions, criteria)


def usage_of(parts: Sequence[Answers]) -> tuple[dict[str, int], int]:
    """The usage, and how many tokens were cut. ``input_tokens`` are the tokens of the state, once for each part, and
    of all questions and labels."""
    prompt = sum([part.stats.prompt_tokens for part in parts])
    cached = sum([part.stats.cached_tokens for part in parts])
    cut = sum([part.stats.truncated_tokens for part in parts])
    return {"input_tokens": prompt, "output_tokens": 0, "x_cached_tokens": cached}, cut


def answer_bodies(
    names: Sequence[str], questions: Sequence[Mapping[str, Any]], answers: Iterable[Answer]
) -> dict[str, Any]:
    """Return the answers by the names of their questions, which are as they were sent."""
    return {name: _body(question, answer) for name, question, answer in zip(names, questions, answers)}


def _body(question: Mapping[str, Any], answer: Answer) -> dict[str, Any]:
    """The legend of a score returns the levels of its question unchanged."""
    kind = answer.kind
    body: dict[str, Any] = {"type": kind}
    if kind == "noul":
        body["noul"] = answer.probability
    else:
        shares = dict(answer.probabilities)
        if kind == "choice":
            body["choice"] = answer.label
        else:
            body |= {"score": answer.expected, "legend": dict(zip(shares, question.get("criteria") or shares))}
        body |= {"probabilities": shares, "confidence": answer.confidence}
    if answer.mass == answer.mass:  # not NaN
        body["x_label_mass"] = answer.mass
    if answer.scope is not None:
        body |= {"x_scope": answer.scope, "x_in_scope": answer.in_scope}
    return body
