"""DecisionTemplate: the text of a state, a question and a label. Data, kept beside the model.

    state      "{state}\\n\\n"                                      shared by all questions: the trunk
    question   "Question: {question}\\nOptions: {labels}\\nAnswer:"  one branch each
    label      " {label}"                                          scored after its question

If a label has a description, each label stands in a line of its own, and the white space before ``{labels}`` is
left out:

    described    "\\n- {label}: {description}"
    undescribed  "\\n- {label}"

The three parts are tokenised apart, so that a state has the same ids for every question, and a label the same
ids after every question. Only the placeholders above have a meaning; all other braces are text.

With ``chat=True`` state and question stand in one user turn of the model's chat template, and the labels follow its
generation prompt:

    <|im_start|>user\\n{state part} │ {question part}<|im_end|>\\n<|im_start|>assistant\\n │ {label part}
                            trunk ┘                                              branch ┘
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from prelude import recipes
from prelude.admission.plain_question import PlainQuestion
from prelude.admission.tokenization import Piece
from prelude.errors import RecipeError, TemplateError, shown
from prelude.records import dataclass, field, fields
from prelude.tasks import strict_keywords
from prelude.tokenizer.backends.files import read_plain
from prelude.values.strict_json import parse

MAX_TEMPLATE_CHARS = 1 << 16
# Of a part that one question holds once for each label: max_labels of them stay a text of a few megabytes.
MAX_LABEL_PART_CHARS = 1 << 10
_LABEL_PARTS = frozenset(["label", "yes", "no", "separator", "described", "undescribed"])
MAX_FILE_BYTES = 16 * MAX_TEMPLATE_CHARS
_PLACEHOLDER = re.compile(r"\{(state|question|labels|label|letter|description)\}")
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
# part -> (required placeholders, optional ones)
_PARTS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "state": (("state",), ()),
    "question": (("question",), ("labels",)),
    "label": (("label",), ()),
    "yes_no": (("question",), ("labels",)),
    "score": (("question",), ("labels",)),
    "described": (("label", "description"), ("letter",)),
    "undescribed": (("label",), ("letter",)),
}
_OPTIONAL = ("yes_no", "score")
_TEXTS = (*_PARTS, "yes", "no", "separator", "choose", "judge", "rate")


@strict_keywords
@dataclass(frozen=True, slots=True)
class DecisionTemplate:
    """``yes_no`` and ``score`` replace ``question`` for those two kinds if they are given; ``yes`` and ``no``
    are the labels of a ``Noul``; ``separator`` stands between the labels of ``{labels}`` if none has a
    description. ``choose``, ``judge`` and ``rate`` ask for a ``Choice``, ``Noul`` and ``Score`` without a
    text of their own. With ``letters`` the options of a ``Choice`` (26 at most) are listed in lines, in which
    ``{letter}`` stands for A, B and so on, and the letter is scored in the place of the label; answers name the
    labels. Raises ``TemplateError``."""

    state: str = "{state}\n\n"
    question: str = "Question: {question}\nOptions: {labels}\nAnswer:"
    label: str = " {label}"
    yes_no: str | None = None
    score: str | None = None
    yes: str = "yes"
    no: str = "no"
    separator: str = ", "
    described: str = "\n- {label}: {description}"
    undescribed: str = "\n- {label}"
    choose: str = "Choose the best option."
    judge: str = "Answer yes or no."
    rate: str = "Rate it on the given scale."
    chat: bool = False
    letters: bool = False
    _parts: Mapping[str, tuple[str, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("chat", "letters"):
            if not isinstance(getattr(self, name), bool):
                raise TemplateError(f"{shown(getattr(self, name))} is not true or false", field=f"template.{name}")
        for name in _TEXTS:
            value = getattr(self, name)
            if value is None and name in _OPTIONAL:
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
        if self.letters:
            for name in ("described", "undescribed"):
                if "letter" not in parts[name][1::2]:
                    raise TemplateError("{letter} is missing, and letters are asked for", field=f"template.{name}")
            if "labels" not in parts["question"][1::2]:
                raise TemplateError("{labels} is missing, and letters are asked for", field="template.question")

    @classmethod
    def from_file(cls, path: str | Path) -> DecisionTemplate:
        """Read ``decision_template.json``: an object with any of the fields above, and no others."""
        try:
            data = read_plain(path, MAX_FILE_BYTES)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise TemplateError(f"{path}: cannot be read: {reason}", field=None) from error
        return cls.from_json(data, str(path))

    @classmethod
    def from_json(cls, data: bytes, path: str) -> DecisionTemplate:
        """Read the content of that file; ``path`` is named in messages."""
        found = parse(data, path, TemplateError)
        if not isinstance(found, dict):
            raise TemplateError(f"{path}: {type(found).__name__} instead of an object", field=None)
        known = [item.name for item in fields(cls) if item.init]
        if unknown := sorted(set(found) - set(known)):
            said = f"{path}: unknown field {shown(unknown[0])}; the fields are {', '.join(known)}"
            raise TemplateError(said, field=None)
        try:
            return cls(**found)
        except TemplateError as error:
            raise TemplateError(f"{path}: {error}", field=None) from error

    @property
    def chars(self) -> int:
        """Characters of all of its texts."""
        return sum(len(getattr(self, name) or "") for name in _TEXTS)

    def labels_of(self, plain: PlainQuestion) -> tuple[str, ...]:
        """Return the question's labels; yes and no of a ``Noul``."""
        return (self.yes, self.no) if plain.kind == "noul" else plain.labels

    def answers_of(self, plain: PlainQuestion, labels: tuple[str, ...]) -> tuple[str, ...]:
        """Return the texts that the model answers with: the labels, or the letters of their places."""
        if not self.letters or plain.kind != "choice":
            return labels
        if len(labels) > len(LETTERS):
            raise TemplateError(
                f"{len(labels)} options; a template with letters names {len(LETTERS)} at most: use one that scores "
                "the labels",
                field="template.letters",
            )
        return tuple(LETTERS[: len(labels)])

    def state_pieces(self, state: list[Piece]) -> list[Piece]:
        before, _, after = self._parts["state"]
        return [(before, True), *state, (after, True)]

    def question_pieces(self, plain: PlainQuestion, labels: tuple[str, ...]) -> list[Piece]:
        parts = self._question_part(plain)
        if self._in_lines(plain):
            if not self.shows_labels(plain):
                raise TemplateError(
                    f"its part for a {plain.kind} has no {{labels}}, so that descriptions would not be shown",
                    field="template",
                )
            before = 2 * parts[1::2].index("labels")
            parts = (*parts[:before], parts[before].rstrip(), *parts[before + 1 :])
        text = plain.text or getattr(self, _UNASKED[plain.kind])
        return _fill(parts, {"question": text, "labels": self.listing(plain, labels)})

    def listing(self, plain: PlainQuestion, labels: tuple[str, ...]) -> str:
        """Return the text that ``{labels}`` stands for."""
        if not self._in_lines(plain):
            return self.separator.join(labels)
        lines: list[Any] = []
        letters = self.answers_of(plain, labels)
        for letter, label, note in zip(letters, labels, plain.notes or ("",) * len(labels)):
            parts = self._parts["described" if note else "undescribed"]
            lines += [text for text, _ in _fill(parts, {"letter": letter, "label": label, "description": note})]
        return "".join(lines)

    def _in_lines(self, plain: PlainQuestion) -> bool:
        return bool(plain.notes) or (self.letters and plain.kind == "choice")

    def shows_labels(self, plain: PlainQuestion) -> bool:
        """Return whether the part of this kind of question lists the labels."""
        return "labels" in self._question_part(plain)[1::2]

    def _question_part(self, plain: PlainQuestion) -> tuple[str, ...]:
        return self._parts.get(_KIND_PARTS[plain.kind], self._parts["question"])

    def label_pieces(self, label: str) -> list[Piece]:
        return _fill(self._parts["label"], {"label": label})


_KIND_PARTS = {"choice": "question", "noul": "yes_no", "score": "score"}
_UNASKED = {"choice": "choose", "noul": "judge", "score": "rate"}


def _split(name: str, text: str) -> tuple[str, ...]:
    """Return literals and placeholder names in turn, literals first and last."""
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


@lru_cache
def template_hash(template: DecisionTemplate) -> str:
    """Hash all fields: two templates with the same hash write the same texts."""
    values = [getattr(template, item.name) for item in fields(template) if item.init]
    return hashlib.blake2b(json.dumps(values).encode(), digest_size=16).hexdigest()


# For models that bring a chat template and no decision_template.json.
CHAT_TEMPLATE = DecisionTemplate(
    question="Question: {question}\nAnswer with exactly one of: {labels}", label="{label}", chat=True
)


@lru_cache
def decision_template(name: str) -> DecisionTemplate:
    """Return a template for ``decide(template=...)``: one of ``decision_names()``. Raises ``RecipeError``."""
    if name not in decision_names():
        raise RecipeError(f"{shown(name)} is not a recipe for decide; there are {decision_names()}", field="template")
    return DecisionTemplate.from_json((_decide_recipes() / f"{name}.json").read_bytes(), f"{name}.json")


def decision_names() -> list[str]:
    """Return the templates for plain chat models, in ``prelude/recipes/decide``."""
    return sorted(one.stem for one in _decide_recipes().glob("*.json"))


def _decide_recipes() -> Path:
    return Path(recipes.__file__).parent / "decide"
