"""The CPU executor over one rank's part of a model. It computes a batch together with the other ranks' executors."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from prelude.cpu.executor import CpuExecutor
from prelude.execution.executor import ExecutorLimits
from prelude.models.arrays import F32, Array
from prelude.models.config import ModelConfig
from prelude.models.packed import SummedLinear, own
from prelude.models.weights import EmbeddingWeights, ModelWeights
from prelude.parallel.group import RankGroup
from prelude.parallel.rows import ShardRows
from prelude.parallel.shards import Shard
from prelude.readouts.batch import ForwardBatch
from prelude.records import dataclass, replace


class RankExecutor(CpuExecutor):
    """``weights``: this rank's part. ``config``: of the part, whose vocabulary is the rank's."""

    def __init__(
        self, config: ModelConfig, weights: ModelWeights, shard: Shard, ranks: RankGroup, **options: Any
    ) -> None:
        """``options``: as ``CpuExecutor`` takes them; the same on all ranks."""
        super().__init__(config, joined(weights, shard, ranks), **options)
        self._shard = shard
        self._rows_of = partial(ShardRows, shard, ranks)

    def limits(self) -> ExecutorLimits:
        """Bytes are those of this rank."""
        return replace(super().limits(), vocab_size=self._shard.vocab)

    def resolved(self, batch: ForwardBatch) -> ForwardBatch:
        return self._pending.resolved(batch)

    def lose(self, batch: ForwardBatch) -> None:
        self._pending.lose(batch)


@dataclass(frozen=True, slots=True)
class ShardEmbeddings(EmbeddingWeights):
    """Rows of the vocabulary from ``first`` on."""

    first: int
    ranks: RankGroup

    def of(self, ids: Array) -> F32:
        """[n, width]. One rank has the row of an id, and the others add zeros."""
        tokens = self.tokens
        count = len(tokens) if isinstance(tokens, np.ndarray) else tokens.outputs
        places = ids - self.first
        others = (places < 0) | (places >= count)
        found = EmbeddingWeights.of(self, np.where(others, 0, places))
        found[others] = 0.0
        self.ranks.sum(found)
        return found


def joined(weights: ModelWeights, shard: Shard, ranks: RankGroup) -> ModelWeights:
    """``weights`` with the sums over the ranks."""
    tokens = weights.embeddings
    return replace(
        weights,
        embeddings=ShardEmbeddings(
            tokens.tokens, tokens.positions, tokens.norm, tokens.projection, shard.first, ranks
        ),
        layers=tuple(
            replace(layer, out=SummedLinear(own(layer.out), ranks), down=SummedLinear(own(layer.down), ranks))
            for layer in weights.layers
        ),
    )
