"""Kev's form. The state is computed once for all questions.

    <|fim_prefix|> <state> <|fim_middle|> <question> <|box_start|> <option> <|box_end|> … <|fim_suffix|>

Pieces are tokenised apart. The head reads the tokens behind the options, and the last one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from prelude.admission.forms.base import Asked, Form, Rendered, State, as_ids, encode, options_of
from prelude.admission.prepared import TokenTree
from prelude.admission.tokenization import TokenizationScope
from prelude.values.arrays import I32
from prelude.values.model_settings import OptionSettings

_CONTROL = re.compile(r"<\|(\w+)\|>")


def _plain(text: str) -> str:
    """Return names of control tokens as the model was trained to see them in a text."""
    return _CONTROL.sub(r"<¦\1¦>", text)


class Kev(Form):
    together = True

    def state(self, scope: TokenizationScope, settings: OptionSettings, text: str, from_left: bool) -> State:
        return State(encode(scope, settings, _plain(text)), text, False)

    def render(self, asked: Asked) -> Rendered:
        tokens = asked.settings.tokens
        ids = [tokens["question"], *encode(asked.scope, asked.settings, _plain(asked.plain.text))]
        read = []
        for option in options_of(asked.plain, "{1}", ("no", "yes")):
            ids += [tokens["open"], *encode(asked.scope, asked.settings, _plain(option)), tokens["close"]]
            read.append(len(ids) - 1)
        ids.append(tokens["answer"])
        read.append(len(ids) - 1)
        settings, length = asked.settings, len(asked.state.ids)
        over = max(0, len(ids) - settings.head_length) + max(0, length - settings.state_length)
        return Rendered(asked.plain, ids, read, max(over, 1 + length + len(ids) - asked.most, 0))

    def tree(self, settings: OptionSettings, state: State, questions: Sequence[Rendered]) -> tuple[TokenTree, I32]:
        trunk = as_ids([settings.tokens["state"], *state.ids])
        rows: list[int] = []
        tokens = len(trunk)
        for one in questions:
            rows += [tokens + place for place in one.read]
            tokens += len(one.ids)
        return TokenTree.build([(-1, trunk), *((0, as_ids(one.ids)) for one in questions)]), as_ids(rows)
