"""DecisionTemplate: what text a state, a question and a label become. Data, kept beside the model.

    state      "{state}\\n\\n"                                      shared by all questions: the trunk
    question   "Question: {question}\\nOptions: {labels}\\nAnswer:"  one branch each
    label      " {label}"                                          scored after its question

The three parts are tokenised apart, so that a state has the same ids whatever is asked about it, and a label the same
ids whatever it answers. Only the placeholders above mean something; all other braces are text.

With ``chat=True`` state and question stand in one user turn of the model's chat template, and the labels follow its
generation prompt:

    <|im_start|>user\\n{state part} │ {question part}<|im_end|>\\n<|im_start|>assistant\\n │ {label part}
                            trunk ┘                                              branch ┘
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from prelude.admission.tokenization import Piece
from prelude.errors import TemplateError, shown
from prelude.tasks import Choice, Question, Score, YesNo, strict_keywords
from prelude.tokenizer._files import read_plain

MAX_TEMPLATE_CHARS = 1 << 16
# Of a part that one question holds once for each label: max_labels of them stay a text of a few megabytes.
MAX_LABEL_PART_CHARS = 1 << 10
_LABEL_PARTS = frozenset(["label", "yes", "no", "separator"])
MAX_FILE_BYTES = 16 * MAX_TEMPLATE_CHARS
_PLACEHOLDER = re.compile(r"\{(state|question|labels|label)\}")
# part -> (required placeholders, optional ones)
_PARTS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "state": (("state",), ()),
    "question": (("question",), ("labels",)),
    "label": (("label",), ()),
    "yes_no": (("question",), ("labels",)),
    "score": (("question",), ("labels",)),
}


@strict_keywords
@dataclass(frozen=True, slots=True)
class DecisionTemplate:
    """``yes_no`` and ``score`` replace ``question`` for those two kinds where they are given; ``yes`` and ``no``
    are the labels of a ``YesNo``; ``separator`` stands between the labels of ``{labels}``. Raises
    ``TemplateError``."""

    state: str = "{state}\n\n"
    question: str = "Question: {question}\nOptions: {labels}\nAnswer:"
    label: str = " {label}"
    yes_no: str | None = None
    score: str | None = None
    yes: str = "yes"
    no: str = "no"
    separator: str = ", "
    chat: bool = False
    _parts: Mapping[str, tuple[str, ...]] = field(init=False, repr=False, compare=False, hash=False)

    def __post_init__(self) -> None:
        if not isinstance(self.chat, bool):
            raise TemplateError(f"{shown(self.chat)} is not true or false", field="template.chat")
        for name in ("state", "question", "label", "yes_no", "score", "yes", "no", "separator"):
            value = getattr(self, name)
            if value is None and name in ("yes_no", "score"):
                continue
            most = MAX_LABEL_PART_CHARS if name in _LABEL_PARTS else MAX_TEMPLATE_CHARS
            if not isinstance(value, str) or len(value) > most:
                raise TemplateError(
                    f"{shown(value)} is not a string of at most {most} characters", field=f"template.{name}"
                )
            if any("\ud800" <= character <= "\udfff" for character in value):
                raise TemplateError(
                    f"{shown(value)} has a surrogate (U+D800 to U+DFFF), which is no character; write the character "
                    "itself",
                    field=f"template.{name}",
                )
        if not self.yes or not self.no or self.yes == self.no:
            raise TemplateError("yes and no must be two different labels", field="template.yes")
        parts = {name: _split(name, getattr(self, name)) for name in _PARTS if getattr(self, name) is not None}
        object.__setattr__(self, "_parts", parts)

    @classmethod
    def from_file(cls, path: str | Path) -> DecisionTemplate:
        """From ``decision_template.json``: an object with any of the fields above, and no others."""
        try:
            data = read_plain(path, MAX_FILE_BYTES)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise TemplateError(f"{path}: cannot be read: {reason}") from error
        return cls.from_json(data, str(path))

    @classmethod
    def from_json(cls, data: bytes, path: str) -> DecisionTemplate:
        """From the content of such a file; ``path`` is named in messages."""
        try:
            found = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise TemplateError(f"{path}: not a readable JSON file: {error}") from error
        if not isinstance(found, dict):
            raise TemplateError(f"{path}: {type(found).__name__} instead of an object")
        known = [item.name for item in fields(cls) if item.init]
        if unknown := sorted(set(found) - set(known)):
            raise TemplateError(f"{path}: unknown field {shown(unknown[0])}; the fields are {', '.join(known)}")
        return cls(**found)

    def labels_of(self, question: Question) -> tuple[str, ...]:
        """A ``Choice``'s own labels, yes and no, or the levels from 1."""
        match question:
            case YesNo():
                return (self.yes, self.no)
            case Score(levels=levels):
                return tuple(str(level) for level in range(1, levels + 1))
            case Choice(labels=labels):
                return tuple(labels)

    def state_pieces(self, state: list[Piece]) -> list[Piece]:
        before, _, after = self._parts["state"]
        return [(before, True), *state, (after, True)]

    def question_pieces(self, question: Question, labels: tuple[str, ...]) -> list[Piece]:
        name = {YesNo: "yes_no", Score: "score"}.get(type(question), "question")
        values = {"question": question.question, "labels": self.separator.join(labels)}
        return _fill(self._parts.get(name, self._parts["question"]), values)

    def label_pieces(self, label: str) -> list[Piece]:
        return _fill(self._parts["label"], {"label": label})


def _split(name: str, text: str) -> tuple[str, ...]:
    """Literals and placeholder names in turn, literals first and last."""
    required, optional = _PARTS[name]
    parts = tuple(_PLACEHOLDER.split(text))
    found = parts[1::2]
    for placeholder in found:
        if placeholder not in required + optional:
            raise TemplateError(f"{{{placeholder}}} does not belong in this part", field=f"template.{name}")
        if found.count(placeholder) > 1:
            raise TemplateError(f"{{{placeholder}}} stands twice in {shown(text)}", field=f"template.{name}")
    for placeholder in required:
        if placeholder not in found:
            raise TemplateError(f"{{{placeholder}}} is missing in {shown(text)}", field=f"template.{name}")
    return parts


def _fill(parts: tuple[str, ...], values: Mapping[str, Any]) -> list[Piece]:
    return [(values[part], False) if index % 2 else (part, True) for index, part in enumerate(parts)]


# For models that bring a chat template and no decision_template.json.
CHAT_TEMPLATE = DecisionTemplate(
    question="Question: {question}\nAnswer with exactly one of: {labels}", label="{label}", chat=True
)
