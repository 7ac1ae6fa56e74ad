"""From a row of a table to a task, and from its result to columns.

    {"verb": "decide", "state": "{rubric}\\n\\nText: {text}", "constants": {"rubric": "…"},
     "questions": {"language": {"question": "Which language?", "labels": ["English", "French"]}}}

``{name}`` stands for the row's column. A text that is one placeholder and nothing else takes the column's value as
it is, so that a column may hold messages or a JSON object.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from prelude.api.windows import Mapped
from prelude.errors import BulkError, InvalidRequest, reason, shown
from prelude.fitting.question import FittedQuestion
from prelude.records import dataclass, replace
from prelude.tasks import Choice, Classify, Decide, Embed, Noul, Rerank, Score
from prelude.values.strict_json import loads

if TYPE_CHECKING:
    from prelude.api.sync import Engine

MAX_FORM = 1 << 24  # bytes
_PLACEHOLDER = re.compile(r"([^{}]*)(\{\{|\}\}|\{[^{}]*\}|[{}]|$)")
TEXT, NUMBER, INTEGER, NUMBERS, VECTOR = "text", "number", "integer", "numbers", "vector"
COMMON = (("prompt_tokens", INTEGER), ("error", TEXT))
FIELDS = {"decide": ("state",), "classify": ("prompt",), "embed": ("prompt",), "rerank": ("query", "document")}
_TASKS = {"classify": Classify, "embed": Embed, "rerank": Rerank}
_KINDS = {Choice: "choice", Noul: "noul", Score: "score"}
_OPTIONS = {
    "decide": ("length_norm", "orders", "mass", "truncation"),
    "classify": ("activation", "truncation"),
    "embed": ("pooling", "dimensions", "prompt_name", "truncation"),
    "rerank": ("instruction", "recipe", "truncation"),
}


@dataclass(frozen=True, slots=True)
class Column:
    """``kind`` is one of the names above. ``labels``: the keys of a "numbers" column."""

    name: str
    kind: str
    labels: tuple[str, ...] = ()


Part: TypeAlias = tuple[str, Callable[[Any], Any]]  # the kind of a column, and its value of a result

# The columns of an answer by the ends of their names, and those of the other verbs.
_ANSWER_PARTS: Mapping[str, Part] = {
    "": (TEXT, lambda answer: answer.label),
    "_probability": (NUMBER, lambda answer: answer.probability),
    "_probabilities": (NUMBERS, lambda answer: dict(answer.probabilities)),
    "_expected": (NUMBER, lambda answer: answer.expected),
    "_mass": (NUMBER, lambda answer: None if answer.mass != answer.mass else answer.mass),
    "_scope": (NUMBER, lambda answer: answer.scope),
}
_PARTS: Mapping[str, Mapping[str, Part]] = {
    "classify": {
        "label": (TEXT, lambda result: result.label),
        "scores": (NUMBERS, lambda result: dict(zip(result.labels, map(float, result.scores)))),
    },
    "embed": {"embedding": (VECTOR, lambda result: [float(value) for value in result])},
    "rerank": {"score": (NUMBER, lambda result: result.score)},
}


class Form:
    """The questions for every row. ``given`` is the JSON object that the form was made from."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        """``BulkError`` names the key that cannot be used."""
        self.given = dict(spec)
        spec = dict(spec)
        self.verb = spec.pop("verb", "decide")
        if not isinstance(self.verb, str) or self.verb not in FIELDS:
            raise BulkError(f"verb: {shown(self.verb)} is none of {', '.join(FIELDS)}")
        constants = spec.pop("constants", {})
        if not isinstance(constants, Mapping):
            raise BulkError(f"constants: {shown(constants)} is not an object")
        questions = spec.pop("questions", None)
        self._fields = {name: Text(name, spec.pop(name, None), constants) for name in FIELDS[self.verb]}
        self._options = {name: spec.pop(name) for name in _OPTIONS[self.verb] if name in spec}
        if spec:
            raise BulkError(f"{shown(next(iter(spec)))}: {self.verb} has no such key")
        self._questions: dict[str, Any] = {}
        if self.verb == "decide":
            self._questions = read_questions(questions)
            heads = {name: one for name, one in self._questions.items() if isinstance(one, FittedQuestion)}
            if heads:  # a file of the same name with another head is another task
                self.given["questions"] = {**questions, **{name: {"head": one.digest} for name, one in heads.items()}}
        elif questions is not None:
            raise BulkError(f"questions: {self.verb} asks none")

    @property
    def placeholders(self) -> list[str]:
        """The columns that the form reads, each once."""
        return list(dict.fromkeys(name for text in self._fields.values() for name in text.names))

    def task(self, row: Mapping[str, Any]) -> Any:
        """Return the task of a row; ``InvalidRequest`` names the column that is missing or null."""
        values = {name: text.filled(row) for name, text in self._fields.items()}
        if self.verb == "decide":
            return Decide(values["state"], self._questions, **self._options)
        return _TASKS[self.verb](**values, **self._options)

    def columns(self, labels: Sequence[str], prefix: str = "", beside: Sequence[str] = ()) -> list[Column]:
        """Return the columns of every row, ``prefix`` before their names. ``labels``: those of the model's own
        classification head; ``beside``: the columns that the row has. ``BulkError`` if two columns have one name."""
        if self.verb == "classify" and not labels:
            raise BulkError("labels: none; give those of the model's own head, which verb: classify needs")
        found = [(name + end, question, part) for name, question, end, part in self._parts()]
        columns = [Column(name, kind, shown_labels(one) if kind == NUMBERS else ()) for name, one, (kind, _) in found]
        for name, (kind, _) in _PARTS.get(self.verb, {}).items():
            columns.append(Column(name, kind, tuple(labels) if kind == NUMBERS else ()))
        columns += [Column(name, kind) for name, kind in COMMON]
        columns = [replace(one, name=prefix + one.name) for one in columns]
        names = [one.name for one in columns]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise BulkError(f"questions: two of the new columns are {shown(twice)}; give a question another name")
        refuse_taken(names, beside)
        return columns

    def served_by(self, engine: Engine, prefix: str) -> list[Column]:
        """Return the columns of every row. ``BulkError`` if every row would fail, or as ``columns``."""
        try:
            engine.explain(self.task(dict.fromkeys(self.placeholders, "text")))
        except InvalidRequest as error:
            key = f"; {error.field} is a key of the task's JSON" if error.field in _OPTIONS[self.verb] else ""
            raise BulkError(f"no row could be served: {error}{key}") from error
        return self.columns(engine.model_info.labels, prefix)

    def values(self, mapped: Mapped[Any, Any]) -> dict[str, Any]:
        """Return the columns of one row; those of a row that failed have ``error`` alone."""
        if mapped.error is not None:
            return {"error": f"{type(mapped.error).__name__}: {mapped.error}"}
        result = mapped.get()
        answers = result.named if self._questions else {}
        found = {name + end: value(answers[name]) for name, _, end, (_, value) in self._parts()}
        found |= {name: value(result) for name, (_, value) in _PARTS.get(self.verb, {}).items()}
        return {**found, "prompt_tokens": result.stats.prompt_tokens}

    def _parts(self) -> Iterator[tuple[str, Any, str, Part]]:
        """Yield the name of a question, the question, and the end of the name and the part of each of its columns."""
        for name, question in self._questions.items():
            kind = question.kind if isinstance(question, FittedQuestion) else _KINDS[type(question)]
            ends = ["", "_probability" if kind == "noul" else "_probabilities"]
            ends += ["_expected"] * (kind == "score") + ["_mass"]
            if isinstance(question, FittedQuestion) and question.scope is not None:
                ends.append("_scope")
            for end in ends:
                yield name, question, end, _ANSWER_PARTS[end]


class Text:
    """A text with placeholders, parsed once."""

    def __init__(self, field: str, text: Any, constants: Mapping[str, Any]) -> None:
        if not isinstance(text, str):
            raise BulkError(f'{field}: {shown(text)} is not a text such as "{{text}}"')
        self._parts: list[tuple[str, str | None]] = []
        for literal, found in _PLACEHOLDER.findall(text):
            if found in ("{", "}"):
                raise BulkError(f"{field}: a single {found}; a brace that is no placeholder is doubled")
            if found == "{}":
                raise BulkError(f"{field}: a placeholder is the name of a column, as in {{text}}")
            name = None
            if found in ("{{", "}}"):
                literal += found[0]
            elif found[1:-1] in constants:
                literal += as_text(constants[found[1:-1]])
            elif found:
                name = found[1:-1]
            if literal or name is not None:
                self._parts.append((literal, name))
        self.names = [name for _, name in self._parts if name is not None]

    def filled(self, row: Mapping[str, Any]) -> Any:
        if len(self._parts) == 1 and not self._parts[0][0]:
            return value_of(row, self.names[0])
        return "".join(
            literal + ("" if name is None else as_text(value_of(row, name))) for literal, name in self._parts
        )


def refuse_taken(new: Sequence[str], names: Sequence[str]) -> None:
    """``BulkError`` if the rows have a column of a new one's name."""
    if taken := [name for name in new if name in names]:
        raise BulkError(f"the batch has a column {taken[0]!r} already: prefix= puts a text before the new names")


def value_of(row: Mapping[str, Any], name: str) -> Any:
    value = row.get(name)
    if value is None:
        raise InvalidRequest(f"the row's column {shown(name)} is {'null' if name in row else 'missing'}", field=name)
    if isinstance(value, list) and value and not isinstance(value[0], str | list | dict):  # not ids of tokens
        return as_text(value)
    return value if isinstance(value, list | dict) else as_text(value)


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def read_questions(given: Any) -> dict[str, Any]:
    """Questions by name: ``labels`` makes a ``Choice``, ``levels`` a ``Score``, neither a ``Noul``; ``head`` is the
    file of a fitted question."""
    if not isinstance(given, Mapping) or not given:
        raise BulkError(f"questions: {shown(given)} is not an object of questions by name")
    found: dict[str, Any] = {}
    for name, one in given.items():
        if not isinstance(one, Mapping):
            raise BulkError(f"questions[{shown(name)}]: {shown(one)} is not an object")
        if set(one) == {"head"} and isinstance(one["head"], str):
            found[name] = FittedQuestion.load(one["head"])
            continue
        extra = set(one) - {"question", "labels", "levels", "criteria"}
        if extra or len(set(one) & {"labels", "levels", "criteria"}) > 1:
            raise BulkError(
                f"questions[{shown(name)}]: it takes a question, and labels or levels or criteria; or head"
            )
        asked = one.get("question")
        if "labels" in one:
            labels = one["labels"]
            if isinstance(labels, Mapping | list) and len(labels) == 1:
                raise BulkError(
                    f"questions[{shown(name)}]: the one label {shown(next(iter(labels)))} has the probability 1 in "
                    "every row; give two or more, in --choice as NAME=A,B"
                )
            found[name] = Choice(asked, labels)
        elif "levels" in one:
            found[name] = Score(asked, one["levels"])
        else:
            found[name] = Noul(asked, one.get("criteria"))
    return found


def shown_labels(question: Any) -> tuple[str, ...]:
    """Return the labels as ``Answer.probabilities`` has them."""
    if isinstance(question, Choice | FittedQuestion):
        return tuple(question.labels)
    levels = question.levels
    return tuple(map(str, range(1, levels + 1) if isinstance(levels, int) else range(len(levels))))


def read_task(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > MAX_FORM:
            raise BulkError(f"{path}: {path.stat().st_size} bytes; the limit is {MAX_FORM}")
        found = loads(path.read_bytes())
    except (OSError, ValueError) as error:
        if isinstance(error, BulkError):
            raise
        raise BulkError(f"{path}: cannot be read as JSON: {reason(error)}") from error
    if not isinstance(found, dict):
        raise BulkError(f"{path}: an object is expected")
    return found
