"""Generate: sampling settings with every default resolved, and the output budget that the context leaves."""

from __future__ import annotations

import secrets
import time

import numpy as np

from prelude.admission import checks
from prelude.admission.facts import Facts, admitted
from prelude.admission.logprobs import prompt_readout, top_limit
from prelude.admission.prepared import Admitted, Outcome, Sampling, TokenTree
from prelude.admission.prompts import TRUNCATIONS, Encoded, encode_prompt
from prelude.admission.tokenization import Use
from prelude.batch import SampleOutput, SampleRows
from prelude.errors import InvalidRequest, RequestTooLarge, shown
from prelude.results import Completion
from prelude.tasks import Generate, SamplingParams

MAX_TOKENS = (1 << 31) - 1
MAX_TEMPERATURE = 100.0
GREEDY_BELOW = 1e-5  # dividing logits by less would overflow float32; the argmax is the limit


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
    sampling = resolve(facts, params)
    prompt = encode_generate(facts, use, task, wanted)
    n = len(prompt.token_ids)
    budget = min(wanted, facts.max_length - n)
    check_pool(facts, n, budget)
    readout = sample_row(n - 1, sampling)
    return admitted(
        facts,
        use,
        task,
        TokenTree.single(prompt.token_ids),
        readout,
        lambda outcome: complete(facts, sampling, outcome),
        truncated=prompt.truncated,
        max_new_tokens=budget,
        sampling=sampling,
    )


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
    resolve(facts, params)
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
        return Completion("", (), "length", outcome.stats, logprobs)

    tree = TokenTree.single(prompt.token_ids)
    return admitted(facts, use, task, tree, None if top is None else readout, finish, truncated=prompt.truncated)


def resolve(facts: Facts, params: SamplingParams) -> Sampling:
    """Every field checked, every default filled in. Temperatures below 1e-5 are greedy."""
    temperature = checks.number(params.temperature, "params.temperature", 0.0, MAX_TEMPERATURE, "0 is greedy")
    top_k = checks.integer(params.top_k, "params.top_k", 0, (1 << 63) - 1, "0 is off")
    top_p = checks.number(params.top_p, "params.top_p", 0.0, 1.0, "1 is off")
    if top_p == 0.0:
        raise InvalidRequest("0 would leave no token; it takes more than 0, up to 1 (off)", field="params.top_p")
    min_p = checks.number(params.min_p, "params.min_p", 0.0, 1.0, "0 is off")
    ignore_eos = checks.flag(params.ignore_eos, "params.ignore_eos")
    greedy = temperature < GREEDY_BELOW
    if params.seed is not None:
        seed = checks.integer(params.seed, "params.seed", 0, (1 << 64) - 1)
    else:
        seed = 0 if greedy else secrets.randbits(64)
    return Sampling(
        0.0 if greedy else temperature,
        0 if top_k >= facts.limits.vocab_size else top_k,
        top_p,
        min_p,
        seed,
        frozenset() if ignore_eos else facts.eos_ids,
    )


def sample_row(row: int, sampling: Sampling) -> SampleRows:
    """The readout of one prompt's last token; nothing was sampled before."""
    return SampleRows(
        np.array([row], dtype=np.int32),
        np.array([sampling.temperature], dtype=np.float32),
        np.array([sampling.top_k], dtype=np.int32),
        np.array([sampling.top_p], dtype=np.float32),
        np.array([sampling.min_p], dtype=np.float32),
        np.array([sampling.seed], dtype=np.uint64),
        np.zeros(1, dtype=np.int32),
    )


def complete(facts: Facts, sampling: Sampling, outcome: Outcome) -> Completion:
    """Text of the generated ids. A stop id at the end is not part of it, whether or not it was settled."""
    stats = outcome.stats
    ids = outcome.token_ids
    if not ids and isinstance(outcome.output, SampleOutput):
        ids = tuple(outcome.output.token_ids[:1].tolist())
    reason = stats.finish_reason or "length"
    if ids and ids[-1] in sampling.stop_ids:
        ids, reason = ids[:-1], "stop"
    started = time.perf_counter()
    text = facts.encoder.tokenizer.decode(ids) if ids else ""
    stats.detok_ms += (time.perf_counter() - started) * 1e3
    stats.finish_reason = reason
    return Completion(text, tuple(ids), reason, stats)
