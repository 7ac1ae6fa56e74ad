"""Hidden rows → the numbers a readout asks for.

The final norm and the LM head meet only rows that are read, ``chunk_rows`` of them at a time; a chunk's logits are
gone before the next one is made, so memory follows the rows asked for and is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from prelude.batch import (
    F32,
    F64,
    I32,
    HeadOutput,
    HeadRows,
    LogprobOutput,
    LogprobRows,
    Output,
    PooledOutput,
    PooledRows,
    Readout,
    SampleOutput,
    SampleRows,
)
from prelude.execution.layout import I64
from prelude.execution.sampling import sample_token, uniforms
from prelude.models.decoder import Decoder


@dataclass(slots=True)
class HiddenRows:
    """The last layer's rows. ``tokens`` are their sorted token indices, None where row t is token t."""

    decoder: Decoder
    hidden: Tensor
    tokens: I64 | None
    chunk_rows: int
    first: int = 0  # the token that the readout's rows count from
    lm_head_rows: int = 0

    def normed(self, tokens: npt.NDArray[np.int32]) -> Tensor:
        """Rows after the final norm, float32."""
        at = tokens.astype(np.int64) + self.first
        if self.tokens is not None:
            at = np.searchsorted(self.tokens, at)
        return self.decoder.final_norm(self.hidden.index_select(0, torch.from_numpy(at)))

    def chunks(self, tokens: npt.NDArray[np.int32]) -> Iterator[tuple[int, int, Tensor]]:
        """``(first, last, logits)`` over runs of ``tokens``."""
        for start in range(0, len(tokens), self.chunk_rows):
            stop = min(start + self.chunk_rows, len(tokens))
            self.lm_head_rows += stop - start
            yield start, stop, self.decoder.logits(self.normed(tokens[start:stop]))


def read(readout: Readout, rows: HiddenRows) -> tuple[Output, I32]:
    """A readout's output and its bad rows: those with a number that is not finite."""
    if isinstance(readout, LogprobRows):
        return read_logprobs(readout, rows)
    if isinstance(readout, SampleRows):
        return read_samples(readout, rows)
    if isinstance(readout, PooledRows):
        return read_pooled(readout, rows)
    if isinstance(readout, HeadRows):
        logits = rows.decoder.scores(rows.normed(readout.rows)).numpy()
        return HeadOutput(logits), _bad(np.isfinite(logits).all(axis=1))
    raise TypeError(f"{type(readout).__name__} is not a readout")


def _bad(finite: npt.NDArray[np.bool_]) -> I32:
    return np.flatnonzero(~finite).astype(np.int32)


def log_normalisers(logits: Tensor) -> tuple[Tensor, F64]:
    """Largest logit [n, 1], and log of the sum of exponentials relative to it, [n] float64.

    Kept apart: next to logits of 1e4 the second would lose its digits in float32.
    """
    largest = logits.amax(dim=1, keepdim=True)
    relative = (logits - largest).exp_()
    if len(relative) == 1:  # torch cuts the sum of a single long row over its threads, and the bits change with it
        relative = relative.expand(2, -1)
    rest: F64 = relative.sum(dim=1).to(torch.float64).log_().numpy()
    return largest, rest[: len(logits)]


def _finite_rows(logits: Tensor) -> npt.NDArray[np.bool_]:
    finite: npt.NDArray[np.bool_] = np.isfinite(logits.numpy()).all(axis=1)  # torch takes 20 times as long
    return finite


def logprobs_of(logits: Tensor, largest: Tensor, rest: F64, rows: I64, targets: I64) -> F64:
    """Logprobs of (row, target) pairs, never above 0."""
    picked = logits[torch.from_numpy(rows), torch.from_numpy(targets)].to(torch.float64)
    relative = (picked - largest[:, 0].to(torch.float64)[torch.from_numpy(rows)]).numpy()
    logprobs: F64 = np.minimum(relative - rest[rows], 0.0)
    return logprobs


def best(logits: Tensor, count: int) -> tuple[I64, F32]:
    """The ``count`` largest of each row, best first, equal ones by id: ``(ids, logits)``."""
    count = min(count, logits.shape[1])
    values, ids = (t.numpy() for t in torch.topk(logits, count, dim=1))
    # topk leaves open which of several logits equal to its last one it returns, and in what order.
    at_edge = (logits == torch.from_numpy(values[:, -1:].copy())).sum(dim=1).numpy()
    open_rows = np.flatnonzero(at_edge > (values == values[:, -1:]).sum(axis=1))
    for row in open_rows.tolist():
        inside = values[row] > values[row, -1]
        edge = np.flatnonzero(logits[row].numpy() == values[row, -1])
        ids[row] = np.concatenate([ids[row][inside], edge[: count - int(inside.sum())]])
    order = np.lexsort((ids, -values), axis=1)
    return np.take_along_axis(ids, order, 1), np.take_along_axis(values, order, 1)


def _ranks(logits: Tensor, rows: I64, targets: I64) -> I32:
    """1 + how many tokens are better; a tie is better where its id is smaller."""
    ranks = np.empty(len(rows), np.int32)
    for i, (row, target) in enumerate(zip(rows.tolist(), targets.tolist())):
        line = logits[row]
        value = line[target]
        ranks[i] = 1 + int((line > value).sum()) + int((line[:target] == value).sum())
    return ranks


def read_raw(readout: LogprobRows, rows: HiddenRows) -> tuple[LogprobOutput, I32]:
    """Logits of the targets alone."""
    pairs = len(readout.targets)
    logits = np.empty(pairs, np.float64)
    normed = rows.normed(readout.rows)
    for start in range(0, pairs, rows.chunk_rows):
        some = slice(start, min(start + rows.chunk_rows, pairs))
        at, targets = (torch.from_numpy(x[some].astype(np.int64)) for x in (readout.target_rows, readout.targets))
        logits[some] = rows.decoder.logits_of(normed[at], targets).numpy()
    finite = np.ones(len(readout.rows), np.bool_)
    finite[readout.target_rows[~np.isfinite(logits)]] = False
    return LogprobOutput(logits, None, None, None), _bad(finite)


def read_logprobs(readout: LogprobRows, rows: HiddenRows) -> tuple[LogprobOutput, I32]:
    if readout.raw:
        return read_raw(readout, rows)
    places = None
    if len(readout.rows) > 1 and (np.diff(readout.rows) <= 0).any():  # requests that read the same place, perhaps
        distinct, places = np.unique(readout.rows, return_inverse=True)
        readout = replace(readout, rows=distinct, target_rows=places[readout.target_rows].astype(np.int32))
    count, pairs = len(readout.rows), len(readout.targets)
    logprobs = np.empty(pairs, np.float64)
    ranks = np.empty(pairs, np.int32) if readout.ranks else None
    top = min(readout.top, rows.decoder.config.vocab_size)
    top_ids = np.empty((count, top), np.int32) if top else None
    top_logprobs = np.empty((count, top), np.float32) if top else None
    finite = np.ones(count, np.bool_)
    order = np.argsort(readout.target_rows, kind="stable")
    sorted_rows = readout.target_rows[order]
    for start, stop, logits in rows.chunks(readout.rows):
        finite[start:stop] = _finite_rows(logits)
        largest, rest = log_normalisers(logits)
        chosen = order[slice(*np.searchsorted(sorted_rows, [start, stop]))]
        local, targets = (
            readout.target_rows[chosen].astype(np.int64) - start,
            readout.targets[chosen].astype(np.int64),
        )
        logprobs[chosen] = logprobs_of(logits, largest, rest, local, targets)
        if ranks is not None:
            ranks[chosen] = _ranks(logits, local, targets)
        if top_ids is not None and top_logprobs is not None:
            top_ids[start:stop], values = best(logits, top)
            top_logprobs[start:stop] = _relative(values, largest, rest)
    if places is not None:
        finite = finite[places]
        if top_ids is not None and top_logprobs is not None:
            top_ids, top_logprobs = top_ids[places], top_logprobs[places]
    return LogprobOutput(logprobs, ranks, top_ids, top_logprobs), _bad(finite)


def _relative(values: F32, largest: Tensor, rest: F64) -> F64:
    relative: F64 = np.minimum(values.astype(np.float64) - largest.numpy() - rest[:, None], 0.0)
    return relative


def read_samples(readout: SampleRows, rows: HiddenRows) -> tuple[SampleOutput, I32]:
    count = len(readout.rows)
    token_ids, finite = np.zeros(count, np.int32), np.ones(count, np.bool_)
    top = min(readout.top, rows.decoder.config.vocab_size)
    logprobs = np.zeros(count, np.float32) if readout.logprobs or top else None
    top_ids = np.zeros((count, top), np.int32) if top else None
    top_logprobs = np.zeros((count, top), np.float32) if top else None
    worked = readout.temperature > 0  # rows that take more than an argmax
    drawn = uniforms(readout.seeds, readout.steps) if worked.any() else np.zeros(count)
    if readout.edits is not None:
        worked |= readout.edits.touched()
    any_worked = bool(worked.any())
    for start, stop, logits in rows.chunks(readout.rows):
        finite[start:stop] = _finite_rows(logits)
        if not any_worked or not worked[start:stop].all():
            token_ids[start:stop] = logits.numpy().argmax(axis=1)  # the first of equal ones
        for n in np.flatnonzero(worked[start:stop] & finite[start:stop]).tolist() if any_worked else ():
            line = logits[n].numpy()
            token_ids[start + n] = sample_token(line, readout, start + n, float(drawn[start + n]))
        if logprobs is not None:
            largest, rest = log_normalisers(logits)
            sampled = token_ids[start:stop].astype(np.int64)
            logprobs[start:stop] = logprobs_of(logits, largest, rest, np.arange(stop - start), sampled)
            if top_ids is not None and top_logprobs is not None:
                top_ids[start:stop], values = best(logits, top)
                top_logprobs[start:stop] = _relative(values, largest, rest)
    token_ids[~finite] = 0
    return SampleOutput(token_ids, logprobs, top_ids, top_logprobs), _bad(finite)


def read_pooled(readout: PooledRows, rows: HiddenRows) -> tuple[PooledOutput, I32]:
    if readout.pooling not in ("last", "cls", "mean"):
        raise ValueError(f"pooling is {readout.pooling!r}; supported: last, cls, mean")
    lengths = np.diff(readout.indptr)
    if (lengths < 1).any():
        raise ValueError(f"item {int(np.argmin(lengths))} pools no token")
    if readout.pooling != "mean" or (lengths == 1).all():
        first = readout.indptr[:-1] if readout.pooling != "last" else readout.indptr[1:] - 1
        vectors = rows.normed(readout.rows[first]).numpy()
    else:
        vectors = np.empty((len(lengths), rows.decoder.config.hidden_size), np.float32)
        for i, (start, stop) in enumerate(zip(readout.indptr[:-1].tolist(), readout.indptr[1:].tolist())):
            # Item by item: the order of the sum must not depend on the neighbours.
            vectors[i] = rows.normed(readout.rows[start:stop]).to(torch.float64).mean(dim=0).numpy()
    return PooledOutput(vectors), _bad(np.isfinite(vectors).all(axis=1))
