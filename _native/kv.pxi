# Lease and KvPool. Part of core.pyx.

@cython.final
@cython.freelist(256)
cdef class Lease:
    """The blocks that a request holds of a pool. ``shared`` are the blocks of the locked path of the trie, and after
    them ``borrowed`` ones that a leader of the same step writes; ``own`` those the lease holds itself, in sequence
    order, the first ``promised`` under ``promise``. ``ahead`` counts blocks of the prompt after the shared ones that
    a leader is filling, ``on_host`` those that ``bring_back`` would bring from host memory. A lease that is not
    ``growable`` is a OneShot row's: its own blocks are those that the step publishes. ``state_index``: where a
    recurrent model keeps the sequence's state; -1 where it keeps none. ``state_from``: the entry of the state at the
    end of the first ``base`` blocks; -1 where there is none. ``kept``: (entry, blocks) of states that the step being
    planned leaves behind so many blocks.
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
    def on_host(self) -> int:
        return self.c.on_host

    @property
    def state_index(self) -> int:
        return self.c.state_index

    @property
    def state_from(self) -> int:
        return self.c.state_from

    @property
    def base(self) -> int:
        return self.c.base

    @property
    def kept(self) -> list:
        return [(self.c.kept[k].entry, self.c.kept[k].blocks) for k in range(self.c.num_kept)]

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


cdef cbool _copy_out(void* owner, const int32_t* blocks, const int32_t* entries, int64_t n) noexcept with gil:
    return _ask_for_copies((<KvPool>owner).copies_out, blocks, entries, n)


cdef cbool _copy_in(void* owner, const int32_t* entries, const int32_t* blocks, int64_t n) noexcept with gil:
    return _ask_for_copies((<KvPool>owner).copies_in, entries, blocks, n)


cdef cbool _ask_for_copies(object copies, const int32_t* first, const int32_t* second, int64_t n) noexcept:
    cdef cnp.ndarray a, b
    try:
        a, b = _new_int32(n), _new_int32(n)
        memcpy(_data(a), first, n * sizeof(int32_t))
        memcpy(_data(b), second, n * sizeof(int32_t))
        return bool(copies(a, b))
    except BaseException:  # there is no caller that it could be raised to
        return False


cdef class KvPool:
    """The leases of one engine on one pool. One writer at a time: the holder of the step lock. ``running_states``:
    how many sequences a recurrent model keeps a state of. ``prefix_states``: of how many cached prefixes, in the
    entries behind these; without any, such a pool does not cache."""

    cdef CKvPool* c  # owned; refers to memory that `trie` and `allocator` keep alive
    cdef object copies_out, copies_in
    cdef readonly BlockAllocator allocator
    cdef readonly PrefixTrie trie

    def __cinit__(self, int64_t num_blocks, int64_t block_size, *, cbool prefix_cache=True,
                  int32_t running_states=0, int32_t prefix_states=0):
        if running_states < 0 or prefix_states < 0:
            raise ValueError("running_states and prefix_states must be >= 0")
        self.allocator = BlockAllocator(num_blocks, block_size)
        self.trie = PrefixTrie(self.allocator)
        self.c = new CKvPool(self.trie.c[0], prefix_cache, running_states, prefix_states)

    def __dealloc__(self):
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
        """Cached blocks that were evicted for others."""
        return self.c.evictions()

    def keep_on_host(self, int64_t entries, int64_t least_tokens, copy_out, copy_in, *,
                     seed: int | None = None) -> None:
        """Blocks that are evicted go to ``entries`` blocks of host memory from here on, and come back where a prompt
        goes on with at least ``least_tokens`` of them. ``copy_out(blocks, entries)`` and ``copy_in(entries, blocks)``
        request the copies of an executor and return whether they were made; they are called while a step is planned,
        before it is submitted."""
        if self.trie.host != NULL:
            raise ValueError("keep_on_host: this pool has host memory already")
        if not self.c.caching() or self.num_running_states:
            raise ValueError("keep_on_host: this pool caches no prefixes, or they need recurrent states")
        if not 1 <= entries <= MAX_BLOCKS:
            raise ValueError(f"entries: {entries} is not between 1 and {MAX_BLOCKS}")
        _count(least_tokens, "least_tokens")
        cdef int64_t size = self.c.block_size()
        cdef uint64_t key = int.from_bytes(os.urandom(8), "little") if seed is None else seed
        cdef HostCopies copies
        copies.out, copies.in_, copies.owner = _copy_out, _copy_in, <void*>self
        self.copies_out, self.copies_in = copy_out, copy_in
        cdef int64_t least = max(1, (least_tokens + size - 1) // size)
        self.trie.host = new CHostBlocks(self.trie.c[0], entries, least, key, copies)
        self.c.keep_on_host(self.trie.host[0])

    def host_counts(self) -> dict[str, int]:
        """Of blocks in host memory; empty where there is none. ``hits`` counts prompts for which blocks came back,
        ``failed`` requests of copies."""
        if self.trie.host == NULL:
            return {}
        return {
            "blocks": self.trie.host.num_kept(),
            "hits": self.trie.host.counters().hits,
            "copied_out": self.trie.host.counters().copied_out,
            "copied_in": self.trie.host.counters().copied_in,
            "evictions": self.trie.host.num_evicted(),
            "failed": self.trie.host.counters().failed,
        }

    @property
    def num_running_states(self) -> int:
        return self.c.num_running_states()

    @property
    def free_running_states(self) -> int:
        return self.c.free_running_states()

    @property
    def keeps_states(self) -> bool:
        """Whether cached prefixes have states of recurrent layers."""
        return self.c.keeps_states()

    @property
    def prefix_states(self) -> int:
        """Cached prefixes that have a state."""
        return self.trie.c.states().num_kept()

    def keep_states(self, Lease lease not None, int64_t start, int64_t stop, int64_t end,
                    *, cbool evict_used=False) -> None:
        """Entries for the states that a step leaves behind, which computes tokens ``start`` to ``stop`` of the
        lease's prompt: at its branch, and behind the last full block of its first ``end`` tokens."""
        self.allocator.enter()
        self.c.keep_states(lease.c, start, stop, end, evict_used)
        self.allocator.writer.leave()

    def take_running_state(self, Lease lease not None) -> bool:
        """A state entry for a Decode lease; False when all are taken."""
        if not lease.c.growable or lease.c.state_index >= 0 or lease.c.released:
            raise RuntimeError("a lease that is released, OneShot, or has a state entry takes none")
        return self.c.take_running_state(lease.c)

    def begin_plan(self) -> None:
        """A new step: promises of earlier ones may be waited for, not borrowed."""
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

    def bring_back(self, Lease lease not None, tokens, uint64_t salt, int64_t max_tokens) -> None:
        """Blocks behind the lease's shared ones come from host memory, ``on_host`` of them where their copy is made.
        The arguments are those of ``attach``, and the lease has had nothing else since."""
        cdef cnp.ndarray t = _int32(tokens, "tokens")
        cdef Result r
        if lease.c.released or lease.c.own.size():
            raise RuntimeError("a lease that is released, or has blocks of its own, brings none back")
        self.allocator.enter()
        try:
            r = self.c.bring_back(lease.c, _data(t), _len(t), salt, max_tokens)
        finally:
            self.allocator.writer.leave()
        _check(r)

    def grow(self, Lease lease not None, int64_t num_blocks) -> bool:
        """Takes ``num_blocks`` more for a Decode lease; False, and nothing changed, when the pool cannot."""
        if not lease.c.growable:
            raise RuntimeError("a OneShot lease cannot grow")
        cdef Result r
        self.allocator.enter()
        try:
            r = self.c.take(lease.c, num_blocks, False)
        finally:
            self.allocator.writer.leave()
        if r.status != Status.out_of_blocks:
            _check(r)
        return r.ok()

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

    def withdraw(self, Lease lease not None) -> None:
        """The step never happened: its promises and borrowed blocks are gone, and with them the blocks after them.
        The lease keeps its locked path, all of it computed."""
        cdef Result r
        self.allocator.enter()
        try:
            r = self.c.withdraw(lease.c)
        finally:
            self.allocator.writer.leave()
        _check(r)

    def publish(self, Lease lease not None, tokens, uint64_t salt, *, cbool promoted=False) -> None:
        """Full blocks of ``tokens`` whose KV is computed enter the trie, and the lease's lock moves to their end.

        Where another request published the same block first, ours is given back and the lease reads the trie's. A
        block that the trie does not take (a leader has promised to fill that place) stays the lease's own.
        """
        cdef cnp.ndarray t = _int32(tokens, "tokens")
        cdef Result r
        self.allocator.enter()
        try:
            r = self.c.publish(lease.c, _data(t), _len(t), salt, promoted, False)
        finally:
            self.allocator.writer.leave()
        _check(r)

    def publish_rows(self, Record r not None, Lease lease not None, int64_t tokens) -> None:
        """``publish`` of the first ``tokens`` of a OneShot row's prompt, which its step has computed."""
        cdef Result wrong
        _check_prompt(r, tokens)
        if lease.c.released:
            raise RuntimeError("a lease that is released publishes nothing")
        self.allocator.enter()
        try:
            wrong = self.c.publish(lease.c, r.row.tokens, tokens, r.row.salt, r.row.cache == CacheMode.always, True)
        finally:
            self.allocator.writer.leave()
        _check(wrong)

    def release(self, Lease lease not None) -> None:
        """The one place where held blocks, locks and state entries are given back."""
        cdef Result r
        if lease.c.released:
            raise RuntimeError("lease released twice")
        self.allocator.enter()
        try:
            r = self.c.release(lease.c)
        finally:
            self.allocator.writer.leave()
        _check(r)

    def audit(self, leases) -> None:
        """Conservation: free + used + cached == total, and no block is held that is not on ``leases``; where there
        are state entries, each Decode lease has one of its own and OneShot leases have none."""
        self.allocator.audit()
        self.trie.audit()
        self.audit_host()
        if self.c.live_leases() != len(leases):
            raise RuntimeError(f"{self.c.live_leases()} leases are out, {len(leases)} are known")
        held = set()
        for lease in leases:
            held.update(lease.own, lease.shared.tolist())
        if len(held) != self.allocator.num_used:
            raise RuntimeError(f"{self.allocator.num_used} blocks are used, leases hold {len(held)}")
        held_states = [lease.state_index for lease in leases if lease.state_index >= 0]
        distinct = len(set(held_states)) == len(held_states)
        if not distinct or self.free_running_states + len(held_states) != self.num_running_states:
            raise RuntimeError(f"{self.free_running_states} of {self.num_running_states} state entries are free, "
                               f"leases hold {sorted(held_states)}")
        self.audit_states(leases)
        if self.num_running_states and any([lease.growable != (lease.state_index >= 0) for lease in leases]):
            raise RuntimeError("a Decode lease has no state entry, or a OneShot lease has one")

    cdef int audit_host(self) except -1:
        """Entries of host memory: each is free or kept, none is locked."""
        if self.trie.host == NULL:
            return 0
        cdef TrieAudit a = self.trie.host.audit()
        if a.broken != NULL:
            raise AuditError(f"host memory: {_where(a.broken, a.at)}", _pool_counts(a.pool))
        if self.trie.host.num_locked():
            raise RuntimeError(f"{self.trie.host.num_locked()} blocks in host memory are locked between two calls")
        return 0

    cdef int audit_states(self, leases) except -1:
        """States of prefixes: each entry is free, kept at a node, or on a lease."""
        cdef PrefixStates* states = &self.trie.c.states()
        cdef const char* wrong = states.audit()
        if wrong != NULL:
            raise RuntimeError(wrong.decode())
        cdef list taken = [entry for lease in leases for entry, _ in lease.kept]
        if len(set(taken)) != len(taken) or states.num_free() + states.num_kept() + len(taken) != states.size():
            raise RuntimeError(f"{states.num_free()} of {states.size()} entries for prefixes are free, "
                               f"{states.num_kept()} are kept, leases have {sorted(taken)}")
        return 0
