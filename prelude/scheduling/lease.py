"""Lease: proof of held KV resources, given back exactly once, in one place.

    prompt blocks   [0 ........ locked path of the trie ........)[ own blocks ... )
                     read-only, shared, one lock on ``node``       one reference each, ours

``KvPool`` is the only code that counts blocks: it attaches cached prefixes, takes new blocks (evicting cold
leaves), publishes computed ones into the trie and takes leases back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from prelude._native.core import BlockAllocator, OutOfBlocks, PrefixTrie
from prelude.batch import I32

NO_BLOCKS: I32 = np.zeros(0, dtype=np.int32)


@dataclass(slots=True)
class Lease:
    """``shared`` are the blocks of the locked path, ``own`` those this lease holds itself, in sequence order.

    A OneShot lease cannot grow: its ``own`` blocks, if any, are what the step publishes.
    """

    growable: bool
    node: int = -1
    shared: I32 = field(default_factory=lambda: NO_BLOCKS)
    own: list[int] = field(default_factory=list)
    released: bool = False

    @property
    def num_blocks(self) -> int:
        return len(self.shared) + len(self.own)

    def table(self) -> I32:
        """The block table: shared blocks, then own ones."""
        return np.concatenate([self.shared, np.asarray(self.own, dtype=np.int32)])


class KvPool:
    """Block accounts of one engine. One writer at a time: the holder of the baton."""

    def __init__(self, num_blocks: int, block_size: int, *, prefix_cache: bool = True) -> None:
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.caching = prefix_cache and num_blocks > 0
        self.allocator = BlockAllocator(num_blocks, block_size)
        self.trie = PrefixTrie(self.allocator)
        self.live_leases = 0
        self.evictions = 0

    # -------------------------------------------------------------- looking

    def cached_tokens(self, tokens: I32, salt: int, max_tokens: int) -> int:
        """How many of the first ``max_tokens`` the trie has ready. Not a hit: nothing becomes younger."""
        limit = max_tokens // self.block_size
        if not self.caching or limit <= 0:
            return 0
        return int(self.trie.match(tokens, salt, limit, False).num_tokens)

    # -------------------------------------------------------------- attach and grow

    def attach(self, tokens: I32, salt: int, max_tokens: int, *, growable: bool) -> Lease:
        """A lease on the longest cached prefix of ``tokens`` that is at most ``max_tokens`` long."""
        self.live_leases += 1
        limit = max_tokens // self.block_size
        if not self.caching or limit <= 0:
            return Lease(growable)
        match = self.trie.match(tokens, salt, limit)
        if match.node < 0:
            return Lease(growable)
        self.trie.lock(match.node)
        return Lease(growable, match.node, match.blocks)

    def grow(self, lease: Lease, num_blocks: int) -> bool:
        """Takes ``num_blocks`` more for a Decode lease; False, and nothing changed, when the pool cannot."""
        if not lease.growable:
            raise RuntimeError("a OneShot lease cannot grow")
        if num_blocks <= 0:
            return True
        try:
            lease.own.extend(self._allocate(num_blocks).tolist())
        except OutOfBlocks:
            return False
        return True

    def take_for_publishing(self, lease: Lease, num_blocks: int, *, evict_promoted: bool) -> bool:
        """Blocks for the part of a OneShot prompt that will be published. Under ``auto`` promoted blocks are never
        evicted for it: publishing is a favour, not a need."""
        if num_blocks <= 0 or not self.caching:
            return False
        try:
            taken = self._allocate(num_blocks, spare_protected=not evict_promoted)
        except OutOfBlocks:
            return False
        lease.own.extend(taken.tolist())
        return True

    def _allocate(self, num_blocks: int, *, spare_protected: bool = False) -> I32:
        cached = self.allocator.num_cached
        taken: I32 = self.trie.allocate(num_blocks, spare_protected=spare_protected)
        self.evictions += cached - self.allocator.num_cached
        return taken

    # -------------------------------------------------------------- publish and release

    def publish(self, lease: Lease, tokens: I32, salt: int, *, promoted: bool = False) -> None:
        """Full blocks of ``tokens`` whose KV is computed enter the trie, and the lease's lock moves to their end.

        Where another request published the same block first, ours is given back and the lease reads the trie's. What
        the trie does not take (a leader has promised to fill that place) stays the lease's own.
        """
        full = min(len(tokens) // self.block_size, lease.num_blocks)
        first = len(lease.shared)
        if not self.caching or full <= first:
            return
        given = lease.own[: full - first]
        inserted = self.trie.insert(
            tokens[: full * self.block_size], np.asarray(given, dtype=np.int32), salt, first, promoted
        )
        self.trie.lock(inserted.node)
        self.trie.unlock(lease.node)
        lease.node = inserted.node
        lease.shared = self.trie.blocks(inserted.node)
        if len(inserted.duplicates):
            self.allocator.release(inserted.duplicates)
        lease.own = lease.own[inserted.num_taken + len(inserted.duplicates) :]

    def release(self, lease: Lease) -> None:
        """The one place where held blocks and locks are given back."""
        if lease.released:
            raise RuntimeError("lease released twice")
        lease.released = True
        self.live_leases -= 1
        if lease.node >= 0:
            self.trie.unlock(lease.node)
        if lease.own:
            self.allocator.release(np.asarray(lease.own, dtype=np.int32))

    # -------------------------------------------------------------- accounts

    def audit(self, leases: Sequence[Lease]) -> None:
        """Conservation: free + used + cached == total, and nobody holds what is not on ``leases``."""
        self.allocator.audit()
        self.trie.audit()
        if self.live_leases != len(leases):
            raise RuntimeError(f"{self.live_leases} leases are out, {len(leases)} are known")
        held = {block for lease in leases for block in (*lease.own, *lease.shared.tolist())}
        if len(held) != self.allocator.num_used:
            raise RuntimeError(f"{self.allocator.num_used} blocks are used, leases hold {len(held)}")
