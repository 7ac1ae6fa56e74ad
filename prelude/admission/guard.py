"""Guard: one field of a guard model's answer, scored as labels behind the text that the model would have written.

chat template … <|im_start|>assistant\\n…Safety:    what the model was trained to read, and its answer so far
    ├─ " Safe"                                      the labels, one trie in the same forward pass
    ├─ " Unsafe"
    └─ " Controversial"
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from prelude.admission import checks
from prelude.admission.facts import Facts, admitted
from prelude.admission.labels import LabelTrie, build_trie
from prelude.admission.messages import shorten_messages
from prelude.admission.prepared import Admitted, Notes, Outcome, TokenTree
from prelude.admission.prompts import TRUNCATIONS, kept, render, require_messages
from prelude.admission.tokenization import Use
from prelude.batch import LogprobRows
from prelude.errors import InvalidRequest, RecipeError, shown
from prelude.recipes import GuardField, GuardRecipe, names, recipe_of
from prelude.results import GuardAnswer
from prelude.tasks import Guard


def prepare_guard(facts: Facts, use: Use, task: Guard) -> tuple[Admitted, Notes]:
    recipe = guard_recipe(facts, task.recipe)
    checks.one_of(task.truncation, "truncation", TRUNCATIONS)
    require_messages(task.prompt, "prompt", "a guard model")
    messages, dropped = shorten_messages(facts, task.prompt, "prompt", task.truncation)
    pieces = render(facts, messages, "prompt", True)
    field, written = next_field(recipe, messages, task.given)
    pieces.append((written, True))
    labels = field.labels_for(about_response(messages))
    label_ids = tuple(tuple(use.encoder.fixed(use, recipe.separator + label).tolist()) for label in labels)
    trie = build_trie(label_ids, labels, "recipe.labels")
    ids = use.encode_pieces(pieces)
    room = facts.max_length - trie.depth
    excess = max(0, len(ids) - room)
    if excess:
        ids, cuttable = use.encode_cuttable(pieces)
        ids = ids[kept(facts, cuttable, excess, task.truncation, "prompt", room)]
    last = np.int32(len(ids) - 1)
    tree = TokenTree.build([(-1, ids), *((parent + 1, piece) for parent, piece in trie.segments)])
    readout = LogprobRows(trie.rows + last, trie.target_rows, trie.targets)
    ready = admitted(
        facts,
        use,
        task,
        tree,
        readout,
        lambda outcome: _answer(field.name, labels, trie, outcome),
        truncated=excess or int(dropped > 0),
    )
    return ready, Notes(labels=tuple(zip(labels, label_ids)), recipe=recipe.name, activation="softmax")


def guard_recipe(facts: Facts, given: Any) -> GuardRecipe:
    """The recipe that is named, or the model's; ``RecipeError`` where nothing says it."""
    if given is not None:
        named: GuardRecipe = recipe_of(given, GuardRecipe)
        return named
    if facts.recipes.guard is not None:
        return facts.recipes.guard
    raise RecipeError(
        f"the model directory does not say how it guards (looked for: {'; '.join(facts.recipes.looked)}), and other "
        f"models answer in other words; name it: recipe={' or '.join(map(repr, names(GuardRecipe)))}, or a "
        "GuardRecipe of your own",
        field="recipe",
    )


def about_response(messages: Sequence[Mapping[str, Any]]) -> bool:
    return bool(messages[-1].get("role") == "assistant")


def next_field(recipe: GuardRecipe, messages: Sequence[Mapping[str, Any]], given: Any) -> tuple[GuardField, str]:
    """The first field that ``given`` does not answer, and the text of the answer before its label."""
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
    for field in asked:
        written += field.before
        if field.name not in given:
            if len(given) > asked.index(field):
                raise InvalidRequest(f"{field.name!r} comes before the others; give its label too", field="given")
            return field, written
        label = given[field.name]
        if label not in field.labels_for(response):
            raise InvalidRequest(f"{shown(label)} is not a label of {field.name!r}", field=f"given.{field.name}")
        written += recipe.separator + label
    raise InvalidRequest("every field is answered; leave one out", field="given")


def _answer(field: str, labels: tuple[str, ...], trie: LabelTrie, outcome: Outcome) -> GuardAnswer:
    index, _, probabilities, logprobs, mass = trie.paths.weigh(labels, outcome.pairs(), 0)
    return GuardAnswer(field, labels[index], probabilities, logprobs, mass, outcome.stats)
