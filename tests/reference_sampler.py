"""The sampler written a second time, word for word from its definitions, one id at a time."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np

from prelude.tasks import SamplingParams

_M = (1 << 64) - 1


def _mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _M
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _M
    return z ^ (z >> 31)


def uniform(seed: int, step: int) -> float:
    return (_mix((_mix(seed) + (step + 1) * 0x9E3779B97F4A7C15) & _M) >> 11) * 2.0**-53


def edit(
    logits: Sequence[float],
    prompt: Sequence[int],
    output: Sequence[int],
    params: SamplingParams,
    stops: Collection[int],
) -> list[float]:
    row = [float(x) for x in logits]
    for i in {*prompt, *output}:
        row[i] = row[i] / params.repetition_penalty if row[i] > 0 else row[i] * params.repetition_penalty
    for i in set(output):
        row[i] -= list(output).count(i) * params.frequency_penalty + params.presence_penalty
    for i, bias in (params.logit_bias or {}).items():
        row[i] += bias
    banned = set(params.banned_token_ids)
    if len(output) < params.min_tokens:
        banned |= {*stops}
    if params.allowed_token_ids is not None:
        banned |= set(range(len(row))) - set(params.allowed_token_ids)
    return [-math.inf if i in banned else x for i, x in enumerate(row)]


def probabilities(row: Sequence[float], params: SamplingParams) -> list[float]:
    """Of every id; ``temperature`` is positive."""
    most = max(row)
    weight = [math.exp((x - most) / params.temperature) for x in row]
    order = sorted((i for i, w in enumerate(weight) if w > 0), key=lambda i: (-row[i], i))
    if params.top_k:
        order = order[: params.top_k]
    if params.top_p < 1:
        whole, sum_, kept = math.fsum(weight[i] for i in order), 0.0, []
        for i in order:
            kept.append(i)
            sum_ += weight[i]
            if sum_ >= params.top_p * whole:
                break
        order = kept
    order = [i for i in order if weight[i] >= params.min_p * weight[order[0]]]
    whole = math.fsum(weight[i] for i in order)
    out = [0.0] * len(row)
    for i in order:
        out[i] = weight[i] / whole
    return out


def sample(
    logits: Sequence[float],
    prompt: Sequence[int],
    output: Sequence[int],
    params: SamplingParams,
    stops: Collection[int] = (),
    seed: int | None = None,
) -> int:
    row = edit(logits, prompt, output, params, stops)
    if params.temperature < 1e-5:
        return row.index(max(row))
    u = uniform(params.seed or 0 if seed is None else seed, len(output))
    cumulative = np.cumsum(probabilities(row, params))
    return int(np.flatnonzero(cumulative > u * cumulative[-1])[0])
