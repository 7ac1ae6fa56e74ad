"""Laya's and Julia's form.

    [CLS] choice question: <text> [SEP] [MASK] <option> [MASK] <option> … [SEP] <state> [SEP]

Pieces are tokenised apart. An option is cut to ``option_length`` tokens, question and options to ``head_length``, the
state to the rest.
"""

from __future__ import annotations

from prelude.admission.forms.base import Asked, Form, Rendered, State, encode, levels, options_of, sides
from prelude.admission.plain_question import PlainQuestion
from prelude.admission.tokenization import TokenizationScope
from prelude.errors import InvalidRequest
from prelude.values.model_settings import KINDS, OptionSettings

_LEAST_QUESTION, _LEAST_OPTION = 16, 4
_UNDESCRIBED = ("no, the statement does not hold", "yes, the statement holds")
_JULIA_OPTIONS = 20


class Laya(Form):
    def kind(self, plain: PlainQuestion) -> int:
        return KINDS.index(plain.kind)

    def options(self, plain: PlainQuestion, field: str) -> list[str]:
        return options_of(plain, "level {0}: {1}", ("false", "true"), _UNDESCRIBED)

    def render(self, asked: Asked) -> Rendered:
        tokens, head = asked.settings.tokens, asked.settings.head_length
        whole = [
            encode(asked.scope, asked.settings, f" {option}") for option in self.options(asked.plain, asked.field)
        ]
        options = [[tokens["mask"], *ids[: asked.settings.option_length]] for ids in whole]
        if head - sum(map(len, options)) < _LEAST_QUESTION:
            longest = max(_LEAST_OPTION, (head - _LEAST_QUESTION) // len(options))
            options = [ids[:longest] for ids in options]
        all_ids = encode(asked.scope, asked.settings, f"{asked.plain.kind} question: {asked.plain.text}")
        text = all_ids[: max(8, head - sum(map(len, options)))]
        cut = len(all_ids) - len(text) + sum(map(len, whole)) + len(whole) - sum(map(len, options))
        ids, markers = [tokens["cls"], *text, tokens["sep"]], []
        for option in options:
            markers.append(len(ids))
            ids += option
        ids.append(tokens["sep"])
        room = max(0, asked.most - len(ids) - 1)
        ids_of_state = asked.state.ids
        kept = ids_of_state[max(0, len(ids_of_state) - room) :] if asked.state.from_left else ids_of_state[:room]
        ids += [*kept, tokens["sep"]]
        return Rendered(asked.plain, ids, markers, cut + len(ids_of_state) - len(kept))


class Julia(Laya):
    """Write options as their descriptions alone; a label stands only if it has no description."""

    def state(self, scope: TokenizationScope, settings: OptionSettings, text: str, from_left: bool) -> State:
        return super().state(scope, settings, text, False)

    def options(self, plain: PlainQuestion, field: str) -> list[str]:
        if plain.kind == "score":
            return list(levels(plain))
        if plain.kind == "noul":
            return [note or usual for note, usual in zip(sides(plain), ("false", "true"))]
        if not 2 <= len(plain.labels) <= _JULIA_OPTIONS:
            raise InvalidRequest(
                f"{len(plain.labels)} labels; this model was trained on 2 to {_JULIA_OPTIONS}",
                field=f"{field}.labels",
            )
        notes = plain.notes or ("",) * len(plain.labels)
        return [note or label for label, note in zip(plain.labels, notes)]
