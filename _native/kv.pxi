# Lease and KvPool. Part of core.pyx.

@cython.final
@cython.freelist(256)
cdef class Lease:
    """What a request holds of a pool. ``shared`` are the blocks of the locked path of the trie, and after them
    ``borrowed`` ones that a leader of the same step writes; ``own`` those the lease holds itself, in sequence order,
    the first ``promised`` under ``promise``. ``ahead`` counts blocks of the prompt after the shared ones that a leader
    is filling. A lease that is not ``growable`` is a OneShot row's: its own blocks are what the step publishes.
    ``slot``: where a recurrent model keeps the sequence's state; -1 where it keeps none.
    """

    cdef CLease c

    @property
    def growable(self) -> bool:
        return self.c.growable

    @property
    def released(self) -> bool:
        return self.c.released

    @property
    def node(self) -> int:
        return self.c.node

    @property
    def promise(self) -> int:
        return self.c.promise

    @property
    def promised(self) -> int:
        return self.c.promised

    @property
    def borrowed(self) -> int:
        return self.c.borrowed

    @property
    def ahead(self) -> int:
        return self.c.ahead

    @property
    def slot(self) -> int:
        return self.c.slot

    @property
    def num_shared(self) -> int:
        return self.c.shared.size()

    @property
    def num_blocks(self) -> int:
        return self.c.num_blocks()

    @property
    def shared(self):
        cdef size_t n = self.c.shared.size()
        cdef cnp.ndarray out = _new_int32(n)
        if n:
            memcpy(_data(out), self.c.shared.data(), n * sizeof(int32_t))
        return out

    @property
    def own(self) -> list:
        return self.c.own

    def table(self):
        """The block table: shared blocks, then own ones."""
        cdef cnp.ndarray out = _new_int32(self.c.num_blocks())
        self.c.table(_data(out))
        return out


cdef class KvPool:
    """The leases of one engine on one pool. One writer at a time: the holder of the step lock. ``slots``: how many
    sequences a recurrent model keeps a state of; a pool that has any does not cache prefixes, which have none."""

    cdef CKvPool* c  # owned; refers to what `trie` and `allocator` keep alive
    cdef COneShotGroup* group  # owned: the OneShot rows of the step being planned
    cdef readonly BlockAllocator allocator
    cdef readonly PrefixTrie trie
    cdef readonly int64_t unkept  # OneShot prompts of which no block was kept, for want of room

    def __cinit__(self, int64_t num_blocks, int64_t block_size, *, cbool prefix_cache=True,
                  int32_t slots=0):
        if slots < 0:
            raise ValueError("slots must be >= 0")
        self.allocator = BlockAllocator(num_blocks, block_size)
        self.trie = PrefixTrie(self.allocator)
        self.c = new CKvPool(self.trie.c[0], prefix_cache, slots)
        self.group = new COneShotGroup(self.c[0])

    def __dealloc__(self):
        del self.group
        del self.c

    @property
    def block_size(self) -> int:
        return self.c.block_size()

    @property
    def num_blocks(self) -> int:
        return self.allocator.c.num_blocks()

    @property
    def caching(self) -> bool:
        return self.c.caching()

    @property
    def live_leases(self) -> int:
        return self.c.live_leases()

    @property
    def evictions(self) -> int:
        """Cached blocks that gave way to others."""
        return self.c.evictions()

    @property
    def num_slots(self) -> int:
        return self.c.num_slots()

    @property
    def free_slots(self) -> int:
        return self.c.free_slots()

    def take_slot(self, Lease lease not None) -> bool:
        """A recurrent slot for a Decode lease; False when all are taken."""
        if not lease.c.growable or lease.c.slot >= 0 or lease.c.released:
            raise RuntimeError("a lease that is released, OneShot, or has a slot takes none")
        return self.c.take_slot(lease.c)

    def begin_plan(self) -> None:
        """A new step: what earlier ones promised may be waited for, not borrowed."""
        self.c.begin_plan()

    def attach(self, tokens, uint64_t salt, int64_t max_tokens, *, cbool growable) -> Lease:
        """A lease on the longest cached prefix of ``tokens`` that is at most ``max_tokens`` long."""
        cdef cnp.ndarray t = _int32(tokens, "tokens")
        cdef Lease lease = Lease.__new__(Lease)
        lease.c.growable = growable
        cdef Result r
        self.allocator.enter()
        try:
            r = self.c.attach(_data(t), _len(t), salt, max_tokens, &lease.c)
        finally:
            self.allocator.writer.leave()
        _check(r)
        return lease

    def grow(self, Lease lease not None, int64_t num_blocks) -> bool:
        """Takes ``num_blocks`` more for a Decode lease; False, and nothing changed, when the pool cannot."""
        if not lease.c.growable:
            raise RuntimeError("a OneShot lease cannot grow")
        return self._take(lease, num_blocks, False)

    cdef cbool _take(self, Lease lease, int64_t num_blocks, cbool spare_protected) except? False:
        cdef Result r
        self.allocator.enter()
        try:
            r = self.c.take(lease.c, num_blocks, spare_protected)
        finally:
            self.allocator.writer.leave()
        if r.status != Status.out_of_blocks:
            _check(r)
        return r.ok()

    def take_for_publishing(self, Lease lease not None, int64_t num_blocks, *, cbool evict_promoted) -> bool:
        """Blocks for the part of a OneShot prompt that will be published. Without ``evict_promoted`` what was hit
        before is never evicted for it: publishing is a favour, not a need."""
        return num_blocks > 0 and self.c.caching() and self._take(lease, num_blocks, not evict_promoted)

    def promise(self, Lease lease not None, tokens, uint64_t salt) -> None:
        """The lease's own blocks of ``tokens`` will be written by the step that is being planned."""
        cdef cnp.ndarray t = _int32(tokens, "tokens")
        cdef Result r
        self.allocator.enter()
        try:
            r = self.c.promise(lease.c, _data(t), _len(t), salt)
        finally:
            self.allocator.writer.leave()
        _check(r)

    def borrow(self, Lease lease not None, tokens, uint64_t salt) -> bool:
        """The lease reads what a leader of the same step writes: ``ahead`` blocks of it. False: its leader runs in an
        earlier step."""
        cdef cnp.ndarray t = _int32(tokens, "tokens")
        return self.c.borrow(lease.c, _data(t), _len(t), salt)

    def withdraw(self, Lease lease not None) -> None:
        """The step never happened: what it promised or borrowed is gone, and with it what came after. The lease keeps
        its locked path, all of it computed."""
        cdef Result r
        self.allocator.enter()
        try:
            r = self.c.withdraw(lease.c)
        finally:
            self.allocator.writer.leave()
        _check(r)

    def publish(self, Lease lease not None, tokens, uint64_t salt, *, cbool promoted=False) -> None:
        """Full blocks of ``tokens`` whose KV is computed enter the trie, and the lease's lock moves to their end.

        Where another request published the same block first, ours is given back and the lease reads the trie's. What
        the trie does not take (a leader has promised to fill that place) stays the lease's own.
        """
        cdef cnp.ndarray t = _int32(tokens, "tokens")
        cdef Result r
        self.allocator.enter()
        try:
            r = self.c.publish(lease.c, _data(t), _len(t), salt, promoted, False)
        finally:
            self.allocator.writer.leave()
        _check(r)

    def release(self, Lease lease not None) -> None:
        """The one place where held blocks, locks and slots are given back."""
        self.take_back(lease)

    cdef int take_back(self, Lease lease) except -1:
        cdef Result r
        if lease.c.released:
            raise RuntimeError("lease released twice")
        self.allocator.enter()
        try:
            r = self.c.release(lease.c)
        finally:
            self.allocator.writer.leave()
        _check(r)
        return 0

    def audit(self, leases) -> None:
        """Conservation: free + used + cached == total, and nobody holds what is not on ``leases``; where there are
        recurrent slots, each Decode lease has one of its own and OneShot leases have none."""
        self.allocator.audit()
        self.trie.audit()
        if self.c.live_leases() != len(leases):
            raise RuntimeError(f"{self.c.live_leases()} leases are out, {len(leases)} are known")
        held = set()
        for lease in leases:
            held.update(lease.own, lease.shared.tolist())
        if len(held) != self.allocator.num_used:
            raise RuntimeError(f"{self.allocator.num_used} blocks are used, leases hold {len(held)}")
        slots = [lease.slot for lease in leases if lease.slot >= 0]
        if len(set(slots)) != len(slots) or self.free_slots + len(slots) != self.num_slots:
            raise RuntimeError(f"{self.free_slots} of {self.num_slots} slots are free, leases hold {sorted(slots)}")
        if self.num_slots and any([lease.growable != (lease.slot >= 0) for lease in leases]):
            raise RuntimeError("a Decode lease has no recurrent slot, or a OneShot lease has one")
