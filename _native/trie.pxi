# PrefixTrie and its results. Part of core.pyx.

cdef object _NONE = np.empty(0, np.int32)
_NONE.setflags(write=False)


@cython.final
@cython.freelist(64)
cdef class Match:
    """The part of a prompt that the trie has. ``node`` is -1 when it has nothing; lock it before anything evicts."""

    cdef readonly int node
    cdef readonly int num_blocks
    cdef readonly int promised
    cdef PrefixTrie trie

    @property
    def num_tokens(self) -> int:
        return self.num_blocks * self.trie.alloc.c.block_size()

    @property
    def blocks(self):
        return self.trie.blocks(self.node)

    def __repr__(self) -> str:
        return f"Match(node={self.node}, num_blocks={self.num_blocks}, promised={self.promised})"


@cython.final
@cython.freelist(64)
cdef class Inserted:
    """The places of the given blocks, in order: ``duplicates``, then ``num_taken`` the trie's, then a rest.

    ``node`` is the end of the prompt's ready path. Duplicates and rest stay with the caller; there is a rest
    only where the path before is gone or a leader's promise is in the way.
    """

    cdef readonly int node
    cdef readonly int num_taken
    cdef readonly object duplicates

    def __repr__(self) -> str:
        return f"Inserted(node={self.node}, num_taken={self.num_taken}, duplicates={self.duplicates})"


@cython.final
cdef class PrefixTrie:
    """Which blocks hold which token prefixes. One trie a pool.

    ``seed`` of the hash is random unless given. ``hash_bits`` keeps fewer bits of it; 0 makes all keys collide.
    """

    cdef CPrefixTrie* c  # owned: made here, freed in __dealloc__; refers to alloc.c, which `alloc` keeps alive
    cdef CHostBlocks* host  # owned: made by the KvPool, which alone lets it copy; null where evicted blocks are dropped
    cdef readonly BlockAllocator alloc

    def __cinit__(self, BlockAllocator allocator not None, *, seed: int | None = None, hash_bits: int = 32):
        if allocator.has_trie:
            raise ValueError("allocator: has a trie already")
        if not 0 <= hash_bits <= 32:
            raise ValueError(f"hash_bits: {hash_bits} is not between 0 and 32")
        cdef uint64_t key = int.from_bytes(os.urandom(8), "little") if seed is None else seed
        self.c = new CPrefixTrie(allocator.c[0], key, hash_bits)
        allocator.has_trie = True
        self.alloc = allocator

    def __dealloc__(self):
        del self.host
        del self.c

    @property
    def num_nodes(self) -> int:
        return self.c.num_nodes()

    @property
    def num_promised(self) -> int:
        return self.c.num_promised()

    def match(self, tokens, uint64_t salt=0, int64_t max_blocks=-1, cbool touch=True):
        """The longest ready prefix, at most ``max_blocks``. ``touch=False`` looks without counting as a hit."""
        cdef cnp.ndarray t = _int32(tokens, "tokens")
        cdef const int32_t* p = _data(t)
        cdef int64_t n = _len(t)
        cdef TrieMatch m
        self.alloc.enter()
        cdef PyThreadState* state = _let_go(n // self.alloc.c.block_size())
        m = self.c.match(p, n, salt, max_blocks, touch)
        _take_back(state)
        self.alloc.writer.leave()
        cdef Match out = Match.__new__(Match)
        out.node = m.node
        out.num_blocks = m.blocks
        out.promised = m.promised
        out.trie = self
        return out

    def watch(self, tokens, uint64_t salt=0, int64_t max_blocks=-1):
        """(id, blocks ready now): a match that reports when its answer may have changed, see ``moved``. Not a hit.
        The tokens are not kept; ``unwatch`` when no request waits any more."""
        cdef cnp.ndarray t = _int32(tokens, "tokens")
        cdef int32_t watch, ready = 0
        self.alloc.enter()
        try:
            watch = self.c.watch(_data(t), _len(t), salt, max_blocks, &ready)
        finally:
            self.alloc.writer.leave()
        return watch, ready

    def rewatch(self, int32_t watch, tokens, uint64_t salt=0, int64_t max_blocks=-1) -> int:
        """Blocks ready now, for a watch that has moved: from here on it reports again."""
        cdef cnp.ndarray t = _int32(tokens, "tokens")
        cdef int32_t ready
        self.alloc.enter()
        try:
            ready = self.c.rewatch(watch, _data(t), _len(t), salt, max_blocks)
        finally:
            self.alloc.writer.leave()
        if ready < 0:
            raise ValueError(f"watch: there is no watch {watch}")
        return ready

    def unwatch(self, int32_t watch) -> None:
        self.alloc.enter()
        cdef bint there = self.c.unwatch(watch)
        self.alloc.writer.leave()
        if not there:
            raise ValueError(f"watch: there is no watch {watch}")

    def moved(self):
        """The watches whose answer may have changed since they were placed, each once until ``rewatch``: int32."""
        cdef cnp.ndarray out
        self.alloc.enter()
        try:
            out = _new_int32(self.c.num_moved())
            count = self.c.take_moved(_data(out))
        finally:
            self.alloc.writer.leave()
        return out[:count]

    @property
    def num_watches(self) -> int:
        return self.c.num_watches()

    def would_hit(self, tokens, uint64_t salt=0) -> int:
        """How many blocks ``match`` would find; from any thread, without stopping the writer."""
        cdef cnp.ndarray t = _int32(tokens, "tokens")
        cdef const int32_t* p = _data(t)
        cdef int64_t n = _len(t)
        cdef int32_t hit
        cdef PyThreadState* state = _let_go(n // self.alloc.c.block_size())
        hit = self.c.would_hit(p, n, salt)
        _take_back(state)
        return hit

    def lock(self, int32_t node) -> None:
        """Takes a reference on the path root..``node``; -1 is a no-op."""
        self.alloc.enter()
        cdef Result r = self.c.lock(node)
        self.alloc.writer.leave()
        _check(r)

    def unlock(self, int32_t node) -> None:
        """Gives the reference back; nodes without another lock are cached from here on, as the youngest."""
        self.alloc.enter()
        cdef Result r = self.c.unlock(node)
        self.alloc.writer.leave()
        _check(r)

    def blocks(self, int32_t node):
        """The blocks from the root to ``node``."""
        cdef int32_t n = self.c.depth(node)
        if n < 0:
            raise StaleNode("does not exist (any more)", node)
        cdef cnp.ndarray out = _new_int32(n)
        _check(self.c.blocks(node, _data(out)))
        return out

    def allocate(self, int64_t n, cbool spare_protected=False):
        """``n`` blocks, evicting the coldest unlocked leaves where the free list is short.

        ``OutOfBlocks``, and nothing changed, when free and evictable blocks are fewer than ``n``.
        ``spare_protected``: evict only nodes that were never hit.
        """
        _count(n, "n")
        cdef int64_t available = self.alloc.c.num_free() + self.c.num_probation()
        if not spare_protected:
            available += self.c.num_protected()
        if n > available:
            raise OutOfBlocks(n, available)
        cdef cnp.ndarray out = _new_int32(n)
        cdef int32_t* p = _data(out)
        cdef Result r
        self.alloc.enter()
        cdef PyThreadState* state = _let_go(n)
        r = self.c.allocate(n, p, spare_protected)
        _take_back(state)
        self.alloc.writer.leave()
        _check(r, n)
        return out

    def evict(self, int64_t n) -> int:
        """Frees up to ``n`` blocks from the cold end; how many it were."""
        _count(n, "n")
        cdef int64_t freed
        self.alloc.enter()
        cdef PyThreadState* state = _let_go(n)
        freed = self.c.evict(n)
        _take_back(state)
        self.alloc.writer.leave()
        return freed

    def clear(self) -> int:
        """Frees every block without a lock; returns their number. None of them goes to host memory, and what lies
        there is dropped."""
        cdef int64_t freed
        self.alloc.enter()
        cdef PyThreadState* state = _let_go(self.alloc.c.num_blocks())
        freed = self.c.clear()
        _take_back(state)
        self.alloc.writer.leave()
        return freed

    def insert(self, tokens, blocks, uint64_t salt=0, int64_t first_block=0, cbool promoted=False):
        """Extends the prompt's path by the blocks of ``tokens[first_block * block_size:]``.

        The trie takes over the caller's reference on the blocks it keeps; those it has already come back as
        ``duplicates``. Nothing is kept when the path before ``first_block`` is gone, or part of it promised.
        """
        cdef cnp.ndarray t = _int32(tokens, "tokens")
        cdef cnp.ndarray b = _int32(blocks, "blocks")
        _count(first_block, "first_block")
        cdef const int32_t* tp = _data(t)
        cdef const int32_t* bp = _data(b)
        cdef int64_t nt = _len(t), nb = _len(b)
        cdef TrieInsert made
        cdef Result r
        made.node, made.there, made.taken = -1, 0, 0
        self.alloc.enter()
        cdef PyThreadState* state = _let_go(nt // self.alloc.c.block_size())
        r = self.c.insert(tp, nt, bp, nb, salt, first_block, promoted, &made)
        _take_back(state)
        self.alloc.writer.leave()
        _check(r)
        cdef Inserted out = Inserted.__new__(Inserted)
        out.node = made.node
        out.num_taken = made.taken
        out.duplicates = b[:made.there] if made.there else _NONE
        return out

    def promise(self, tokens, blocks, uint64_t salt=0, int64_t first_block=0) -> int:
        """As ``insert``, for blocks that are still to be filled: ``match`` shows them as promised.

        The node, locked for the caller; -1, and nothing taken, unless the path is ready up to ``first_block``
        and ends there. Then ``fulfil`` and ``unlock``, or ``break_promise``.
        """
        cdef cnp.ndarray t = _int32(tokens, "tokens")
        cdef cnp.ndarray b = _int32(blocks, "blocks")
        _count(first_block, "first_block")
        cdef int32_t node = -1
        self.alloc.enter()
        cdef Result r = self.c.promise(_data(t), _len(t), _data(b), _len(b), salt, first_block, &node)
        self.alloc.writer.leave()
        _check(r)
        return node

    def fulfil(self, int32_t node, int64_t num_blocks=-1) -> None:
        """The promised blocks of the path, or its first ``num_blocks``, are ready. The lock stays."""
        self.alloc.enter()
        cdef Result r = self.c.fulfil(node, num_blocks)
        self.alloc.writer.leave()
        _check(r)

    def break_promise(self, int32_t node) -> int:
        """The leader failed: its promised nodes go, their blocks are freed, its lock ends. How many it were."""
        cdef int64_t freed = 0
        self.alloc.enter()
        cdef Result r = self.c.break_promise(node, &freed)
        self.alloc.writer.leave()
        _check(r)
        return freed

    def stats(self) -> dict[str, int]:
        """Counters since the trie was made, in blocks unless they say otherwise; from any thread."""
        cdef TrieCounters n = self.c.counters()
        return {
            "nodes": self.c.num_nodes(),
            "promised": self.c.num_promised(),
            "probation": self.c.num_probation(),
            "protected": self.c.num_protected(),
            "lookups": n.lookups,
            "looked_up": n.looked_up,
            "hit": n.hit,
            "collisions": n.collisions,
            "inserted": n.inserted,
            "duplicates": n.duplicates,
            "evicted": n.evicted,
            "evicted_protected": n.evicted_hit,
            "promoted": n.promoted,
            "broken": n.broken,
            "states": self.c.states().num_kept(),
            "states_evicted": self.c.states().evicted(),
        }

    def audit(self) -> None:
        """Counts everything again, trie and pool; ``AuditError`` with all numbers when an invariant fails."""
        cdef TrieAudit a
        self.alloc.enter()
        try:
            a = self.c.audit()
        finally:
            self.alloc.writer.leave()
        if a.broken == NULL:
            return
        counts = _pool_counts(a.pool)
        counts.update(nodes=a.nodes, ready=a.ready, promised=a.promised, covered=a.covered,
                      probation=a.probation, protected=a.protect, in_table=a.in_table)
        raise AuditError(_where(a.broken, a.at), counts)

    def dump(self) -> list[dict]:
        """Every node, parents first, as a dict.

        ``references`` counts the locks that hold the node's block: its own and those of nodes below it.
        ``rank`` is its place in eviction order, 0 the coldest, -1 while it is referenced.
        """
        cdef vector[TrieNodeView] rows
        self.alloc.enter()
        try:
            rows = self.c.dump()
        finally:
            self.alloc.writer.leave()
        nodes, by_id = [], {}
        cdef cnp.ndarray tokens
        cdef size_t i
        for i in range(rows.size()):
            tokens = _new_int32(self.alloc.c.block_size())
            self.c.tokens_of(rows[i].block, _data(tokens))
            node = {
                "node": rows[i].id,
                "parent": rows[i].parent,
                "children": [],
                "block": rows[i].block,
                "depth": rows[i].depth,
                "tokens": tokens,
                "salt": rows[i].salt,
                "state": "ready" if rows[i].state == NodeState.ready else "promised",
                "protected": rows[i].protect,
                "locks": rows[i].own_locks,
                "references": rows[i].own_locks,
                "rank": rows[i].rank,
            }
            nodes.append(node)
            by_id[rows[i].id] = node
            if rows[i].parent >= 0:
                by_id[rows[i].parent]["children"].append(rows[i].id)
        for node in reversed(nodes):
            if node["parent"] >= 0:
                by_id[node["parent"]]["references"] += node["references"]
        return nodes

    def __repr__(self) -> str:
        return f"PrefixTrie({self.num_nodes} nodes over {self.alloc!r})"
