"""Embed, Classify and Reward: one row of hidden states, or all of them, through a head that is a readout."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from prelude.admission.context import AdmissionContext, served
from prelude.admission.prepared import Notes, Outcome, Parts, TokenTree
from prelude.admission.prompts import (
    TRUNCATIONS,
    Encoded,
    check_room,
    drop,
    encode_prompt,
    prompt_before,
    require_messages,
    shorten,
)
from prelude.admission.tokenization import Mask, TokenizationScope
from prelude.errors import InvalidRequest, RecipeError, shown
from prelude.readouts.batch import F32, I32, HeadRows, PooledRows
from prelude.results import Classification, Embedding, RewardResult, TokenClassification
from prelude.tasks import Classify, ClassifyTokens, Embed, Reward
from prelude.tokenizer.params import longest_first
from prelude.values import validation
from prelude.values.model_settings import POOLINGS, Dense, EmbeddingSettings

_ONE_ROW = ("last", "cls")
ACTIVATIONS = ("default", "none", "sigmoid", "softmax")


def prepare_embed(ctx: AdmissionContext, scope: TokenizationScope, task: Embed, field: str = "prompt") -> Parts:
    """``field``: the name of the caller's argument."""
    settings = ctx.embedding
    pooling = settings.pooling if task.pooling is None else _pooling(task.pooling)
    if pooling is None:
        raise no_pooling(settings)
    if ctx.options is not None and ctx.options.static and pooling != "mean":
        raise InvalidRequest(
            f'{pooling!r}: a token has the same vector in any text; "mean" is the vector of a text', field="pooling"
        )
    computed = ctx.limits.poolings
    if computed is not None and pooling not in computed:
        raise InvalidRequest(f"{pooling} has no kernel on this device; {', '.join(computed)} have", field="pooling")
    dense, hidden, dimensions = _sizes(ctx, pooling)
    if task.dimensions is not None:
        dimensions = validation.integer(task.dimensions, "dimensions", 1, hidden)
    by_module = task.normalize is None and settings.normalize
    normalize = task.normalize is not None and validation.flag(task.normalize, "normalize")
    before = prompt_before(ctx, task, text=isinstance(task.prompt, str))
    prompt = _encode(ctx, scope, task, before, field)
    n = len(prompt.token_ids)
    first = 0
    if before and not settings.include_prompt:
        # As in sentence-transformers, the tokens of the prompt are excluded; but at least the last token is left.
        first = min(n - 1, len(scope.encode(before, special=True, parse_special=True)) - len(scope.encoder.suffix))
    begin = n - 1 if pooling == "last" else first
    rows = np.arange(begin, begin + 1 if pooling in _ONE_ROW else n, dtype=np.int32)
    skipped = np.array([first], dtype=np.int32) if first and "weightedmean" in pooling.split("+") else None
    readout = PooledRows(rows, np.array([0, len(rows)], dtype=np.int32), pooling, skipped)

    def finish(outcome: Outcome) -> Embedding:
        vector = outcome.output.vectors[0]
        for module in dense:
            vector = _projected(vector, module)
        vector = (unit(vector) if by_module else vector)[:dimensions]
        return Embedding.of(unit(vector) if normalize else vector.copy(), outcome.stats)

    return Parts(TokenTree.single(prompt.token_ids), readout, finish, truncated=prompt.truncated)


def _projected(vector: F32, module: Dense) -> F32:
    made = module.weight @ vector
    if module.bias is not None:
        made += module.bias
    if module.activation == "tanh":
        np.tanh(made, out=made)
    elif module.activation == "relu":
        np.maximum(made, 0.0, out=made)
    return made


def _sizes(ctx: AdmissionContext, pooling: str) -> tuple[tuple[Dense, ...], int, int]:
    """The modules behind ``pooling``, and how many values the vector has behind them, before and after it is cut. The
    Dense modules belong to the vector that the directory describes."""
    settings = ctx.embedding
    dense = settings.dense if pooling == settings.pooling else ()
    hidden = len(dense[-1].weight) if dense else len(pooling.split("+")) * ctx.limits.hidden_size
    return dense, hidden, min(hidden, settings.truncate_dim or hidden)


def vector_size(ctx: AdmissionContext, pooling: str | None) -> int:
    """Return values of the vector that ``embed`` gives, 0 if its pooling has to be named."""
    found = ctx.embedding.pooling if pooling is None else pooling
    return 0 if found is None else _sizes(ctx, found)[2]


def _pooling(asked: Any) -> str:
    """Return the modes that a request names, joined by "+"."""
    several = isinstance(asked, list | tuple)
    if several and not 1 <= len(asked) <= len(POOLINGS):
        raise InvalidRequest(f"{len(asked)} poolings; it takes 1 to {len(POOLINGS)}", field="pooling")
    modes = asked if several else [asked]
    return "+".join(validation.one_of(mode, "pooling", POOLINGS) for mode in modes)


def no_pooling(settings: EmbeddingSettings) -> InvalidRequest:
    if settings.unsupported is not None:
        why = f'{settings.unsupported}; pooling="last", "cls" or "mean" reads the hidden states instead'
    else:
        why = (
            "the model directory does not say how its vectors are pooled (it has no 1_Pooling/config.json), and a "
            'guess would be silently wrong; name it: pooling="last", "cls" or "mean"'
        )
    return InvalidRequest(why, field="pooling")


def unit(vector: F32) -> F32:
    """``vector`` at length 1, float32. The zero vector stays zero: it has no direction."""
    wide = vector.astype(np.float64)
    wide /= math.sqrt(wide.dot(wide)) or 1.0
    return wide.astype(np.float32)


def prepare_classify(ctx: AdmissionContext, scope: TokenizationScope, task: Classify) -> Parts:
    count = ctx.limits.num_labels
    if count == 0:
        raise InvalidRequest(
            f"this model has no classification head; it serves {served(ctx)}; load a …ForSequenceClassification "
            "checkpoint",
            field="Classify",
        )
    activation = head_activation(ctx, task.activation)
    labels = ctx.labels if len(ctx.labels) == count else tuple(f"LABEL_{i}" for i in range(count))
    tree, truncated = _tree(ctx, scope, task)
    readout = head_readout(ctx, tree.token_ids, skip_pad=validation.flag(task.skip_pad, "skip_pad"))

    def finish(outcome: Outcome) -> Classification:
        logits = head_logits(outcome)
        best = labels[int(np.argmax(logits))]
        return Classification(logits, activate(logits, activation), labels, best, outcome.stats)

    return Parts(tree, readout, finish, Notes(activation=activation), truncated)


def prepare_classify_tokens(ctx: AdmissionContext, scope: TokenizationScope, task: ClassifyTokens) -> Parts:
    if ctx.limits.head_pooling != "tokens":
        raise InvalidRequest(
            f"this model has no head that reads single tokens; it serves {served(ctx)}; load a "
            "…ForTokenClassification or …ForProcessRewardModel checkpoint",
            field="ClassifyTokens",
        )
    activation = head_activation(ctx, task.activation)
    prompt = _encode(ctx, scope, task)
    ids = prompt.token_ids
    rows = np.arange(len(ids), dtype=np.int32) if task.at is None else _places(ctx, scope, task.at, ids)

    def finish(outcome: Outcome) -> TokenClassification:
        logits = np.array(outcome.output.logits, dtype=np.float32)
        scores = np.stack([activate(row, activation) for row in logits])
        best = tuple([ctx.labels[at] for at in logits.argmax(axis=1).tolist()])
        return TokenClassification(logits, scores, ctx.labels, best, rows, ids, outcome.stats)

    readout = HeadRows(rows, several=True)
    return Parts(TokenTree.single(ids), readout, finish, Notes(activation=activation), prompt.truncated)


def _places(ctx: AdmissionContext, scope: TokenizationScope, at: object, ids: I32) -> I32:
    """Where the token of the text ``at`` stands in the prompt; at least once."""
    text = validation.text(at, "at", ctx.max_chars, empty=False)
    token = scope.encode(text, parse_special=True)
    if len(token) != 1:
        raise InvalidRequest(f"{shown(text)} is {len(token)} tokens; it takes the text of one", field="at")
    places = np.flatnonzero(ids == token[0]).astype(np.int32)
    if not len(places):
        raise InvalidRequest(f"the prompt does not hold the token {shown(text)}", field="at")
    return places


def head_activation(ctx: AdmissionContext, asked: str) -> str:
    """Return the activation of the classification head's logits."""
    activation = validation.one_of(asked, "activation", ACTIVATIONS)
    if activation != "default":
        return activation
    usual = "sigmoid" if ctx.limits.num_labels == 1 else "softmax"
    activation = ctx.embedding.activation or ctx.activation or usual
    if activation not in ACTIVATIONS:
        raise InvalidRequest(
            f"config.json names {shown(activation)} for the scores, which is not supported; name another one: "
            f"{', '.join(ACTIVATIONS[1:])}",
            field="activation",
        )
    return activation


def prepare_reward(ctx: AdmissionContext, scope: TokenizationScope, task: Reward) -> Parts:
    limits = ctx.limits
    if limits.num_labels != 1 or limits.bidirectional:
        has = f"a head of {limits.num_labels} labels" if limits.num_labels else "no classification head"
        kind = "an encoder" if limits.bidirectional else "a decoder"
        raise RecipeError(
            f"a reward model is a decoder with a head of one label (…ForSequenceClassification), and this model is "
            f"{kind} with {has}; it serves {served(ctx)}; load a reward model",
            field="Reward",
        )
    require_messages(task.prompt, "a reward model")
    activation = validation.one_of(task.activation, "activation", ("default", "none", "sigmoid"))
    activation = "none" if activation == "default" else activation
    prompt = _encode(ctx, scope, task)
    readout = head_readout(ctx, prompt.token_ids, skip_pad=validation.flag(task.skip_pad, "skip_pad"))

    def finish(outcome: Outcome) -> RewardResult:
        logits = head_logits(outcome)
        return RewardResult(float(activate(logits, activation)[0]), float(logits[0]), outcome.stats)

    notes = Notes(recipe="chat template, no generation prompt", activation=activation)
    return Parts(TokenTree.single(prompt.token_ids), readout, finish, notes, prompt.truncated)


def head_logits(outcome: Outcome) -> F32:
    """[num_labels] of one request, as a copy."""
    return np.array(outcome.output.logits[0], dtype=np.float32)


def head_readout(ctx: AdmissionContext, ids: I32, *, skip_pad: bool) -> HeadRows:
    """Return the tokens that the head was trained to read."""
    match ctx.limits.head_pooling:
        case "mean":
            return HeadRows(np.arange(len(ids), dtype=np.int32), np.array([0, len(ids)], dtype=np.int32))
        case "first":
            return HeadRows(np.zeros(1, dtype=np.int32))
        case "markers":
            raise InvalidRequest(
                f"this model's head reads the options of a question; it serves {served(ctx)}", field="prompt"
            )
        case "tokens":
            raise InvalidRequest(f"this model's head reads single tokens; it serves {served(ctx)}", field="prompt")
        case _:
            return HeadRows(np.array([last_row(ids, ctx.pad_id if skip_pad else None)], dtype=np.int32))


def _tree(ctx: AdmissionContext, scope: TokenizationScope, task: Classify) -> tuple[TokenTree, int]:
    """Return the tokens of a prompt or a pair, and how many were cut off."""
    pair = as_pair(task.prompt)
    before = prompt_before(ctx, task, text=pair is not None or isinstance(task.prompt, str))
    if pair is not None:
        names = ("prompt[0]", "prompt[1]")
        return encode_pair(ctx, scope, pair, field="prompt", fields=names, truncation=task.truncation, before=before)
    prompt = _encode(ctx, scope, task, before)
    return TokenTree.single(prompt.token_ids), prompt.truncated


def _encode(
    ctx: AdmissionContext,
    scope: TokenizationScope,
    task: Embed | Classify | ClassifyTokens | Reward,
    before: str = "",
    field: str = "prompt",
) -> Encoded:
    """Return the prompt of a task, as far as the directory's settings leave it room."""
    cut = validation.one_of(task.truncation, "truncation", TRUNCATIONS)
    whole, room = ctx.cuts_the_whole(cut), ctx.text_room
    return encode_prompt(ctx, scope, task.prompt, field=field, truncation=cut, room=room, before=before, whole=whole)


def last_row(ids: I32, pad_id: int | None) -> int:
    """Return the last token that is not ``pad_id``; as in transformers, the first one if all are."""
    if pad_id is None or ids[-1] != pad_id:
        return len(ids) - 1
    meant = np.flatnonzero(ids != pad_id)
    return int(meant[-1]) if len(meant) else 0


def activate(logits: F32, activation: str) -> F32:
    """Compute it without overflow for logits of any size."""
    wide = logits.astype(np.float64)
    if activation == "softmax":
        wide = np.exp(wide - wide.max())
        wide /= wide.sum()
    elif activation == "sigmoid":
        small = np.exp(-np.abs(wide))
        wide = np.where(wide >= 0, 1.0, small) / (1.0 + small)
    return wide.astype(np.float32)


def as_pair(prompt: Any) -> tuple[str, str] | None:
    """The prompt if it is a tuple of two that holds a text: ``encode_pair`` refuses another value beside it. A list
    of two is one that ``encode_prompt`` refuses."""
    if type(prompt) is tuple and len(prompt) == 2 and any(isinstance(text, str) for text in prompt):
        return prompt
    return None


def encode_pair(
    ctx: AdmissionContext,
    scope: TokenizationScope,
    pair: tuple[str, str],
    *,
    field: str,
    fields: tuple[str, str],
    truncation: str,
    before: str = "",
) -> tuple[TokenTree, int]:
    """Return tokens, and how many were cut: of the longer text until both have one length, then of both. If the
    tokenizer gives the second text a token type of its own, it is a segment below the first: models without types see
    no difference."""
    validation.one_of(truncation, "truncation", TRUNCATIONS)
    (first, _, cut_first), (second, _, cut_second) = (shorten(text, ctx.max_chars, truncation) for text in pair)
    for name, text in zip(fields, (first, second)):
        validation.text(text, name, ctx.max_chars)
    ids, types, texts = scope.encode_pair(before + first, second)
    if len(ids) == 0:
        raise InvalidRequest("both texts are empty, and the tokenizer adds no token of its own", field=field)
    room = ctx.text_room
    excess = len(ids) - room
    if excess > 0:
        keep = _kept(ctx, texts, excess, truncation, field, room)
        ids, types = ids[keep], types[keep]
    seam = int(np.searchsorted(types, 1))
    if (types[:seam] != 0).any() or (types[seam:] != 1).any():
        raise InvalidRequest("the tokenizer gives a pair token types other than 0 and then 1", field=field)
    cut = max(excess, int(cut_first + cut_second > 0), 0)
    if seam in (0, len(ids)) or not ctx.embedding.token_types:
        return TokenTree.single(ids), cut
    return TokenTree.build([(-1, ids[:seam]), (0, ids[seam:])]), cut


def _kept(ctx: AdmissionContext, texts: I32, excess: int, truncation: str, field: str, room: int) -> Mask:
    """Which tokens of a pair stay, by ``texts``: the text that each is of."""
    check_room(ctx, texts >= 0, excess, truncation, field, room)
    keep = np.ones(len(texts), dtype=np.bool_)
    sides = [texts == 0, texts == 1]
    first, second = (int(np.count_nonzero(side)) for side in sides)
    for side, n, rest in zip(sides, (first, second), longest_first(first, second, first + second - excess)):
        drop(keep, side, n - rest, truncation)
    return keep
