"""Rows whose logits are spread over the ranks: each rank runs the same readout on its part of the vocabulary, and
small collectives make the numbers those of the whole.

    finite, argmax    three numbers a row from every rank
    logprobs          the largest logit and the sum of exponentials of every rank, joined as a log-sum-exp
    best, ranks       the ``count`` best of every rank; how many tokens of every rank are better
    row               a row's logits from every rank, for a token that is drawn
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from prelude.cpu.hidden_rows import HiddenRows, best, log_normalisers
from prelude.models.transformer import Transformer
from prelude.parallel.group import RankGroup
from prelude.parallel.shards import Shard, share
from prelude.readouts.base import Logits
from prelude.readouts.batch import F32, F64, I32
from prelude.values.arrays import I64


class ShardRows(HiddenRows):
    """The hidden states are the same on all ranks; the LM head is not."""

    __slots__ = ("_ranks", "_shard")

    def __init__(
        self,
        shard: Shard,
        ranks: RankGroup,
        decoder: Transformer,
        hidden: F32,
        tokens: I64 | None,
        chunk_rows: int,
    ) -> None:
        super().__init__(decoder, hidden, tokens, chunk_rows)
        self.vocab_size = shard.vocab
        self._shard, self._ranks = shard, ranks

    def logits_of(self, tokens: I32, rows: I32, targets: I32) -> F64:
        mine = (targets >= self._shard.first) & (targets < self._shard.last)
        found = np.zeros(len(targets), np.float64)
        found[mine] = super().logits_of(tokens, rows[mine], targets[mine] - np.int32(self._shard.first))
        total: F64 = self._ranks.gather(found).sum(axis=0)
        return total

    def _read(self, logits: F32) -> Logits:
        return ShardLogits(logits, self._shard, self._ranks)


class ShardLogits:
    """[n, this rank's part of the vocabulary] float32, as ``prelude.readouts.base.Logits`` of the whole. Every rank
    calls the same methods in the same order."""

    __slots__ = ("_finite", "_first", "_greedy", "_largest", "_logits", "_ranks", "_rest", "_shard")

    def __init__(self, logits: F32, shard: Shard, ranks: RankGroup) -> None:
        self._logits, self._shard, self._ranks = logits, shard, ranks
        self._first = shard.first
        self._rest: F64 | None = None
        greedy = logits.argmax(axis=1)
        largest = logits[np.arange(len(logits)), greedy]
        every = np.stack([np.isfinite(logits).all(axis=1), largest, greedy + shard.first], axis=1)
        found = ranks.gather(every)  # [ranks, n, 3]; an id is exact in float64
        self._finite: npt.NDArray[np.bool_] = np.all(found[:, :, 0] > 0, axis=0)
        owner = found[:, :, 1].argmax(axis=0)  # the first of equal ones, which has the smallest id
        rows = np.arange(len(logits))
        self._largest: F64 = found[owner, rows, 1]
        self._greedy: I32 = found[owner, rows, 2].astype(np.int32)

    def finite(self) -> npt.NDArray[np.bool_]:
        return self._finite

    def argmax(self) -> I32:
        return self._greedy

    def row(self, n: int) -> F32:
        padded = np.zeros(self._shard.widest, np.float32)
        padded[: self._logits.shape[1]] = self._logits[n]
        found = self._ranks.gather(padded)
        whole: F32 = np.concatenate([part[: self._width(rank)] for rank, part in enumerate(found)])
        return whole

    def _width(self, rank: int) -> int:
        first, last = share(self._shard.vocab, rank, self._shard.size)
        return last - first

    def logprobs(self, rows: I32, targets: I32) -> F64:
        relative = self._values(rows, targets) - self._largest[rows]
        logprobs: F64 = np.minimum(relative - self._normalisers()[rows], 0.0)
        return logprobs

    def ranks(self, rows: I32, targets: I32) -> I32:
        values, better = self._values(rows, targets).astype(np.float32), np.zeros(len(rows), np.int64)
        for i, (row, target) in enumerate(zip(rows.tolist(), targets.tolist())):
            line, value = self._logits[row], values[i]
            before = line[: max(0, target - self._first)]
            better[i] = int((line > value).sum()) + int((before == value).sum())
        found: I32 = (1 + self._ranks.gather(better).sum(axis=0)).astype(np.int32)
        return found

    def best(self, count: int) -> tuple[I32, F64]:
        rest = self._normalisers()
        own_ids, own_values = best(self._logits, count)
        rows, have = own_ids.shape
        mine = np.full((rows, count, 2), -np.inf)
        mine[:, :have, 0], mine[:, :have, 1] = own_values, own_ids + self._first
        every = np.concatenate(list(self._ranks.gather(mine)), axis=1)  # [n, ranks * count, 2]
        order = np.lexsort((every[:, :, 1], -every[:, :, 0]))[:, :count]
        values, ids = (np.take_along_axis(every[:, :, part], order, 1) for part in (0, 1))
        relative: F64 = np.minimum(values - self._largest[:, None] - rest[:, None], 0.0)
        return ids.astype(np.int32), relative

    def _values(self, rows: I32, targets: I32) -> F64:
        """Return the logits of (row, target) pairs: one rank has each, the others add 0."""
        mine = (targets >= self._first) & (targets < self._shard.last)
        found = np.zeros(len(targets), np.float64)
        found[mine] = self._logits[rows[mine], targets[mine] - self._first]
        total: F64 = self._ranks.gather(found).sum(axis=0)
        return total

    def _normalisers(self) -> F64:
        """[n]: log of the sum over the whole vocabulary of exponentials relative to the largest logit."""
        if self._rest is None:
            largest, rest = log_normalisers(self._logits)
            self._rest = np.log(self._ranks.gather(np.exp(largest - self._largest + rest)).sum(axis=0))
        return self._rest
