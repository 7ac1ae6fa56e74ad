"""Generate: sampling settings with every default resolved, and the output budget that the context leaves."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from prelude._native.core import Maker, PromptMould, ids_below
from prelude.admission import validation
from prelude.admission.context import (
    AdmissionContext,
    admitted,
    cache_of,
    each_alone,
    make_admitted,
    make_prepared,
    require_lm_head,
    salt_of,
)
from prelude.admission.logprobs import prompt_readout, top_limit
from prelude.admission.prepared import ROOT, Admitted, MakeReader, Outcome, TokenTree, make_tree, shape_of
from prelude.admission.prompts import TRUNCATIONS, Encoded, encode_prompt
from prelude.admission.sampling import resolve
from prelude.admission.text_reader import TextReader, sampled_logprob
from prelude.admission.tokenization import EMPTY, TokenizationScope, len_of
from prelude.batch import I32, SampleOutput
from prelude.errors import InvalidRequest, RequestTooLarge, shown
from prelude.readouts.sampling import History, Sampling, SamplingState
from prelude.results import Completion
from prelude.tasks import CacheMode, Generate, SamplingParams

MAX_TOKENS = (1 << 31) - 1
SETTINGS_BYTES, STOP_BYTES, ID_BYTES = 4096, 512, 64  # of kept settings, with each character of stops and each id
_NO_BRANCHES: I32 = np.zeros(2, dtype=np.int32)
_make_completion = Maker(Completion)


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a task, checked. ``state`` samples after the last token of any prompt."""

    params: SamplingParams
    wanted: int
    sampling: Sampling
    state: SamplingState
    cache: CacheMode
    finish: Callable[[Outcome], Completion]
    reader: MakeReader
    mould: PromptMould | None = None  # of prompts that are given as ids and leave room for all tokens

    def reading(self, budget: int) -> tuple[Any, ...]:
        """The fields of ``Admitted`` after ``prepared``, for an output of ``budget`` tokens at most."""
        if budget == 1:
            return (self.finish,)
        return self.finish, self.reader, self.sampling.stops is not None or self.sampling.logprobs is not None


def prepare_generates(ctx: AdmissionContext, tasks: list[Generate]) -> list[Admitted | Exception]:
    """Prepares tasks that differ in their prompt alone; the error of one stands in its place. Tasks whose settings
    are not kept have settings of their own each."""
    found: list[Admitted | Exception] = []
    settings, rest = kept_settings(ctx, tasks[0]), tasks
    if settings is None:
        found += each_alone(ctx, prepare_generate, tasks[:1])
        rest = tasks[1:]
        settings = kept_settings(ctx, tasks[0]) if rest else None
    if settings is None or settings.mould is None:
        return found + each_alone(ctx, prepare_generate, rest)
    made, whole = settings.mould.make([task.prompt for task in rest], ctx.encoder.id_limit, 0.0, salt_of(rest[0]))
    if whole:
        return found + made
    for task, ready in zip(rest, made):
        found += each_alone(ctx, prepare_generate, [task]) if ready is None else [ready]
    return found


def prepare_generate(ctx: AdmissionContext, scope: TokenizationScope, task: Generate) -> Admitted:
    """``max_tokens`` is cut to the rest of the context after the prompt. With ``truncation`` other than "error" the
    prompt is cut so that the output has its ``max_tokens``, or half the context if that is less."""
    settings = settings_of(ctx, task)
    if settings is None:
        return prepare_prompt_only(ctx, scope, task, task.params)
    prompt, truncated = task.prompt, 0
    ids = None
    if isinstance(prompt, list | np.ndarray) and 0 < len_of(prompt) <= min(ctx.max_length - 1, ctx.max_chars):
        ids = ids_below(prompt, ctx.encoder.id_limit)
    if ids is None or len(ids) + min(settings.wanted, max(1, ctx.max_length // 2)) > ctx.max_length:
        encoded = encode_generate(ctx, scope, task, settings.wanted)
        ids, truncated = encoded.token_ids, encoded.truncated
    n = len(ids)
    budget = min(settings.wanted, ctx.max_length - n)
    sampling, state = settings.sampling, settings.state
    if budget > 1:
        check_pool(ctx, n, budget)
    elif sampling.edits is not None and sampling.edits.weighs:
        state = SamplingState(0, sampling, 0, History.of(sampling.edits, ids))
    tree, ms = TokenTree.single(ids), scope.close()
    prepared = make_prepared(tree, state, budget, sampling, settings.cache, salt_of(task), truncated, ms, n - 1)
    ready: Admitted = make_admitted(prepared, *settings.reading(budget))
    return ready


def settings_of(ctx: AdmissionContext, task: Generate) -> Settings | None:
    """Checked once for tasks that say the same with one object of params. Not kept are params that draw a fresh seed,
    and those that hold objects that the caller may change. ``None``: no token is asked for."""
    known = kept_settings(ctx, task)
    if known is not None:
        return known
    params = task.params
    if not isinstance(params, SamplingParams):
        raise InvalidRequest(f"{shown(params)} is not SamplingParams", field="params")
    wanted = validation.integer(params.max_tokens, "params.max_tokens", 0, MAX_TOKENS)
    if wanted == 0:
        return None
    if params.prompt_logprobs is not None:
        raise InvalidRequest(
            f"prompt_logprobs={shown(params.prompt_logprobs)} needs max_tokens=0; ask for both in two requests "
            "(the second finds the prompt in the prefix cache)",
            field="params.prompt_logprobs",
        )
    require_lm_head(ctx, task)
    validation.one_of(task.truncation, "truncation", TRUNCATIONS)
    sampling = resolve(ctx, params, wanted)
    state = SamplingState(0, sampling)
    finish = partial(complete, ctx, sampling)

    def reader(hold_words: bool) -> TextReader:
        return TextReader(ctx.texts, sampling, hold_words)

    made = Settings(params, wanted, sampling, state, cache_of(ctx, task), finish, reader)
    lists = (params.stop, params.stop_token_ids, params.banned_token_ids)
    fixed = all(type(value) in (str, tuple) for value in lists) and params.allowed_token_ids is None
    drawn = params.seed is None and sampling.temperature > 0
    key = _settings_key(task)
    if key is not None and fixed and not drawn and sampling.edits is None and params.logit_bias is None:
        made = replace(made, mould=_mould(ctx, made))
        ids = len(params.stop_token_ids) + len(params.banned_token_ids)
        ctx.settings.put(key, made, SETTINGS_BYTES + STOP_BYTES * sum(map(len, params.stop)) + ID_BYTES * ids)
    return made


def kept_settings(ctx: AdmissionContext, task: Generate) -> Settings | None:
    key = _settings_key(task)
    known: Settings | None = None if key is None else ctx.settings.get(key)
    return known if known is not None and known.params is task.params else None


def _settings_key(task: Generate) -> tuple[object, ...] | None:
    if type(task.truncation) is str and type(task.cache) is str:
        return (id(task.params), task.truncation, task.cache)
    return None


def _mould(ctx: AdmissionContext, settings: Settings) -> PromptMould:
    """Of prompts that leave room for all tokens, in the context and in the pool."""
    wanted, sampling = settings.wanted, settings.sampling
    slots = ctx.limits.num_blocks * ctx.limits.block_size
    most = min(ctx.max_length - wanted, ctx.max_chars)
    return PromptMould(
        (make_tree, make_prepared, make_admitted),
        shape_of,
        EMPTY,
        EMPTY,
        (EMPTY, EMPTY, _NO_BRANCHES, ROOT),
        (settings.state, wanted, sampling, settings.cache),
        settings.reading(wanted),
        back=1,
        least=1,
        most=most if wanted == 1 else min(most, slots - wanted + 1),
    )


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
    if budget > 1 and prompt + budget - 1 > slots:
        raise RequestTooLarge(
            f"{prompt} tokens of prompt and {budget} of output need more than the pool of {slots} tokens; raise "
            "EngineConfig.kv_bytes (or kv_blocks) or lower max_tokens",
            field="prompt",
        )


def prepare_prompt_only(
    ctx: AdmissionContext, scope: TokenizationScope, task: Generate, params: SamplingParams
) -> Admitted:
    """``max_tokens=0``: the prompt's logprobs where they are asked for, else nothing to compute at all."""
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
    return admitted(ctx, scope, task, tree, None if top is None else readout, finish, truncated=prompt.truncated)


def decoded(ctx: AdmissionContext, ids: tuple[int, ...]) -> str:
    """Of single tokens, which decisions draw by the million, the text is kept."""
    if len(ids) != 1:
        return ctx.encoder.tokenizer.decode(ids) if ids else ""
    text = ctx.words.get(ids[0])
    if text is None:
        text = ctx.encoder.tokenizer.decode(ids)
        ctx.words.put(ids[0], text)
    return text


def complete(ctx: AdmissionContext, sampling: Sampling, outcome: Outcome) -> Completion:
    """The result of a text. Text that no reader followed is decoded, and cut at a stop string, here."""
    stats = outcome.stats
    ids, logprobs = outcome.token_ids, outcome.logprobs
    if sampling.logprobs is not None and ids and isinstance(outcome.output, SampleOutput):
        first = sampled_logprob(ids[0], outcome.output, 0, sampling.logprobs)
        logprobs = None if first is None else (first,)
    reason = stats.finish_reason or "length"
    text = outcome.text
    if text is None:
        started = time.perf_counter()
        text = decoded(ctx, ids)
        if sampling.stops is not None and len(ids) > sampling.min_tokens:
            text, stopped = sampling.stops.cut(text, sampling.include_stop)
            reason = "stop" if stopped else reason
        stats.detok_ms += (time.perf_counter() - started) * 1e3
    stats.finish_reason = reason
    kept = None if sampling.logprobs is None else logprobs or ()
    made: Completion = _make_completion(text, tuple(ids), reason, stats, None, kept)
    return made
