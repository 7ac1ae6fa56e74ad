"""Loading of a tensor-parallel model: the ranks meet, each reads its part, and they compare their settings."""

from __future__ import annotations

import atexit
import logging
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import prelude
from prelude.errors import ConfigError, RankLost, WrongUse
from prelude.execution.executor import Executor
from prelude.execution.threaded import Pulse, ThreadedExecutor
from prelude.models.checkpoint import Checkpoint
from prelude.models.config import ModelConfig
from prelude.models.files import ModelDirectory
from prelude.models.gguf.directory import GgufDirectory
from prelude.models.precision import Precision
from prelude.models.weights import ModelWeights
from prelude.parallel.device import DeviceRank, TimeLimit
from prelude.parallel.executor import RankExecutor
from prelude.parallel.group import RankGroup
from prelude.parallel.lead import LeadExecutor, serve
from prelude.parallel.shards import Shard, check, shard
from prelude.parallel.source import ShardSource
from prelude.records import dataclass, replace
from prelude.values.config import EngineConfig

if TYPE_CHECKING:
    from prelude.cuda.executor import CudaExecutor

log = logging.getLogger("prelude.engine")


@dataclass(slots=True)
class Ranks:
    """This rank's side of loading; a context manager, which leaves the others where loading fails."""

    group: RankGroup
    here: int  # ranks of this machine
    shard: Shard
    _source: ShardSource | None = None
    _limit: TimeLimit | None = None  # of a rank with a GPU, from its first sum over the ranks on
    _made: RankExecutor | DeviceRank | None = None
    _opened: Executor | None = None

    @classmethod
    def join(
        cls, directory: ModelDirectory, model: ModelConfig, config: EngineConfig, *, lead: bool, gpus: bool = False
    ) -> Ranks:
        """Waits for the other ranks. ``gpus``: each rank computes on one. ``ConfigError`` or ``UnsupportedModel``
        where the model cannot be divided, which is found out before; ``ConfigError`` where this process has the
        other side."""
        size = config.tensor_parallel
        if isinstance(directory, GgufDirectory):
            raise ConfigError(f"tensor_parallel={size}: {directory} is GGUF, and ranks read safetensors")
        check(model.spec, size, int8=config.quantization == "int8")
        group = RankGroup.join(size, steady=config.deterministic, limit=config.expert.hang_seconds, gpus=gpus)
        if (group.rank == 0) != lead:
            rank = group.rank
            group.leave()
            right = "make the engine there" if rank == 0 else "call prelude.serve_rank there, with the same arguments"
            raise ConfigError(f"tensor_parallel={size}: this process is rank {rank}; {right}")
        return cls(group, group.on_this_host(), shard(model.spec, group.rank, size, whole_vocabulary=gpus))

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is None:
            return
        if self._opened is not None:
            self._opened.close()
        self.group.leave(abort=True)  # before the executor closes, which waits for its GPU
        if self._limit is not None:
            self._limit.end()
        if self._made is not None and self._opened is None:
            with suppress(Exception):  # of a GPU that failed; ``error`` is the one to raise
                self._made.close()

    def part(self, model: ModelConfig, checkpoint: Checkpoint) -> tuple[ModelConfig, ShardSource]:
        """This rank's part of the model and of its weights."""
        self._source = ShardSource(checkpoint, self.shard)
        return replace(model, spec=self.shard.spec), self._source

    def room(self, available: int | None) -> int | None:
        """This rank's share of the bytes that are free: the ranks of one machine load at the same time."""
        return None if available is None else available // self.here

    def fitted(self, config: EngineConfig, positions: int) -> EngineConfig:
        """``config`` with the longest sequence that every rank has memory for."""
        own, tokens = config.resolved_length(positions), config.resolved_step(positions)
        length, step = self.group.least(own), self.group.least(tokens)
        if length != own:
            log.warning("max_length is lowered from %d to %d, which another rank has memory for", own, length)
            return replace(config, max_length=length, max_step_tokens=min(step, length + config.max_running))
        return config if step == tokens else replace(config, max_step_tokens=step)

    def executor(self, model: ModelConfig, weights: ModelWeights, *, num_blocks: int, **options: Any) -> RankExecutor:
        """After the ranks have agreed; with as many blocks as every rank has memory for."""
        precision: Precision = options["precision"]
        facts: dict[str, Any] = {name: options[name] for name in _SAME}
        facts["the type of the weights"] = precision.weights
        self._agree(precision.rows, facts)
        blocks = self.group.least(num_blocks)
        self._made = RankExecutor(model, weights, self.shard, self.group, num_blocks=blocks, **options)
        return self._made

    def agree(self, config: EngineConfig, dtype: str, **options: Any) -> None:
        """Of ranks with GPUs. ``options``: further facts."""
        facts = {"deterministic": config.deterministic, **options}
        facts |= {name: getattr(config, name) for name in ("attention", "max_length", "max_step_tokens")}
        facts |= {name: getattr(config.expert, name) for name in ("block_size", "max_step_requests")}
        self._agree(dtype, facts)

    def _agree(self, dtype: str, facts: dict[str, Any]) -> None:
        facts = {"dtype": dtype, **facts, "the version of prelude": prelude.__version__}
        facts["hang_seconds"] = self.group.limit
        facts["the checksum of the model"] = None if self._source is None else self._source.checksum()
        self.group.agree(facts)

    @contextmanager
    def together(self, doing: str) -> Iterator[None]:
        """Around work ``doing`` that adds up over the ranks' GPUs. It begins when all ranks have come here, and has
        the time limit of loading: ``RankLost`` where a rank failed before, or where the limit passes."""
        self.group.least(0)
        if self._limit is None:
            self._limit = TimeLimit(self.group)
        try:
            with self._limit.of(doing, self.group.loading_limit):
                yield
        except Exception:
            if self.group.lost is None:
                raise
        if self.group.lost is not None:
            raise RankLost(str(self.group.lost))  # numbers of sums that were ended are nonsense

    def on_gpu(self, inner: CudaExecutor) -> None:
        """The rank's executor; it records the shapes that every engine meets before any request."""
        with self.together("recording"):
            inner.warm_up()
        if self._limit is None:
            raise WrongUse("the time limit is not made")
        self._made = DeviceRank(inner, self.group, self._limit)

    def lead(self) -> Executor:
        """Rank 0's executor for the engine. Its steps run in a thread of their own: an interrupt of the caller's
        cannot leave the ranks at different places of a step."""
        lead = LeadExecutor(self._executor, self.group)
        self.group.loaded()
        self._opened = opened = ThreadedExecutor(lead, Pulse(lead.pulse_seconds, lead.pulse))
        atexit.register(_close, weakref.ref(opened), os.getpid())
        return opened

    def serve(self) -> int:
        self.group.loaded()
        log.info("rank %d of %d serves", self.group.rank, self.group.size)
        return serve(self._executor, self.group)

    @property
    def is_lead(self) -> bool:
        return self.group.rank == 0

    @property
    def _executor(self) -> RankExecutor | DeviceRank:
        if self._made is None:
            raise WrongUse("the rank's executor is not made")
        return self._made


def _close(opened: weakref.ref[ThreadedExecutor], process: int) -> None:
    """A program that ends without closing its engine: the other ranks end as if it had. ``process``: the one that
    joined them; an operation of gloo does not return in a forked one."""
    executor = opened()
    if executor is not None and executor.lost is None and os.getpid() == process:
        executor.close()


_SAME = ("deterministic", "block_size", "logits_chunk_rows", "quantization", "attention")
"""Options of the executor in which the ranks must agree."""
