# The declarations of the headers under include/prelude, for Cython. Part of core.pyx.

cdef extern from "Python.h":
    Py_ssize_t PySequence_Fast_GET_SIZE(object sequence)
    PyObject** PySequence_Fast_ITEMS(object sequence)


cdef extern from "prelude/status.hpp" namespace "prelude" nogil:
    cdef enum class Status(int32_t):
        ok
        out_of_blocks

    cdef cppclass Result:
        Status status
        int64_t detail
        cbool ok()

    cbool worth_releasing_gil(int64_t blocks)


cdef extern from "prelude/block_allocator.hpp" namespace "prelude" nogil:
    cdef struct AllocatorAudit:
        int64_t free, used, cached

    cdef cppclass CBlockAllocator "prelude::BlockAllocator":
        CBlockAllocator(int32_t num_blocks, int32_t block_size) except +
        int32_t num_free()
        int32_t num_used()
        int32_t num_cached()

    int32_t MAX_BLOCKS "prelude::BlockAllocator::kMaxBlocks"


cdef extern from "prelude/prefix_states.hpp" namespace "prelude" nogil:
    cdef cppclass PrefixStates:
        int32_t size()
        int32_t num_free()
        int32_t num_kept()
        int64_t evicted()
        const char* audit()


cdef extern from "prelude/prefix_trie.hpp" namespace "prelude" nogil:
    cdef struct TrieCounters:
        uint64_t lookups, looked_up, hit, collisions, inserted, duplicates, evicted, evicted_hit, promoted
        uint64_t broken

    cdef cppclass PromptEnd:
        int32_t blocks
        cbool lacks

    cdef struct TrieAudit:
        const char* broken
        int64_t at, nodes, promised, in_table
        AllocatorAudit pool

    cdef struct TrieNodeView:
        int32_t id, parent, block, depth
        cbool promised, is_protected
        uint32_t locks
        int64_t rank
        uint64_t salt

    cdef cppclass CPrefixTrie "prelude::PrefixTrie":
        CPrefixTrie(CBlockAllocator& pool, uint64_t seed, int32_t hash_bits) except +
        uint64_t changes()
        cbool has_moved(const PromptEnd&)
        PromptEnd end_of(const int32_t* tokens, int64_t n, uint64_t salt, int64_t max_blocks)
        PrefixStates& states()
        int32_t num_nodes()
        int32_t num_promised()
        TrieCounters counters()
        int32_t would_hit(const int32_t* tokens, int64_t n, uint64_t salt)
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


cdef extern from "prelude/host_blocks.hpp" namespace "prelude" nogil:
    cdef struct HostCopies:
        cbool (*out)(void* owner, const int32_t* blocks, const int32_t* entries, int64_t n) noexcept
        cbool (*in_ "in")(void* owner, const int32_t* entries, const int32_t* blocks, int64_t n) noexcept
        void* owner

    cdef struct HostCounters:
        int64_t hits, copied_out, copied_in, failed

    cdef cppclass CHostBlocks "prelude::HostBlocks":
        CHostBlocks(CPrefixTrie& trie, int32_t entries, int64_t least, uint64_t seed, HostCopies copies) except +
        int32_t size()
        int32_t num_kept()
        int32_t num_locked()
        int64_t num_evicted()
        const HostCounters& counters()
        TrieAudit audit() except +


cdef extern from "prelude/kv_pool.hpp" namespace "prelude" nogil:
    cdef cppclass OneWriter:
        pass

    cdef cppclass Writing:
        cbool enter(OneWriter& writer)

    cdef struct CKept "prelude::Lease::Kept":
        int32_t entry, blocks

    cdef cppclass CLease "prelude::Lease":
        cbool growable, released
        int32_t node, promise, promised, borrowed, ahead, on_host, state_index, state_from, base, branch, num_kept
        CKept kept[2]
        vector[int32_t] shared, own
        int64_t num_blocks()
        void table(int32_t* out)

    cdef cppclass CKvPool "prelude::KvPool":
        CKvPool(CPrefixTrie& trie, cbool caching, int32_t running_states, int32_t prefix_states) except +
        void keep_on_host(CHostBlocks& host)
        cbool caching()
        int64_t live_leases()
        int64_t evictions()
        int32_t free_running_states()
        cbool keeps_states()
        cbool take_running_state(CLease&)
        void keep_states(CLease&, int64_t, int64_t, int64_t, cbool)
        Result attach(const int32_t*, int64_t, uint64_t, int64_t, CLease*) except +
        Result bring_back(CLease&, const int32_t*, int64_t, uint64_t, int64_t) except +
        Result take(CLease&, int64_t, cbool) except +
        void begin_plan()
        Result promise(CLease&, const int32_t*, int64_t, uint64_t) except +
        Result withdraw(CLease&) except +
        Result publish(CLease&, const int32_t*, int64_t, uint64_t, cbool, cbool) except +
        Result release(CLease&)


cdef extern from "prelude/fold_finder.hpp" namespace "prelude" nogil:
    cdef struct FoldGroup "prelude::FoldFinder::Group":
        int64_t shared
        int32_t first, count

    cdef cppclass FoldFinder:
        const vector[FoldGroup]& groups()
        int32_t next(int32_t row)


cdef extern from "prelude/oneshot_group.hpp" namespace "prelude" nogil:
    cdef enum class CacheMode(int32_t):
        always

    cdef struct RequestRow:
        const int32_t* tokens
        const int32_t* positions
        const int32_t* starts
        const int32_t* parents
        int64_t num_tokens, segments, trunk, unread, read, logits_rows
        uint64_t salt
        CacheMode cache

    cdef struct GroupLimits:
        int64_t tokens, rows, logits_bytes, logits_row_bytes, logits_chunk_rows, group_tokens, allowance
        int64_t defer_tokens, defer_steps
        cbool fold, retry, seen

    cbool c_must_wait "prelude::must_wait"(CKvPool&, const GroupLimits&, CLease&, const int32_t*, int64_t, uint64_t,
                                           int64_t) except +

    cdef enum class Verdict "prelude::OneShotGroup::Verdict"(int32_t):
        admitted
        full

    cdef cppclass COneShotGroup "prelude::OneShotGroup":
        COneShotGroup(CKvPool& pool) except +
        void begin(const GroupLimits& limits) except +
        void end() except +
        const GroupLimits& left()
        const FoldFinder& folds()
        cbool done()
        Verdict admit(const RequestRow&, int64_t, CLease&, int64_t*, int64_t*, Result*) except +
        cbool keep(const RequestRow&, CLease&, int64_t, int64_t, cbool, cbool, int64_t*, Result*) except +

    cdef struct PackedRows:
        vector[PromptRow] rows
        vector[int64_t] at, begins, roots, heads
        vector[int32_t] places
        int64_t shift(size_t, int64_t)

    PromptRow prompt_row(const RequestRow& r, int64_t begin, int64_t end, int64_t parent, const CLease* lease,
                         int64_t skip, int64_t publish, int32_t block_size)


cdef extern from "pythread.h" nogil:
    unsigned long PyThread_get_thread_ident()


cdef extern from "prelude/handover.hpp" namespace "prelude" nogil:
    cdef cppclass Link:
        Link* next

    cdef cppclass Parcel(Link):
        Parcel() except +
        void* content

    cdef enum class Pushed(int32_t):
        closed
        first
        more

    cdef cppclass Handover:
        Pushed push(Link* newest, Link* oldest)
        Link* take()
        void close()
        cbool closed()
        cbool empty()
        const Link* newest()

    cdef cppclass Bounded:
        Bounded(int64_t most) except +
        int64_t count()
        int64_t take(int64_t want, cbool all)
        void give_back(int64_t n)

    cdef cppclass Admission:
        Admission(int64_t max_requests, int64_t max_tokens) except +
        Bounded requests, tokens
        int64_t leave(int64_t& charged)

    cdef cppclass CStepLock "prelude::StepLock":
        cbool try_acquire(uint64_t me)
        cbool try_acquire_or_request(uint64_t me)
        cbool release()
        uint64_t holder()


cdef extern from "prelude/token_ids.hpp" namespace "prelude" nogil:
    cbool c_copy_below "prelude::copy_below"[Id](const Id* ids, int64_t n, int64_t limit, int32_t* out)
    int64_t c_sort_once "prelude::sort_once"(int32_t* ids, int64_t n, int64_t limit) except +
