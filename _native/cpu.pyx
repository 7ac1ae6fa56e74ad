# distutils: language = c++
"""Thin wrappers of the CPU kernels: products, norms, rotations and gates of rows, attention over runs of keys, and
states of recurrent layers.

Some take tensors and check their sizes and types: those of ``tensors.pxi`` and ``mixer_sides.pxi``, and
``Attention.run``. The others take addresses and strides in values, which their callers read of tensors. The headers
under ``include/prelude/cpu`` hold the kernels and their contracts.
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
    cbool rms_norm(const Kernels&, const NormArgs&, int64_t rows, int threads)
    cbool norm_rotate(const Kernels&, const RotateArgs&, int64_t rows, int threads)
    cbool layer_norm(const Kernels&, const NormArgs&, int64_t rows, int threads)
    cbool activate(const Kernels&, const ActivateArgs&, int64_t rows, int threads)
    void exp_sums_of "prelude::cpu::exp_sums"(const Kernels&, const float*, int64_t stride, int64_t rows, int64_t width,
                                              float* most, double* totals, int threads)
    cbool worth_releasing_gil(int64_t values)


cdef extern from "prelude/cpu/pool_rows.hpp" namespace "prelude::cpu" nogil:
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
    void write_pool(const PoolRowsArgs&, int64_t rows, int threads)


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


cdef const Kernels* kernels = &best_kernels()

NAME = kernels.name.decode()
LANES = kernels.lanes


include "threads.pxi"


cdef void check(cbool done) except *:
    if not done:
        raise MemoryError("no room for a row")


cdef cbool norm(const NormArgs& args, int64_t rows, cbool centred) noexcept nogil:
    if centred:
        return layer_norm(kernels[0], args, rows, thread_count())
    return rms_norm(kernels[0], args, rows, thread_count())


cdef int norm_rows(uintptr_t x, int64_t x_stride, uintptr_t gain, uintptr_t out, int64_t out_stride, bint half,
                   int64_t rows, int64_t width, float eps, bint centred, uintptr_t bias) except -1:
    """``out = x / sqrt(mean(x ** 2) + eps) * gain``; ``gain`` may be 0, ``half``: out is bfloat16. ``centred``: the
    same of x minus its mean, plus ``bias``, which may be 0."""
    cdef NormArgs args
    cdef cbool done
    args.x = <const float*> x
    args.x_stride = x_stride
    args.gain = <const float*> gain
    args.bias = <const float*> bias
    args.out = <void*> out
    args.out_stride = out_stride
    args.out_type = Type.bf16 if half else Type.f32
    args.width = width
    args.eps = eps
    if worth_releasing_gil(rows * width):
        with nogil:
            done = norm(args, rows, centred)
    else:
        done = norm(args, rows, centred)
    check(done)
    return 0


cdef int rotate_rows(uintptr_t values, int64_t in_stride, uintptr_t out, int64_t out_stride, bint half,
                     uintptr_t gain, int64_t rows, int64_t heads, int64_t width, float eps, uintptr_t rope_table,
                     uintptr_t positions) except -1:
    """Norm per head (where ``gain`` is not 0) and rotary embedding; ``out`` may be ``values``."""
    cdef RotateArgs args
    cdef cbool done
    args.in_ = <const void*> values
    args.in_stride = in_stride
    args.out = <void*> out
    args.out_stride = out_stride
    args.type = Type.bf16 if half else Type.f32
    args.gain = <const float*> gain
    args.heads = heads
    args.width = width
    args.eps = eps
    args.rope_table = <const float*> rope_table
    args.positions = <const int64_t*> positions
    if worth_releasing_gil(rows * heads * width):
        with nogil:
            done = norm_rotate(kernels[0], args, rows, thread_count())
    else:
        done = norm_rotate(kernels[0], args, rows, thread_count())
    check(done)
    return 0


ACTIVATIONS = {
    "silu": <int32_t> Activation.silu,
    "gelu": <int32_t> Activation.gelu,
    "gelu_tanh": <int32_t> Activation.gelu_tanh,
    "relu": <int32_t> Activation.relu,
}


cdef int activate_rows(uintptr_t values, int64_t stride, bint half, int64_t rows, int64_t inner, int kind,
                       bint gated) except -1:
    """The activation of the first ``inner`` values of each row, in place; times the next ``inner`` where ``gated``.
    ``kind`` is one of ``ACTIVATIONS``."""
    cdef ActivateArgs args
    cdef cbool done
    if kind < 0 or kind > 3:
        raise ValueError(f"there is no activation {kind}")
    args.kind = <Activation> kind
    args.gated = gated
    args.rows = <void*> values
    args.stride = stride
    args.type = Type.bf16 if half else Type.f32
    args.inner = inner
    if worth_releasing_gil(2 * rows * inner):
        with nogil:
            done = activate(kernels[0], args, rows, thread_count())
    else:
        done = activate(kernels[0], args, rows, thread_count())
    check(done)
    return 0


def exp_sums(uintptr_t values, int64_t stride, int64_t rows, int64_t width, uintptr_t most, uintptr_t totals):
    """Of each row of float32: its largest value, float32 at ``most``, and the sum of the exponentials of its values
    relative to that, float64 at ``totals``."""
    with nogil:
        exp_sums_of(kernels[0], <const float*> values, stride, rows, width, <float*> most, <double*> totals,
                    thread_count())


cdef int write_pool_rows(uintptr_t k, int64_t k_stride, uintptr_t v, int64_t v_stride, uintptr_t pool_k,
                         uintptr_t pool_v, int64_t values, int64_t num_tokens, int64_t num_slots, uintptr_t tokens,
                         uintptr_t slots, int64_t rows, bint half) except -1:
    """K and V of token ``tokens[i]`` (``i`` where ``tokens`` is 0), ``values`` each, into the pool at
    ``slots[i]``."""
    cdef PoolRowsArgs args
    cdef cbool inside
    args.k, args.v = <const void*> k, <const void*> v
    args.pool_k, args.pool_v = <void*> pool_k, <void*> pool_v
    args.k_stride, args.v_stride, args.values = k_stride, v_stride, values
    args.tokens, args.slots = <const int64_t*> tokens, <const int64_t*> slots
    args.type = Type.bf16 if half else Type.f32
    inside = all_below(args.slots, rows, num_slots)
    inside = inside and (rows <= num_tokens if tokens == 0 else all_below(args.tokens, rows, num_tokens))
    if not inside:
        raise ValueError(f"{rows} rows go from {num_tokens} tokens to {num_slots} slots, and one lies outside")
    if worth_releasing_gil(2 * rows * values):
        with nogil:
            write_pool(args, rows, thread_count())
    else:
        write_pool(args, rows, thread_count())
    return 0


include "tensors.pxi"


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
        cdef cnp.ndarray seen_by = column(visible, np.int32, "visible")
        cdef cnp.ndarray firsts = column(run_from, np.int64, "run_from")
        cdef cnp.ndarray lengths = column(run_length, np.int64, "run_length")
        cdef cnp.ndarray pools = column(run_pool, np.uint8, "run_pool")
        cdef vector[int32_t] queries = starts(query_starts, seen_by.shape[0], "query_starts")
        cdef vector[int32_t] items = starts(run_starts, firsts.shape[0], "run_starts")
        cdef vector[int32_t] sections
        if section_starts is not None:
            sections = starts(section_starts, seen_by.shape[0], "section_starts")
        if queries.size() != items.size():
            raise ValueError("query_starts and run_starts differ in length")
        if lengths.shape[0] != firsts.shape[0] or pools.shape[0] != firsts.shape[0]:
            raise ValueError("run_from, run_length and run_pool differ in length")
        cdef const int32_t* first_seen = <const int32_t*> cnp.PyArray_DATA(seen_by)
        cdef const int64_t* from_ = <const int64_t*> cnp.PyArray_DATA(firsts)
        cdef const int64_t* length = <const int64_t*> cnp.PyArray_DATA(lengths)
        cdef const cnp.uint8_t* pool = <const cnp.uint8_t*> cnp.PyArray_DATA(pools)
        cdef cnp.ndarray hidden_before = column(() if hidden is None else hidden, np.int32, "hidden")
        cdef const int32_t* first_hidden = <const int32_t*> cnp.PyArray_DATA(hidden_before)
        cdef vector[int32_t] seen
        cdef cnp.ndarray own_places = column(() if places is None else places, np.int32, "places")
        cdef const int32_t* first_place = <const int32_t*> cnp.PyArray_DATA(own_places)
        cdef vector[int32_t] skipped
        cdef vector[int32_t] placed
        cdef vector[KeyRun] runs
        cdef Py_ssize_t i
        seen.assign(first_seen, first_seen + seen_by.shape[0])
        skipped.assign(first_hidden, first_hidden + hidden_before.shape[0])
        placed.assign(first_place, first_place + own_places.shape[0])
        runs.resize(firsts.shape[0])
        for i in range(firsts.shape[0]):
            runs[i].from_ = from_[i]
            runs[i].length = length[i]
            runs[i].pool = pool[i] != 0
        self.shape.heads = heads
        self.shape.kv_heads = kv_heads
        self.shape.width = width
        self.shape.scale = scale
        self.shape.cap = cap
        self.shape.relative_panels = relative_panels
        if not self.plan.build(kernels[0], self.shape, queries, seen, items, runs, skipped, placed, sections):
            raise ValueError("a query sees no key, or more keys than its item has, or stands outside of them")

    @property
    def pairs(self):
        """(query, key) pairs of one layer, all heads."""
        return self.plan.pairs()

    def run(self, q, k, v, pool_k, pool_v, out, relative=None, int section=-1) -> None:
        """Queries [Q, heads, D] by keys and values [T, kv_heads, D] of the step and of the pool's slots, into ``out``
        [Q, heads * D], which may have the memory of ``q``; all of one type, heads of a token side by side.
        ``relative``: (keys, queries, rows, span) of ``RelativeTerm`` in types.hpp. ``section``: the rows are its
        queries; -1: all queries."""
        if section < -1 or section >= self.plan.sections():
            raise ValueError(f"section {section} of {self.plan.sections()}")
        cdef AttentionTensors t
        cdef cbool done
        cdef int64_t planned = self.plan.queries() if section < 0 else self.plan.queries_of(section)
        cdef int64_t width = self.shape.width
        cdef int64_t queries = _heads_of(q, q, self.shape.heads, width, &t.q_stride)
        cdef int64_t tokens = min(_heads_of(k, q, self.shape.kv_heads, width, &t.k_stride),
                                  _heads_of(v, q, self.shape.kv_heads, width, &t.v_stride))
        cdef int64_t of_values
        cdef int64_t slots = min(_heads_of(pool_k, q, self.shape.kv_heads, width, &t.pool_stride),
                                 _heads_of(pool_v, q, self.shape.kv_heads, width, &of_values))
        if of_values != t.pool_stride and self.plan.pool_keys() > 0:
            raise ValueError(f"slots of keys lie {t.pool_stride} values apart, those of values {of_values}")
        if planned > queries or self.plan.step_keys() > tokens or self.plan.pool_keys() > slots:
            raise ValueError("the tensors are smaller than the planned ones")
        if _rows_of(out, self.shape.heads * width, "out") < queries or out.dtype is not q.dtype:
            raise ValueError(f"{queries} queries of {q.dtype} into {out.dtype} {list(out.shape)}")
        t.out_stride = _entry(out.stride(), 0)
        t.q, t.k, t.v = _memory(q), _memory(k), _memory(v)
        t.pool_k, t.pool_v, t.out = _memory(pool_k), _memory(pool_v), <void*> _memory(out)
        t.type = _type_of(q)
        if relative is not None:
            keys, by_queries, rows, t.relative.span = relative
            t.relative.keys, t.relative.queries = <const float*> _memory(keys), <const float*> _memory(by_queries)
            t.relative.rows = <const int32_t*> _memory(rows)
            if (self.plan.longest() > t.relative.span or not self.plan.has_places()
                    or self.shape.relative_panels < 1 or self.shape.heads != self.shape.kv_heads):
                raise ValueError("a relative term for fewer distances than there are, or none was planned")
        if worth_releasing_gil(self.plan.pairs() * width // 4):
            with nogil:
                done = self.plan.run(t, thread_count(), section)
        else:
            done = self.plan.run(t, thread_count(), section)
        check(done)


cdef const void* _memory(object x) except? NULL:
    return <const void*> <uintptr_t> x.data_ptr()


cdef int64_t _heads_of(object x, object like, int64_t heads, int64_t width, int64_t* stride) except -1:
    """The number of tokens of ``x`` [tokens, heads, width], and the values from one to the next."""
    cdef object size = x.shape, strides = x.stride()
    cdef int64_t count = _entry(size, 0)
    stride[0] = _entry(strides, 0)
    # An empty pool has the heads of the model's first layer; the others may have more or fewer.
    if count and (_entry(size, 1) != heads or _entry(size, 2) != width or x.dtype is not like.dtype
                  or _entry(strides, 1) != width or _entry(strides, 2) != 1):
        raise ValueError(f"{x.dtype} {list(size)} of strides {strides}, where tokens of {heads} heads of {width} "
                         f"values of {like.dtype} side by side are needed")
    return count


cdef vector[int32_t] starts(object given, Py_ssize_t end, str name) except *:
    """A copy of offsets that begin at 0, never fall and end at ``end``."""
    cdef cnp.ndarray array = column(given, np.int32, name)
    cdef const int32_t* offsets = <const int32_t*> cnp.PyArray_DATA(array)
    cdef Py_ssize_t i, n = array.shape[0]
    if n < 1 or offsets[0] != 0 or offsets[n - 1] != end:
        raise ValueError(f"{name} does not go from 0 to {end}")
    for i in range(1, n):
        if offsets[i] < offsets[i - 1]:
            raise ValueError(f"{name} falls at {i}")
    cdef vector[int32_t] copied
    copied.assign(offsets, offsets + n)
    return copied


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
