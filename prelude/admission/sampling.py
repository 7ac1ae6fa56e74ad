"""Sampling settings: checked once, and turned into a batch's arrays at every step."""

from __future__ import annotations

import secrets
from contextvars import copy_context
from typing import Any

import numpy as np

from prelude._native.core import SameIds, ids_once
from prelude.admission.context import AdmissionContext
from prelude.admission.logprobs import top_limit
from prelude.errors import InvalidRequest, RequestTooLarge, is_interrupt, own_error, shown
from prelude.readouts.sampling import Choose, RowEdits, Sampling
from prelude.streaming.text import Stops
from prelude.tasks import SamplingParams
from prelude.values import validation
from prelude.values.arrays import F32, I32, Mask

MAX_TEMPERATURE = 100.0
GREEDY_BELOW = 1e-5  # dividing logits by less would overflow float32; the argmax is the limit
MAX_PENALTY = 100.0
MAX_BIAS = 100.0
MAX_STOPS, MAX_STOP_CHARS = 64, 4096
MAX_STOP_IDS = 1024
_NO_IDS = np.zeros(0, dtype=np.int32)
_LISTS = (list, tuple, set, frozenset, range, np.ndarray)


# ------------------------------------------------------------------ checking


def resolve(ctx: AdmissionContext, params: SamplingParams, max_tokens: int) -> Sampling:
    """Check every field and fill in every default. Temperatures below 1e-5 are greedy."""
    temperature = validation.number(params.temperature, "params.temperature", 0.0, MAX_TEMPERATURE, "0 is greedy")
    top_k = validation.integer(params.top_k, "params.top_k", 0, (1 << 63) - 1, "0 is off")
    top_p = validation.number(params.top_p, "params.top_p", 0.0, 1.0, "1 is off")
    if top_p == 0.0:
        raise InvalidRequest("0 would leave no token; it takes more than 0, up to 1 (off)", field="params.top_p")
    min_p = validation.number(params.min_p, "params.min_p", 0.0, 1.0, "0 is off")
    greedy = temperature < GREEDY_BELOW
    if params.seed is not None:
        seed = validation.integer(params.seed, "params.seed", 0, (1 << 64) - 1)
    else:
        seed = 0 if greedy else secrets.randbits(64)
    min_tokens = validation.integer(params.min_tokens, "params.min_tokens", 0, max_tokens, "at most max_tokens")
    logprobs = params.logprobs
    if logprobs is not None:
        logprobs = validation.integer(logprobs, "params.logprobs", 0, top_limit(ctx), "None is off")
    stop_ids = resolve_stop_ids(ctx, params)
    return Sampling(
        0.0 if greedy else temperature,
        0 if top_k >= ctx.limits.vocab_size else top_k,
        top_p,
        min_p,
        seed,
        stop_ids,
        resolve_edits(ctx, params, stop_ids if min_tokens else frozenset()),
        min_tokens,
        logprobs,
        resolve_stops(params.stop),
        validation.flag(params.include_stop, "params.include_stop"),
    )


def resolve_stop_ids(ctx: AdmissionContext, params: SamplingParams) -> frozenset[int]:
    rows = ctx.limits.vocab_size
    given = token_ids(params.stop_token_ids, "params.stop_token_ids", rows, MAX_STOP_IDS)
    eos = frozenset() if validation.flag(params.ignore_eos, "params.ignore_eos") else ctx.eos_ids
    return eos.union(given.tolist())


def resolve_stops(stop: Any) -> Stops | None:
    """Check a string or a list of strings, each of at least one character."""
    field = "params.stop"
    if isinstance(stop, str):
        stop = (stop,)
    if not isinstance(stop, list | tuple):
        raise InvalidRequest(f"{shown(stop)} is not a string or a list of strings", field=field)
    if len(stop) > MAX_STOPS:
        raise RequestTooLarge(f"{len(stop)} stop strings; the limit is {MAX_STOPS}", field=field)
    words = tuple(validation.text(word, f"{field}[{i}]", MAX_STOP_CHARS, empty=False) for i, word in enumerate(stop))
    if sum(map(len, words)) > MAX_STOP_CHARS:
        raise RequestTooLarge(f"more than {MAX_STOP_CHARS} characters of stop strings in all", field=field)
    return Stops(words) if words else None


def resolve_edits(ctx: AdmissionContext, params: SamplingParams, early: frozenset[int]) -> RowEdits | None:
    """Return None if nothing is done to the logits. ``early`` are the ids that ``min_tokens`` bans for a while."""
    rows = ctx.limits.vocab_size
    repetition = validation.number(
        params.repetition_penalty, "params.repetition_penalty", 1 / MAX_PENALTY, MAX_PENALTY, "1 is off"
    )
    presence = validation.number(params.presence_penalty, "params.presence_penalty", -MAX_PENALTY, MAX_PENALTY)
    frequency = validation.number(params.frequency_penalty, "params.frequency_penalty", -MAX_PENALTY, MAX_PENALTY)
    bias_ids, bias_values = resolve_bias(params.logit_bias, rows)
    allowed = params.allowed_token_ids
    chosen = None if allowed is None else token_ids(allowed, "params.allowed_token_ids", rows, rows)
    banned = token_ids(params.banned_token_ids, "params.banned_token_ids", rows, rows)
    banned_early = banned if not early else np.union1d(banned, np.array(sorted(early), dtype=np.int32))
    left = rows - len(banned_early) if chosen is None else len(np.setdiff1d(chosen, banned_early))
    if left == 0:
        raise InvalidRequest(
            "no token allowed: allowed_token_ids, banned_token_ids and (before min_tokens) the stop ids leave none",
            field="params.banned_token_ids" if chosen is None else "params.allowed_token_ids",
        )
    choose = resolve_choose(params.allowed_tokens_fn, rows, chosen, banned, banned_early)
    if choose is not None:
        try:
            chosen = choose([], bool(early))
        except Exception:
            raise
        except BaseException as raised:
            if is_interrupt(raised):
                raise
            raise own_error(raised, "params.allowed_tokens_fn failed") from raised
    edits = RowEdits(
        repetition,
        presence,
        frequency,
        bias_ids,
        bias_values,
        _NO_IDS if chosen is None else chosen,
        banned,
        banned_early.astype(np.int32),
        choose,
    )
    return edits if edits.follows or any(map(len, (bias_ids, edits.allowed, edits.banned_early))) else None


class InContext:
    """A caller's function with the context variables of the call that brought it. Each call has the changes that the
    calls before it made."""

    __slots__ = ("_context", "_function")

    def __init__(self, function: Any) -> None:
        self._function, self._context = function, copy_context()

    def __call__(self, output: list[int]) -> Any:
        return self._context.run(self._function, output)


def in_context(function: Any) -> Any:
    """``function`` in this thread's present context, unless it has one; a value that cannot be called as it is."""
    return InContext(function) if callable(function) and not isinstance(function, InContext) else function


def resolve_choose(given: Any, rows: int, static: I32 | None, banned: I32, early: I32) -> Choose | None:
    """``allowed_tokens_fn`` with its result checked, and cut to ``allowed_token_ids`` (``static``). Raises
    ``InvalidRequest`` for a result that is not a list of ids or leaves no token; and errors of the caller's
    function."""
    field = "params.allowed_tokens_fn"
    if given is None:
        return None
    if not callable(given):
        raise InvalidRequest(f"{shown(given)} cannot be called", field=field)
    within = None if static is None else _mask(static, rows)
    barred_early, barred_later = (_mask(ids, rows) if len(ids) else None for ids in (early, banned))
    lists, asked = SameIds(rows), in_context(given)

    def choose(output: list[int], waits: bool) -> I32:
        answer = asked(list(output))
        if answer is None:
            return _NO_IDS if static is None else static
        ids = lists.of(answer)
        if ids is None:
            ids = _checked_ids(answer, field, rows, rows)
        if within is not None:
            ids = ids[within[ids]]
        barred = barred_early if waits else barred_later
        if not len(ids) or (barred is not None and barred[ids].all()):
            raise InvalidRequest(
                f"no token allowed after {len(output)} tokens: the returned ids, allowed_token_ids, banned_token_ids "
                "and (before min_tokens) the stop ids leave none",
                field=field,
            )
        return ids

    return choose


def _mask(ids: I32, rows: int) -> Mask:
    """[rows]: which of them are ``ids``."""
    mask = np.zeros(rows, dtype=np.bool_)
    mask[ids] = True
    return mask


def resolve_bias(bias: Any, rows: int) -> tuple[I32, F32]:
    field = "params.logit_bias"
    if bias is None:
        return _NO_IDS, np.zeros(0, dtype=np.float32)
    if not isinstance(bias, dict):
        raise InvalidRequest(f"{shown(bias)} is not a dict of token ids and numbers", field=field)
    if len(bias) > rows:
        raise RequestTooLarge(f"{len(bias)} entries; the model has {rows} logits", field=field)
    ids = [validation.integer(key, f"{field} key", 0, rows - 1, "a key is a token id") for key in bias]
    values = [
        validation.number(value, f"{field}[{key}]", -MAX_BIAS, MAX_BIAS, "use banned_token_ids to rule a token out")
        for key, value in zip(ids, bias.values())
    ]
    return np.array(ids, dtype=np.int32), np.array(values, dtype=np.float32)


def token_ids(value: Any, field: str, rows: int, most: int) -> I32:
    """Ids below ``rows`` (the model's logits), each once, ascending: a new array, which later writes of the caller
    do not reach."""
    found = ids_once(value, rows)
    if found is None or len(value) > most:
        found = _checked_ids(value, field, rows, most)
    return found


def _checked_ids(value: Any, field: str, rows: int, most: int) -> I32:
    """Read other kinds of collections and integers the same way, and raise the errors."""
    if not isinstance(value, _LISTS):
        raise InvalidRequest(f"{shown(value)} is not a list of token ids", field=field)
    if isinstance(value, np.ndarray) and (value.ndim != 1 or (value.dtype.kind not in "iu" and len(value))):
        raise InvalidRequest(f"an array {value.dtype}{value.shape} is not a list of token ids", field=field)
    if len(value) > most:
        raise RequestTooLarge(f"{len(value)} ids; the limit is {most}", field=field)
    listed = value.tolist() if isinstance(value, np.ndarray) else list(value)
    found = ids_once(listed, rows)
    if found is None:  # other kinds of integers, or a value that is no id
        range_of_ids = f"an id is one of the model's {rows} logits"
        ids = {validation.integer(i, f"{field}[{at}]", 0, rows - 1, range_of_ids) for at, i in enumerate(listed)}
        found = np.array(sorted(ids), dtype=np.int32)
    return found
