"""Sparrow's form: bags of words, and pairs of a key and a number.

    state ─┬─ key of a pair ── its line ── its value, a character a token
           └─ question ─┬─ <label> <description>
                        └─ <label> <description>

Each segment is read by itself, with the number of its part. A piece of more tokens than the model reads is
cut, and a piece without tokens is the first token of the vocabulary.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from prelude.admission.forms.base import Asked, Form, Rendered, State, as_ids, levels, sides
from prelude.admission.plain_question import PlainQuestion
from prelude.admission.prepared import TokenTree
from prelude.admission.tokenization import TokenizationScope
from prelude.values.arrays import I32
from prelude.values.model_settings import KINDS, OptionSettings

_PAIR = re.compile(r"([A-Za-z][A-Za-z0-9_ .\-]{0,40}?)\s*[:=]\s*(-?\d+(?:\.\d+)?)\s*(%?)")
_MOST_PAIRS, _MOST_CHARS = 16, 64
_HOLDS = ("the statement does not hold for this state", "the statement holds for this state")
_ALONE = 0  # the token of a text without tokens


class Sparrow(Form):
    together = True

    def kind(self, plain: PlainQuestion) -> int:
        return KINDS.index(plain.kind)

    def state(self, scope: TokenizationScope, settings: OptionSettings, text: str, from_left: bool) -> State:
        return State(_ids(scope, text.strip()), text.strip(), False)

    def render(self, asked: Asked) -> Rendered:
        longest = asked.settings.option_length
        texts = [asked.plain.text.strip(), *_options(asked.plain)]
        pieces = [_ids(asked.scope, text) for text in texts]
        cut = sum(max(0, len(piece) - longest) for piece in (asked.state.ids, *pieces))
        pieces = [asked.state.ids[:longest], *(piece[:longest] for piece in pieces)]
        if asked.settings.tokens:
            pieces += _pairs(asked.scope, asked.settings, asked.state.text)
        ends = [0]
        for piece in pieces:
            ends.append(ends[-1] + len(piece))
        count = len(_options(asked.plain))
        read = [end - 1 for end in [*ends[3 : 3 + count], ends[2]]]
        return Rendered(asked.plain, [token for piece in pieces for token in piece], read, cut, tuple(ends[1:]))

    def tree(self, settings: OptionSettings, state: State, questions: Sequence[Rendered]) -> tuple[TokenTree, I32]:
        """The state stands once, with its pairs."""
        first = questions[0]
        segments: list[tuple[int, I32]] = [(-1, as_ids(first.ids[: first.parts[0]]))]
        tokens = first.parts[0]
        behind = list(zip(first.parts, first.parts[1:]))[len(first.read) :]
        for at, (start, stop) in enumerate(behind):
            segments.append((0 if at % 3 == 0 else len(segments) - 1, as_ids(first.ids[start:stop])))
            tokens += stop - start
        rows: list[int] = []
        for one in questions:
            shift, question = tokens - one.parts[0], len(segments)
            for at, (start, stop) in enumerate(list(zip(one.parts, one.parts[1:]))[: len(one.read)]):
                segments.append((question if at else 0, as_ids(one.ids[start:stop])))
                tokens += stop - start
            rows += [place + shift for place in one.read]
        return TokenTree.build(segments), as_ids(rows)


def _ids(scope: TokenizationScope, text: str) -> list[int]:
    found: list[int] = scope.encode(text).tolist() if text else []
    return found or [_ALONE]


def _options(plain: PlainQuestion) -> list[str]:
    if plain.kind == "choice":
        named = list(zip(plain.labels, plain.notes or [""] * len(plain.labels)))
    elif plain.kind == "score":
        named = [(str(index), text) for index, text in enumerate(levels(plain))]
    else:
        named = [(side, note or told) for side, note, told in zip(("false", "true"), sides(plain), _HOLDS)]
    return [f"{label} {note.strip()}" for label, note in named]


def _pairs(scope: TokenizationScope, settings: OptionSettings, text: str) -> list[list[int]]:
    """Key, line and number of each pair, one behind the other. The text before its colon names the line."""
    found: list[list[int]] = []
    longest = settings.option_length
    for line in text.splitlines():
        head = line.split(":", 1)[0].strip()
        for match in _PAIR.finditer(line):
            if len(found) == 3 * _MOST_PAIRS:
                return found
            key = match.group(1).strip()
            number = [str(unicodedata.digit(char, char)) for char in match.group(2)[:_MOST_CHARS]]
            label = _ids(scope, head)[:longest] if head else _ids(scope, key)
            found += [_ids(scope, key), label, [settings.tokens[char] for char in number]]
    return found
