# Attention of decode rows over block tables; the drawing is in include/prelude/cpu/paged_attention.hpp.

from cpython.mem cimport PyMem_Free, PyMem_Malloc


cdef extern from "prelude/cpu/types.hpp" namespace "prelude::cpu" nogil:
    cdef struct BlockTables:
        const int32_t* blocks
        const int32_t* begins
        const int32_t* ends
        const int32_t* lengths
        const int32_t* offsets
        int64_t count
        int32_t block_size

    cdef struct PagedArgs:
        BlockTables tables
        const void* q
        const void* k
        const void* v
        void* out
        int64_t q_stride
        int32_t heads
        int32_t kv_heads
        int32_t width
        float scale
        float cap
        Type type


cdef extern from "prelude/cpu/paged_attention.hpp" namespace "prelude::cpu" nogil:
    cdef struct TablesCheck:
        const char* wrong
        int64_t row
        int64_t slots

    TablesCheck check_tables "prelude::cpu::check"(const BlockTables& tables, int64_t entries)
    int64_t paged_room(const PagedArgs& args)
    void attend_paged(const Kernels&, const PagedArgs&, float* room, int threads)


# Products of a float32 key and a query that take about as long as kReleaseGilNs: the measure of when to let go of the
# GIL (see kReleaseGilNs), and the work that is worth waking another thread.
DEF SHORT_CALL = 100_000


cdef class PagedRows:
    """Block tables of rows, checked once: row r reads ``lengths[r]`` keys of table ``blocks[begins[r]:ends[r]]``. They
    begin at slot ``offsets[r]`` of its first block, or at 0 where ``offsets`` is None."""

    cdef BlockTables c
    cdef int64_t keys
    cdef readonly int64_t num_slots
    cdef tuple owned

    def __cinit__(self, blocks, begins, ends, lengths, int32_t block_size, offsets=None):
        cdef cnp.ndarray b = column(blocks, np.int32, "blocks")
        cdef cnp.ndarray first = column(begins, np.int32, "begins")
        cdef cnp.ndarray last = column(ends, np.int32, "ends")
        cdef cnp.ndarray count = column(lengths, np.int32, "lengths")
        cdef cnp.ndarray offset = column(() if offsets is None else offsets, np.int32, "offsets")
        if not first.shape[0] == last.shape[0] == count.shape[0]:
            raise ValueError(f"{first.shape[0]} begins, {last.shape[0]} ends and {count.shape[0]} lengths")
        if offsets is not None and offset.shape[0] != first.shape[0]:
            raise ValueError(f"{first.shape[0]} rows and {offset.shape[0]} offsets")
        if block_size < 1:
            raise ValueError(f"block_size: {block_size} is not positive")
        self.c.blocks = <const int32_t*>cnp.PyArray_DATA(b)
        self.c.begins = <const int32_t*>cnp.PyArray_DATA(first)
        self.c.lengths = <const int32_t*>cnp.PyArray_DATA(count)
        if offsets is not None:
            self.c.offsets = <const int32_t*>cnp.PyArray_DATA(offset)
        self.c.count = first.shape[0]
        self.c.block_size = block_size
        self.c.ends = <const int32_t*>cnp.PyArray_DATA(last)
        cdef TablesCheck seen = check_tables(self.c, b.shape[0])
        if seen.wrong != NULL:
            told = f"{count[seen.row]} tokens in {last[seen.row] - first[seen.row]} blocks of {block_size}"
            raise ValueError(f"row {seen.row}, {told}: {seen.wrong.decode()}")
        self.num_slots = seen.slots
        self.owned = (b, first, last, count, offset)
        self.keys = int(count.sum(dtype=np.int64))

    def __len__(self) -> int:
        return self.c.count

    def attend(self, cnp.ndarray q not None, cnp.ndarray pool_k not None, cnp.ndarray pool_v not None,
               cnp.ndarray out not None, *, float scale, float cap=0.0) -> None:
        """Writes ``out`` [rows, heads, head_dim] from queries of that shape and a layer's K and V [slots, kv_heads,
        head_dim]; all of one type, heads side by side, pool and ``out`` without gaps. A ``cap`` above 0 makes a score
        ``cap * tanh(score / cap)``."""
        if cnp.PyArray_NDIM(q) != 3 or cnp.PyArray_NDIM(pool_k) != 3:
            raise ValueError(f"queries and keys by heads are needed, not {_told(q)} and {_told(pool_k)}")
        cdef int64_t heads = cnp.PyArray_DIM(q, 1), kv_heads = cnp.PyArray_DIM(pool_k, 1), width = cnp.PyArray_DIM(q, 2)
        cdef Rows queries = _heads(q, heads, width, "q"), made = _heads(out, heads, width, "out", True)
        cdef Rows keys = _heads(pool_k, kv_heads, width, "pool_k"), values = _heads(pool_v, kv_heads, width, "pool_v")
        _memory(pool_k), _memory(pool_v), _memory(out)  # without gaps
        if queries.count != self.c.count or made.count != queries.count or not (
                queries.type == made.type == keys.type == values.type):
            raise ValueError(f"{self.c.count} rows of {_told(q)} by {_told(pool_k)} into {_told(out)}")
        if self.num_slots > min(keys.count, values.count):
            raise ValueError(f"blocks: slot {self.num_slots - 1} is outside a pool of {min(keys.count, values.count)}")
        if heads < 1 or kv_heads < 1 or width < 1 or heads % kv_heads:
            raise ValueError(f"heads: {heads} of {width} do not share {kv_heads}")
        cdef PagedArgs args
        args.tables = self.c
        args.q, args.k, args.v, args.out = queries.at, keys.at, values.at, made.at
        args.q_stride, args.heads, args.kv_heads, args.width = queries.stride, heads, kv_heads, width
        args.scale, args.cap, args.type = scale, cap, queries.type
        cdef int64_t work = self.keys * heads * width
        cdef int threads = max(1, min(thread_count(), self.c.count * kv_heads, work // SHORT_CALL))
        cdef float* room = <float*>PyMem_Malloc(threads * paged_room(args) * sizeof(float))
        if room == NULL:
            raise MemoryError
        cdef PyThreadState* state = _let_go(work >= SHORT_CALL)
        attend_paged(kernels[0], args, room, threads)
        _take_back(state)
        PyMem_Free(room)
