"""Requests of a pool of KV blocks without a model, and blocks that are evicted."""

from __future__ import annotations

from typing import Any

from prelude._native.core import KvPool, Lease


def hold(pool: KvPool, tokens: Any, salt: int = 0) -> Lease:
    """A lease on the cached blocks of a prompt and on new ones for its other whole blocks."""
    lease = pool.attach(tokens, salt, len(tokens), growable=True)
    assert pool.grow(lease, len(tokens) // pool.block_size - lease.num_shared)
    return lease


def compute(pool: KvPool, tokens: Any, salt: int = 0, *, promoted: bool = False) -> list[int]:
    """A request from its lease to its end: the blocks of its prompt, which are cached from here on."""
    lease = hold(pool, tokens, salt)
    pool.publish(lease, tokens, salt, promoted=promoted)
    table = lease.table().tolist()
    pool.release(lease)
    return table


def evict(pool: KvPool, count: int) -> int:
    """Frees up to ``count`` cached blocks, as a request does that needs them; how many it were."""
    before = pool.num_cached
    lease = pool.attach([], 0, 0, growable=True)
    pool.grow(lease, pool.num_free + min(count, before))
    pool.release(lease)
    return before - pool.num_cached
