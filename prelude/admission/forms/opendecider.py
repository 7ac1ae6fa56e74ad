"""OpenDecider-nano's form.

    [CLS] question: <text> [SEP] [MASK] <option> [MASK] <option> … [SEP] input: <state> [SEP]

Pieces are tokenised apart, and the state alone is cut.
"""

from __future__ import annotations

from prelude.admission.forms.base import Asked, Form, Rendered, State, encode, levels, sides
from prelude.admission.plain_question import PlainQuestion
from prelude.admission.tokenization import TokenizationScope
from prelude.values.model_settings import OptionSettings


class OpenDecider(Form):
    yes_first = True

    def state(self, scope: TokenizationScope, settings: OptionSettings, text: str, from_left: bool) -> State:
        return State(encode(scope, settings, f"input: {text}"), text, False)

    def render(self, asked: Asked) -> Rendered:
        tokens = asked.settings.tokens
        ids = [tokens["cls"], *encode(asked.scope, asked.settings, f"question: {asked.plain.text}"), tokens["sep"]]
        markers = []
        for option in _options(asked.plain):
            markers.append(len(ids))
            ids += [tokens["mask"], *encode(asked.scope, asked.settings, f" {option}")]
        ids.append(tokens["sep"])
        kept = asked.state.ids[: max(0, asked.most - len(ids) - 1)]
        ids += [*kept, tokens["sep"]]
        return Rendered(asked.plain, ids, markers, len(asked.state.ids) - len(kept))


def _options(plain: PlainQuestion) -> list[str]:
    """A description that repeats its label is not written."""
    if plain.kind == "choice":
        named = list(zip(plain.labels, plain.notes or plain.labels))
    elif plain.kind == "score":
        named = [(str(index), text) for index, text in enumerate(levels(plain))]
    else:
        false, true = sides(plain)
        named = [("yes", true or "Yes"), ("no", false or "No")]
    return [f"{label}: {note}" if note and note != label else label for label, note in named]
