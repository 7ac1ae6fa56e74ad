"""OpenAI's form of the same requests: ``POST /v1/decisions``, with questions in a list.

predicate   instructions                      -> noul
choice      choices [{value, description}]    -> choice; a value may be true or false
score       levels [{label, description}]     -> score; a level reads "label: description"
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from prelude.admission.conversation import content_of, is_conversation, turns_of
from prelude.errors import InvalidRequest, RequestTooLarge, short, shown
from prelude.results import Answer, Answers
from prelude.systemone.errors import Loc, SystemOneError, fault, place_in, placed
from prelude.systemone.request import (
    MAX_LEVELS,
    MAX_OPTIONS,
    MAX_QUESTIONS,
    MIN_LEVELS,
    Checker,
    Parsed,
    is_private,
    question_of,
    usage_of,
)

_KNOWN = frozenset(["model", "input", "questions", "prompt_cache_key", "prompt_cache_options"])
_FIELDS: Mapping[str, frozenset[str]] = {
    "predicate": frozenset(["type", "name", "instructions"]),
    "choice": frozenset(["type", "name", "instructions", "choices"]),
    "score": frozenset(["type", "name", "instructions", "levels"]),
}


def parse_openai(body: Any) -> tuple[Parsed, list[Mapping[str, Any]], dict[str, Any]]:
    """The request as a System One request, its questions as they were sent, and the keywords of ``decide`` that it
    sets."""
    if not isinstance(body, Mapping):
        raise SystemOneError([fault((), f"{shown(body)} is not an object", "dict_type")])
    check = Checker()
    check.missing(body, "input", "questions")
    for key in body:
        if key not in _KNOWN and not is_private(key):
            check.wrong((key,), "there is no such field", "extra_forbidden")
    questions = body.get("questions")
    if "questions" in body and not (isinstance(questions, list | tuple) and 1 <= len(questions) <= MAX_QUESTIONS):
        check.wrong(("questions",), f"it is an array of 1 to {MAX_QUESTIONS} questions", "list_type")
        questions = ()
    state: Any = _input(check, body["input"]) if "input" in body else ""
    raw = [_question(check, question, ("questions", index)) for index, question in enumerate(questions or ())]
    keywords = _cache_keywords(check, body)
    check.finish()
    names = tuple(map(str, range(len(raw))))
    parsed = Parsed(state, names, tuple(map(question_of, raw)), tuple(raw))
    return parsed, list(body["questions"]), keywords


def _cache_keywords(check: Checker, body: Mapping[str, Any]) -> dict[str, Any]:
    """Requests share cached prefixes with those of an equal ``prompt_cache_key`` alone. In the mode "explicit" only
    the parts that a request marks are cached, and no part can be marked here."""
    found: dict[str, Any] = {}
    key = body.get("prompt_cache_key")
    if isinstance(key, str):
        found["salt"] = key
    elif key is not None:
        check.wrong(("prompt_cache_key",), f"{shown(key)} is not a string", "string_type")
    options = body.get("prompt_cache_options")
    if options is None:
        return found
    here: Loc = ("prompt_cache_options",)
    if not isinstance(options, Mapping):
        check.wrong(here, f"{shown(options)} is not an object", "dict_type")
        return found
    for name, value in options.items():
        if name != "mode" and value is not None:
            said = "a prefix is kept as long as there is room, for no stated time; leave it out"
            check.wrong((*here, name), said if name == "ttl" else "there is no such field", "extra_forbidden")
    mode = options.get("mode")
    if mode == "explicit":
        found["cache"] = "never"
    elif mode not in (None, "implicit"):
        check.wrong((*here, "mode"), f"{shown(mode)} is not implicit or explicit", "literal_error")
    return found


def _input(check: Checker, value: Any) -> Any:
    """Return text or a conversation, which the engine reads."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list | tuple) or not value:
        check.wrong(("input",), f"{shown(value)} is not a string or an array of messages", "union_type")
        return ""
    if not is_conversation(value):
        _read(check, turns_of, value, ("input",))  # refuses it
    return value


def _read(check: Checker, read: Callable[[Any, str], Any], value: Any, loc: Loc) -> Any:
    """Return ``read(value, "")``, or "" for a refused value."""
    try:
        return read(value, "")
    except InvalidRequest as error:
        if isinstance(error, RequestTooLarge):
            raise placed(error, (*loc, *place_in(error.field))) from error
        check.wrong((*loc, *place_in(error.field)), str(error).removeprefix(f"{error.field}: "), "value_error")
        return ""


def _question(check: Checker, question: Any, loc: Loc) -> dict[str, Any]:
    """Return the System One question; of a wrong one a question in its place."""
    kind = question.get("type") if isinstance(question, Mapping) else None
    if not isinstance(kind, str) or kind not in _FIELDS:
        check.wrong((*loc, "type"), f"{shown(kind)} is not predicate, choice or score", "union_tag_invalid")
        return {"type": "noul", "instructions": "-"}
    for key in question:
        if key not in _FIELDS[kind]:
            check.wrong((*loc, key), f"a {kind} has no such field", "extra_forbidden")
    if not isinstance(question.get("name"), str | None):
        check.wrong((*loc, "name"), f"{shown(question['name'])} is not a string", "string_type")
    given, before = question.get("instructions"), len(check.errors)
    instructions = _read(check, content_of, given, (*loc, "instructions")) if given else ""
    if not instructions and len(check.errors) == before:
        check.wrong((*loc, "instructions"), "Field required", "missing")
    if kind == "predicate":
        return {"type": "noul", "instructions": instructions}
    if kind == "choice":
        return {"type": "choice", "instructions": instructions, "criteria": _choices(check, question, loc)}
    return {"type": "score", "instructions": instructions, "criteria": _levels(check, question, loc)}


def _choices(check: Checker, question: Mapping[str, Any], loc: Loc) -> dict[str, Any]:
    here = (*loc, "choices")
    found: dict[str, Any] = {}
    choices = _array(check, question.get("choices"), here, 2, MAX_OPTIONS)
    for index, (choice, label) in enumerate(zip(choices, labels_of([choice.get("value") for choice in choices]))):
        value = choice.get("value")
        if not isinstance(value, str | bool) or value == "":
            check.wrong((*here, index, "value"), f"{shown(value)} is not a string or a boolean", "union_type")
            continue
        if label in found:
            check.wrong((*here, index, "value"), f"{shown(value)} is an earlier choice too", "value_error")
        found[label] = _description(check, choice, (*here, index))
    return found


def _levels(check: Checker, question: Mapping[str, Any], loc: Loc) -> list[str]:
    here = (*loc, "levels")
    found = []
    for index, level in enumerate(_array(check, question.get("levels"), here, MIN_LEVELS, MAX_LEVELS)):
        label, note = level.get("label"), _description(check, level, (*here, index))
        if not isinstance(label, str) or not label:
            check.wrong(
                (*here, index, "label"), f"{shown(label)} is not a string of 1 or more characters", "string_type"
            )
            continue
        found.append(f"{label}: {note}" if note else label)
    return found


def _description(check: Checker, item: Mapping[str, Any], loc: Loc) -> str | None:
    note = item.get("description")
    if note is not None and not isinstance(note, str):
        check.wrong((*loc, "description"), f"{shown(note)} is not a string", "string_type")
        return None
    return note


def _array(check: Checker, value: Any, loc: Loc, least: int, most: int) -> Sequence[Mapping[str, Any]]:
    if not isinstance(value, list | tuple) or not least <= len(value) <= most:
        check.wrong(loc, f"it is an array of {least} to {most} objects", "list_type")
        return ()
    for index, item in enumerate(value):
        if not isinstance(item, Mapping):
            check.wrong((*loc, index), f"{shown(item)} is not an object", "dict_type")
    return [item for item in value if isinstance(item, Mapping)]


def labels_of(values: Sequence[Any]) -> list[str]:
    """The label of each value of a choice. ``True`` reads "true"; a string that reads like a boolean beside it stands
    in quotation marks, since the two are distinct."""
    booleans = {str(value).lower() for value in values if isinstance(value, bool)}

    def label(value: Any) -> str:
        if isinstance(value, bool):
            return str(value).lower()
        text = value if isinstance(value, str) else ""
        return f'"{text}"' if text in booleans else text

    return list(map(label, values))


# ------------------------------------------------------------------ answers


def openai_body(model: str, questions: Sequence[Mapping[str, Any]], parts: Sequence[Answers]) -> dict[str, Any]:
    answers = [answer for part in parts for answer in part]
    usage, _ = usage_of(parts)
    return {
        "model": model,
        "answers": [_answer(question, answer) for question, answer in zip(questions, answers)],
        "usage": {
            "input_tokens": usage["input_tokens"],
            "input_tokens_details": {"cached_tokens": usage["x_cached_tokens"], "cache_write_tokens": 0},
            "output_tokens": 0,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["input_tokens"],
        },
    }


def _answer(question: Mapping[str, Any], answer: Answer) -> dict[str, Any]:
    kind = {"noul": "predicate"}.get(answer.kind, answer.kind)
    told: dict[str, Any] = {"type": kind, "name": question.get("name")}
    shares = list(answer.probabilities.values())
    if kind == "predicate":
        return {**told, "probability": answer.probability}
    told["confidence"] = answer.confidence
    if kind == "choice":
        values = [choice["value"] for choice in question["choices"]]
        return {
            **told,
            "choice": values[answer.index],
            "probabilities": [{"value": value, "probability": share} for value, share in zip(values, shares)],
        }
    levels = [level["label"] for level in question["levels"]]
    return {
        **told,
        "score": answer.expected,
        "probabilities": [
            {"value": index, "label": label, "probability": share}
            for index, (label, share) in enumerate(zip(levels, shares))
        ],
    }


_RENAMED: Mapping[str, Mapping[str, str]] = {"choice": {"criteria": "choices"}, "score": {"criteria": "levels"}}


def relocated(error: SystemOneError, questions: Sequence[Mapping[str, Any]]) -> SystemOneError:
    """Give errors their places in this form's body: ``input`` for the state, questions and choices by their index."""
    errors = []
    for one in error.errors:
        _, *loc = one["loc"]
        if loc[:1] == ["state"]:
            loc[0] = "input"
        elif loc[:1] == ["questions"] and len(loc) > 1:
            renamed = _RENAMED.get(loc[2], {}) if len(loc) > 2 else {}
            if loc[2:4] == ["choice", "criteria"] and len(loc) > 4:
                loc[4] = [short(label) for label in questions[int(loc[1])]["criteria"]].index(loc[4])
            loc = ["questions", int(loc[1]), *[renamed.get(str(part), part) for part in loc[3:]]]
        errors.append({**one, "loc": ["body", *loc]})
    return SystemOneError(errors, status=error.status, error_type=error.error_type)
