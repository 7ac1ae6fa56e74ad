"""One token out of a row of logits, by definitions that can be written down, in this order.

    repetition r    every id of the prompt or the output, once: l / r if l > 0, else l * r (as in transformers'
                    RepetitionPenaltyLogitsProcessor)
    frequency f,    l - c * f - (c > 0) * p, where c is how often the id stands in the output (OpenAI's formula)
    presence p
    bias b          l + b
    allowed, banned -inf for every id that is not allowed, and for every one that is banned
    temperature t   logits / t; 0 means greedy: the smallest id among the largest logits
    top-k           the k largest (among equal ones the smaller ids)
    top-p           of the tokens left, the smallest set of most likely tokens whose probabilities add up to p
    min-p           of the tokens left, those with at least min_p times the probability of the most likely one

The first three are done in float64, for the rows that ask for them; other rows keep the bits they came with. The
token is then the inverse of the cumulative distribution, in order of token ids, at a uniform number. That number
is a function of (seed, step) and nothing else, so a request gets the same tokens beside any other requests:

    u(seed, step) = (mix(mix(seed) + (step + 1) * 0x9E3779B97F4A7C15) >> 11) * 2**-53

where ``mix`` is the finaliser of SplitMix64 and sums are modulo 2**64.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from prelude.records import dataclass
from prelude.values.arrays import F32, F64, I32, U64, Mask

Logits: TypeAlias = F32 | F64
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class LogitEdits:
    """The edits of the logits of N sampled rows before they are scaled and cut. Sparse parts are CSR: row n has
    entries ``indptr[n]:indptr[n+1]``, each id once, in any order.

    ``seen``: the ids that the row's penalties weigh, with how often each stands in its output (0: in the prompt
    alone). ``allowed``: a row without entries allows every id.
    """

    repetition: F32  # [N], 1 = off
    presence: F32  # [N], 0 = off
    frequency: F32  # [N], 0 = off
    seen_indptr: I32
    seen_ids: I32
    seen_counts: I32
    bias_indptr: I32
    bias_ids: I32
    bias_values: F32
    allowed_indptr: I32
    allowed_ids: I32
    banned_indptr: I32
    banned_ids: I32

    def rows(self) -> Mask:
        """[N]: whether a sparse part has an entry of the row."""
        tables = (self.seen_indptr, self.bias_indptr, self.allowed_indptr, self.banned_indptr)
        found: Mask = np.logical_or.reduce([table[1:] > table[:-1] for table in tables])
        return found


def _mix(z: U64) -> U64:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: U64 = z ^ (z >> np.uint64(31))
    return mixed


def uniforms(seeds: U64, steps: npt.NDArray[np.int32]) -> F64:
    """Return numbers in [0, 1), one per (seed, step)."""
    with np.errstate(over="ignore"):
        z = _mix(np.asarray(seeds, np.uint64))
        z = _mix(z + (np.asarray(steps).astype(np.uint64) + np.uint64(1)) * _GOLDEN)
    drawn: F64 = (z >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return drawn


def edited(logits: npt.NDArray[np.float32], edits: LogitEdits, n: int) -> Logits:
    """Row ``n``'s logits with its penalties, bias and masks: float64 if a number of it is changed, float32 if
    the row is masked alone; ``logits`` stay as they are."""
    seen = edits.seen_ids[edits.seen_indptr[n] : edits.seen_indptr[n + 1]]
    at = slice(edits.bias_indptr[n], edits.bias_indptr[n + 1])
    biased = edits.bias_ids[at]
    changed = len(seen) > 0 or len(biased) > 0
    source: Logits = logits.astype(np.float64) if changed else logits
    if len(seen):
        counts = edits.seen_counts[edits.seen_indptr[n] : edits.seen_indptr[n + 1]]
        values, repetition = source[seen], float(edits.repetition[n])
        values = np.where(values > 0, values / repetition, values * repetition)
        source[seen] = values - float(edits.frequency[n]) * counts - float(edits.presence[n]) * (counts > 0)
    if len(biased):
        source[biased] += edits.bias_values[at]
    allowed = edits.allowed_ids[edits.allowed_indptr[n] : edits.allowed_indptr[n + 1]]
    if len(allowed):
        row: Logits = np.full(len(source), -np.inf, source.dtype)
        row[allowed] = source[allowed]
    else:
        row = source if changed else logits.copy()
    banned = edits.banned_ids[edits.banned_indptr[n] : edits.banned_indptr[n + 1]]
    if len(banned):
        row[banned] = -np.inf
    return row


def best(logits: npt.NDArray[np.float32], edits: LogitEdits, n: int) -> int:
    """Return the smallest id among the largest of row ``n``'s edited logits."""
    seen, bias, allow, ban = edits.seen_indptr, edits.bias_indptr, edits.allowed_indptr, edits.banned_indptr
    first, last = allow[n], allow[n + 1]
    if first == last or seen[n] < seen[n + 1] or bias[n] < bias[n + 1] or ban[n] < ban[n + 1]:
        return int(edited(logits, edits, n).argmax())
    allowed = edits.allowed_ids[first:last]  # masked alone: the other ids are not looked at
    values = logits[allowed]
    return int(allowed[values == values.max()].min())


def distribution(logits: Logits, temperature: float, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> F64:
    """Return probabilities over all ids, float64; the ids that were cut have 0. ``temperature`` is positive."""
    scaled = (logits.astype(np.float64) - float(logits.max())) / temperature
    weights = np.exp(scaled)
    if 0 < top_k < len(weights):
        weights = _keep_top_k(weights, logits, top_k)
    if top_p < 1.0:
        weights = _keep_top_p(weights, logits, top_p)
    if min_p > 0.0:
        weights = np.where(weights >= min_p * weights.max(), weights, 0.0)
    probabilities: F64 = weights / weights.sum()
    return probabilities


def _keep_top_k(weights: F64, logits: Logits, k: int) -> F64:
    # By logits, not weights: a small temperature makes unequal logits equal weights.
    smallest = np.partition(logits, len(logits) - k)[len(logits) - k]
    kept = logits > smallest
    ties = np.flatnonzero(logits == smallest)
    kept[ties[: k - int(kept.sum())]] = True
    return np.where(kept, weights, 0.0)


def _keep_top_p(weights: F64, logits: Logits, p: float) -> F64:
    wanted = p * weights.sum()
    count, kept = 256, np.zeros_like(weights)
    while True:
        # Sorting a whole vocabulary takes longer than all the rest; the best few usually suffice.
        above = -np.inf if count >= len(logits) else np.partition(logits, len(logits) - count)[len(logits) - count]
        some = np.flatnonzero((logits > above) & (weights > 0))
        order = some[np.argsort(-logits[some], kind="stable")]
        cumulative = np.cumsum(weights[order])
        if count >= len(logits) or (len(order) and cumulative[-1] >= wanted):
            break
        count *= 16
    # The first position where the sum reaches p of the whole; at least one token is kept.
    order = order[: int(np.searchsorted(cumulative, wanted, side="left")) + 1]
    kept[order] = weights[order]
    return kept


def draw(probabilities: F64, u: float) -> int:
    """Return the smallest id whose cumulative probability exceeds ``u``."""
    cumulative = np.cumsum(probabilities)
    token = int(np.searchsorted(cumulative, u * cumulative[-1], side="right"))
    if token >= len(probabilities) or probabilities[token] == 0.0:
        token = int(np.flatnonzero(probabilities)[-1])  # u * total may round up to the total
    return token
