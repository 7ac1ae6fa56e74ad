# distutils: language = c++
"""Thin wrappers of the CPU kernels: products, norms, rotations and gates of rows, attention over runs of keys, and
states of recurrent layers.

Those on a step's path take numpy's arrays and check sizes and types. Those that load weights take addresses. The
headers under ``include/prelude/cpu`` hold the kernels and their contracts.
"""

from __future__ import annotations

cimport cython
cimport ndarray as cnp
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libcpp cimport bool as cbool
from libcpp.vector cimport vector

import numpy as np

cnp.import_ndarray()


cdef extern from "prelude/cpu/types.hpp" namespace "prelude::cpu" nogil:
    cdef enum class Type(int32_t):
        f32
        bf16

    cdef struct NormArgs:
        const float* x
        int64_t x_stride
        const float* gain
        const float* bias
        void* out
        int64_t out_stride
        Type out_type
        int64_t width
        float eps

    cdef struct RotateArgs:
        const void* in_ "in"
        int64_t in_stride
        void* out
        int64_t out_stride
        Type type
        const float* gain
        int64_t heads
        int64_t width
        float eps
        const float* rope_table
        const int64_t* positions

    cdef enum class Activation(int32_t):
        silu
        gelu
        gelu_tanh
        relu

    cdef struct ActivateArgs:
        void* rows
        int64_t stride
        Type type
        int64_t inner
        Activation kind
        cbool gated

    cdef struct KeyRun:
        int64_t from_ "from"
        int64_t length
        cbool pool

    cdef struct RelativeTerm:
        const float* keys
        const float* queries
        const int32_t* rows
        int64_t span

    cdef struct AttentionTensors:
        const void* q
        const void* k
        const void* v
        const void* pool_k
        const void* pool_v
        void* out
        int64_t q_stride
        int64_t k_stride
        int64_t v_stride
        int64_t pool_stride
        int64_t out_stride
        Type type
        RelativeTerm relative

    cdef struct AttentionShape:
        int32_t heads
        int32_t kv_heads
        int32_t width
        float scale
        float cap
        int32_t relative_panels


cdef extern from "prelude/cpu/row_work.hpp" namespace "prelude::cpu" nogil:
    cdef cppclass Kernels:
        const char* name
        int lanes

    const Kernels& best_kernels()
    cbool c_rms_norm "prelude::cpu::rms_norm"(const Kernels&, const NormArgs&, int64_t rows, int threads)
    cbool norm_rotate(const Kernels&, const RotateArgs&, int64_t rows, int threads)
    cbool c_layer_norm "prelude::cpu::layer_norm"(const Kernels&, const NormArgs&, int64_t rows, int threads)
    cbool c_activate "prelude::cpu::activate"(const Kernels&, const ActivateArgs&, int64_t rows, int threads)
    void c_exp_sums "prelude::cpu::exp_sums"(const Kernels&, const float*, int64_t stride, int64_t rows, int64_t width,
                                             float* most, double* totals, int threads)
    cbool worth_releasing_gil(int64_t values)

    cdef struct PoolRowsArgs:
        const void* k
        const void* v
        void* pool_k
        void* pool_v
        int64_t k_stride
        int64_t v_stride
        int64_t values
        const int64_t* tokens
        const int64_t* slots
        Type type

    cbool all_below(const int64_t*, int64_t count, int64_t bound)
    void c_write_pool "prelude::cpu::write_pool"(const PoolRowsArgs&, int64_t rows, int threads)


cdef extern from "prelude/cpu/attention_plan.hpp" namespace "prelude::cpu" nogil:
    cdef cppclass AttentionPlan:
        cbool build(const Kernels&, const AttentionShape&, vector[int32_t], vector[int32_t], vector[int32_t],
                    vector[KeyRun], vector[int32_t], vector[int32_t], vector[int32_t])
        int64_t queries()
        int64_t sections()
        int64_t queries_of(int64_t section)
        int64_t step_keys()
        int64_t pool_keys()
        int64_t longest()
        cbool has_places()
        int64_t pairs()
        cbool run(const AttentionTensors&, int, int64_t section)


cdef extern from "prelude/cpu/parallel.hpp" namespace "prelude::cpu" nogil:
    int thread_count()
    void c_set_thread_count "prelude::cpu::set_thread_count"(int count)
    int c_give_threads "prelude::cpu::give_threads"(int count)
    void c_in_step "prelude::cpu::in_step"(cbool begins)
    vector[int64_t] pool_ids "prelude::cpu::thread_ids"(int threads) except +


cdef extern from "prelude/cpu/places.hpp" namespace "prelude::cpu" nogil:
    cdef cppclass CThreadPlaces "prelude::cpu::ThreadPlaces":
        CThreadPlaces(vector[int64_t] ids) except +
        void keep_off()
        void give_back()


cdef const Kernels* kernels = &best_kernels()

NAME = kernels.name.decode()
LANES = kernels.lanes


def threads():
    """How many threads the kernels of the calling thread run in."""
    return thread_count()


def set_threads(int count):
    """``threads`` of every thread that was given no number of its own."""
    c_set_thread_count(count)


def give_threads(int count):
    """Gives the calling thread a number of its own, or takes it away (0). The one that it had before."""
    return c_give_threads(count)


def in_step(begins):
    """A step begins or ends. In between, the threads of kernels poll for longer before they sleep."""
    c_in_step(begins)


def thread_ids(int threads):
    """Linux's ids of the threads that a kernel of so many runs in when this thread calls it, its own first; an empty
    list on other systems."""
    cdef vector[int64_t] ids
    with nogil:
        ids = pool_ids(threads)
    return list(ids)


@cython.final
cdef class ThreadPlaces:
    """Threads of this process, by Linux's ids, that may be kept off the processor of the thread that wakes them; see
    include/prelude/cpu/places.hpp. Nothing on other systems."""

    cdef CThreadPlaces* c

    def __cinit__(self, ids):
        self.c = new CThreadPlaces(ids)

    def __dealloc__(self):
        del self.c  # gives back

    def keep_off(self) -> None:
        """Until ``give_back`` the threads may not run on the caller's processor."""
        self.c.keep_off()

    def give_back(self) -> None:
        self.c.give_back()


cdef void check(cbool done) except *:
    if not done:
        raise MemoryError("no room for a row")


cdef cbool norm(const NormArgs& args, int64_t rows, cbool centred) noexcept nogil:
    if centred:
        return c_layer_norm(kernels[0], args, rows, thread_count())
    return c_rms_norm(kernels[0], args, rows, thread_count())


ACTIVATIONS = {
    "silu": <int32_t> Activation.silu,
    "gelu": <int32_t> Activation.gelu,
    "gelu_tanh": <int32_t> Activation.gelu_tanh,
    "relu": <int32_t> Activation.relu,
}


include "gil.pxi"
include "kernels.pxi"


cdef class Attention:
    """The attention of one step; ``run`` does a layer. One thread at a time.

    Item i has queries ``query_starts[i]:query_starts[i + 1]`` and the keys of runs
    ``run_starts[i]:run_starts[i + 1]``, in order; query q sees the first ``visible[q]`` of them. A run is
    ``run_length`` keys from ``run_from`` on, of the pool where ``run_pool`` is not 0, else of the step. Where
    ``hidden`` is given, query q does not see the first ``hidden[q]`` keys. ``places[q]`` is its own place among them,
    for layers with a relative term. A ``cap`` above 0 makes a score ``cap * tanh(score / cap)``. Queries
    ``section_starts[s]:section_starts[s + 1]`` are section s, which ``run`` may compute by itself.
    """

    cdef AttentionPlan plan
    cdef AttentionShape shape

    def __cinit__(self, int heads, int kv_heads, int width, float scale, query_starts, visible, run_starts, run_from,
                 run_length, run_pool, hidden=None, float cap=0.0, places=None, int relative_panels=0,
                 section_starts=None):
        if heads < 1 or kv_heads < 1 or heads % kv_heads or width < 1:
            raise ValueError(f"{heads} heads do not share {kv_heads} KV heads of {width} values")
        cdef vector[int32_t] visible_keys = numbers(visible, "visible")
        cdef cnp.ndarray firsts = column(run_from, np.int64, "run_from")
        cdef cnp.ndarray lengths = column(run_length, np.int64, "run_length")
        cdef cnp.ndarray pools = column(run_pool, np.uint8, "run_pool")
        cdef vector[int32_t] queries = starts(query_starts, visible_keys.size(), "query_starts")
        cdef vector[int32_t] items = starts(run_starts, firsts.shape[0], "run_starts")
        cdef vector[int32_t] sections
        if section_starts is not None:
            sections = starts(section_starts, visible_keys.size(), "section_starts")
        if queries.size() != items.size():
            raise ValueError("query_starts and run_starts differ in length")
        if lengths.shape[0] != firsts.shape[0] or pools.shape[0] != firsts.shape[0]:
            raise ValueError("run_from, run_length and run_pool differ in length")
        cdef const int64_t* from_ = <const int64_t*> cnp.PyArray_DATA(firsts)
        cdef const int64_t* length = <const int64_t*> cnp.PyArray_DATA(lengths)
        cdef const cnp.uint8_t* pool = <const cnp.uint8_t*> cnp.PyArray_DATA(pools)
        cdef vector[int32_t] skipped = numbers(() if hidden is None else hidden, "hidden")
        cdef vector[int32_t] placed = numbers(() if places is None else places, "places")
        cdef vector[KeyRun] runs
        cdef Py_ssize_t i
        runs.resize(firsts.shape[0])
        for i in range(firsts.shape[0]):
            runs[i].from_, runs[i].length, runs[i].pool = from_[i], length[i], pool[i] != 0
        self.shape.heads, self.shape.kv_heads, self.shape.width = heads, kv_heads, width
        self.shape.scale, self.shape.cap, self.shape.relative_panels = scale, cap, relative_panels
        if not self.plan.build(kernels[0], self.shape, queries, visible_keys, items, runs, skipped, placed, sections):
            raise ValueError("a query sees no key, or more keys than its item has, or stands outside of them")

    @property
    def pairs(self):
        """(query, key) pairs of one layer, all heads."""
        return self.plan.pairs()

    def run(self, cnp.ndarray q not None, cnp.ndarray k not None, cnp.ndarray v not None,
            cnp.ndarray pool_k not None, cnp.ndarray pool_v not None, cnp.ndarray out not None, tuple relative=None,
            int section=-1) -> None:
        """Queries [Q, heads, D] by keys and values [T, kv_heads, D] of the step and of the pool's slots, into ``out``
        [Q, heads * D], which may have the memory of ``q``; all of one type, heads of a token side by side.
        ``relative``: (keys, queries, rows, span) of ``RelativeTerm`` in types.hpp. ``section``: the rows are its
        queries; -1: all queries."""
        if section < -1 or section >= self.plan.sections():
            raise ValueError(f"section {section} of {self.plan.sections()}")
        cdef AttentionTensors t
        cdef cbool done
        cdef int64_t planned = self.plan.queries() if section < 0 else self.plan.queries_of(section)
        cdef int64_t width = self.shape.width, shared = self.shape.kv_heads
        cdef Rows queries = _heads(q, self.shape.heads, width, "q"), made
        cdef Rows keys = _heads(k, shared, width, "k"), values = _heads(v, shared, width, "v")
        cdef Rows pooled = _heads(pool_k, shared, width, "pool_k"), beside = _heads(pool_v, shared, width, "pool_v")
        if pooled.stride != beside.stride and self.plan.pool_keys() > 0:
            raise ValueError(f"slots of keys lie {pooled.stride} values apart, those of values {beside.stride}")
        if (planned > queries.count or self.plan.step_keys() > min(keys.count, values.count)
                or self.plan.pool_keys() > min(pooled.count, beside.count)):
            raise ValueError("the arrays are smaller than the planned ones")
        made = _rows(out, self.shape.heads * width, "out", True)
        if made.count < queries.count or not (
                queries.type == made.type == keys.type == values.type == pooled.type == beside.type):
            raise ValueError(f"{_told(q)} by {_told(k)} and {_told(pool_k)} into {_told(out)}")
        t.q, t.k, t.v, t.pool_k, t.pool_v, t.out = queries.at, keys.at, values.at, pooled.at, beside.at, made.at
        t.q_stride, t.k_stride, t.v_stride = queries.stride, keys.stride, values.stride
        t.pool_stride, t.out_stride, t.type = pooled.stride, made.stride, queries.type
        if relative is not None:
            of_keys, of_queries, rows, t.relative.span = relative
            t.relative.keys, t.relative.queries = <const float*> _memory(of_keys), <const float*> _memory(of_queries)
            t.relative.rows = <const int32_t*> _memory(rows)
            if (self.plan.longest() > t.relative.span or not self.plan.has_places()
                    or self.shape.relative_panels < 1 or self.shape.heads != shared):
                raise ValueError("a relative term for fewer distances than there are, or none was planned")
        cdef PyThreadState* state = _let_go(worth_releasing_gil(self.plan.pairs() * width // 4))
        done = self.plan.run(t, thread_count(), section)
        _take_back(state)
        check(done)


cdef void* _memory(cnp.ndarray x) except? NULL:
    if not cnp.PyArray_ISCARRAY_RO(x):
        raise ValueError(f"an array without gaps is needed, not {_told(x)}")
    return cnp.PyArray_DATA(x)


cdef vector[int32_t] numbers(object values, str name) except *:
    cdef cnp.ndarray array = column(values, np.int32, name)
    cdef const int32_t* first = <const int32_t*> cnp.PyArray_DATA(array)
    cdef vector[int32_t] copied
    copied.assign(first, first + array.shape[0])
    return copied


cdef vector[int32_t] starts(object given, Py_ssize_t end, str name) except *:
    """Offsets that begin at 0, never fall and end at ``end``."""
    cdef vector[int32_t] offsets = numbers(given, name)
    cdef size_t i
    if offsets.empty() or offsets[0] != 0 or offsets.back() != end:
        raise ValueError(f"{name} does not go from 0 to {end}")
    for i in range(1, offsets.size()):
        if offsets[i] < offsets[i - 1]:
            raise ValueError(f"{name} falls at {i}")
    return offsets


cdef cnp.ndarray column(object values, type dtype, str name):
    """The values themselves where they are a contiguous array of ``dtype``, else a copy that is one.

    Not a typed memoryview: the first of those brings two seconds of compilation into a module.
    """
    cdef cnp.ndarray array = np.ascontiguousarray(values, dtype)
    if array.ndim != 1:
        raise ValueError(f"{name}: not one-dimensional")
    return array


include "paged.pxi"
include "packed.pxi"
include "mixer_sides.pxi"
include "recurrent.pxi"
