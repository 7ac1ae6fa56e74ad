"""Random batches: forests with hits, folds, chunks and published blocks, decode rows, every readout."""

from __future__ import annotations

from typing import Any

import numpy as np

from prelude.readouts.batch import (
    DecodeBatch,
    DecodeRows,
    LogitEdits,
    LogprobRows,
    MixedBatch,
    OneShotBatch,
    PooledRows,
    PromptSlices,
    Readout,
    SampleRows,
)
from tests.execution.helpers import BLOCK, Segment, decode_rows, i32, sampling, slices

SHARED = 12
"""Blocks 0..SHARED are read as contexts, the next as many written by prompts, the rest are decode tables."""
BLOCKS = 64


def random_slices(rng: np.random.Generator, vocab: int, *, roots: int = 5, longest: int = 40) -> PromptSlices:
    """Parents before children, in no particular order; some roots continue the same blocks."""
    segments: list[Segment] = []
    contexts = [[int(b) for b in rng.permutation(SHARED)[: rng.integers(1, 4)]] for _ in range(2)]
    writable = list(rng.permutation(np.arange(SHARED, 2 * SHARED)))
    for _ in range(int(rng.integers(1, roots + 1))):
        length = int(rng.integers(0 if rng.random() < 0.2 else 1, longest))
        ids = i32(rng.integers(0, vocab, length))
        if rng.random() < 0.4:
            blocks = contexts[int(rng.integers(2))]
            room = len(blocks) * BLOCK
            context = room if rng.random() < 0.5 else int(rng.integers(1, room + 1))
            segments.append(Segment(ids, context=context, blocks=blocks[: -(-context // BLOCK)]))
        elif rng.random() < 0.3 and len(writable) >= 3 and length:
            segments.append(Segment(ids, write=[int(writable.pop()) for _ in range(-(-length // BLOCK))]))
        else:
            segments.append(Segment(ids))
    for _ in range(int(rng.integers(0, 8)) if rng.random() < 0.6 else 0):
        parent = int(rng.integers(0, len(segments)))
        segments.append(Segment(i32(rng.integers(0, vocab, int(rng.integers(0, 12)))), parent))
    if not any(len(s.ids) for s in segments):
        segments.append(Segment(i32(rng.integers(0, vocab, 3))))
    return slices(segments)


def random_decode(rng: np.random.Generator, vocab: int, most: int = 6) -> DecodeRows:
    count = int(rng.integers(1, most + 1))
    free = list(rng.permutation(np.arange(2 * SHARED, BLOCKS)))
    tables, lengths = [], []
    for _ in range(count):
        length = int(rng.integers(0, 5 * BLOCK))
        spare = int(rng.integers(0, 2))
        tables.append([int(free.pop()) for _ in range(length // BLOCK + 1 + spare)])
        lengths.append(length)
    return decode_rows([int(t) for t in rng.integers(0, vocab, count)], lengths, tables)


def random_edits(rng: np.random.Generator, rows: int, vocab: int) -> LogitEdits:
    def csr(most: int) -> tuple[np.ndarray, np.ndarray]:
        lists = [rng.permutation(vocab)[: rng.integers(0, most)] for _ in range(rows)]
        return i32(np.concatenate([[0], np.cumsum([len(x) for x in lists])])), i32(np.concatenate(lists))

    seen, bias, allowed, banned = csr(30), csr(5), csr(40), csr(6)
    counts, values = i32(rng.integers(0, 4, len(seen[1]))), rng.normal(size=len(bias[1])).astype(np.float32)
    penalties = (rng.uniform(low, low + most, rows).astype(np.float32) for low, most in ((1, 0.5), (0, 1), (0, 1)))
    return LogitEdits(*penalties, *seen, counts, *bias, values, *allowed, *banned)


def random_samples(rng: np.random.Generator, rows: Any, vocab: int) -> SampleRows:
    count = len(rows)
    if rng.random() < 0.4:
        return sampling(rows)
    wanted: dict[str, Any] = {}
    if rng.random() < 0.5:
        wanted |= {"top": int(rng.integers(0, 5)), "logprobs": True}
    if rng.random() < 0.3:
        wanted["edits"] = random_edits(rng, count, vocab)
    return SampleRows(
        i32(rows),
        np.where(rng.random(count) < 0.3, 0, rng.uniform(0.2, 2, count)).astype(np.float32),
        i32(np.where(rng.random(count) < 0.5, 0, rng.integers(1, 30, count))),
        np.where(rng.random(count) < 0.5, 1, rng.uniform(0.1, 1, count)).astype(np.float32),
        np.where(rng.random(count) < 0.5, 0, rng.uniform(0, 0.3, count)).astype(np.float32),
        rng.integers(0, 1 << 40, count).astype(np.uint64),
        i32(rng.integers(0, 9, count)),
        **wanted,
    )


def random_readout(rng: np.random.Generator, s: PromptSlices, vocab: int) -> Readout:
    ends = np.unique(s.starts[1:][np.diff(s.starts) > 0] - 1)
    some = rng.permutation(s.num_tokens)[: rng.integers(1, s.num_tokens + 1)]
    rows = ends if rng.random() < 0.6 else some
    kind = rng.random()
    if kind < 0.5:
        pairs = int(rng.integers(0, 3 * len(rows)))
        wanted = (i32(rows), i32(rng.integers(0, len(rows), pairs)), i32(rng.integers(0, vocab, pairs)))
        if rng.random() < 0.25:
            return LogprobRows(*wanted, raw=True)
        return LogprobRows(
            *wanted, top=int(rng.integers(1, 6)) if rng.random() < 0.3 else 0, ranks=bool(rng.random() < 0.3)
        )
    if kind < 0.75:
        return random_samples(rng, rows, vocab)
    modes = ("last", "cls", "mean", "max", "weightedmean", "mean_sqrt_len_tokens", "mean+last+max")
    pooling = modes[int(rng.integers(len(modes)))]
    cuts = np.unique(np.concatenate([[0, len(rows)], rng.integers(1, len(rows) + 1, 3)]))
    before = i32(rng.integers(0, 50, len(cuts) - 1)) if rng.random() < 0.3 else None
    return PooledRows(i32(rows), i32(cuts), pooling, before)


def random_batch(rng: np.random.Generator, vocab: int) -> OneShotBatch | DecodeBatch | MixedBatch:
    kind = rng.random()
    if kind < 0.45:
        s = random_slices(rng, vocab)
        return OneShotBatch(s, random_readout(rng, s, vocab))
    if kind < 0.65:
        rows = random_decode(rng, vocab)
        return DecodeBatch(rows, random_samples(rng, np.arange(rows.num_rows), vocab))
    s, rows = random_slices(rng, vocab), random_decode(rng, vocab)
    readouts = tuple(random_readout(rng, s, vocab) for _ in range(int(rng.integers(0, 3))))
    late = random_samples(rng, np.arange(rows.num_rows), vocab) if rng.random() < 0.9 else None
    return MixedBatch(s, readouts, rows, late)
