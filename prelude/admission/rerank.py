"""Rerank: one query and one document, as the model was trained to read them.

A pair for encoders with a head of one label; the text of a recipe for decoders. The documents of one query
then begin with the same tokens: the instruction and the query are computed once for all that arrive together.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from prelude.admission.context import AdmissionContext, served
from prelude.admission.pooled import activate, encode_pair, head_activation, head_logits, head_readout
from prelude.admission.prepared import Notes, Outcome, Parts, TokenTree
from prelude.admission.prompts import TRUNCATIONS, kept, prompt_before, render, shorten
from prelude.admission.tokenization import Piece, TokenizationScope
from prelude.errors import InvalidRequest, RecipeError, shown
from prelude.readouts import RequestReadout
from prelude.readouts.batch import F32, I32, LogprobRows
from prelude.recipes import RerankRecipe, split_part
from prelude.results import RerankResult
from prelude.tasks import Rerank
from prelude.values import validation

_PAIR = "cross-encoder"


def prepare_rerank(ctx: AdmissionContext, scope: TokenizationScope, task: Rerank) -> Parts:
    validation.one_of(task.truncation, "truncation", TRUNCATIONS)
    validation.one_of(task.activation, "activation", ("default", "none", "sigmoid"))
    recipe = rerank_recipe(ctx, task)
    if recipe is None:
        return _as_pair(ctx, scope, task)
    ids, truncated = _encode(ctx, scope, task, recipe)
    activation = recipe.activation if task.activation == "default" else task.activation
    readout, signs = _readout(ctx, scope, recipe, ids)
    finish = partial(_finish, signs, activation)
    return Parts(TokenTree.single(ids), readout, finish, Notes(recipe=recipe.name, activation=activation), truncated)


def rerank_recipe(ctx: AdmissionContext, task: Rerank) -> RerankRecipe | None:
    """Return a task's recipe, ``None`` for a cross-encoder, which reads pairs. Raises ``RecipeError``."""
    limits = ctx.limits
    if not limits.bidirectional:
        return ctx.recipes.chosen(task.recipe, RerankRecipe, "ranks", "a wrong text form ranks plausibly and wrongly")
    if task.recipe is not None:
        raise RecipeError("an encoder reads query and document as a pair, without a recipe", field="recipe")
    if limits.num_labels == 1:
        return None
    has = f"a head of {limits.num_labels} labels" if limits.num_labels else "no classification head"
    raise RecipeError(
        f"a cross-encoder for reranking has a head of one label, and this encoder has {has}; it serves "
        f"{served(ctx)}; load a reranker (…ForSequenceClassification with one label)",
        field="Rerank",
    )


# ------------------------------------------------------------------ encoders


def _as_pair(ctx: AdmissionContext, scope: TokenizationScope, task: Rerank) -> Parts:
    asked = task.activation
    if asked == "default" and ctx.embedding.activation is None:
        asked = "sigmoid"  # as sentence-transformers, whatever the problem_type of the head
    activation = head_activation(ctx, asked)
    tree, truncated = encode_pair(
        ctx,
        scope,
        (task.query, task.document),
        field="document",
        fields=("query", "document"),
        truncation=task.truncation,
        before=prompt_before(ctx, task),
    )
    readout = head_readout(ctx, tree.token_ids, skip_pad=True)
    notes = Notes(recipe=_PAIR, activation=activation)
    return Parts(tree, readout, lambda outcome: _result(head_logits(outcome), activation, outcome), notes, truncated)


def _result(logits: F32, activation: str, outcome: Outcome) -> RerankResult:
    return RerankResult(float(activate(logits, activation)[0]), float(logits[0]), outcome.stats)


# ------------------------------------------------------------------ decoders


def _readout(
    ctx: AdmissionContext, scope: TokenizationScope, recipe: RerankRecipe, ids: I32
) -> tuple[RequestReadout, tuple[float, ...] | None]:
    """Read the last row: the head's one logit, or the logits of the recipe's tokens and their signs."""
    if ctx.limits.num_labels:
        if ctx.limits.num_labels != 1:
            raise RecipeError(
                f"this model's head has {ctx.limits.num_labels} labels; a reranker's has one", field="recipe"
            )
        return head_readout(ctx, ids, skip_pad=False), None
    targets = [_token(ctx, scope, recipe, "yes")]
    if recipe.no is not None:
        targets.append(_token(ctx, scope, recipe, "no"))
    if len(set(targets)) < len(targets):
        raise RecipeError(f"yes and no are the same token {targets[0]}", field="recipe.no")
    rows = np.array([len(ids) - 1], dtype=np.int32)
    pairs = np.zeros(len(targets), dtype=np.int32)
    return LogprobRows(rows, pairs, np.array(targets, dtype=np.int32), raw=True), (1.0, -1.0)[: len(targets)]


def _token(ctx: AdmissionContext, scope: TokenizationScope, recipe: RerankRecipe, name: str) -> int:
    given: str | int = getattr(recipe, name)
    if isinstance(given, int):
        found = given
    else:
        ids = scope.encoder.fixed(scope, given)
        if len(ids) != 1:
            raise RecipeError(
                f"{shown(given)} is {len(ids)} tokens of this model's tokenizer; a score is read at one token: the "
                "recipe is not for this model",
                field=f"recipe.{name}",
            )
        found = int(ids[0])
    if found >= ctx.encoder.id_limit:
        raise RecipeError(f"{found} is not a token id of this model", field=f"recipe.{name}")
    return found


def _finish(signs: tuple[float, ...] | None, activation: str, outcome: Outcome) -> RerankResult:
    if signs is None:
        return _result(head_logits(outcome), activation, outcome)
    logit = sum(sign * value for sign, value in zip(signs, outcome.pairs()))
    return _result(np.array([logit], dtype=np.float32), activation, outcome)


def _encode(ctx: AdmissionContext, scope: TokenizationScope, task: Rerank, recipe: RerankRecipe) -> tuple[I32, int]:
    """Return the recipe's text as ids, and how many tokens of the document were cut."""
    document, _, dropped = shorten(task.document, ctx.max_chars, task.truncation)
    values = {
        "query": validation.text(task.query, "query", ctx.max_chars),
        "document": validation.text(document, "document", ctx.max_chars),
    }
    if (instruction := _instruction(ctx, task, recipe)) is not None:
        values["instruction"] = instruction
    room = ctx.text_room if recipe.max_length is None else min(ctx.text_room, recipe.max_length)
    parts = _parts(recipe, values) if recipe.parts else [_messages(ctx, recipe, values)]
    ids = np.concatenate([scope.encode_pieces(part) for part in parts])
    excess = len(ids) - room
    if excess <= 0:
        return ids, int(dropped > 0)
    if not recipe.parts and ctx.cuts_the_whole(task.truncation):
        return ids[excess:], excess
    fixed = tuple(value for name, value in values.items() if name != "document" and value != document)
    encoded = [scope.encode_cuttable(part, fixed) for part in parts]
    cuttable = np.concatenate([mask for _, mask in encoded])
    keep = kept(ctx, cuttable, excess, task.truncation, "document", room)
    return np.concatenate([some for some, _ in encoded])[keep], excess


def _instruction(ctx: AdmissionContext, task: Rerank, recipe: RerankRecipe) -> str | None:
    takes = not recipe.parts or any("instruction" in split_part(part)[1::2] for part in recipe.parts)
    given = task.instruction if task.prompt_name is None else prompt_before(ctx, task)
    if given is None:
        if recipe.instruction is None and recipe.parts and takes:
            raise InvalidRequest(
                f"the recipe {recipe.name!r} has no instruction of its own; give one", field="instruction"
            )
        return recipe.instruction if takes else None
    if not given and not recipe.parts:
        return None  # a message without text is no message
    if not takes:
        raise InvalidRequest(f"the recipe {recipe.name!r} has no place for one", field="instruction")
    return validation.text(given, "instruction", ctx.max_chars)


def _parts(recipe: RerankRecipe, values: dict[str, str]) -> list[list[Piece]]:
    return [
        [(values[text], False) if at % 2 else (text, True) for at, text in enumerate(split_part(part))]
        for part in recipe.parts
    ]


def _messages(ctx: AdmissionContext, recipe: RerankRecipe, values: dict[str, str]) -> list[Piece]:
    """Return the chat template over the two roles, as sentence-transformers calls it."""
    messages: list[Any] = [{"role": name, "content": values[name]} for name in ("query", "document")]
    if "instruction" in values:
        messages.insert(0, {"role": "system", "content": values["instruction"]})
    pieces = render(ctx, messages, "document", recipe.generation_prompt)
    shown_texts = [content for content, trusted in pieces if not trusted]
    for name in ("query", "document"):
        if values[name].strip() and not any(values[name].strip() in str(text) for text in shown_texts):
            raise RecipeError(
                f"the chat template shows no message of the role {name!r}; it is not a reranker's", field="recipe"
            )
    return pieces
