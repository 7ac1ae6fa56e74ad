# Hashes of blocks, and the packer. Part of core.pyx.

def block_hashes(tokens, int32_t block_size=16, uint64_t salt=0, key: bytes | None = None):
    """The chained 64-bit hash of each full block. ``key``: 16 secret bytes for SipHash-2-4, else a plain mix.

    The plain hash is a filter: its callers compare tokens. The keyed one can name a block elsewhere.
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


cdef PromptRow _prompt_row(tuple row, int64_t i, _Borrowed borrowed) except *:
    cdef PromptRow r
    cdef int64_t n
    if len(row) != 12:
        raise ValueError(f"row {i}: 12 fields are needed, not {len(row)}")
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
    return r


cdef bint _are_plain(const vector[PromptRow]& packed, const PromptSizes& sizes) noexcept:
    """Whether every row is one segment of its own, with nothing cached before it."""
    cdef size_t i
    if sizes.context != 0 or sizes.segments != <int64_t>packed.size():
        return False
    for i in range(packed.size()):
        if packed[i].parent >= 0 or packed[i].context_len != 0 or packed[i].starts != NULL:
            return False
    return True


cdef tuple _last_plain = (-1, None)


cdef tuple _plain_arrays(int64_t count):
    """parents, context_lens, context_indptr and context_blocks of so many plain rows: shared with the step before
    where that had as many, since their values are the same."""
    global _last_plain
    cdef tuple last = _last_plain
    if count == <int64_t>last[0]:
        return last[1]
    arrays = (_new_int32(count), _new_int32(count), _new_int32(count + 1), _new_int32(0))
    _last_plain = (count, arrays)
    return arrays


cdef tuple _slices_of(const vector[PromptRow]& packed, int32_t block_size, vector[int32_t]& places):
    """The first eight arrays of ``pack_step``. ``places``: every row's first token, then every row's first
    segment."""
    if block_size < 1:
        raise ValueError(f"block_size: {block_size} is less than 1")
    cdef int64_t count = packed.size()
    cdef PromptSizes sizes = measure(packed.data(), count, block_size)
    if sizes.reason != NULL:
        raise ValueError(f"row {sizes.bad_row}: {sizes.reason.decode()}")

    cdef PromptArrays a
    places.resize(2 * count)
    token_ids = _new_int32(sizes.tokens)
    positions = _new_int32(sizes.tokens)
    starts = _new_int32(sizes.segments + 1)
    if _are_plain(packed, sizes):
        parents, context_lens, context_indptr, context_blocks = _plain_arrays(count)
    else:
        parents = _new_int32(sizes.segments)
        context_lens = _new_int32(sizes.segments)
        context_indptr = _new_int32(sizes.segments + 1)
        context_blocks = _new_int32(sizes.context)
    write_slots = _new_int32(sizes.tokens) if sizes.writes else None
    a.token_ids, a.positions, a.starts, a.parents = _data(token_ids), _data(positions), _data(starts), _data(parents)
    a.context_lens, a.context_indptr = _data(context_lens), _data(context_indptr)
    a.context_blocks = _data(context_blocks)
    a.write_slots = _data(write_slots) if sizes.writes else NULL
    a.row_offsets, a.row_segments = places.data(), places.data() + count
    cdef PyThreadState* state = _let_go(sizes.tokens // 64)
    fill_prompt(packed.data(), count, block_size, a)
    _take_back(state)
    return token_ids, positions, starts, parents, context_lens, context_indptr, context_blocks, write_slots


cdef tuple _lay_out_running(const vector[DecodeRow]& packed, int32_t block_size):
    if block_size < 1:
        raise ValueError(f"block_size: {block_size} is less than 1")
    cdef int64_t i, count = packed.size(), blocks = 0
    cdef const char* wrong
    for i in range(count):
        wrong = wrong_decode_row(packed[i], block_size)
        if wrong != NULL:
            raise ValueError(f"row {i}: {wrong.decode()}")
        blocks += packed[i].shared_blocks + packed[i].own_blocks
    if blocks > 2147483647:
        raise ValueError("more blocks in one step than int32 can count")
    cdef DecodeArrays a
    token_ids, positions = _new_int32(count), _new_int32(count)
    write_slots, context_lens = _new_int32(count), _new_int32(count)
    block_indptr, block_ids = _new_int32(count + 1), _new_int32(blocks)
    a.token_ids, a.positions, a.write_slots = _data(token_ids), _data(positions), _data(write_slots)
    a.context_lens, a.block_indptr, a.block_ids = _data(context_lens), _data(block_indptr), _data(block_ids)
    fill_decode(packed.data(), count, block_size, a)
    return token_ids, positions, write_slots, context_lens, block_indptr, block_ids
