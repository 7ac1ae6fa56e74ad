"""Guard: one field of a guard model's answer, scored as labels behind the text that the model would have written.

chat template … <|im_start|>assistant\\n…Safety:    the text that the model was trained to read, and its answer so far
    ├─ " Safe"                                      the labels, one trie in the same forward pass
    ├─ " Unsafe"
    └─ " Controversial"
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from prelude.admission.context import AdmissionContext
from prelude.admission.decide import weigh
from prelude.admission.labels import LabelTrie, build_trie
from prelude.admission.messages import shorten_messages
from prelude.admission.prepared import Notes, Outcome, Parts, TokenTree
from prelude.admission.prompts import TRUNCATIONS, kept, render, require_messages
from prelude.admission.tokenization import TokenizationScope
from prelude.errors import InvalidRequest, shown
from prelude.readouts.batch import LogprobRows
from prelude.recipes import GuardField, GuardRecipe
from prelude.results import GuardAnswer
from prelude.tasks import Guard
from prelude.values import validation


def prepare_guard(ctx: AdmissionContext, scope: TokenizationScope, task: Guard) -> Parts:
    recipe = guard_recipe(ctx, task.recipe)
    validation.one_of(task.truncation, "truncation", TRUNCATIONS)
    require_messages(task.prompt, "a guard model")
    messages, dropped = shorten_messages(ctx, task.prompt, "prompt", task.truncation)
    pieces = render(ctx, messages, "prompt", True)
    field, written, said = next_field(recipe, messages, task.given)
    pieces.append((written, True))
    texts = continuations(recipe, field, said, about_response(messages))
    labels = tuple(texts)
    label_ids = tuple(tuple(scope.encode_pieces([(text, True)]).tolist()) for text in texts.values())
    trie = build_trie(label_ids, labels, "recipe.labels")
    ids = scope.encode_pieces(pieces)
    room = ctx.max_length - trie.depth
    excess = max(0, len(ids) - room)
    if excess:
        ids, cuttable = scope.encode_cuttable(pieces)
        ids = ids[kept(ctx, cuttable, excess, task.truncation, "prompt", room)]
    last = np.int32(len(ids) - 1)
    tree = TokenTree.build([(-1, ids), *((parent + 1, piece) for parent, piece in trie.segments)])
    readout = LogprobRows(trie.rows + last, trie.target_rows, trie.targets)
    return Parts(
        tree,
        readout,
        lambda outcome: _answer(field.name, labels, trie, outcome),
        Notes(labels=tuple(zip(labels, label_ids)), recipe=recipe.name, activation="softmax"),
        truncated=excess or int(dropped > 0),
    )


def guard_recipe(ctx: AdmissionContext, given: Any) -> GuardRecipe:
    return ctx.recipes.chosen(given, GuardRecipe, "guards", "other models answer in other words")


def about_response(messages: Any) -> bool:
    """Return whether the last message is the assistant's. A value that is no list of messages is refused later, by
    rendering."""
    last = messages[-1] if isinstance(messages, Sequence) and messages else None
    return isinstance(last, Mapping) and last.get("role") == "assistant"


def next_field(
    recipe: GuardRecipe, messages: Sequence[Mapping[str, Any]], given: Any
) -> tuple[GuardField, str, tuple[str, ...]]:
    """Return the first field that ``given`` does not answer, the answer's text before its label, and the labels that
    it has already."""
    given = {} if given is None else given
    if not isinstance(given, Mapping):
        raise InvalidRequest(f"{shown(given)} is not a mapping of fields to labels", field="given")
    response = about_response(messages)
    asked = recipe.asked(response)
    if unknown := set(given) - {field.name for field in asked}:
        raise InvalidRequest(
            f"{shown(sorted(map(str, unknown))[0])} is not a field of this conversation's answer; there are "
            f"{', '.join(field.name for field in asked)}",
            field="given",
        )
    written = ""
    for at, field in enumerate(asked):
        written += field.before
        if field.name not in given:
            if len(given) > at:
                raise InvalidRequest(f"{field.name!r} comes before the others; give its label too", field="given")
            return field, written, ()
        said, ended = _labels_given(field, given[field.name], response)
        written += recipe.separator + field.joiner.join(said)
        if not ended:
            if len(given) > at + 1:
                raise InvalidRequest(
                    f'{field.name!r} is not at its end, and a field behind it is given; end its list with ""',
                    field=f"given.{field.name}",
                )
            return field, written, said
    raise InvalidRequest("every field is answered; leave one out", field="given")


def _labels_given(field: GuardField, value: Any, response: bool) -> tuple[tuple[str, ...], bool]:
    """Return the labels of a field, and whether they are all. Those of a list are if "" ends the list."""
    labels, here = field.labels_for(response), f"given.{field.name}"
    several = bool(field.joiner) and isinstance(value, list | tuple)
    said = tuple(value) if several else (value,)
    ended = not several or (len(said) > 1 and said[-1] == "")
    said = said[:-1] if several and ended else said
    for label in said:
        if not isinstance(label, str) or label not in labels:
            raise InvalidRequest(f"{shown(label)} is not a label of {field.name!r}", field=here)
    if not said or len(set(said)) < len(said) or (len(said) > 1 and field.none in said):
        raise InvalidRequest(f"{shown(value)} are not different labels that stand beside one another", field=here)
    return said, ended or said == (field.none,)


def continuations(recipe: GuardRecipe, field: GuardField, said: tuple[str, ...], response: bool) -> dict[str, str]:
    """Return the next texts that the model may write: a label; behind labels that it has, another one, or "" and the
    field's end."""
    labels = field.labels_for(response)
    if not said:
        return {label: recipe.separator + label for label in labels}
    more = {label: field.joiner + label for label in labels if label not in said and label != field.none}
    return {**more, "": recipe.after(field, response)}


def _answer(field: str, labels: tuple[str, ...], trie: LabelTrie, outcome: Outcome) -> GuardAnswer:
    index, _, probabilities, logprobs, mass = weigh(trie, labels, outcome.pairs(), 0)
    label = labels[index]
    return GuardAnswer(field, label, probabilities, logprobs, mass, outcome.stats, labels=(label,))
