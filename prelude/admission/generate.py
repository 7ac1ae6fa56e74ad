"""Generate: sampling settings with every default resolved, and the output budget that the context leaves."""

from __future__ import annotations

import time
from dataclasses import replace

from prelude.admission import checks
from prelude.admission.facts import Facts, admitted, require_lm_head
from prelude.admission.logprobs import prompt_readout, top_limit
from prelude.admission.prepared import Admitted, Outcome, TokenTree
from prelude.admission.prompts import TRUNCATIONS, Encoded, encode_prompt
from prelude.admission.reading import TextReader, sampled_logprob
from prelude.admission.sampling import resolve
from prelude.admission.tokenization import Use
from prelude.batch import SampleOutput
from prelude.errors import InvalidRequest, RequestTooLarge, shown
from prelude.readouts.sampling import History, Sampling, SamplingState
from prelude.results import Completion
from prelude.tasks import Generate, SamplingParams

MAX_TOKENS = (1 << 31) - 1


def prepare_generate(facts: Facts, use: Use, task: Generate) -> Admitted:
    """``max_tokens`` is cut to what the context leaves after the prompt. With ``truncation`` other than "error" the
    prompt is cut so that the output has its ``max_tokens``, or half the context if that is less."""
    params = task.params
    if not isinstance(params, SamplingParams):
        raise InvalidRequest(f"{shown(params)} is not SamplingParams", field="params")
    wanted = checks.integer(params.max_tokens, "params.max_tokens", 0, MAX_TOKENS)
    if wanted == 0:
        return prepare_prompt_only(facts, use, task, params)
    if params.prompt_logprobs is not None:
        raise InvalidRequest(
            f"prompt_logprobs={shown(params.prompt_logprobs)} needs max_tokens=0; ask for both in two requests "
            "(the second finds the prompt in the prefix cache)",
            field="params.prompt_logprobs",
        )
    require_lm_head(facts, task)
    sampling = resolved(facts, params, wanted)
    prompt = encode_generate(facts, use, task, wanted)
    n = len(prompt.token_ids)
    budget = min(wanted, facts.max_length - n)
    check_pool(facts, n, budget)
    history = None
    if budget == 1 and sampling.edits is not None and sampling.edits.weighs:
        history = History.of(sampling.edits, prompt.token_ids)
    ready = admitted(
        facts,
        use,
        task,
        TokenTree.single(prompt.token_ids),
        SamplingState(n - 1, sampling, 0, history),
        lambda outcome: complete(facts, sampling, outcome),
        truncated=prompt.truncated,
        max_new_tokens=budget,
        sampling=sampling,
    )
    if budget == 1:
        return ready
    return replace(
        ready,
        reader=lambda hold_words: TextReader(facts.texts, sampling, hold_words),
        watched=sampling.stops is not None or sampling.logprobs is not None,
    )


def resolved(facts: Facts, params: SamplingParams, wanted: int) -> Sampling:
    """``resolve``, done once for settings that many tasks share. Not kept are settings that draw a fresh seed,
    and those that hold what the caller may change."""
    known = facts.samplings.get(id(params))
    if known is not None and known[0] is params:
        sampling: Sampling = known[1]
        return sampling
    sampling = resolve(facts, params, wanted)
    lists = (params.stop, params.stop_token_ids, params.banned_token_ids)
    fixed = all(type(value) in (str, tuple) for value in lists) and params.logit_bias is None
    if (
        fixed
        and sampling.edits is None
        and params.allowed_token_ids is None
        and (params.seed is not None or sampling.temperature == 0)
    ):
        facts.samplings.put(id(params), (params, sampling))
    return sampling


def encode_generate(facts: Facts, use: Use, task: Generate, wanted: int) -> Encoded:
    if checks.one_of(task.truncation, "truncation", TRUNCATIONS) == "error":
        room = facts.max_length - 1
    else:
        room = facts.max_length - min(wanted, max(1, facts.max_length // 2))
    if room < 1:
        raise RequestTooLarge(f"max_length is {facts.max_length}: no room for a prompt and a token", field="prompt")
    return encode_prompt(
        facts,
        use,
        task.prompt,
        field="prompt",
        truncation=task.truncation,
        room=room,
        generation_prompt=True,
    )


def check_pool(facts: Facts, prompt: int, budget: int) -> None:
    """A sequence that is larger than the pool could never finish (the last token's keys and values are never
    written)."""
    slots = facts.limits.num_blocks * facts.limits.block_size
    if budget > 1 and prompt + budget - 1 > slots:
        raise RequestTooLarge(
            f"{prompt} tokens of prompt and {budget} of output need more than the pool of {slots} tokens; raise "
            "EngineConfig.kv_bytes (or kv_blocks) or lower max_tokens",
            field="prompt",
        )


def prepare_prompt_only(facts: Facts, use: Use, task: Generate, params: SamplingParams) -> Admitted:
    """``max_tokens=0``: the prompt's logprobs where they are asked for, else nothing to compute at all."""
    sampling = resolve(facts, params, 0)
    top = params.prompt_logprobs
    if top is not None:
        top = checks.integer(top, "params.prompt_logprobs", 0, top_limit(facts))
    prompt = encode_prompt(
        facts,
        use,
        task.prompt,
        field="prompt",
        truncation=task.truncation,
        room=facts.max_length,
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
    return admitted(facts, use, task, tree, None if top is None else readout, finish, truncated=prompt.truncated)


def decoded(facts: Facts, ids: tuple[int, ...]) -> str:
    """Of single tokens, which decisions draw by the million, the text is kept."""
    if len(ids) != 1:
        return facts.encoder.tokenizer.decode(ids) if ids else ""
    text = facts.words.get(ids[0])
    if text is None:
        text = facts.encoder.tokenizer.decode(ids)
        facts.words.put(ids[0], text)
    return text


def complete(facts: Facts, sampling: Sampling, outcome: Outcome) -> Completion:
    """The result of a text. A stop id at the end is not part of it (unless ``include_stop``), whether or not it was
    settled; text that no reader followed is decoded and cut here."""
    stats = outcome.stats
    ids, logprobs = outcome.token_ids, outcome.logprobs
    if (sampling.logprobs is not None or not (ids or stats.finish_reason)) and isinstance(
        outcome.output, SampleOutput
    ):
        ids = ids or tuple(outcome.output.token_ids[:1].tolist())
        first = sampled_logprob(ids[0], outcome.output, 0, sampling.logprobs)
        logprobs = None if first is None else (first,)
    reason = stats.finish_reason or "length"
    if ids and ids[-1] in sampling.stop_ids:
        reason = "stop"
        if not sampling.include_stop:
            ids, logprobs = ids[:-1], logprobs and logprobs[: len(ids) - 1]
    text = outcome.text
    if text is None:
        started = time.perf_counter()
        text = decoded(facts, ids)
        if sampling.stops is not None and len(ids) > sampling.min_tokens:
            text, stopped = sampling.stops.cut(text, sampling.include_stop)
            reason = "stop" if stopped else reason
        stats.detok_ms += (time.perf_counter() - started) * 1e3
    stats.finish_reason = reason
    kept = None if sampling.logprobs is None else logprobs or ()
    return Completion(text, tuple(ids), reason, stats, logprobs=kept)
