"""Generate: sampling settings with every default resolved, and the output budget that the context leaves."""

from __future__ import annotations

import time
from functools import partial

from prelude.admission.context import AdmissionContext, no_lm_head
from prelude.admission.logprobs import prompt_readout, top_limit
from prelude.admission.prepared import Outcome, Parts, TokenTree
from prelude.admission.prompts import TRUNCATIONS, Encoded, encode_prompt
from prelude.admission.sampling import resolve
from prelude.admission.tokenization import TokenizationScope
from prelude.errors import InvalidRequest, RequestTooLarge, shown
from prelude.readouts.batch import SampleOutput
from prelude.readouts.sampling import History, Sampling, SamplingState
from prelude.records import replace
from prelude.results import Completion, RequestStats, SampledLogprob
from prelude.streaming.detokenize import Texts
from prelude.streaming.text import TextState
from prelude.tasks import Generate, SamplingParams
from prelude.values import validation

MAX_TOKENS = (1 << 31) - 1


def prepare_generate(ctx: AdmissionContext, scope: TokenizationScope, task: Generate) -> Parts:
    """``max_tokens`` is cut to the rest of the context after the prompt. With ``truncation`` other than "error" the
    prompt is cut so that the output has its ``max_tokens``, or half the context if that is less."""
    params = task.params
    if not isinstance(params, SamplingParams):
        raise InvalidRequest(f"{shown(params)} is not SamplingParams", field="params")
    wanted = validation.integer(params.max_tokens, "params.max_tokens", 0, MAX_TOKENS)
    if wanted == 0:
        return prepare_prompt_only(ctx, scope, task, params)
    if params.prompt_logprobs is not None:
        raise InvalidRequest(
            f"prompt_logprobs={shown(params.prompt_logprobs)} needs max_tokens=0; ask for both in two requests "
            "(the second finds the prompt in the prefix cache)",
            field="params.prompt_logprobs",
        )
    if not ctx.limits.lm_head:
        raise no_lm_head(ctx, task)
    sampling = resolve(ctx, params, wanted)
    encoded = encode_generate(ctx, scope, task, wanted)
    ids = encoded.token_ids
    n = len(ids)
    budget = min(wanted, ctx.max_length - n)
    state = SamplingState(0, sampling)
    if budget > 1:
        check_pool(ctx, n, budget)
    elif sampling.edits is not None and sampling.edits.weighs:
        state = SamplingState(0, sampling, 0, History.of(sampling.edits, ids))
    tree = TokenTree.single(ids)
    finish = partial(complete, ctx, sampling)
    parts = Parts(
        tree, state, finish, truncated=encoded.truncated, first=n - 1, max_new_tokens=budget, sampling=sampling
    )
    if budget == 1:
        return parts

    def reader(hold_words: bool) -> TextReader:
        return TextReader(ctx.texts, sampling, hold_words)

    return replace(parts, reader=reader, watched=sampling.stops is not None or sampling.logprobs is not None)


def encode_generate(ctx: AdmissionContext, scope: TokenizationScope, task: Generate, wanted: int) -> Encoded:
    if validation.one_of(task.truncation, "truncation", TRUNCATIONS) == "error":
        room = ctx.max_length - 1
    else:
        room = ctx.max_length - min(wanted, max(1, ctx.max_length // 2))
    if room < 1:
        raise RequestTooLarge(f"max_length is {ctx.max_length}: no room for a prompt and a token", field="prompt")
    return encode_prompt(
        ctx,
        scope,
        task.prompt,
        field="prompt",
        truncation=task.truncation,
        room=room,
        generation_prompt=True,
    )


def check_pool(ctx: AdmissionContext, prompt: int, budget: int) -> None:
    """A sequence that is larger than the pool could never finish (the last token's keys and values are never
    written)."""
    slots = ctx.limits.num_blocks * ctx.limits.block_size
    if prompt + budget - 1 > slots:
        raise RequestTooLarge(
            f"{prompt} tokens of prompt and {budget} of output need more than the pool of {slots} tokens; raise "
            "EngineConfig.kv_bytes (or kv_blocks) or lower max_tokens",
            field="prompt",
        )


def prepare_prompt_only(
    ctx: AdmissionContext, scope: TokenizationScope, task: Generate, params: SamplingParams
) -> Parts:
    """Prepare ``max_tokens=0``: the prompt's logprobs if a task asks for them, else nothing to compute."""
    sampling = resolve(ctx, params, 0)
    top = params.prompt_logprobs
    if top is not None:
        top = validation.integer(top, "params.prompt_logprobs", 0, top_limit(ctx))
    prompt = encode_prompt(
        ctx,
        scope,
        task.prompt,
        field="prompt",
        truncation=task.truncation,
        room=ctx.max_length,
        generation_prompt=True,
        offsets=top is not None,
    )
    readout, read = prompt_readout(prompt, top or 0, None)

    def finish(outcome: Outcome) -> Completion:
        outcome.stats.finish_reason = "length"
        logprobs = None if top is None else read(outcome, outcome.stats)
        none = None if sampling.logprobs is None else ()
        return Completion("", (), "length", outcome.stats, logprobs, none)

    tree = TokenTree.single(prompt.token_ids)
    return Parts(tree, None if top is None else readout, finish, truncated=prompt.truncated)


def complete(ctx: AdmissionContext, sampling: Sampling, outcome: Outcome) -> Completion:
    """Return the result of a text. Decode text that no reader followed, and cut it at a stop string."""
    stats = outcome.stats
    ids, logprobs = outcome.token_ids, outcome.logprobs
    if sampling.logprobs is not None and ids and isinstance(outcome.output, SampleOutput):
        first = sampled_logprob(ids[0], outcome.output, 0, sampling.logprobs)
        logprobs = None if first is None else (first,)
    reason = stats.finish_reason or "length"
    text = outcome.text
    if text is None:
        started = time.perf_counter()
        text = ctx.encoder.tokenizer.decode(ids)
        if sampling.stops is not None and len(ids) > sampling.min_tokens:
            text, stopped = sampling.stops.cut(text, sampling.include_stop)
            reason = "stop" if stopped else reason
        stats.detok_ms += (time.perf_counter() - started) * 1e3
    stats.finish_reason = reason
    kept = None if sampling.logprobs is None else logprobs or ()
    return Completion(text, tuple(ids), reason, stats, None, kept)


class TextReader:
    """One request's ``Reader``. Its text state is made with the first token and freed with the last, so a request
    that waits has none."""

    __slots__ = ("_hold_words", "_sampling", "_seconds", "_state", "_texts")

    def __init__(self, texts: Texts, sampling: Sampling, hold_words: bool) -> None:
        self._texts = texts
        self._sampling = sampling
        self._hold_words = hold_words
        self._state: TextState | None = None
        self._seconds = 0.0

    def token(self, token_id: int, output: SampleOutput, row: int) -> tuple[str, SampledLogprob | None, bool]:
        began = time.perf_counter()
        sampling, state = self._sampling, self._state
        if state is None:
            state = self._state = TextState(
                self._texts,
                sampling.stops,
                include_stop=sampling.include_stop,
                hold_words=self._hold_words,
                min_tokens=sampling.min_tokens,
            )
        text = state.feed(token_id)
        self._seconds += time.perf_counter() - began
        if sampling.logprobs is None:
            return text, None, state.stopped
        return text, sampled_logprob(token_id, output, row, sampling.logprobs), state.stopped

    def finish(self, stats: RequestStats) -> str:
        state = self._state
        if state is None:
            return ""
        text = state.finish()
        if state.stopped:
            stats.finish_reason = "stop"
        stats.detok_ms += self._seconds * 1e3
        self.close()
        return text

    def close(self) -> None:
        if self._state is not None:
            self._state.close()
            self._state = None


def sampled_logprob(token_id: int, output: SampleOutput, row: int, top: int) -> SampledLogprob | None:
    """Return a row's numbers; rows of one batch carry as many alternatives as the greediest of them asked for."""
    if output.logprobs is None:
        return None
    best: tuple[tuple[int, float], ...] = ()
    if top and output.top_ids is not None and output.top_logprobs is not None:
        best = tuple(zip(output.top_ids[row, :top].tolist(), output.top_logprobs[row, :top].tolist()))
    return SampledLogprob(token_id, float(output.logprobs[row]), best)
