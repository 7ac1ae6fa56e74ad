# BlockAllocator. Part of core.pyx.

@cython.final
cdef class BlockAllocator:
    """A pool of ``num_blocks`` KV blocks of ``block_size`` tokens; ids are 0 to ``num_blocks - 1``."""

    cdef CBlockAllocator* c  # owned: made here, freed in __dealloc__
    cdef OneWriter writer
    cdef cbool has_trie

    def __cinit__(self, num_blocks: int, block_size: int = 16):
        if not 1 <= num_blocks <= MAX_BLOCKS:
            raise ValueError(f"num_blocks: {num_blocks} is not between 1 and {MAX_BLOCKS}")
        if not 1 <= block_size <= 4096:
            raise ValueError(f"block_size: {block_size} is not between 1 and 4096")
        self.c = new CBlockAllocator(num_blocks, block_size)

    def __dealloc__(self):
        del self.c

    cdef int enter(self) except -1:
        if not self.writer.enter():
            raise ConcurrentUse("another thread is writing to this pool: only the holder of the step lock may")
        return 0

    @property
    def num_blocks(self) -> int:
        return self.c.num_blocks()

    @property
    def block_size(self) -> int:
        return self.c.block_size()

    @property
    def num_free(self) -> int:
        return self.c.num_free()

    @property
    def num_used(self) -> int:
        return self.c.num_used()

    @property
    def num_cached(self) -> int:
        return self.c.num_cached()

    def allocate(self, int64_t n):
        """``n`` block ids with one reference each; ``OutOfBlocks``, and nothing changed, if fewer are free."""
        if _count(n, "n") > self.c.num_free():
            raise OutOfBlocks(n, self.c.num_free())
        cdef cnp.ndarray out = _new_int32(n)
        self.enter()
        cdef Result r = self.c.allocate(n, _data(out))
        self.writer.leave()
        _check(r, n)
        return out

    def release(self, blocks, generations=None):
        """Gives one reference on each back. ``generations``: refuse ids that were freed since they were read."""
        self._references(blocks, generations, False)

    def retain(self, blocks, generations=None):
        """One more reference on each."""
        self._references(blocks, generations, True)

    cdef int _references(self, object blocks, object generations, cbool take) except -1:
        cdef cnp.ndarray ids = _int32(blocks, "blocks")
        cdef cnp.ndarray seen
        cdef const uint32_t* gen = NULL
        if generations is not None:
            seen = np.require(generations, np.uint32, "CA")
            if seen.ndim != 1 or _len(seen) != _len(ids):
                raise ValueError("generations: one for each block is needed")
            gen = <const uint32_t*>cnp.PyArray_DATA(seen)
        self.enter()
        cdef Result r
        if take:
            r = self.c.retain(_data(ids), _len(ids), gen)
        else:
            r = self.c.release(_data(ids), _len(ids), gen)
        self.writer.leave()
        return _check(r)

    def references(self, int64_t block) -> int:
        """References that callers hold on the block; 0 when it is free or in the trie."""
        if not self.c.is_block(block):
            raise ForeignBlock("not in this pool", block)
        return self.c.references(block)

    def generations(self, blocks):
        """How often each block was freed, as uint32: pass it to ``release`` to detect a late one."""
        cdef cnp.ndarray ids = _int32(blocks, "blocks")
        cdef int64_t i
        out = np.empty(_len(ids), np.uint32)
        cdef uint32_t* view = <uint32_t*>cnp.PyArray_DATA(<cnp.ndarray>out)
        for i in range(_len(ids)):
            if not self.c.is_block(_data(ids)[i]):
                raise ForeignBlock("not in this pool", _data(ids)[i])
            view[i] = self.c.generation(_data(ids)[i])
        return out

    def audit(self) -> None:
        """Counts everything again; ``AuditError`` with all numbers when an invariant fails."""
        cdef AllocatorAudit a
        self.enter()
        try:
            a = self.c.audit()
        finally:
            self.writer.leave()
        if a.broken != NULL:
            raise AuditError(_where(a.broken, a.at), _pool_counts(a))

    def __repr__(self) -> str:
        return (f"BlockAllocator({self.num_blocks} blocks of {self.block_size}: {self.num_free} free, "
                f"{self.num_used} used, {self.num_cached} cached)")


cdef str _where(const char* what, int64_t at):
    message = what.decode()
    return f"{message} (block {at})" if at >= 0 else message


cdef dict _pool_counts(AllocatorAudit a):
    return {
        "total": a.total, "free": a.free, "used": a.used, "cached": a.cached, "counted_free": a.counted_free,
        "counted_held": a.counted_held, "counted_trie": a.counted_trie,
    }
