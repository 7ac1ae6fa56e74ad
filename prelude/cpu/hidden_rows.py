"""Hidden rows: the operations that readouts are made of, on the CPU.

The final norm and the LM head meet only rows that are read, ``chunk_rows`` of them at a time; a chunk's logits are
gone before the next one is made, so memory follows the rows asked for and is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from prelude._native import cpu
from prelude.execution.memory_plan import TOKEN_CHUNK
from prelude.models.transformer import Transformer
from prelude.readouts.base import Logits
from prelude.readouts.batch import F32, F64, I32
from prelude.records import dataclass, field
from prelude.values.arrays import I64, Mask


@dataclass(slots=True)
class HiddenRows:
    """The last layer's rows, as ``prelude.readouts.base.Rows``. ``tokens`` are their sorted token indices, None if
    row t is token t."""

    decoder: Transformer
    hidden: F32
    tokens: I64 | None
    chunk_rows: int
    first: int = 0  # the token that the readout's rows count from
    lm_head_rows: int = 0
    vocab_size: int = field(init=False)
    hidden_size: int = field(init=False)

    def __post_init__(self) -> None:
        self.vocab_size, self.hidden_size = self.decoder.spec.embeddings.vocab, self.decoder.spec.hidden

    def vectors(self, tokens: I32) -> F32:
        at = tokens.astype(np.int64) + self.first
        if self.tokens is not None:
            at = self.tokens.searchsorted(at)
        return self.decoder.final_norm(self.hidden[at])

    def mean(self, tokens: I32) -> F32:
        """A run of rows is summed at a time, from the first one on: the bits are the item's own. Tokens side by side
        are read where they lie."""
        total, count = np.zeros(self.hidden_size, np.float64), len(tokens)
        first, last = int(tokens[0]) + self.first, int(tokens[-1]) + self.first
        at = first if self.tokens is None else int(self.tokens.searchsorted(first))
        beside = self.hidden[at : at + count] if last - first == count - 1 else None
        for some in _runs(count):
            rows = self.vectors(tokens[some]) if beside is None else self.decoder.final_norm(beside[some])
            cpu.add_rows(rows, total)
        return (total / count).astype(np.float32)

    def scores(self, tokens: I32) -> F32:
        parts = [self.decoder.scores(self.vectors(tokens[some])) for some in _runs(len(tokens))]
        return np.concatenate(parts)

    def scores_of(self, vectors: F32) -> F32:
        return self.decoder.scores(vectors)

    def options_of(self, vectors: F32, kind: int) -> F32:
        return self.decoder.option_logits(vectors, kind)

    def logits_of(self, tokens: I32, rows: I32, targets: I32) -> F64:
        pairs = len(targets)
        logits = np.empty(pairs, np.float64)
        normed = self.vectors(tokens)
        for start in range(0, pairs, self.chunk_rows):
            some = slice(start, start + self.chunk_rows)
            logits[some] = self.decoder.logits_of(normed[rows[some]], targets[some].astype(np.int64))
        return logits

    def chunks(self, tokens: I32) -> Iterator[tuple[int, int, Logits]]:
        for start in range(0, len(tokens), self.chunk_rows):
            stop = min(start + self.chunk_rows, len(tokens))
            self.lm_head_rows += stop - start
            yield start, stop, self._read(self.decoder.logits(self.vectors(tokens[start:stop])))

    def _read(self, logits: F32) -> Logits:
        return ChunkLogits(logits)


def _runs(rows: int) -> list[slice]:
    """Runs of rows that are normed at a time."""
    return [slice(at, at + TOKEN_CHUNK) for at in range(0, max(rows, 1), TOKEN_CHUNK)]


class ChunkLogits:
    """[n, vocab] float32, as ``prelude.readouts.base.Logits``."""

    __slots__ = ("_logits", "_normalisers")

    def __init__(self, logits: F32) -> None:
        self._logits = logits
        self._normalisers: tuple[F32, F64] | None = None

    def finite(self) -> Mask:
        return np.asarray(np.isfinite(self._logits).all(axis=1))

    def argmax(self) -> I32:
        found: I32 = self._logits.argmax(axis=1).astype(np.int32)  # the first of equal ones
        return found

    def row(self, n: int) -> F32:
        found: F32 = self._logits[n]
        return found

    def logprobs(self, rows: I32, targets: I32) -> F64:
        return logprobs_of(self._logits, *self._log_normalisers(), rows, targets)

    def ranks(self, rows: I32, targets: I32) -> I32:
        ranks = np.empty(len(rows), np.int32)
        for i, (row, target) in enumerate(zip(rows.tolist(), targets.tolist())):
            line = self._logits[row]
            value = line[target]
            ranks[i] = 1 + np.count_nonzero(line > value) + np.count_nonzero(line[:target] == value)
        return ranks

    def best(self, count: int) -> tuple[I32, F64]:
        largest, rest = self._log_normalisers()
        ids, values = best(self._logits, count)
        relative: F64 = np.minimum(values.astype(np.float64) - largest[:, None] - rest[:, None], 0.0)
        return ids.astype(np.int32), relative

    def _log_normalisers(self) -> tuple[F32, F64]:
        if self._normalisers is None:
            self._normalisers = log_normalisers(self._logits)
        return self._normalisers


def log_normalisers(logits: F32) -> tuple[F32, F64]:
    """Largest logit [n], and log of the sum of exponentials relative to it, [n] float64.

    Kept apart: next to logits of 1e4 the second would lose its digits in float32. A row is summed by one thread.
    """
    largest, sums = cpu.exp_sums(logits)
    return largest, np.log(sums)


def logprobs_of(logits: F32, largest: F32, rest: F64, rows: I32, targets: I32) -> F64:
    """Return logprobs of (row, target) pairs, never above 0."""
    relative = logits[rows, targets].astype(np.float64) - largest[rows]
    logprobs: F64 = np.minimum(relative - rest[rows], 0.0)
    return logprobs


def best(logits: F32, count: int) -> tuple[I64, F32]:
    """Return the ``count`` largest of each row, best first, equal ones by id: ``(ids, logits)``."""
    count = min(count, logits.shape[1])
    ids = np.argpartition(logits, logits.shape[1] - count, axis=1)[:, logits.shape[1] - count :]
    values = np.take_along_axis(logits, ids, 1)
    # It is open which of several logits equal to the smallest of these are among them.
    edge = values.min(axis=1, keepdims=True)
    open_rows = np.flatnonzero((logits == edge).sum(axis=1) > (values == edge).sum(axis=1))
    for row in open_rows.tolist():
        inside = values[row] > edge[row]
        equal = np.flatnonzero(logits[row] == edge[row])[: count - int(inside.sum())]
        ids[row] = np.concatenate([ids[row][inside], equal])
        values[row] = logits[row][ids[row]]
    order = np.lexsort((ids, -values), axis=1)
    return np.take_along_axis(ids, order, 1), np.take_along_axis(values, order, 1)
