# distutils: language = c++
"""Thin wrappers of the CUDA executor's host path: a plain step's arrays, and the driver's calls of a replayed step.

``include/prelude/gpu/step.hpp`` holds the definitions. Areas are given as addresses: ``prelude/cuda/lane.py`` and
``driver.py`` make them and are the only callers. One thread at a time uses a ``StepPacker``.
"""

from __future__ import annotations

cimport ndarray as cnp
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memcpy
from libcpp cimport bool as cbool

import numpy as np

cnp.import_ndarray()

cdef int _FLOAT32 = np.dtype(np.float32).num
cdef int _UINT64 = np.dtype(np.uint64).num

cdef extern from "prelude/gpu/step.hpp" namespace "prelude::gpu" nogil:
    cdef cppclass Prompts:
        const int32_t *ids, *positions, *starts, *parents, *contexts, *slots
        int64_t tokens, segments

    cdef cppclass Decoding:
        const int32_t *ids, *positions, *slots, *contexts, *indptr, *blocks
        int64_t rows, held

    cdef cppclass Limits:
        int32_t block_size, vocab, positions, blocks, pending
        int64_t rows
        int32_t long_query, split_keys, whole_rows
        cbool cut

    cdef cppclass Counts:
        int32_t prompts, own, longest, read_prompts, decoding, pages, read_decoding, spare
        cbool cut, long_query, split
        int64_t attended

    cdef cppclass CPlaces "prelude::gpu::Places":
        int64_t ids, positions, slots, read, read_positions, qo, kv, last_qo, indptr, last, pages, lengths, lengths_end
        int32_t prompts, own, decoding, entries, read_prompts, read_decoding, scratch_block

    int32_t power_bucket(int32_t, int32_t)
    int32_t c_token_bucket "prelude::gpu::token_bucket"(int32_t)
    cbool measure_prompts(const Prompts&, const int32_t*, int64_t, const Limits&, Counts&)
    cbool measure_decoding(const Decoding&, const int32_t*, int64_t, const Limits&, Counts&)
    void fill_prompts(const Prompts&, const int32_t*, int64_t, const CPlaces&, char*)
    void fill_decoding(const Decoding&, const int32_t*, int64_t, int32_t, const CPlaces&, char*)
    double uniform(uint64_t, int32_t)
    bint ascending(const int32_t*, int64_t, int32_t)

cdef extern from "prelude/gpu/step.hpp" namespace "prelude::gpu::detail" nogil:
    void put[T](char*, int64_t, const T*, int64_t, int64_t, T)

ctypedef int (*query_t)(void*) noexcept nogil

cdef extern from "prelude/gpu/wait.hpp" namespace "prelude::gpu" nogil:
    int64_t c_await_word "prelude::gpu::await_word"(const uint32_t*, uint32_t, query_t, void*, int64_t)
    cbool c_reached "prelude::gpu::reached"(const uint32_t*, uint32_t)

ctypedef int (*set_current_t)(void*) noexcept nogil
ctypedef int (*copy_t)(uintptr_t, uintptr_t, size_t, void*) noexcept nogil
ctypedef int (*launch_t)(void*, void*) noexcept nogil


cdef inline const void* _flat(object x, int number, Py_ssize_t* n) noexcept:
    """The values of a flat array in C order, and their count; NULL for anything else. ``number``: numpy's, of the
    type."""
    cdef cnp.ndarray a
    if not cnp.PyArray_Check(x):
        return NULL
    a = <cnp.ndarray>x
    if cnp.PyArray_TYPE(a) != number or cnp.PyArray_NDIM(a) != 1 or not cnp.PyArray_ISCARRAY_RO(a):
        return NULL
    n[0] = cnp.PyArray_DIM(a, 0)
    return cnp.PyArray_DATA(a)


cdef inline const int32_t* _ints(object x, Py_ssize_t* n) noexcept:
    return <const int32_t*>_flat(x, cnp.NPY_INT32, n)


cdef inline const void* _values(object x, Py_ssize_t count, int number) noexcept:
    """As ``_flat``; NULL also for another count."""
    cdef Py_ssize_t n = 0
    cdef const void* found = _flat(x, number, &n)
    if n != count:
        return NULL
    return found


cdef class Places:
    """Where a recorded shape's arrays lie in an area, in bytes; -1 for an array that it has not."""

    cdef CPlaces at

    def __init__(self, dict offsets not None, dict sizes not None, tuple lengths not None):
        cdef CPlaces* at = &self.at
        at.ids, at.positions, at.slots = offsets["ids"], offsets["positions"], offsets["slots"]
        at.read, at.read_positions = offsets["read"], offsets["read_positions"]
        at.qo, at.kv = offsets.get("own.qo", -1), offsets.get("own.kv", -1)
        at.last_qo = offsets.get("own.last.qo", -1)
        at.indptr, at.last = offsets.get("decode.indptr", -1), offsets.get("decode.last", -1)
        at.pages = offsets.get("decode.pages", -1)
        at.lengths, at.lengths_end = lengths
        at.prompts, at.own, at.decoding = sizes["prompts"], sizes["own"], sizes["decoding"]
        at.entries, at.scratch_block = sizes["entries"], sizes["scratch_block"]
        at.read_prompts, at.read_decoding = sizes["read_prompts"], sizes["read_decoding"]


cdef class StepPacker:
    """Measures plain steps, and fills areas with the one that was measured last, whose arrays it keeps alive."""

    cdef Limits limits
    cdef Prompts prompts
    cdef Decoding decoding
    cdef Counts counts
    cdef const int32_t* rows
    cdef Py_ssize_t reads
    cdef tuple held
    cdef bint of_prompts

    def __init__(self, int32_t block_size, int32_t vocab, int32_t positions, int64_t rows, bint cut,
                 int32_t long_query, int32_t split_keys, int32_t whole_rows):
        cdef Limits* to = &self.limits
        if block_size < 1:
            raise ValueError(f"block_size: {block_size} is less than 1")
        to.block_size, to.vocab, to.positions, to.rows, to.cut = block_size, vocab, positions, rows, cut
        to.long_query, to.split_keys, to.whole_rows = long_query, split_keys, whole_rows
        self.held = ()

    def measure(self, slices, decode, rows, int32_t blocks, int32_t pending):
        """The shape of a step of prompts (``slices``) or decode rows (``decode``), of which ``rows`` are read:
        ``(prompts, own, decoding, entries, read_prompts, read_decoding, cut, long_query, split)``; None for a step that
        is not plain. ``blocks`` of the pool; ``pending``: tokens that a row may name."""
        cdef cbool plain
        self.held = ()  # the pointers below are of other arrays from here on
        self.limits.blocks, self.limits.pending = blocks, pending
        self.rows = _ints(rows, &self.reads)
        if self.rows == NULL:
            return None
        self.of_prompts = slices is not None
        if self.of_prompts:
            if not self._take_prompts(slices):
                return None
            plain = measure_prompts(self.prompts, self.rows, self.reads, self.limits, self.counts)
        else:
            if not self._take_decoding(decode):
                return None
            plain = measure_decoding(self.decoding, self.rows, self.reads, self.limits, self.counts)
        if not plain:
            return None
        self.held = (slices, decode, rows)
        return self._shape()

    cdef bint _take_prompts(self, slices) except -1:
        cdef Py_ssize_t tokens = 0, same = 0, starts = 0, segments = 0, contexts = 0
        cdef Prompts* p = &self.prompts
        p.ids = _ints(slices.token_ids, &tokens)
        p.positions = _ints(slices.positions, &same)
        p.starts = _ints(slices.starts, &starts)
        p.parents = _ints(slices.parents, &segments)
        p.contexts = _ints(slices.context_lens, &contexts)
        if p.ids == NULL or p.positions == NULL or p.starts == NULL or p.parents == NULL or p.contexts == NULL:
            return False
        if same != tokens or starts != segments + 1 or contexts != segments or tokens > INT32_MAX:
            return False
        p.tokens, p.segments = tokens, segments
        p.slots = NULL
        slots = slices.write_slots
        if slots is not None:
            p.slots = _ints(slots, &same)
            return p.slots != NULL and same == tokens
        return True

    cdef bint _take_decoding(self, decode) except -1:
        cdef Py_ssize_t rows = 0, a = 0, b = 0, c = 0, ends = 0, held = 0
        cdef Decoding* d = &self.decoding
        d.ids = _ints(decode.token_ids, &rows)
        d.positions = _ints(decode.positions, &a)
        d.slots = _ints(decode.write_slots, &b)
        d.contexts = _ints(decode.context_lens, &c)
        d.indptr = _ints(decode.block_indptr, &ends)
        d.blocks = _ints(decode.block_ids, &held)
        if (d.ids == NULL or d.positions == NULL or d.slots == NULL or d.contexts == NULL or d.indptr == NULL
                or d.blocks == NULL):
            return False
        d.rows, d.held = rows, held
        return a == rows and b == rows and c == rows and ends == rows + 1 and rows <= INT32_MAX

    cdef tuple _shape(self):
        cdef const Counts* n = &self.counts
        cdef int32_t prompts, own, reads
        if self.of_prompts:
            prompts = c_token_bucket(n.prompts)
            own = min(power_bucket(n.own, 1), prompts)
            reads = power_bucket(n.read_prompts, 1)
            return (prompts, own, 0, 0, max(reads, own) if n.cut else reads, 0, n.cut, n.long_query, False)
        return (0, 0, power_bucket(n.decoding, 1), power_bucket(n.pages + n.spare, 64), 0,
                power_bucket(n.read_decoding, 1), False, False, n.split)

    @property
    def attended(self):
        return self.counts.attended

    def fill(self, Places places not None, uintptr_t area):
        """The arrays of the step into the area of a shape that ``measure`` named."""
        if not self.held:
            raise ValueError("no step has been measured")
        if self.of_prompts:
            fill_prompts(self.prompts, self.rows, self.reads, places.at, <char*>area)
        else:
            fill_decoding(self.decoding, self.rows, self.reads, self.limits.block_size, places.at, <char*>area)

    def fill_at(self, uintptr_t area, int64_t at, Py_ssize_t capacity):
        """A readout's rows as indices into the rows that are read: they are these, in order."""
        cdef int32_t* to = <int32_t*>(area + at)
        cdef Py_ssize_t i
        for i in range(capacity):
            to[i] = <int32_t>i if i < self.reads else 0

    def fill_ticket(self, uintptr_t area, uint32_t number, int32_t index):
        """The step's number and the index of its output area, which stand in front of its arrays."""
        (<uint32_t*>area)[0] = number
        (<int32_t*>area)[1] = index

    def forget(self):
        """Lets go of the step's arrays."""
        self.held = ()


def is_ascending(rows):
    """Whether a flat int32 array never falls."""
    cdef Py_ssize_t n = 0, i
    cdef const int32_t* p = _ints(rows, &n)
    if p == NULL:
        return False
    for i in range(1, n):
        if p[i] < p[i - 1]:
            return False
    return True


def any_above_zero(values):
    """Whether a number of a flat float32 array is above 0."""
    cdef Py_ssize_t n = len(values), i
    cdef const float* p = <const float*>_values(values, n, _FLOAT32)
    cdef bint found = False
    if p == NULL:
        return bool((np.asarray(values) > 0).any())
    for i in range(n):
        found |= p[i] > 0
    return found


def fill_settings(uintptr_t area, tuple offsets not None, Py_ssize_t capacity, readout):
    """Sampling settings to ``offsets``: temperature, top_k, top_p, min_p, uniform numbers. False where an array does
    not have the readout's rows."""
    cdef Py_ssize_t n = len(readout.rows), i
    cdef const float* temperature = <const float*>_values(readout.temperature, n, _FLOAT32)
    cdef const int32_t* top_k = <const int32_t*>_values(readout.top_k, n, cnp.NPY_INT32)
    cdef const float* top_p = <const float*>_values(readout.top_p, n, _FLOAT32)
    cdef const float* min_p = <const float*>_values(readout.min_p, n, _FLOAT32)
    cdef const uint64_t* seeds = <const uint64_t*>_values(readout.seeds, n, _UINT64)
    cdef const int32_t* steps = <const int32_t*>_values(readout.steps, n, cnp.NPY_INT32)
    cdef char* to = <char*>area
    cdef double* drawn
    if (n > capacity or temperature == NULL or top_k == NULL or top_p == NULL or min_p == NULL or seeds == NULL
            or steps == NULL):
        return False
    put[float](to, offsets[0], temperature, n, capacity, 0)
    put[int32_t](to, offsets[1], top_k, n, capacity, 0)
    put[float](to, offsets[2], top_p, n, capacity, 1)
    put[float](to, offsets[3], min_p, n, capacity, 0)
    drawn = <double*>(to + <int64_t>offsets[4])
    for i in range(capacity):
        drawn[i] = uniform(seeds[i], steps[i]) if i < n else 0
    return True


def fill_pairs(uintptr_t area, int64_t rows_at, int64_t targets_at, Py_ssize_t capacity, rows, targets, int32_t chunk):
    """Pairs in order of their rows: each row modulo ``chunk``, then -1; targets, then 0."""
    cdef Py_ssize_t n = 0, same = 0, i
    cdef const int32_t* r = _ints(rows, &n)
    cdef const int32_t* t = _ints(targets, &same)
    cdef int32_t* to = <int32_t*>(area + rows_at)
    if r == NULL or t == NULL or n != same or n > capacity:
        return False
    for i in range(n):
        to[i] = r[i] % chunk
    for i in range(n, capacity):
        to[i] = -1
    put[int32_t](<char*>area, targets_at, t, n, capacity, 0)
    return True


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


def zeros_in(uintptr_t address, Py_ssize_t count):
    """Whether one of ``count`` int32 values at ``address`` is 0."""
    cdef const int32_t* p = <const int32_t*>address
    cdef Py_ssize_t i
    cdef bint found = False
    for i in range(count):
        found |= p[i] == 0
    return found


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
