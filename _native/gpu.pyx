# distutils: language = c++
"""Thin wrappers of the CUDA executor's host path: a step's arrays, and the driver's calls of a replayed step.

``include/prelude/gpu/step.hpp`` holds the definitions. Areas are given as addresses: ``prelude/cuda/lane.py`` and
``driver.py`` make them and are the only callers. One thread at a time uses a ``StepPacker``.
"""

from __future__ import annotations

cimport ndarray as cnp
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memcpy
from libcpp cimport bool as cbool
from libcpp.vector cimport vector

import numpy as np

cnp.import_ndarray()

cdef extern from "prelude/gpu/step.hpp" namespace "prelude::gpu" nogil:
    cdef cppclass Prompts:
        const int32_t *ids, *positions, *starts, *parents, *contexts, *context_indptr, *context_blocks, *slots
        int64_t tokens, segments, held

    cdef cppclass Decoding:
        const int32_t *ids, *positions, *slots, *contexts, *indptr, *blocks
        int64_t rows, held

    cdef cppclass Reads:
        const int32_t* rows
        int64_t count
        cbool of_decoding

    cdef cppclass Limits:
        int32_t block_size, vocab, positions, blocks, pending
        int64_t rows
        int32_t seen_whole, long_query, split_keys, whole_rows, whole_tiles, group
        cbool by_keys

    cdef cppclass Counts:
        int32_t prompts, own, longest, read_prompts, decoding, pages, read_decoding, keys, spare
        cbool cut, long_query, split
        int64_t attended

    cdef cppclass Level:
        vector[int32_t] pages
        int32_t page_size
        cbool pool, split
        int32_t requests()

    cdef cppclass LevelPlaces:
        int64_t qo, indptr, last, pages, last_qo
        int32_t requests, entries

    cdef cppclass CPlaces "prelude::gpu::Places":
        int64_t ids, positions, slots, read, read_positions, qo, kv, last_qo, indptr, last, pages, lengths, lengths_end
        int64_t keys, first, count, read_first, read_count
        int32_t prompts, own, decoding, entries, read_prompts, read_decoding, scratch_block, listed
        vector[LevelPlaces] more

    cdef cppclass Step:
        void measure(const Prompts*, const Decoding*, const vector[Reads]&, const Limits&) except +
        int64_t attended(int64_t)
        const Counts& counts()
        int32_t level_count()
        const Level& level(int32_t)
        int64_t asked()
        cbool fits(const CPlaces&)
        void fill(const CPlaces&, char*)
        void indices(const CPlaces&, int32_t*, int64_t, int64_t)

    int32_t c_power_bucket "prelude::gpu::power_bucket"(int32_t, int32_t)
    int32_t c_token_bucket "prelude::gpu::token_bucket"(int32_t)

ctypedef int (*query_t)(void*) noexcept nogil

cdef extern from "prelude/gpu/wait.hpp" namespace "prelude::gpu" nogil:
    int64_t c_await_word "prelude::gpu::await_word"(const uint32_t*, uint32_t, query_t, void*, int64_t)
    cbool c_reached "prelude::gpu::reached"(const uint32_t*, uint32_t)

ctypedef int (*set_current_t)(void*) noexcept nogil
ctypedef int (*copy_t)(uintptr_t, uintptr_t, size_t, void*) noexcept nogil
ctypedef int (*launch_t)(void*, void*) noexcept nogil


cdef inline const int32_t* _ints(object x, Py_ssize_t* n) noexcept:
    """The values of a flat array in C order, and their count; NULL for anything else."""
    cdef cnp.ndarray a
    if not cnp.PyArray_Check(x):
        return NULL
    a = <cnp.ndarray>x
    if cnp.PyArray_TYPE(a) != cnp.NPY_INT32 or cnp.PyArray_NDIM(a) != 1 or not cnp.PyArray_ISCARRAY_RO(a):
        return NULL
    n[0] = cnp.PyArray_DIM(a, 0)
    return <const int32_t*>cnp.PyArray_DATA(a)


cdef const int32_t* _taken(object x, Py_ssize_t* n, list kept) except NULL:
    """The values of a flat array, and their count; of another type or layout those of a copy, which is added to
    ``kept``. Anything else is an error."""
    cdef const int32_t* found = _ints(x, n)
    if found == NULL:
        kept.append(np.ascontiguousarray(x, dtype=np.int32))
        found = _ints(kept[-1], n)
        if found == NULL:
            raise ValueError("an array of a step is not flat")
    else:
        kept.append(x)
    return found


cdef class Places:
    """Where a recorded shape's arrays lie in an area, in bytes; -1 for an array that it has not. ``levels``: requests
    and entries of each level behind the own one."""

    cdef CPlaces at

    def __init__(self, dict offsets not None, dict sizes not None, tuple lengths not None, tuple levels not None):
        cdef CPlaces* at = &self.at
        cdef LevelPlaces level
        at.ids, at.positions, at.slots = offsets["ids"], offsets["positions"], offsets["slots"]
        at.read, at.read_positions = offsets["read"], offsets["read_positions"]
        at.qo, at.kv = offsets.get("own.qo", -1), offsets.get("own.kv", -1)
        at.last_qo = offsets.get("own.last.qo", -1)
        at.indptr, at.last = offsets.get("decode.indptr", -1), offsets.get("decode.last", -1)
        at.pages = offsets.get("decode.pages", -1)
        at.keys, at.first, at.count = offsets.get("keys", -1), offsets.get("first", -1), offsets.get("count", -1)
        at.read_first, at.read_count = offsets.get("read_first", -1), offsets.get("read_count", -1)
        at.lengths, at.lengths_end = lengths
        at.listed = sizes["keys"]
        at.prompts, at.own, at.decoding = sizes["prompts"], sizes["own"], sizes["decoding"]
        at.entries, at.scratch_block = sizes["entries"], sizes["scratch_block"]
        at.read_prompts, at.read_decoding = sizes["read_prompts"], sizes["read_decoding"]
        for i, (requests, entries) in enumerate(levels):
            level.qo, level.indptr = offsets[f"{i}.qo"], offsets[f"{i}.indptr"]
            level.last, level.pages = offsets[f"{i}.last"], offsets[f"{i}.pages"]
            level.last_qo = offsets.get(f"{i}.last.qo", -1)
            level.requests, level.entries = requests, entries
            at.more.push_back(level)


cdef class StepPacker:
    """Measures steps, and fills areas with the one that was measured last, whose arrays it keeps alive."""

    cdef Limits limits
    cdef Prompts prompts
    cdef Decoding decoding
    cdef vector[Reads] reads
    cdef Step step
    cdef tuple held

    def __init__(self, dict limits not None):
        cdef Limits* to = &self.limits
        to.block_size, to.vocab, to.positions = limits["block_size"], limits["vocab"], limits["positions"]
        to.rows, to.seen_whole = limits["rows"], limits["seen_whole"]
        to.long_query, to.split_keys = limits["long_query"], limits["split_keys"]
        to.whole_rows, to.whole_tiles, to.group = limits["whole_rows"], limits["whole_tiles"], limits["group"]
        to.by_keys = limits["by_keys"]
        if to.block_size < 1 or to.group < 1:
            to.block_size = 0
            raise ValueError("block_size and group are at least 1")
        self.held = ()

    def measure(self, slices, decode, tuple reads not None, int32_t blocks, int32_t pending):
        """The recorded shape of a step of prompts (``slices``) and decode rows (``decode``), either of which may be
        None: ``(prompts, own, levels, decoding, entries, read_prompts, read_decoding, cut, keys, long_query, split)``,
        a level being ``(requests, entries, page_size, pool, split)``. ``reads``: for each readout ``(rows,
        whether they are decode rows)``. ``blocks`` of the pool; ``pending``: tokens that a decode row may name.
        ``ValueError`` for a step that is not sound."""
        cdef Reads part
        cdef Py_ssize_t count = 0
        cdef const Prompts* prompts = NULL
        cdef const Decoding* decoding = NULL
        cdef list kept = [slices, decode]
        if self.limits.block_size < 1:
            raise ValueError("a StepPacker without its limits")
        self.held = ()  # the pointers below are of other arrays from here on
        self.limits.blocks, self.limits.pending = blocks, pending
        self.reads.clear()
        for rows, late in reads:
            part.rows = _taken(rows, &count, kept)
            part.count, part.of_decoding = count, bool(late)
            self.reads.push_back(part)
        if slices is not None:
            self._take_prompts(slices, kept)
            prompts = &self.prompts
        if decode is not None:
            self._take_decoding(decode, kept)
            decoding = &self.decoding
        self.step.measure(prompts, decoding, self.reads, self.limits)
        self.held = tuple(kept)
        return self._shape(True)

    def exact(self):
        """The shape of the step that was measured, without room for more."""
        if not self.held:
            raise ValueError("no step has been measured")
        return self._shape(False)

    cdef int _take_prompts(self, slices, list kept) except -1:
        cdef Py_ssize_t tokens = 0, same = 0, starts = 0, segments = 0, contexts = 0, edges = 0, held = 0
        cdef Prompts* p = &self.prompts
        p.ids = _taken(slices.token_ids, &tokens, kept)
        p.positions = _taken(slices.positions, &same, kept)
        p.starts = _taken(slices.starts, &starts, kept)
        p.parents = _taken(slices.parents, &segments, kept)
        p.contexts = _taken(slices.context_lens, &contexts, kept)
        p.context_indptr = _taken(slices.context_indptr, &edges, kept)
        p.context_blocks = _taken(slices.context_blocks, &held, kept)
        if (same != tokens or starts != segments + 1 or contexts != segments or edges != segments + 1
                or tokens > INT32_MAX or segments > INT32_MAX):
            raise ValueError("the arrays of the prompts differ in length")
        p.tokens, p.segments, p.held = tokens, segments, held
        p.slots = NULL
        if slices.write_slots is not None:
            p.slots = _taken(slices.write_slots, &same, kept)
            if same != tokens:
                raise ValueError(f"{same} slots are not those of {tokens} tokens")
        return 0

    cdef int _take_decoding(self, decode, list kept) except -1:
        cdef Py_ssize_t rows = 0, a = 0, b = 0, c = 0, ends = 0, held = 0
        cdef Decoding* d = &self.decoding
        d.ids = _taken(decode.token_ids, &rows, kept)
        d.positions = _taken(decode.positions, &a, kept)
        d.slots = _taken(decode.write_slots, &b, kept)
        d.contexts = _taken(decode.context_lens, &c, kept)
        d.indptr = _taken(decode.block_indptr, &ends, kept)
        d.blocks = _taken(decode.block_ids, &held, kept)
        d.rows, d.held = rows, held
        if rows > 0 and (a != rows or b != rows or c != rows or ends != rows + 1 or rows > INT32_MAX):
            raise ValueError("the arrays of the decode rows differ in length")
        return 0

    cdef tuple _shape(self, bint recorded):
        """``recorded``: sizes rounded up. FlashInfer wants no more requests than rows, so a cut last layer has at
        least as many rows as any level has requests."""
        cdef const Counts* n = &self.step.counts()
        cdef const Level* level
        cdef int32_t i, prompts = n.prompts, own = n.own, reads = n.read_prompts, requests, entries = n.pages
        cdef int32_t decoding = n.decoding, late = n.read_decoding, keys = n.keys, pages
        cdef bint listed = n.keys > 0
        cdef list levels = []
        if listed:
            own = entries = 0
        if recorded:
            prompts, decoding = c_token_bucket(prompts), c_power_bucket(decoding, 1)
            own, reads, late = min(c_power_bucket(own, 1), prompts), c_power_bucket(reads, 1), c_power_bucket(late, 1)
            entries = c_power_bucket(entries + n.spare, 64) if entries else 0
            keys = c_power_bucket(keys + 1, 256) if listed else 0
            if n.cut:
                reads = max(reads, own)
        for i in range(0 if listed else self.step.level_count()):
            level = &self.step.level(i)
            requests, pages = level.requests(), <int32_t>level.pages.size()
            if recorded:
                requests, pages = min(c_power_bucket(requests, 1), prompts), c_power_bucket(pages, 64)
                if n.cut:
                    reads = max(reads, requests)
            levels.append((requests, pages, level.page_size, level.pool, level.split))
        return (prompts, own, tuple(levels) if levels else (), decoding, entries, reads, late, n.cut, keys,
                n.long_query, n.split)

    @property
    def attended(self):
        return self.step.counts().attended

    def attended_within(self, int64_t span):
        """(query, key) pairs of one head whose rows see at most ``span`` keys."""
        return self.step.attended(span) if self.held else 0

    def fill(self, Places places not None, uintptr_t area):
        """The arrays of the step into the area of a shape that ``measure`` named."""
        if not self.held:
            raise ValueError("no step has been measured")
        if not self.step.fits(places.at):
            raise ValueError("the places are of a shape that has no room for this step")
        self.step.fill(places.at, <char*>area)

    def indices(self, Places places not None, Py_ssize_t first, Py_ssize_t count):
        """Of ``count`` of the rows that ``measure`` was given, from the ``first`` on: their indices among the rows
        that are read."""
        cdef cnp.npy_intp shape = count
        cdef cnp.ndarray out
        if not self.held or first < 0 or count < 0 or first > self.step.asked() - count:
            raise ValueError(f"{count} rows from {first} on are not rows of a step with {self.step.asked()}")
        out = cnp.new_array(1, &shape, cnp.NPY_INT32)
        self.step.indices(places.at, <int32_t*>cnp.PyArray_DATA(out), first, count)
        return out

    def fill_ticket(self, uintptr_t area, uint32_t number, int32_t index):
        """The step's number and the index of its output area, which stand in front of its arrays."""
        (<uint32_t*>area)[0] = number
        (<int32_t*>area)[1] = index

    def forget(self):
        """Lets go of the step's arrays."""
        self.held = ()


def power_bucket(int32_t count, int32_t least=1):
    """The least power of two that holds ``count``, at least ``least``; 0 for none."""
    return c_power_bucket(min(count, 1 << 30), least)


def token_bucket(int32_t count):
    """The least bucket that holds ``count`` tokens; 0 for none."""
    return c_token_bucket(min(count, 1 << 30))


cdef cnp.ndarray _copied(uintptr_t address, Py_ssize_t count, int kind, Py_ssize_t itemsize):
    cdef cnp.npy_intp shape = count
    cdef cnp.ndarray out
    if count < 0:
        raise ValueError(f"count: {count} is less than 0")
    out = cnp.new_array(1, &shape, kind)
    memcpy(cnp.PyArray_DATA(out), <const void*>address, count * itemsize)
    return out


def copied_i32(uintptr_t address, Py_ssize_t count):
    """A new array of the int32 values that lie at ``address``."""
    return _copied(address, count, cnp.NPY_INT32, 4)


def copied_f64(uintptr_t address, Py_ssize_t count):
    """A new array of the float64 values that lie at ``address``."""
    return _copied(address, count, cnp.NPY_FLOAT64, 8)


def clock_at(uintptr_t address):
    """The uint64 at ``address``."""
    return (<const uint64_t*>address)[0]


def reached(uintptr_t word, uint32_t number):
    """Whether the word has come to ``number``; both wrap around."""
    return c_reached(<const uint32_t*>word, number)


cdef class DriverCalls:
    """The driver's entry points of a replayed step, by address. Codes are the driver's; 0 is success."""

    cdef set_current_t set_current
    cdef copy_t copy
    cdef launch_t launch
    cdef query_t query
    cdef void* context

    def __init__(self, uintptr_t context, uintptr_t set_current, uintptr_t copy, uintptr_t launch, uintptr_t query):
        if not (set_current and copy and launch and query):
            raise ValueError("an address of 0 is no entry point")
        self.context = <void*>context
        self.set_current, self.copy = <set_current_t>set_current, <copy_t>copy
        self.launch, self.query = <launch_t>launch, <query_t>query

    def replay(self, uintptr_t target, uintptr_t source, size_t nbytes, uintptr_t executable, uintptr_t stream):
        """One copy in, then the graph. The GIL is kept: both calls only enqueue, and another thread that took it
        would hold it for longer than they last."""
        cdef int code = self.set_current(self.context)
        if code == 0:
            code = self.copy(target, source, nbytes, <void*>stream)
        if code == 0:
            code = self.launch(<void*>executable, <void*>stream)
        return code

    def wait(self, uintptr_t word, uint32_t number, uintptr_t stream, int64_t spin_ns):
        """Until the word has come to ``number``: 0. Without the GIL. A driver's code where the stream failed, -1 where
        it ended without the word. ``spin_ns``: how long to look again at once; later, between short sleeps."""
        cdef int64_t code = 0
        if c_reached(<const uint32_t*>word, number):
            return 0
        with nogil:
            code = self.set_current(self.context)
            if code == 0:
                code = c_await_word(<const uint32_t*>word, number, self.query, <void*>stream, spin_ns)
        return code
