"""OpenDecider-nano's form.

    [CLS] question: <text> [SEP] [MASK] <option> [MASK] <option> … [SEP] input: <state> [SEP]

Pieces are tokenised apart, and the state alone is cut.
"""

from __future__ import annotations

from prelude.admission.forms.base import Form, Rendered, State, encode, levels, sides
from prelude.admission.plain_question import PlainQuestion
from prelude.admission.tokenization import TokenizationScope
from prelude.option_settings import OptionSettings


class OpenDecider(Form):
    yes_first = True

    def state(self, scope: TokenizationScope, settings: OptionSettings, text: str, from_left: bool) -> State:
        return State(encode(scope, settings, f"input: {text}"), text, False)

    def render(
        self,
        scope: TokenizationScope,
        settings: OptionSettings,
        plain: PlainQuestion,
        state: State,
        most: int,
        field: str,
    ) -> Rendered:
        tokens = settings.tokens
        ids = [tokens["cls"], *encode(scope, settings, f"question: {plain.text}"), tokens["sep"]]
        markers = []
        for option in _options(plain):
            markers.append(len(ids))
            ids += [tokens["mask"], *encode(scope, settings, f" {option}")]
        ids.append(tokens["sep"])
        kept = state.ids[: max(0, most - len(ids) - 1)]
        ids += [*kept, tokens["sep"]]
        return Rendered(plain, ids, markers, len(state.ids) - len(kept))


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
