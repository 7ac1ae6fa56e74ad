"""Batches and requests that the GPU bench makes by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from prelude.readouts.batch import LogprobRows, PromptSlices, SampleRows


def i32(values: Any) -> np.ndarray:
    return np.ascontiguousarray(values, dtype=np.int32)


def forest(segments: Sequence[tuple[np.ndarray, int]]) -> PromptSlices:
    """``(ids, parent)`` each, without contexts."""
    starts = np.concatenate([[0], np.cumsum([len(ids) for ids, _ in segments])])
    ends: list[int] = []
    positions = []
    for ids, parent in segments:
        first = 0 if parent < 0 else ends[parent]
        ends.append(first + len(ids))
        positions.append(np.arange(first, ends[-1]))
    count = len(segments)
    return PromptSlices(
        i32(np.concatenate([ids for ids, _ in segments])),
        i32(np.concatenate(positions)),
        i32(starts),
        i32([parent for _, parent in segments]),
        i32(np.zeros(count)),
        i32(np.zeros(count + 1)),
        i32([]),
    )


def labels(rows: Sequence[int], ids: Sequence[int]) -> LogprobRows:
    count = len(rows)
    return LogprobRows(i32(rows), i32(np.repeat(np.arange(count), len(ids))), i32(np.tile(ids, count)))


def greedy(rows: Sequence[int]) -> SampleRows:
    n = len(rows)
    f32, zeros = np.zeros(n, np.float32), np.zeros(n, np.int32)
    return SampleRows(i32(rows), f32, zeros, np.ones(n, np.float32), f32, np.zeros(n, np.uint64), zeros)


def draw(seed: int, count: int, vocab: int = 4000) -> np.ndarray:
    """Ids of the packaged tokenizer, which every model here has."""
    return i32(np.random.default_rng(seed).integers(32, vocab, count))
