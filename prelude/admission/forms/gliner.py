"""GLiNER2's form of a classification.

    ( [P] <question> [DESCRIPTION] <label>: <description> … ( [L] <label> [L] <label> … ) ) [SEP_TEXT] <words>

The state is lowered and split into words and marks, each tokenised alone; it ends with a full stop. GLiNER2's own
program puts all questions of a request into one prompt, in which they see each other. Here each has its own, so that
an answer does not depend on the request's other questions.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from functools import cache

from prelude.admission.forms.base import Asked, Form, Rendered, State
from prelude.admission.plain_question import PlainQuestion
from prelude.admission.tokenization import TokenizationScope
from prelude.errors import InvalidRequest
from prelude.values.model_settings import OptionSettings

_UNASKED = "label"


@cache
def _words() -> re.Pattern[str]:
    """Addresses, names with @, words with hyphens, and single other characters."""
    marks = "".join(chr(code) for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code))[0] == "M")
    word = rf"[\w{marks}\u200c\u200d]"
    return re.compile(
        rf"(?:https?://[^\s]+|www\.[^\s]+)|[a-z0-9._%+-]+@[a-z0-9.-]+\.[a-z]{{2,}}|@[a-z0-9_]+"
        rf"|{word}+(?:[-_]{word}+)*|\S",
        re.IGNORECASE,
    )


class Gliner(Form):
    def state(self, scope: TokenizationScope, settings: OptionSettings, text: str, from_left: bool) -> State:
        whole = text if text.endswith((".", "!", "?")) else f"{text}."
        words = [match.group().lower() for match in _words().finditer(whole)]
        ids: list[int] = []
        for word in words:
            ids += scope.encode(word).tolist()
        return State(ids, text, False)

    def render(self, asked: Asked) -> Rendered:
        if asked.plain.kind != "choice":
            raise InvalidRequest(
                f"this head compares labels, and was not trained on a {asked.plain.kind.capitalize()}; ask a Choice "
                "with a label for each answer",
                field=asked.field,
            )
        ids, markers = classification(asked.scope, asked.settings, asked.plain)
        ids.append(asked.settings.tokens["text"])
        kept = asked.state.ids[: max(0, asked.most - len(ids))]
        return Rendered(asked.plain, ids + kept, markers, len(asked.state.ids) - len(kept))


def classification(
    scope: TokenizationScope, settings: OptionSettings, plain: PlainQuestion
) -> tuple[list[int], list[int]]:
    """Return the tokens of the question, and the places of its labels' tokens."""
    tokens = settings.tokens

    def text(content: str) -> list[int]:
        found: list[int] = scope.encode(content).tolist()
        return found

    ids = [*text("("), tokens["prompt"]]
    said = [f"{label}: {note}" for label, note in zip(plain.labels, plain.notes) if note]
    name = plain.text or _UNASKED
    ids += text(f"{name} " if said else name)
    for index, note in enumerate(said, start=1):
        ids += [tokens["description"], *text(f" {note}" if index == len(said) else f" {note} ")]
    ids += text("(")
    markers = []
    for label in plain.labels:
        markers.append(len(ids))
        ids += [tokens["label"], *text(label)]
    return [*ids, *text(")"), *text(")")], markers
