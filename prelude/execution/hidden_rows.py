"""Hidden rows: the operations that readouts are made of, on the CPU.

The final norm and the LM head meet only rows that are read, ``chunk_rows`` of them at a time; a chunk's logits are
gone before the next one is made, so memory follows the rows asked for and is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from prelude.batch import F32, F64, I32
from prelude.execution.layout import I64
from prelude.execution.step_memory import TOKEN_CHUNK
from prelude.models.transformer import Transformer
from prelude.readouts.base import Logits


@dataclass(slots=True)
class HiddenRows:
    """The last layer's rows, as ``prelude.readouts.base.Rows``. ``tokens`` are their sorted token indices, None where
    row t is token t."""

    decoder: Transformer
    hidden: Tensor
    tokens: I64 | None
    chunk_rows: int
    first: int = 0  # the token that the readout's rows count from
    lm_head_rows: int = 0
    vocab_size: int = field(init=False)
    hidden_size: int = field(init=False)

    def __post_init__(self) -> None:
        self.vocab_size, self.hidden_size = self.decoder.spec.embeddings.vocab, self.decoder.spec.hidden

    def normed(self, tokens: I32) -> Tensor:
        """Rows after the final norm, float32."""
        at = tokens.astype(np.int64) + self.first
        if self.tokens is not None:
            at = np.searchsorted(self.tokens, at)
        return self.decoder.final_norm(self.hidden.index_select(0, torch.from_numpy(at)))

    def vectors(self, tokens: I32) -> F32:
        found: F32 = self.normed(tokens).numpy()
        return found

    def mean(self, tokens: I32) -> F32:
        """A run of rows is summed at a time, from the first one on: the bits are the item's own."""
        total = torch.zeros(self.hidden_size, dtype=torch.float64)
        for some in _runs(len(tokens)):
            total += self.normed(tokens[some]).sum(dim=0, dtype=torch.float64)
        found: F32 = (total / len(tokens)).numpy()
        return found

    def scores(self, tokens: I32) -> F32:
        parts = [self.decoder.scores(self.normed(tokens[some])).numpy() for some in _runs(len(tokens))]
        found: F32 = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return found

    def scores_of(self, vectors: F32) -> F32:
        found: F32 = self.decoder.scores(torch.from_numpy(vectors)).numpy()
        return found

    def options_of(self, vectors: F32, kind: int) -> F32:
        found: F32 = self.decoder.option_logits(torch.from_numpy(vectors), kind).numpy()
        return found

    def logits_of(self, tokens: I32, rows: I32, targets: I32) -> F64:
        pairs = len(targets)
        logits = np.empty(pairs, np.float64)
        normed = self.normed(tokens)
        for start in range(0, pairs, self.chunk_rows):
            some = slice(start, min(start + self.chunk_rows, pairs))
            at, ids = (torch.from_numpy(x[some].astype(np.int64)) for x in (rows, targets))
            logits[some] = self.decoder.logits_of(normed[at], ids).numpy()
        return logits

    def chunks(self, tokens: I32) -> Iterator[tuple[int, int, Logits]]:
        for start in range(0, len(tokens), self.chunk_rows):
            stop = min(start + self.chunk_rows, len(tokens))
            self.lm_head_rows += stop - start
            yield start, stop, ChunkLogits(self.decoder.logits(self.normed(tokens[start:stop])))


def _runs(rows: int) -> list[slice]:
    """Runs of rows that are normed at a time."""
    return [slice(at, at + TOKEN_CHUNK) for at in range(0, max(rows, 1), TOKEN_CHUNK)]


class ChunkLogits:
    """[n, vocab] float32, as ``prelude.readouts.base.Logits``."""

    __slots__ = ("_logits", "_normalisers")

    def __init__(self, logits: Tensor) -> None:
        self._logits = logits
        self._normalisers: tuple[Tensor, F64] | None = None

    def finite(self) -> npt.NDArray[np.bool_]:
        finite: npt.NDArray[np.bool_] = np.isfinite(self._logits.numpy()).all(axis=1)  # torch takes 20 times as long
        return finite

    def argmax(self) -> I32:
        found: I32 = self._logits.numpy().argmax(axis=1).astype(np.int32)  # the first of equal ones
        return found

    def row(self, n: int) -> F32:
        found: F32 = self._logits.numpy()[n]  # torch's own indexing takes three times as long
        return found

    def logprobs(self, rows: I32, targets: I32) -> F64:
        return logprobs_of(self._logits, *self._log_normalisers(), rows.astype(np.int64), targets.astype(np.int64))

    def ranks(self, rows: I32, targets: I32) -> I32:
        ranks = np.empty(len(rows), np.int32)
        for i, (row, target) in enumerate(zip(rows.tolist(), targets.tolist())):
            line = self._logits[row]
            value = line[target]
            ranks[i] = 1 + int((line > value).sum()) + int((line[:target] == value).sum())
        return ranks

    def best(self, count: int) -> tuple[I32, F64]:
        largest, rest = self._log_normalisers()
        ids, values = best(self._logits, count)
        relative: F64 = np.minimum(values.astype(np.float64) - largest.numpy() - rest[:, None], 0.0)
        return ids.astype(np.int32), relative

    def _log_normalisers(self) -> tuple[Tensor, F64]:
        if self._normalisers is None:
            self._normalisers = log_normalisers(self._logits)
        return self._normalisers


def log_normalisers(logits: Tensor) -> tuple[Tensor, F64]:
    """Largest logit [n, 1], and log of the sum of exponentials relative to it, [n] float64.

    Kept apart: next to logits of 1e4 the second would lose its digits in float32.
    """
    largest = logits.amax(dim=1, keepdim=True)
    rest: F64 = sums_of_exponentials(logits, largest).log_().numpy()
    return largest, rest[: logits.size(0)]


def sums_of_exponentials(logits: Tensor, largest: Tensor) -> Tensor:
    """[n] float64, for one row 2 equal ones: sums of exponentials of ``logits`` relative to ``largest`` [n, 1]."""
    relative = (logits - largest).exp_()
    if relative.size(0) == 1:  # torch cuts the sum of a single long row over its threads, and the bits change with it
        relative = relative.expand(2, -1)
    return relative.sum(dim=1).to(torch.float64)


def logprobs_of(logits: Tensor, largest: Tensor, rest: F64, rows: I64, targets: I64) -> F64:
    """Logprobs of (row, target) pairs, never above 0."""
    picked = logits[torch.from_numpy(rows), torch.from_numpy(targets)].to(torch.float64)
    relative = (picked - largest[:, 0].to(torch.float64)[torch.from_numpy(rows)]).numpy()
    logprobs: F64 = np.minimum(relative - rest[rows], 0.0)
    return logprobs


def best(logits: Tensor, count: int) -> tuple[I64, F32]:
    """The ``count`` largest of each row, best first, equal ones by id: ``(ids, logits)``."""
    count = min(count, logits.size(1))
    values, ids = (t.numpy() for t in torch.topk(logits, count, dim=1))
    # topk leaves open which of several logits equal to its last one it returns, and their order.
    at_edge = (logits == torch.from_numpy(values[:, -1:].copy())).sum(dim=1).numpy()
    open_rows = np.flatnonzero(at_edge > (values == values[:, -1:]).sum(axis=1))
    for row in open_rows.tolist():
        inside = values[row] > values[row, -1]
        edge = np.flatnonzero(logits[row].numpy() == values[row, -1])
        ids[row] = np.concatenate([ids[row][inside], edge[: count - int(inside.sum())]])
    order = np.lexsort((ids, -values), axis=1)
    return np.take_along_axis(ids, order, 1), np.take_along_axis(values, order, 1)
