"""Loglikelihood and PromptLogprobs: the vocabulary meets only the rows that are asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from prelude.admission.context import AdmissionContext
from prelude.admission.prepared import Outcome, Parts, TokenTree
from prelude.admission.prompts import Encoded, encode_prompt
from prelude.admission.tokenization import TokenizationScope, token_ids
from prelude.errors import InvalidRequest, PromptTooLong
from prelude.readouts.batch import I32, LogprobOutput, LogprobRows
from prelude.results import LoglikelihoodResult, PromptLogprobsResult, RequestStats, TokenLogprob
from prelude.tasks import Loglikelihood, PromptLogprobs
from prelude.values import validation


def prepare_loglikelihood(ctx: AdmissionContext, scope: TokenizationScope, task: Loglikelihood) -> Parts:
    """Context and continuation are tokenised apart and nothing moves between them: the scored tokens are exactly the
    given continuation. (lm-eval's rule, spaces at the context's end go to the continuation, is its client's.) The
    tokenizer's beginning-of-text token is put before the context, its end-of-text token is not put anywhere. An
    empty context is BOS, or EOS if there is no BOS. Truncation cuts the context only. The last token of the
    continuation is not fed, so context and continuation may hold ``max_length + 1`` tokens together."""
    continuation = continuation_ids(ctx, scope, task.continuation)
    room = ctx.max_length + 1 - len(continuation)
    context = context_ids(ctx, scope, task, room, len(continuation))
    ids = np.concatenate([context.token_ids, continuation])
    first, last = len(context.token_ids) - 1, len(ids) - 1
    index = np.arange(last - first, dtype=np.int32)
    readout = LogprobRows(index + np.int32(first), index, continuation, ranks=True)

    def finish(outcome: Outcome) -> LoglikelihoodResult:
        output: LogprobOutput = outcome.output
        logprobs = output.logprobs.astype(np.float64)
        greedy = output.ranks is not None and bool((output.ranks == 1).all())
        return LoglikelihoodResult(float(logprobs.sum()), logprobs, continuation, greedy, outcome.stats)

    return Parts(TokenTree.single(ids[:last]), readout, finish, truncated=context.truncated)


def continuation_ids(ctx: AdmissionContext, scope: TokenizationScope, continuation: Any) -> I32:
    if isinstance(continuation, str):
        validation.text(continuation, "continuation", ctx.max_chars, empty=False)
        ids = scope.encode(continuation, parse_special=True)
    elif isinstance(continuation, list | tuple | np.ndarray):
        ids = token_ids(continuation, "continuation", ctx.encoder, ctx.max_chars)
    else:
        raise validation.wrong_type(continuation, "continuation", "text or token ids")
    if len(ids) == 0:
        raise InvalidRequest("it has no token to score; give at least one", field="continuation")
    return ids


def context_ids(
    ctx: AdmissionContext, scope: TokenizationScope, task: Loglikelihood, room: int, scored: int
) -> Encoded:
    if room < 1:
        raise PromptTooLong(
            f"{scored} tokens; after a context of at least one token the limit is {ctx.max_length}; shorten it "
            "(truncation= cuts the context alone)",
            tokens=scored,
            limit=ctx.max_length,
            field="continuation",
        )
    return encode_prompt(
        ctx,
        scope,
        task.context,
        field="context",
        truncation=task.truncation,
        room=room,
        generation_prompt=True,
        continued=True,
    )


def prepare_prompt_logprobs(ctx: AdmissionContext, scope: TokenizationScope, task: PromptLogprobs) -> Parts:
    top = validation.integer(task.top, "top", 0, top_limit(ctx))
    last = None if task.last is None else validation.integer(task.last, "last", 1, 1 << 31)
    prompt = encode_prompt(
        ctx,
        scope,
        task.prompt,
        field="prompt",
        truncation=task.truncation,
        room=ctx.max_length,
        offsets=True,
    )
    readout, finish = prompt_readout(prompt, top, last)
    tree = TokenTree.single(prompt.token_ids)
    return Parts(tree, readout, lambda outcome: finish(outcome, outcome.stats), truncated=prompt.truncated)


def top_limit(ctx: AdmissionContext) -> int:
    return min(ctx.config.expert.max_top, ctx.limits.vocab_size)


def prompt_readout(
    prompt: Encoded, top: int, last: int | None
) -> tuple[LogprobRows | None, Callable[[Outcome, RequestStats], PromptLogprobsResult]]:
    """Rows for the ``last`` tokens of the prompt (all by default). The first token has nothing before it and no
    row; a prompt of one token needs no forward pass."""
    ids = prompt.token_ids
    n = len(ids)
    first = 0 if last is None else max(0, n - last)
    targets = ids[max(first, 1) :]
    index = np.arange(len(targets), dtype=np.int32)
    readout = LogprobRows(index + np.int32(max(first, 1) - 1), index, targets, top, ranks=True)

    def finish(outcome: Outcome, stats: RequestStats) -> PromptLogprobsResult:
        spans = [None] * n if prompt.offsets is None else [(int(a), int(b)) for a, b in prompt.offsets]
        tokens = [TokenLogprob(int(ids[0]), None, None, (), spans[0])] if first == 0 else []
        if len(targets):
            tokens += scored(outcome.output, targets, spans[n - len(targets) :], top)
        return PromptLogprobsResult(tokens, stats)

    return (readout if len(targets) else None), finish


def scored(output: LogprobOutput, targets: I32, spans: list[Any], top: int) -> list[TokenLogprob]:
    ranks = [None] * len(targets) if output.ranks is None else output.ranks.tolist()
    best: list[tuple[tuple[int, float], ...]] = [()] * len(targets)
    if top and output.top_ids is not None and output.top_logprobs is not None:
        best = [tuple(zip(i, p)) for i, p in zip(output.top_ids.tolist(), output.top_logprobs.tolist())]
    return [TokenLogprob(*token) for token in zip(targets.tolist(), output.logprobs.tolist(), ranks, best, spans)]
