"""The counters of an engine, and the check that its accounts agree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prelude.runtime.core import EngineCore


def snapshot(core: EngineCore) -> dict[str, Any]:
    """The counters, and the values at the moment of the call."""
    stats = core.stats
    live = list(core.live.values())
    leases = [lease for lease in (request.lease for request in live) if lease is not None]
    allocator = core.pool.allocator
    stats.rejected = core.inbox.rejected
    stats.eager_reasons = getattr(core.executor, "eager_reasons", {})
    stats.queued_requests, stats.queued_tokens = core.inbox.requests, core.inbox.tokens
    stats.running_requests = len(core.queues.running)
    stats.live_futures = len(live)
    stats.live_streams = sum(request.sink.streams for request in live)
    stats.evictions = core.pool.evictions
    stats.prefixes_not_kept = core.queues.not_kept
    stats.callback_errors = core.events.errors
    stats.blocks_free, stats.blocks_used = allocator.num_free, allocator.num_used
    stats.blocks_cached = allocator.num_cached
    stats.states_free, stats.states_used = (
        core.pool.free_running_states,
        core.pool.num_running_states - core.pool.free_running_states,
    )
    stats.prefix_states = core.pool.prefix_states
    for name, value in core.pool.host_counts().items():
        setattr(stats, f"host_kv_{name}", value)
    stats.blocks_locked = len({block for lease in leases for block in lease.shared.tolist()})
    return {**stats.numbers(), "gc_pauses": core.gc_pauses.numbers()}


def audit(core: EngineCore) -> None:
    """Every account against every other; raises with the numbers. For tests and debugging, between steps."""
    core.queues.audit()
    in_flight = [row.request for step in core.steps for row in step.plan.oneshot]
    holders = [*core.queues, *in_flight, *core.steps.ended]
    core.pool.audit([request.lease for request in holders if request.lease is not None])
    core.steps.audit(core.queues)
    known = {request.id for request in [*core.queues, *core.inbox.items, *in_flight]}
    if known != core.live.keys():
        raise RuntimeError(f"{len(core.live)} requests are to be answered, {len(known)} are in the queues")
    counted = [r.queued_tokens for r in [*core.queues, *core.inbox.items] if r.queued_tokens >= 0]
    if len(counted) > core.inbox.requests or sum(counted) > core.inbox.tokens:
        raise RuntimeError(f"{len(counted)} requests wait, the inbox counts {core.inbox.requests}")
