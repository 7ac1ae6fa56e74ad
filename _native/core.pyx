# distutils: language = c++
"""Thin wrappers of the C++ core: they check arguments, make arrays and turn a status into an error.

The headers under ``include/prelude`` hold the structures, their drawings and their contracts. No policy lives
here. Writing calls on one pool belong to one thread at a time (``ConcurrentUse`` tells a second one);
``would_hit`` and the counters may be used from any thread at any time.
"""

from __future__ import annotations

import os

cimport cython
cimport numpy as cnp
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_CheckExact
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libcpp cimport bool as cbool
from libcpp.vector cimport vector

import numpy as np

cnp.import_array()


cdef extern from "Python.h" nogil:
    ctypedef struct PyThreadState:
        pass
    PyThreadState* PyEval_SaveThread() noexcept
    void PyEval_RestoreThread(PyThreadState* state) noexcept


cdef extern from "Python.h":
    Py_ssize_t PySequence_Fast_GET_SIZE(object sequence)
    PyObject** PySequence_Fast_ITEMS(object sequence)


cdef extern from "prelude/status.hpp" namespace "prelude" nogil:
    cdef enum class Status(int32_t):
        ok
        out_of_blocks
        foreign_block
        double_free
        stale_block
        block_in_trie
        block_shared
        too_many_refs
        too_few_tokens
        stale_node
        not_locked
        node_promised
        not_promised

    cdef cppclass Result:
        Status status
        int64_t detail
        cbool ok()

    cbool worth_releasing_gil(int64_t blocks)


cdef extern from "prelude/one_writer.hpp" namespace "prelude" nogil:
    cdef cppclass OneWriter:
        cbool enter()
        void leave()


cdef extern from "prelude/block_hash.hpp" namespace "prelude" nogil:
    cdef cppclass SipHash:
        SipHash(uint64_t k0, uint64_t k1)

    int64_t c_block_hashes "prelude::block_hashes"(
        const int32_t* tokens, int64_t count, int32_t size, uint64_t salt, const SipHash* sip, uint64_t* out)


cdef extern from "prelude/block_allocator.hpp" namespace "prelude" nogil:
    cdef struct AllocatorAudit:
        const char* broken
        int64_t at, total, free, used, cached, counted_free, counted_held, counted_trie

    cdef cppclass CBlockAllocator "prelude::BlockAllocator":
        CBlockAllocator(int32_t num_blocks, int32_t block_size) except +
        int32_t num_blocks()
        int32_t block_size()
        int32_t num_free()
        int32_t num_used()
        int32_t num_cached()
        Result allocate(int64_t n, int32_t* out)
        Result retain(const int32_t* ids, int64_t n, const uint32_t* seen)
        Result release(const int32_t* ids, int64_t n, const uint32_t* seen)
        uint32_t references(int32_t b)
        uint32_t generation(int32_t b)
        cbool is_block(int64_t b)
        AllocatorAudit audit() except +

    int32_t MAX_BLOCKS "prelude::BlockAllocator::kMaxBlocks"


cdef extern from "prelude/prefix_trie.hpp" namespace "prelude" nogil:
    cdef enum class NodeState(unsigned char):
        absent
        ready
        promised

    cdef struct TrieMatch:
        int32_t node, blocks, promised

    cdef struct TrieInsert:
        int32_t node, there, taken

    cdef struct TrieCounters:
        uint64_t lookups, looked_up, hit, collisions, inserted, duplicates, evicted, evicted_hit, promoted
        uint64_t broken

    cdef struct TrieAudit:
        const char* broken
        int64_t at, nodes, ready, promised, covered, probation, protect, in_table
        AllocatorAudit pool

    cdef struct TrieNodeView:
        int32_t id, parent, block, depth
        NodeState state
        cbool protect
        uint32_t own_locks, cover
        int64_t rank
        uint64_t salt

    cdef cppclass CPrefixTrie "prelude::PrefixTrie":
        CPrefixTrie(CBlockAllocator& pool, uint64_t seed, int32_t hash_bits) except +
        int32_t num_nodes()
        int32_t num_promised()
        int32_t num_probation()
        int32_t num_protected()
        TrieCounters counters()
        TrieMatch match(const int32_t* tokens, int64_t n, uint64_t salt, int64_t max_blocks, cbool touch)
        int32_t would_hit(const int32_t* tokens, int64_t n, uint64_t salt)
        Result blocks(int32_t node, int32_t* out)
        int32_t depth(int32_t node)
        Result lock(int32_t node)
        Result unlock(int32_t node)
        Result allocate(int64_t n, int32_t* out, cbool spare_protected)
        int64_t evict(int64_t n)
        int64_t clear()
        Result insert(const int32_t* tokens, int64_t n, const int32_t* blocks, int64_t count, uint64_t salt,
                      int64_t first, cbool protect, TrieInsert* out)
        Result promise(const int32_t* tokens, int64_t n, const int32_t* blocks, int64_t count, uint64_t salt,
                       int64_t first, int32_t* out)
        Result fulfil(int32_t node, int64_t blocks)
        Result break_promise(int32_t node, int64_t* freed)
        TrieAudit audit() except +
        vector[TrieNodeView] dump() except +
        void tokens_of(int32_t index, int32_t* out)


cdef extern from "prelude/packer.hpp" namespace "prelude" nogil:
    cdef struct PromptRow:
        const int32_t* tokens
        const int32_t* positions
        int64_t num_tokens
        const int32_t* starts
        const int32_t* parents
        int64_t segments, begin, end, parent
        const int32_t* context
        int64_t context_blocks, context_len
        const int32_t* slots
        int64_t slot_blocks, slot_start, slot_count

    cdef struct PromptSizes:
        int64_t tokens, segments, context
        cbool writes
        int64_t bad_row
        const char* reason

    cdef struct PromptArrays:
        int32_t* token_ids
        int32_t* positions
        int32_t* starts
        int32_t* parents
        int32_t* context_lens
        int32_t* context_indptr
        int32_t* context_blocks
        int32_t* write_slots
        int32_t* row_offsets
        int32_t* row_segments

    cdef struct DecodeRow:
        const int32_t* tokens
        int64_t num_tokens, known
        const int32_t* shared
        const int32_t* own
        int64_t shared_blocks, own_blocks

    cdef struct DecodeArrays:
        int32_t* token_ids
        int32_t* positions
        int32_t* write_slots
        int32_t* context_lens
        int32_t* block_indptr
        int32_t* block_ids

    PromptSizes measure(const PromptRow* rows, int64_t count, int64_t block_size)
    void fill_prompt "prelude::fill"(const PromptRow* rows, int64_t count, int32_t block_size,
                                     const PromptArrays& out)
    const char* wrong_decode_row "prelude::wrong_row"(const DecodeRow& row, int64_t block_size)
    void fill_decode "prelude::fill"(const DecodeRow* rows, int64_t count, int32_t block_size,
                                     const DecodeArrays& out)


# One native call may let go of the GIL: where it expects enough work. Between the two only C++ runs, which
# touches no Python object.
cdef inline PyThreadState* _let_go(int64_t blocks) noexcept:
    return PyEval_SaveThread() if worth_releasing_gil(blocks) else NULL


cdef inline void _take_back(PyThreadState* state) noexcept:
    if state != NULL:
        PyEval_RestoreThread(state)


# --- errors ---------------------------------------------------------------------------------------------------


class NativeError(Exception):
    """Base of what this module raises on purpose. The call that raised has changed nothing."""


class OutOfBlocks(NativeError):
    """Fewer blocks are free, or can be freed, than were asked for."""

    def __init__(self, needed: int, available: int) -> None:
        super().__init__(f"{needed} blocks needed, {available} available")
        self.needed = needed
        self.available = available


class BlockError(NativeError, ValueError):
    """A block id that the caller may not use like this; ``block`` is the id."""

    def __init__(self, message: str, block: int) -> None:
        super().__init__(f"block {block}: {message}")
        self.block = block


class ForeignBlock(BlockError):
    """The id is outside the pool."""


class DoubleFree(BlockError):
    """The block is free, or was freed and handed out again since the caller saw it."""


class NodeError(NativeError, ValueError):
    """A node id that cannot be used like this; ``node`` is the id."""

    def __init__(self, message: str, node: int) -> None:
        super().__init__(f"node {node}: {message}")
        self.node = node


class StaleNode(NodeError):
    """The id names no node, or one that was evicted."""


class ConcurrentUse(NativeError, RuntimeError):
    """Two threads wrote to one pool at the same time."""


class AuditError(NativeError):
    """An invariant does not hold; ``counts`` has every number the audit counted."""

    def __init__(self, message: str, counts: dict[str, int]) -> None:
        super().__init__(f"{message}; " + ", ".join(f"{k}={v}" for k, v in counts.items()))
        self.counts = counts


cdef object _error(Result r, int64_t needed):
    cdef Status s = r.status
    if s == Status.out_of_blocks:
        return OutOfBlocks(needed, r.detail)
    if s == Status.foreign_block:
        return ForeignBlock("not in this pool", r.detail)
    if s == Status.double_free:
        return DoubleFree("is free already", r.detail)
    if s == Status.stale_block:
        return DoubleFree("was freed and handed out again since", r.detail)
    if s == Status.block_in_trie:
        return BlockError("belongs to the trie; lock its node instead", r.detail)
    if s == Status.block_shared:
        return BlockError("has more than one reference; the trie takes blocks held once", r.detail)
    if s == Status.too_few_tokens:
        return ValueError(f"the blocks given hold {r.detail} tokens, more than there are")
    if s == Status.stale_node:
        return StaleNode("does not exist (any more)", r.detail)
    if s == Status.not_locked:
        return NodeError("is not locked", r.detail)
    if s == Status.node_promised:
        return NodeError("is promised; fulfil or break the promise first", r.detail)
    if s == Status.not_promised:
        return NodeError("is not promised", r.detail)
    return NativeError(f"a counter of {r.detail} is full")


cdef int _check(Result r, int64_t needed=0) except -1:
    if r.status != Status.ok:
        raise _error(r, needed)
    return 0


# --- arrays in and out ----------------------------------------------------------------------------------------


cdef cnp.ndarray _int32(object x, str name):
    """``x`` as a contiguous int32 array: itself if it is one, else a view or a checked copy."""
    cdef cnp.ndarray a
    if cnp.PyArray_Check(x):
        a = <cnp.ndarray>x
        if (cnp.PyArray_TYPE(a) == cnp.NPY_INT32 and cnp.PyArray_NDIM(a) == 1
                and cnp.PyArray_ISCARRAY_RO(a)):
            return a
    if isinstance(x, (list, tuple)):
        return _int32_sequence(x, name)
    return _int32_slow(x, name)


cdef cnp.ndarray _int32_sequence(object x, str name):
    """A list or tuple of Python ints, checked and copied in one loop; anything else in it takes the slow way."""
    cdef Py_ssize_t i, n = PySequence_Fast_GET_SIZE(x)
    cdef PyObject** items = PySequence_Fast_ITEMS(x)
    cdef cnp.ndarray out = _new_int32(n)
    cdef int32_t* p = _data(out)
    try:
        for i in range(n):
            if not PyLong_CheckExact(<object>items[i]):
                if isinstance(<object>items[i], bool):
                    raise TypeError(f"{name}: a bool at {i} is not a number")
                return _int32_slow(np.array(x), name)
            p[i] = <int32_t><object>items[i]
    except OverflowError:
        raise ValueError(f"{name}: {x[i]} at {i} does not fit in int32") from None
    return out


def ids_below(object x, int64_t limit):
    """A new int32 array of a list or tuple of plain ints in [0, limit), or None where anything else is in it."""
    if not isinstance(x, (list, tuple)):
        return None
    cdef Py_ssize_t i, n = PySequence_Fast_GET_SIZE(x)
    cdef PyObject** items = PySequence_Fast_ITEMS(x)
    cdef cnp.ndarray out = _new_int32(n)
    cdef int32_t* p = _data(out)
    cdef int overflow = 0
    cdef long long value
    for i in range(n):
        if not PyLong_CheckExact(<object>items[i]):
            return None
        value = PyLong_AsLongLongAndOverflow(<object>items[i], &overflow)
        if overflow or value < 0 or value >= limit or value > 2147483647:
            return None
        p[i] = <int32_t>value
    return out


cdef cnp.ndarray _int32_slow(object x, str name):
    a = np.asarray(x)
    if a.ndim != 1:
        raise TypeError(f"{name}: a flat array of int32 is needed, not {a.ndim} dimensions")
    if a.dtype.kind not in "iu":
        raise TypeError(f"{name}: int32 is needed, not {a.dtype}")
    if a.dtype != np.int32:
        if a.size and (a.max() > 2147483647 or a.min() < -2147483648):
            raise ValueError(f"{name}: a value does not fit in int32")
        a = a.astype(np.int32)
    return np.ascontiguousarray(a)


cdef inline int32_t* _data(cnp.ndarray a) noexcept:
    return <int32_t*>cnp.PyArray_DATA(a)


cdef inline int64_t _len(cnp.ndarray a) noexcept:
    return cnp.PyArray_DIM(a, 0)


cdef inline cnp.ndarray _new_int32(cnp.npy_intp n):
    return <cnp.ndarray>cnp.PyArray_EMPTY(1, &n, cnp.NPY_INT32, 0)


cdef int64_t _count(int64_t n, str name) except -1:
    if n < 0:
        raise ValueError(f"{name}: {n} is negative")
    return n


cdef cnp.ndarray _indptr(object x, str name, int64_t limit):
    """Row boundaries: int32, from 0 up to ``limit``, never falling."""
    cdef cnp.ndarray a = _int32(x, name)
    cdef int32_t* p = _data(a)
    cdef int64_t i, n = _len(a)
    cdef int32_t before = 0
    if n < 1 or p[0] != 0:
        raise ValueError(f"{name}: must start with 0")
    for i in range(1, n):
        if p[i] < before:
            raise ValueError(f"{name}: falls from {before} to {p[i]} at {i}")
        before = p[i]
    if before > limit:
        raise ValueError(f"{name}: ends at {before}, past the {limit} values given")
    return a


cdef object _rows(object x, str name, int64_t rows, object dtype):
    """A per-row argument: one number for all rows, or an array of one a row."""
    if isinstance(x, (int, np.integer)):
        return np.full(rows, x, dtype)
    a = np.ascontiguousarray(x, dtype)
    if a.ndim != 1 or a.shape[0] != rows:
        raise ValueError(f"{name}: one value or {rows} are needed, not shape {a.shape}")
    return a


# --- the pool -------------------------------------------------------------------------------------------------


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
            raise ConcurrentUse("another thread is writing to this pool: only the holder of the baton may")
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
            seen = np.ascontiguousarray(generations, np.uint32)
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


# --- the trie -------------------------------------------------------------------------------------------------


@cython.final
@cython.freelist(64)
cdef class Match:
    """What the trie has of a prompt. ``node`` is -1 when it has nothing; lock it before anything evicts."""

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
    """What became of the blocks given, in order: ``duplicates``, then ``num_taken`` the trie's, then a rest.

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

    def match_batch(self, tokens, indptr, salts=0, max_blocks=-1, cbool touch=True):
        """``match`` of rows ``tokens[indptr[i]:indptr[i + 1]]``: nodes, ready and promised blocks as int32."""
        cdef cnp.ndarray t = _int32(tokens, "tokens")
        cdef cnp.ndarray ends = _indptr(indptr, "indptr", _len(t))
        cdef int64_t i, rows = _len(ends) - 1
        cdef cnp.ndarray salt_rows = _rows(salts, "salts", rows, np.uint64)
        cdef const uint64_t* salt = <const uint64_t*>cnp.PyArray_DATA(salt_rows)
        cdef cnp.ndarray most_rows = _rows(max_blocks, "max_blocks", rows, np.int32)
        cdef const int32_t* most = _data(most_rows)
        nodes, ready, promised = _new_int32(rows), _new_int32(rows), _new_int32(rows)
        cdef int32_t* out_node = _data(nodes)
        cdef int32_t* out_ready = _data(ready)
        cdef int32_t* out_promised = _data(promised)
        cdef const int32_t* p = _data(t)
        cdef const int32_t* e = _data(ends)
        cdef TrieMatch m
        self.alloc.enter()
        cdef PyThreadState* state = _let_go(e[rows] // self.alloc.c.block_size())
        for i in range(rows):
            m = self.c.match(p + e[i], e[i + 1] - e[i], salt[i], most[i], touch)
            out_node[i], out_ready[i], out_promised[i] = m.node, m.blocks, m.promised
        _take_back(state)
        self.alloc.writer.leave()
        return nodes, ready, promised

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
        """Gives the reference back; what nobody else locks is cached from here on, as the youngest."""
        self.alloc.enter()
        cdef Result r = self.c.unlock(node)
        self.alloc.writer.leave()
        _check(r)

    def lock_batch(self, nodes) -> None:
        """``lock`` of each; all or none."""
        self._lock_all(nodes, True)

    def unlock_batch(self, nodes) -> None:
        """``unlock`` of each; all or none."""
        self._lock_all(nodes, False)

    cdef int _lock_all(self, object nodes, cbool take) except -1:
        cdef cnp.ndarray a = _int32(nodes, "nodes")
        cdef const int32_t* p = _data(a)
        cdef int64_t i, n = _len(a)
        cdef Result r
        self.alloc.enter()
        for i in range(n):
            r = self.c.lock(p[i]) if take else self.c.unlock(p[i])
            if not r.ok():
                while i > 0:
                    i -= 1
                    if take:
                        self.c.unlock(p[i])
                    else:
                        self.c.lock(p[i])
                break
        self.alloc.writer.leave()
        return _check(r) if n else 0

    def blocks(self, int32_t node):
        """The blocks from the root to ``node``."""
        cdef int32_t n = self.c.depth(node)
        if n < 0:
            raise StaleNode("does not exist (any more)", node)
        cdef cnp.ndarray out = _new_int32(n)
        _check(self.c.blocks(node, _data(out)))
        return out

    def blocks_batch(self, nodes):
        """``blocks`` of each, end to end, with their row boundaries: (blocks, indptr)."""
        cdef cnp.ndarray a = _int32(nodes, "nodes")
        cdef const int32_t* p = _data(a)
        cdef int64_t i, n = _len(a)
        cdef cnp.ndarray ends = _new_int32(n + 1)
        cdef int32_t* e = _data(ends)
        cdef int32_t d
        cdef int64_t total = 0
        e[0] = 0
        for i in range(n):
            d = self.c.depth(p[i])
            if d < 0:
                raise StaleNode("does not exist (any more)", p[i])
            total += d
            if total > 2147483647:
                raise ValueError("nodes: more blocks on their paths than int32 can count")
            e[i + 1] = <int32_t>total
        cdef cnp.ndarray out = _new_int32(total)
        for i in range(n):
            self.c.blocks(p[i], _data(out) + e[i])
        return out, ends

    def allocate(self, int64_t n, cbool spare_protected=False):
        """``n`` blocks, evicting the coldest unlocked leaves where the free list is short.

        ``OutOfBlocks``, and nothing changed, when free and evictable blocks are fewer than ``n``.
        ``spare_protected``: evict only what was never hit.
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
        """Frees every block that nobody locks; how many it were."""
        return self.evict(self.alloc.c.num_blocks())

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

    def insert_batch(self, tokens, indptr, blocks, block_indptr, salts=0, first_blocks=0, promoted=0):
        """``insert`` of many rows: (nodes, duplicates, num_taken), the last two as numbers of blocks.

        An error names its row in ``row``; the rows before it are in, it and those after it are not.
        """
        cdef cnp.ndarray t = _int32(tokens, "tokens")
        cdef cnp.ndarray b = _int32(blocks, "blocks")
        cdef cnp.ndarray tends = _indptr(indptr, "indptr", _len(t))
        cdef cnp.ndarray bends = _indptr(block_indptr, "block_indptr", _len(b))
        cdef int64_t i, rows = _len(tends) - 1
        if _len(bends) != rows + 1:
            raise ValueError("block_indptr: as many rows as indptr are needed")
        cdef cnp.ndarray salt_rows = _rows(salts, "salts", rows, np.uint64)
        cdef const uint64_t* salt = <const uint64_t*>cnp.PyArray_DATA(salt_rows)
        cdef cnp.ndarray first_rows = _rows(first_blocks, "first_blocks", rows, np.int32)
        cdef const int32_t* first = _data(first_rows)
        cdef cnp.ndarray protect_rows = _rows(promoted, "promoted", rows, np.int32)
        cdef const int32_t* protect = _data(protect_rows)
        for i in range(rows):
            _count(first[i], "first_blocks")
        nodes, there, taken = _new_int32(rows), _new_int32(rows), _new_int32(rows)
        cdef int32_t* out_node = _data(nodes)
        cdef int32_t* out_there = _data(there)
        cdef int32_t* out_taken = _data(taken)
        cdef const int32_t* tp = _data(t)
        cdef const int32_t* bp = _data(b)
        cdef const int32_t* te = _data(tends)
        cdef const int32_t* be = _data(bends)
        cdef TrieInsert made
        cdef Result r
        made.node, made.there, made.taken = -1, 0, 0
        self.alloc.enter()
        cdef PyThreadState* state = _let_go(te[rows] // self.alloc.c.block_size())
        for i in range(rows):
            r = self.c.insert(tp + te[i], te[i + 1] - te[i], bp + be[i], be[i + 1] - be[i], salt[i],
                              first[i], protect[i] != 0, &made)
            if not r.ok():
                break
            out_node[i], out_there[i], out_taken[i] = made.node, made.there, made.taken
        _take_back(state)
        self.alloc.writer.leave()
        if rows and not r.ok():
            error = _error(r, 0)
            error.row = i
            raise error
        return nodes, there, taken

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


cdef object _NONE = np.empty(0, np.int32)
_NONE.setflags(write=False)


def block_hashes(tokens, int32_t block_size=16, uint64_t salt=0, key: bytes | None = None):
    """The chained 64-bit hash of each full block. ``key``: 16 secret bytes for SipHash-2-4, else a plain mix.

    The plain hash is a filter: whoever uses it compares tokens. The keyed one can name a block elsewhere.
    """
    if block_size < 1:
        raise ValueError(f"block_size: {block_size} is less than 1")
    cdef cnp.ndarray t = _int32(tokens, "tokens")
    cdef int64_t n = _len(t)
    cdef const int32_t* p = _data(t)
    out = np.empty(n // block_size, np.uint64)
    cdef uint64_t* o = <uint64_t*>cnp.PyArray_DATA(<cnp.ndarray>out)
    cdef SipHash* sip = NULL
    if key is not None:
        if len(key) != 16:
            raise ValueError(f"key: 16 bytes are needed, not {len(key)}")
        sip = new SipHash(int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little"))
    cdef PyThreadState* state = _let_go(n // block_size)
    c_block_hashes(p, n, block_size, salt, sip, o)
    _take_back(state)
    del sip
    return out


# --- packing --------------------------------------------------------------------------------------------------


cdef class _Borrowed:
    """Arrays that a call reads through pointers: kept alive, and made contiguous where they were not."""

    cdef list kept

    def __cinit__(self):
        self.kept = []

    cdef const int32_t* take(self, object x, str name, int64_t* n) except? NULL:
        cdef cnp.ndarray a
        if x is None:
            n[0] = 0
            return NULL
        a = _int32(x, name)
        if a is not x:
            self.kept.append(a)
        n[0] = _len(a)
        return _data(a)


cdef cnp.ndarray _room(object out, Py_ssize_t index, int64_t size, str name):
    """A new array of ``size``, or the caller's buffer of that place, cut to it."""
    if out is None:
        return _new_int32(size)
    cdef cnp.ndarray a = out[index]
    if (cnp.PyArray_TYPE(a) != cnp.NPY_INT32 or cnp.PyArray_NDIM(a) != 1 or not cnp.PyArray_ISCARRAY(a)
            or _len(a) < size):
        raise ValueError(f"out: {name} needs a writable, contiguous int32 array of at least {size}")
    return a[:size]


def pack_prompt(rows, int32_t block_size, out=None):
    """Lays the rows of a step end to end: (token_ids, positions, starts, parents, context_lens, context_indptr,
    context_blocks, write_slots or None, row_offsets, row_segments), all int32.

    A row is a tuple

        (token_ids, positions, starts, parents, begin, end, parent, context, context_len,
         slot_blocks, slot_start, slot_count)

    ``positions`` None: a token's index. ``starts`` and ``parents`` None: one segment of tokens ``begin`` to
    ``end``; else a tree of segments, of whose trunk the first ``begin`` tokens are left out (``end`` is not
    read). ``parent``: the earlier row whose first segment this row continues, or -1. ``context``: pool blocks
    of the ``context_len`` tokens before, or None. The first ``slot_count`` tokens are written to
    ``slot_blocks``, from their position ``slot_start`` on.

    ``row_offsets`` and ``row_segments`` say where each row begins. ``out``: ten buffers in this order to fill
    instead of new arrays (``write_slots`` too, whether it is needed or not); views of them are returned.
    """
    if block_size < 1:
        raise ValueError(f"block_size: {block_size} is less than 1")
    cdef list given = rows if type(rows) is list else list(rows)
    cdef int64_t i, n, count = len(given)
    cdef vector[PromptRow] packed
    packed.resize(count)
    cdef PromptRow* r
    cdef _Borrowed borrowed = _Borrowed()
    cdef tuple row
    for i in range(count):
        row = given[i]
        if len(row) != 12:
            raise ValueError(f"row {i}: 12 fields are needed, not {len(row)}")
        r = &packed[i]
        r.tokens = borrowed.take(row[0], "token_ids", &r.num_tokens)
        r.positions = borrowed.take(row[1], "positions", &n)
        if r.positions != NULL and n != r.num_tokens:
            raise ValueError(f"row {i}: {n} positions for {r.num_tokens} tokens")
        r.starts = borrowed.take(row[2], "starts", &n)
        r.segments = n - 1 if r.starts != NULL else 1
        r.parents = borrowed.take(row[3], "parents", &n)
        if r.starts != NULL and (r.parents == NULL or n != r.segments):
            raise ValueError(f"row {i}: one parent a segment is needed")
        r.begin, r.end, r.parent = row[4], row[5], row[6]
        r.context = borrowed.take(row[7], "context", &r.context_blocks)
        r.context_len = row[8]
        r.slots = borrowed.take(row[9], "slot_blocks", &r.slot_blocks)
        r.slot_start, r.slot_count = row[10], row[11]
    cdef PromptSizes sizes = measure(packed.data(), count, block_size)
    if sizes.reason != NULL:
        raise ValueError(f"row {sizes.bad_row}: {sizes.reason.decode()}")

    cdef PromptArrays a
    token_ids = _room(out, 0, sizes.tokens, "token_ids")
    positions = _room(out, 1, sizes.tokens, "positions")
    starts = _room(out, 2, sizes.segments + 1, "starts")
    parents = _room(out, 3, sizes.segments, "parents")
    context_lens = _room(out, 4, sizes.segments, "context_lens")
    context_indptr = _room(out, 5, sizes.segments + 1, "context_indptr")
    context_blocks = _room(out, 6, sizes.context, "context_blocks")
    write_slots = _room(out, 7, sizes.tokens, "write_slots") if sizes.writes else None
    row_offsets = _room(out, 8, count, "row_offsets")
    row_segments = _room(out, 9, count, "row_segments")
    a.token_ids, a.positions, a.starts, a.parents = _data(token_ids), _data(positions), _data(starts), _data(parents)
    a.context_lens, a.context_indptr = _data(context_lens), _data(context_indptr)
    a.context_blocks = _data(context_blocks)
    a.write_slots = _data(write_slots) if sizes.writes else NULL
    a.row_offsets, a.row_segments = _data(row_offsets), _data(row_segments)
    cdef PyThreadState* state = _let_go(sizes.tokens // 64)
    fill_prompt(packed.data(), count, block_size, a)
    _take_back(state)
    return (token_ids, positions, starts, parents, context_lens, context_indptr, context_blocks, write_slots,
            row_offsets, row_segments)


def pack_decode(rows, int32_t block_size, out=None):
    """One token of each running row: (token_ids, positions, write_slots, context_lens, block_indptr, block_ids).

    A row is a tuple ``(tokens, num_known, shared_blocks, own_blocks)``: the last of ``num_known`` tokens is fed,
    and the two lists of blocks, end to end, are its block table. ``out``: six buffers to fill instead.
    """
    if block_size < 1:
        raise ValueError(f"block_size: {block_size} is less than 1")
    cdef list given = rows if type(rows) is list else list(rows)
    cdef int64_t i, count = len(given), blocks = 0
    cdef vector[DecodeRow] packed
    packed.resize(count)
    cdef DecodeRow* r
    cdef _Borrowed borrowed = _Borrowed()
    cdef tuple row
    cdef const char* wrong
    for i in range(count):
        row = given[i]
        if len(row) != 4:
            raise ValueError(f"row {i}: 4 fields are needed, not {len(row)}")
        r = &packed[i]
        r.tokens = borrowed.take(row[0], "tokens", &r.num_tokens)
        r.known = row[1]
        r.shared = borrowed.take(row[2], "shared_blocks", &r.shared_blocks)
        r.own = borrowed.take(row[3], "own_blocks", &r.own_blocks)
        wrong = wrong_decode_row(r[0], block_size)
        if wrong != NULL:
            raise ValueError(f"row {i}: {wrong.decode()}")
        blocks += r.shared_blocks + r.own_blocks
    if blocks > 2147483647:
        raise ValueError("more blocks in one step than int32 can count")
    cdef DecodeArrays a
    token_ids, positions = _room(out, 0, count, "token_ids"), _room(out, 1, count, "positions")
    write_slots, context_lens = _room(out, 2, count, "write_slots"), _room(out, 3, count, "context_lens")
    block_indptr, block_ids = _room(out, 4, count + 1, "block_indptr"), _room(out, 5, blocks, "block_ids")
    a.token_ids, a.positions, a.write_slots = _data(token_ids), _data(positions), _data(write_slots)
    a.context_lens, a.block_indptr, a.block_ids = _data(context_lens), _data(block_indptr), _data(block_ids)
    fill_decode(packed.data(), count, block_size, a)
    return token_ids, positions, write_slots, context_lens, block_indptr, block_ids
