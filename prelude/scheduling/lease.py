"""Lease: proof of held KV resources, given back exactly once, in one place.

    prompt blocks   [0 .... locked path of the trie ....)[ borrowed )[ promised )[ own blocks ... )
                     read-only, shared, a lock on ``node``  a leader's  the trie's   one reference each, ours

``KvPool`` is the only code that counts blocks: it attaches cached prefixes, takes new blocks (evicting cold
leaves), publishes computed ones into the trie and takes leases back.

Promises. What a planned row is about to write is promised in the trie at once (``promise``): others that want the
same prefix see that a leader fills it, and wait for it or read it in the very same step, since executors write a
layer's K and V before they read it (``borrow``). When the step is settled ``publish`` makes it ready; ``release`` and
``withdraw`` break what was not, and the next one that wants it leads.
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
    """``shared`` are the blocks of the locked path, and after them ``borrowed`` ones that a leader of the same step
    writes; ``own`` those this lease holds itself, in sequence order, the first ``promised`` under ``promise``.

    A OneShot lease cannot grow: its ``own`` blocks, if any, are what the step publishes. ``ahead`` counts blocks of
    the prompt after the shared ones that a leader is filling.
    """

    growable: bool
    node: int = -1
    shared: I32 = field(default_factory=lambda: NO_BLOCKS)
    own: list[int] = field(default_factory=list)
    released: bool = False
    promise: int = -1
    promised: int = 0
    borrowed: int = 0
    ahead: int = 0

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
        self._leaders: dict[tuple[int, int, bytes], Lease] = {}  # of the step being planned

    # -------------------------------------------------------------- attach and grow

    def attach(self, tokens: I32, salt: int, max_tokens: int, *, growable: bool) -> Lease:
        """A lease on the longest cached prefix of ``tokens`` that is at most ``max_tokens`` long."""
        self.live_leases += 1
        limit = max_tokens // self.block_size
        if not self.caching or limit <= 0:
            return Lease(growable)
        match = self.trie.match(tokens, salt, limit)
        if match.node < 0:
            return Lease(growable, ahead=match.promised)
        self.trie.lock(match.node)
        return Lease(growable, match.node, match.blocks, ahead=match.promised)

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

    # -------------------------------------------------------------- promises

    def begin_plan(self) -> None:
        """A new step: what earlier ones promised may be waited for, not borrowed."""
        self._leaders.clear()

    def promise(self, lease: Lease, tokens: I32, salt: int) -> None:
        """The lease's own blocks of ``tokens`` will be written by the step that is being planned. Where somebody else
        has promised or published them nothing happens; ``publish`` sorts it out."""
        first = len(lease.shared)
        count = min(len(tokens) // self.block_size, lease.num_blocks) - first
        if not self.caching or count <= 0 or lease.borrowed:
            return
        end = (first + count) * self.block_size
        lease.promise = self.trie.promise(tokens[:end], np.asarray(lease.own[:count], dtype=np.int32), salt, first)
        if lease.promise >= 0:
            lease.promised = count
            self._leaders[self._place(lease, tokens, salt)] = lease

    def borrow(self, lease: Lease, tokens: I32, salt: int) -> bool:
        """The lease reads what a leader of the same step writes: ``ahead`` blocks of it. False: its leader runs in an
        earlier step."""
        leader = self._leaders.get(self._place(lease, tokens, salt))
        if leader is None or (lease.growable and not leader.growable):
            return False  # a OneShot leader may still fail alone, and a Decode row would go on with nothing
        lease.borrowed = min(lease.ahead, leader.promised)
        lease.shared = np.concatenate([lease.shared, np.asarray(leader.own[: lease.borrowed], dtype=np.int32)])
        return True

    def _place(self, lease: Lease, tokens: I32, salt: int) -> tuple[int, int, bytes]:
        """What comes after the cached prefix of a lease: its salt, its last node, its next block's tokens."""
        at = len(lease.shared) * self.block_size
        return (salt, lease.node, tokens[at : at + self.block_size].tobytes())

    def withdraw(self, lease: Lease) -> None:
        """The step never happened: what it promised or borrowed is gone, and with it what came after. The lease keeps
        its locked path, all of it computed."""
        kept = len(lease.shared) - lease.borrowed
        own, lease.own = lease.own[lease.promised :], []
        if lease.promise >= 0:
            self.trie.break_promise(lease.promise)
        if own:
            self.allocator.release(np.asarray(own, dtype=np.int32))
        lease.shared = lease.shared[:kept]
        lease.promise, lease.promised, lease.borrowed = -1, 0, 0

    # -------------------------------------------------------------- publish and release

    def publish(self, lease: Lease, tokens: I32, salt: int, *, promoted: bool = False) -> None:
        """Full blocks of ``tokens`` whose KV is computed enter the trie, and the lease's lock moves to their end.

        Where another request published the same block first, ours is given back and the lease reads the trie's. What
        the trie does not take (a leader has promised to fill that place) stays the lease's own.
        """
        if lease.promise >= 0:
            self._fulfil(lease, tokens, salt, promoted)
        elif lease.borrowed and not self._adopt(lease, tokens, salt):
            return
        full = min(len(tokens) // self.block_size, lease.num_blocks)
        first = len(lease.shared)
        if not self.caching or full <= first:
            return
        given = lease.own[: full - first]
        inserted = self.trie.insert(
            tokens[: full * self.block_size], np.asarray(given, dtype=np.int32), salt, first, promoted
        )
        self._move_lock(lease, inserted.node)
        if len(inserted.duplicates):
            self.allocator.release(inserted.duplicates)
        lease.own = lease.own[inserted.num_taken + len(inserted.duplicates) :]

    def _fulfil(self, lease: Lease, tokens: I32, salt: int, promoted: bool) -> None:
        """What was promised is there. The promise's lock becomes the lease's."""
        node, lease.promise = lease.promise, -1
        self.trie.fulfil(node)
        self.trie.unlock(lease.node)
        lease.node = node
        lease.shared = self.trie.blocks(node)
        lease.own = lease.own[lease.promised :]
        lease.promised = 0
        if promoted:
            self.trie.match(tokens, salt, len(lease.shared))  # a hit is what promotes

    def _adopt(self, lease: Lease, tokens: I32, salt: int) -> bool:
        """What was borrowed is the trie's once its leader is settled: a lock of our own on it. False for a OneShot
        lease whose leader failed, or is settled later: it ends with this step and only read what is there."""
        match = self.trie.match(tokens, salt, len(lease.shared))
        if match.num_blocks < len(lease.shared):
            if lease.growable:
                raise RuntimeError(f"{len(lease.shared)} blocks were borrowed, {match.num_blocks} are there")
            return False
        lease.borrowed = 0
        self._move_lock(lease, match.node)
        return True

    def _move_lock(self, lease: Lease, node: int) -> None:
        self.trie.lock(node)
        self.trie.unlock(lease.node)
        lease.node = node
        lease.shared = self.trie.blocks(node)

    def release(self, lease: Lease) -> None:
        """The one place where held blocks and locks are given back."""
        if lease.released:
            raise RuntimeError("lease released twice")
        lease.released = True
        self.live_leases -= 1
        if lease.promise >= 0:
            self.trie.break_promise(lease.promise)
        if lease.node >= 0:
            self.trie.unlock(lease.node)
        own = lease.own[lease.promised :]
        if own:
            self.allocator.release(np.asarray(own, dtype=np.int32))

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
