"""bev-decider's form: options that do not see each other, and an answer that sees all of them.

    Choose the best option.⏎Question: <text>⏎⏎<state>⏎ ─┬─ <option><option text></option>
                                                        ├─ <option><option text></option>
                                                        └═ The answer is:      sees the prompt and all options

``<option>`` and ``</option>`` are plain text. The head reads the last token of each option's text, and the last one.
"""

from __future__ import annotations

from collections.abc import Sequence

from prelude.admission.forms.base import Asked, Form, Rendered, State, as_ids, options_of
from prelude.admission.plain_question import PlainQuestion
from prelude.admission.prepared import TokenTree
from prelude.admission.tokenization import TokenizationScope
from prelude.values.arrays import I32
from prelude.values.model_settings import OptionSettings

_TASKS = {"choice": "Choose the best option.", "noul": "Answer yes or no.", "score": "Rate it on the given scale."}
_KINDS = ("choice", "noul", "score")
_ANSWER = "The answer is:"


class Bev(Form):
    together = True

    def kind(self, plain: PlainQuestion) -> int:
        return _KINDS.index(plain.kind)

    def state(self, scope: TokenizationScope, settings: OptionSettings, text: str, from_left: bool) -> State:
        ids = scope.encode(text).tolist()
        kept = text if len(ids) <= settings.state_length else _decoded(scope, ids[: settings.state_length])
        return State(ids, kept, False)

    def render(self, asked: Asked) -> Rendered:
        text = f"{_TASKS[asked.plain.kind]}\nQuestion: {asked.plain.text}\n\n{asked.state.text}\n"
        prompt = asked.scope.encode(text).tolist()
        before, behind = (asked.scope.encode(mark).tolist() for mark in ("<option>", "</option>"))
        ids, parts, read = list(prompt), [len(prompt)], []
        cut = max(0, len(asked.state.ids) - asked.settings.state_length)
        for option in options_of(asked.plain, "{0}: {1}", ("No", "Yes")):
            own = asked.scope.encode(option).tolist()
            if len(own) > asked.settings.option_length:
                cut += len(own) - asked.settings.option_length
                own = asked.scope.encode(_decoded(asked.scope, own[: asked.settings.option_length])).tolist()
            ids += [*before, *own, *behind]
            parts.append(len(ids))
            read.append(len(ids) - 1 - len(behind))
        ids += asked.scope.encode(_ANSWER).tolist()
        read.append(len(ids) - 1)
        return Rendered(asked.plain, ids, read, cut, (*parts, len(ids)))

    def tree(self, settings: OptionSettings, state: State, questions: Sequence[Rendered]) -> tuple[TokenTree, I32]:
        alone = len(questions) == 1
        segments: list[tuple[int, I32]] = [] if alone else [(-1, as_ids([]))]
        joins: list[int] = []
        rows: list[int] = []
        tokens = 0
        for one in questions:
            prompt = len(segments)
            segments.append((-1 if alone else 0, as_ids(one.ids[: one.parts[0]])))
            segments += [(prompt, as_ids(one.ids[a:b])) for a, b in zip(one.parts, one.parts[1:])]
            joins.append(len(segments) - 1)
            rows += [tokens + place for place in one.read]
            tokens += len(one.ids)
        return TokenTree.build(segments, joins), as_ids(rows)


def _decoded(scope: TokenizationScope, ids: list[int]) -> str:
    return scope.encoder.tokenizer.decode(ids, skip_special_tokens=False)
