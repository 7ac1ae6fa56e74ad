"""An engine's core from its executor and its config: pool, budgets, policies. The one place that reads those fields;
an engine and a simulator are put together alike."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from prelude._native.core import KvPool
from prelude.errors import ConfigError, InsufficientMemory
from prelude.execution.executor import Executor, ExecutorLimits
from prelude.runtime.core import EngineCore
from prelude.scheduling.cost import CostModel
from prelude.scheduling.planner import Budgets
from prelude.scheduling.policies import ResponseRatio, ShortestPrefillFirst, policy_named
from prelude.scheduling.queues import Policies
from prelude.values.arrays import I32
from prelude.values.config import EngineConfig
from prelude.values.policy import Policy

if TYPE_CHECKING:
    from prelude.execution.host_blocks import HostBlocks


log = logging.getLogger("prelude.engine")


class HostCopies:
    """Copies of one engine. A failure is logged once; the tokens concerned are computed again. ``blocked`` is told
    the seconds of each copy."""

    def __init__(self, blocks: HostBlocks) -> None:
        self.blocks = blocks
        self.blocked: Callable[[float], None] | None = None
        self._said = False

    def copy_out(self, blocks: I32, entries: I32) -> bool:
        return self._made(self.blocks.copy_out, blocks, entries)

    def copy_in(self, entries: I32, blocks: I32) -> bool:
        return self._made(self.blocks.copy_in, entries, blocks)

    def _made(self, copy: Callable[[I32, I32], None], first: I32, second: I32) -> bool:
        began = time.perf_counter()
        try:
            copy(first, second)
        except BaseException as error:
            if not self._said:
                self._said = True
                log.warning(
                    "copying %d KV blocks between the pool and host memory failed; their tokens are computed again "
                    "(said once; stats()['host_kv_failed'] goes on counting)",
                    len(first),
                    exc_info=error,
                )
            return False
        finally:
            if self.blocked is not None:
                self.blocked(time.perf_counter() - began)
        return True


def keep_on_host(pool: KvPool, executor: Executor, config: EngineConfig) -> HostCopies:
    """Gives ``pool`` the host memory of ``config.host_kv_bytes``. ``ConfigError`` if this executor cannot have it,
    or the bytes do not hold a block."""
    limits = executor.limits()
    make = getattr(executor, "host_blocks", None)
    if make is None or not limits.kv_bytes_per_token:
        raise ConfigError(f"host_kv_bytes: this executor ({limits.device}) keeps no KV blocks in host memory")
    entries = config.host_entries(limits.kv_bytes_per_token * limits.block_size)
    try:
        copies = HostCopies(make(entries))
    except (MemoryError, RuntimeError) as error:  # a CUDA build of torch raises RuntimeError for pinned memory
        raise InsufficientMemory(
            f"host_kv_bytes={config.host_kv_bytes}: the system does not give so much host memory; lower it",
            needed=config.host_kv_bytes,
            available=0,
        ) from error
    pool.keep_on_host(entries, config.expert.host_kv_tokens, copies.copy_out, copies.copy_in)
    return copies


CoreT = TypeVar("CoreT", bound=EngineCore)


def make_core(
    kind: type[CoreT], executor: Executor, config: EngineConfig, cost: CostModel | None = None, **more: Any
) -> CoreT:
    """The core owns the executor, which is closed if none is made. ``cost``: the cost model to start from; by
    default that of ``config.cost_model``. ``more``: for ``kind``."""
    try:
        return _core(kind, executor, config, cost, **more)
    except BaseException:
        executor.close()
        raise


def _core(kind: type[CoreT], executor: Executor, config: EngineConfig, cost: CostModel | None, **more: Any) -> CoreT:
    limits = executor.limits()
    if cost is None:
        cost = CostModel() if config.expert.cost_model is None else CostModel.load(config.expert.cost_model)
    overlap = limits.overlap if config.overlap is None else config.overlap
    pool = KvPool(
        limits.num_blocks,
        limits.block_size,
        # A cached prefix needs its recurrent state; in an encoder a prefix depends on the tokens after it.
        prefix_cache=config.prefix_cache
        and not limits.bidirectional
        and (limits.prefix_states > 0 or not limits.bytes_per_state),
        running_states=limits.running_states,
        prefix_states=limits.prefix_states,
    )
    copies = None
    if config.host_kv_bytes:
        config.check_host_kv(recurrent=limits.bytes_per_state > 0, encoder=limits.bidirectional)
        copies = keep_on_host(pool, executor, config)
    core = kind(
        executor,
        pool,
        Budgets(
            step_tokens=config.resolved_step(limits.max_positions),
            step_requests=config.expert.max_step_requests,
            running=config.max_running,
            chunk_tokens=config.chunk_tokens,
            logits_bytes=config.expert.logits_bytes,
            vocab_size=limits.vocab_size,
            logits_chunk_rows=limits.logits_chunk_rows,
            fold=config.expert.fold and not limits.bidirectional,
            defer_steps=config.expert.defer_steps,
            defer_tokens=config.expert.defer_tokens,
            group_tokens=config.expert.group_tokens,
            overlap=overlap,
        ),
        max_queued_requests=config.max_queued_requests,
        max_queued_tokens=config.expert.max_queued_tokens,
        unhealthy_after=config.expert.unhealthy_after,
        hang_seconds=config.expert.hang_seconds,
        oneshot_share=config.oneshot_share,
        overlap=overlap,
        policies=Policies(_policy(config.policy, cost, limits), policy_named(config.expert.decode_policy)),
        cost=cost,
        **more,
    )
    if copies is not None:
        copies.blocked = core.stepper.blocked
    return core


def _policy(chosen: str | Policy, cost: CostModel, limits: ExecutorLimits) -> Policy:
    """Give a policy of work, by name, the key costs of the given cost model. The model goes on learning, the
    policy does not: plans are a function of the waiting requests, not of measured time."""
    policy = policy_named(chosen)
    if isinstance(chosen, str) and isinstance(policy, ShortestPrefillFirst | ResponseRatio):
        # A policy counts the keys of a causal prompt; an encoder reads about twice as many.
        return replace(policy, curvature=cost.curvature * (2 if limits.bidirectional else 1))
    return policy
