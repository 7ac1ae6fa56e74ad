# The pool of KV blocks and its prefix cache. Part of core.pyx.

class NativeError(Exception):
    """Base of the errors that this module raises on purpose. The call that raised has changed nothing."""


class ConcurrentUse(NativeError, RuntimeError):
    """Two threads wrote to one pool at the same time."""


class AuditError(NativeError, RuntimeError):
    """An invariant does not hold."""


# By status.
cdef tuple _WRONG = (
    "", "more blocks than are available", "not a block of this pool", "a block that is not held",
    "a block of the prefix cache", "blocks of more tokens than there are", "no node, or one that was evicted",
    "a node that is not locked", "a node that is promised", "a node that is not promised",
)


cdef int _check(Result r) except -1:
    if r.status != Status.ok:
        raise NativeError(f"{_WRONG[<int32_t>r.status]}: {r.detail}")
    return 0


cdef int _check_audit(TrieAudit a) except -1:
    if a.broken == NULL:
        return 0
    place = f" (block {a.at})" if a.at >= 0 else ""
    raise AuditError(f"{a.broken.decode()}{place}: {a.nodes} nodes, {a.promised} promised, {a.in_table} in the table; "
                     f"{a.pool}")


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
    """The KV blocks of one engine, the cached prefixes that lie in them, and the leases on both. One writer at a time:
    the holder of the step lock; ``would_hit`` and the counters may be used from any thread. ``running_states``: how
    many sequences a recurrent model keeps a state of. ``prefix_states``: of how many cached prefixes, in the entries
    behind these; without any, such a pool does not cache. ``hash_bits`` keeps fewer bits of the prefixes' hashes: with
    0 all of them collide, which costs time and changes no answer."""

    cdef CBlockAllocator* blocks  # owned, as the next three are; each refers to those before it
    cdef CPrefixTrie* trie
    cdef CHostBlocks* host  # null without host memory
    cdef CKvPool* c
    cdef OneWriter writer
    cdef readonly int64_t num_blocks, block_size, num_running_states
    cdef readonly cbool caching, keeps_states  # of recurrent layers, with cached prefixes
    cdef object copies_out, copies_in

    def __cinit__(self, int64_t num_blocks, int64_t block_size, *, cbool prefix_cache=True,
                  int32_t running_states=0, int32_t prefix_states=0, int32_t hash_bits=32):
        if not 1 <= num_blocks <= MAX_BLOCKS:
            raise ValueError(f"num_blocks: {num_blocks} is not between 1 and {MAX_BLOCKS}")
        if not 1 <= block_size <= 4096:
            raise ValueError(f"block_size: {block_size} is not between 1 and 4096")
        if running_states < 0 or prefix_states < 0:
            raise ValueError("running_states and prefix_states must be >= 0")
        if not 0 <= hash_bits <= 32:
            raise ValueError(f"hash_bits: {hash_bits} is not between 0 and 32")
        self.blocks = new CBlockAllocator(num_blocks, block_size)
        self.trie = new CPrefixTrie(self.blocks[0], _random_seed(), hash_bits)
        self.c = new CKvPool(self.trie[0], prefix_cache, running_states, prefix_states)
        self.num_blocks, self.block_size, self.num_running_states = num_blocks, block_size, running_states
        self.caching, self.keeps_states = self.c.caching(), self.c.keeps_states()

    def __dealloc__(self):
        del self.c
        del self.host
        del self.trie
        del self.blocks

    cdef int enter(self, Writing& writing) except -1:
        if not writing.enter(self.writer):
            raise ConcurrentUse("another thread is writing to this pool: only the holder of the step lock may")
        return 0

    @property
    def num_free(self) -> int:
        return self.blocks.num_free()

    @property
    def num_used(self) -> int:
        return self.blocks.num_used()

    @property
    def num_cached(self) -> int:
        """Blocks of prefixes that no lease reads."""
        return self.blocks.num_cached()

    @property
    def live_leases(self) -> int:
        return self.c.live_leases()

    @property
    def evictions(self) -> int:
        """Cached blocks that were evicted for others."""
        return self.c.evictions()

    def keep_on_host(self, int64_t entries, int64_t least_tokens, copy_out, copy_in) -> None:
        """Blocks that are evicted go to ``entries`` blocks of host memory from here on, and come back where a prompt
        goes on with at least ``least_tokens`` of them. ``copy_out(blocks, entries)`` and ``copy_in(entries, blocks)``
        request the copies of an executor and return whether they were made; they are called while a step is planned,
        before it is submitted."""
        if self.host != NULL:
            raise ValueError("keep_on_host: this pool has host memory already")
        if not self.caching or self.num_running_states:
            raise ValueError("keep_on_host: this pool caches no prefixes, or they need recurrent states")
        if not 1 <= entries <= MAX_BLOCKS:
            raise ValueError(f"entries: {entries} is not between 1 and {MAX_BLOCKS}")
        _count(least_tokens, "least_tokens")
        cdef int64_t size = self.block_size
        cdef HostCopies copies
        copies.out, copies.in_, copies.owner = _copy_out, _copy_in, <void*>self
        self.copies_out, self.copies_in = copy_out, copy_in
        cdef int64_t least = max(1, (least_tokens + size - 1) // size)
        self.host = new CHostBlocks(self.trie[0], entries, least, _random_seed(), copies)
        self.c.keep_on_host(self.host[0])

    def host_counts(self) -> dict[str, int]:
        """Of blocks in host memory; empty where there is none. ``hits`` counts prompts for which blocks came back,
        ``failed`` requests of copies."""
        if self.host == NULL:
            return {}
        cdef HostCounters n = self.host.counters()
        counts = dict(n)
        counts.update(blocks=self.host.num_kept(), evictions=self.host.num_evicted())
        return counts

    @property
    def free_running_states(self) -> int:
        return self.c.free_running_states()

    @property
    def prefix_states(self) -> int:
        """Cached prefixes that have a state."""
        return self.trie.states().num_kept()

    def keep_states(self, Lease lease not None, int64_t start, int64_t stop, int64_t end,
                    *, cbool evict_used=False) -> None:
        """Entries for the states that a step leaves behind, which computes tokens ``start`` to ``stop`` of the
        lease's prompt: at its branch, and behind the last full block of its first ``end`` tokens."""
        cdef Writing writing
        self.enter(writing)
        self.c.keep_states(lease.c, start, stop, end, evict_used)

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
        cdef Writing writing
        self.enter(writing)
        _check(self.c.attach(_data(t), _len(t), salt, max_tokens, &lease.c))
        return lease

    def bring_back(self, Lease lease not None, tokens, uint64_t salt, int64_t max_tokens) -> None:
        """Blocks behind the lease's shared ones come from host memory, ``on_host`` of them where their copy is made.
        The arguments are those of ``attach``, and the lease has had nothing else since."""
        cdef cnp.ndarray t = _int32(tokens, "tokens")
        cdef Writing writing
        if lease.c.released or lease.c.own.size():
            raise RuntimeError("a lease that is released, or has blocks of its own, brings none back")
        self.enter(writing)
        _check(self.c.bring_back(lease.c, _data(t), _len(t), salt, max_tokens))

    def grow(self, Lease lease not None, int64_t num_blocks) -> bool:
        """Takes ``num_blocks`` more for a Decode lease; False, and nothing changed, when the pool cannot."""
        if not lease.c.growable:
            raise RuntimeError("a OneShot lease cannot grow")
        cdef Writing writing
        self.enter(writing)
        cdef Result r = self.c.take(lease.c, num_blocks, False)
        if r.status != Status.out_of_blocks:
            _check(r)
        return r.ok()

    def promise(self, Lease lease not None, tokens, uint64_t salt) -> None:
        """The lease's own blocks of ``tokens`` will be written by the step that is being planned."""
        cdef cnp.ndarray t = _int32(tokens, "tokens")
        cdef Writing writing
        self.enter(writing)
        _check(self.c.promise(lease.c, _data(t), _len(t), salt))

    def withdraw(self, Lease lease not None) -> None:
        """The step never happened: the lease keeps its locked path alone, all of it computed."""
        cdef Writing writing
        self.enter(writing)
        _check(self.c.withdraw(lease.c))

    def publish(self, Lease lease not None, tokens, uint64_t salt, *, cbool promoted=False) -> None:
        """Full blocks of ``tokens`` whose KV is computed enter the trie, and the lease's lock moves to their end."""
        cdef cnp.ndarray t = _int32(tokens, "tokens")
        cdef Writing writing
        self.enter(writing)
        _check(self.c.publish(lease.c, _data(t), _len(t), salt, promoted, False))

    def release(self, Lease lease not None, Record of=None, int64_t computed=0) -> None:
        """The one place where held blocks, locks and state entries are given back. Before it the first ``computed``
        tokens of ``of``'s prompt, a OneShot row's that its step has computed, are published."""
        cdef Writing writing
        if lease.c.released:
            raise RuntimeError("lease released twice")
        if computed != 0:
            if of is None:
                raise TypeError("tokens of no prompt were computed")
            _check_prompt(of, computed)
        self.enter(writing)
        if computed != 0:
            _check(self.c.publish(lease.c, of.row.tokens, computed, of.row.salt, of.row.cache == CacheMode.always,
                                  True))
        _check(self.c.release(lease.c))

    @property
    def prefix_changes(self) -> int:
        """How often prefixes became cached or went: while it stays, ``cached_tokens`` of a request does."""
        return self.trie.changes()

    def cached_tokens(self, list requests not None):
        """int64 [requests]: how many tokens of each waiting request are cached now; 0 for None. Not a hit. A prompt is
        matched when it is first asked for, and then only if its match may have changed."""
        cdef cnp.npy_intp n = len(requests)
        cdef cnp.ndarray known, out = cnp.new_array(1, &n, cnp.NPY_INT64)
        cdef int64_t* cached = <int64_t*>cnp.PyArray_DATA(out)
        cdef int64_t size = self.block_size
        cdef Py_ssize_t i
        cdef Record r
        cdef Writing writing
        self.enter(writing)
        for i in range(n):
            r = requests[i]
            cached[i] = 0
            if r is None or not self.caching:
                continue
            if self.trie.has_moved(r.end):
                known = _int32(r.known, "known")
                r.end = self.trie.end_of(_data(known), min(_len(known), r.num_known), r.row.salt, r.reusable // size)
            cached[i] = r.end.blocks * size
        return out

    def lacking(self, list requests not None) -> dict:
        """The first of ``requests`` (any may be None) that lacks a block, by ``next_block`` of what it lacks."""
        cdef Record r
        found = {}
        for r in requests:
            if r is not None and r.end.lacks:
                found.setdefault(self.next_block(r, r.end.blocks * self.block_size), r)
        return found

    def next_block(self, Record of not None, int64_t cached):
        """What a block behind ``cached`` tokens is known by; None if the prompt ends there."""
        cdef int64_t rest = min(self.block_size, of.row.num_tokens - cached)
        if cached < 0 or rest < 1:
            return None
        return of.row.salt, cached, (<const char*> (of.row.tokens + cached))[:rest * sizeof(int32_t)]

    def would_hit(self, tokens, uint64_t salt=0) -> int:
        """How many blocks of a prompt are cached; from any thread, without stopping the writer."""
        cdef cnp.ndarray t = _int32(tokens, "tokens")
        cdef const int32_t* p = _data(t)
        cdef int64_t n = _len(t)
        cdef int32_t hit
        cdef PyThreadState* state = _let_go(worth_releasing_gil(n // self.block_size))
        hit = self.trie.would_hit(p, n, salt)
        _take_back(state)
        return hit

    def prefix_counts(self) -> dict[str, int]:
        """Counters of cached prefixes since the pool was made, in blocks unless they say otherwise, and of now: nodes,
        promised ones. From any thread."""
        cdef TrieCounters n = self.trie.counters()
        counts = dict(n)
        counts.update(nodes=self.trie.num_nodes(), promised=self.trie.num_promised(),
                      states_evicted=self.trie.states().evicted())
        return counts

    def prefixes(self) -> list[dict]:
        """Every node of the prefix trie, parents first. ``locks`` are its own; nodes below hold its block by theirs,
        too. ``rank`` is its place in eviction order, 0 the coldest, -1 while it is held."""
        cdef Writing writing
        self.enter(writing)
        cdef vector[TrieNodeView] rows = self.trie.dump()
        cdef cnp.ndarray tokens
        cdef TrieNodeView row
        cdef list nodes = []
        for row in rows:
            tokens = _new_int32(self.block_size)
            self.trie.tokens_of(row.block, _data(tokens))
            nodes.append(dict(row, tokens=tokens))
        return nodes

    def audit(self, leases) -> None:
        """Conservation: free + used + cached == total, and no block is held that is not on ``leases``; where there
        are state entries, each Decode lease has one of its own and OneShot leases have none."""
        cdef Writing writing
        cdef Lease lease
        self.enter(writing)
        _check_audit(self.trie.audit())
        if self.host != NULL:
            _check_audit(self.host.audit())
            if self.host.num_locked():
                raise AuditError(f"{self.host.num_locked()} blocks in host memory are locked between two calls")
        if self.c.live_leases() != len(leases):
            raise AuditError(f"{self.c.live_leases()} leases are out, {len(leases)} are known")
        held = set()
        for lease in leases:
            held.update(lease.table().tolist())
            if self.num_running_states and lease.c.growable != (lease.c.state_index >= 0):
                raise AuditError("a Decode lease has no state entry, or a OneShot lease has one")
        if len(held) != self.num_used:
            raise AuditError(f"{self.num_used} blocks are used, leases hold {len(held)}")
        entries = [lease.state_index for lease in leases if lease.state_index >= 0]
        if len(set(entries)) != len(entries) or self.free_running_states + len(entries) != self.num_running_states:
            raise AuditError(f"{self.free_running_states} of {self.num_running_states} state entries are free, "
                             f"leases hold {sorted(entries)}")
        cdef PrefixStates* states = &self.trie.states()
        cdef const char* wrong = states.audit()
        if wrong != NULL:
            raise AuditError(wrong.decode())
        taken = [entry for lease in leases for entry, _ in lease.kept]
        if len(set(taken)) != len(taken) or states.num_free() + states.num_kept() + len(taken) != states.size():
            raise AuditError(f"{states.num_free()} of {states.size()} entries for prefixes are free, "
                             f"{states.num_kept()} are kept, leases have {sorted(taken)}")


cdef uint64_t _random_seed() except? 0:
    return int.from_bytes(os.urandom(8), "little")
