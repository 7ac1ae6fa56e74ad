# Hashes of blocks, and the packer. Part of core.pyx.

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
    cdef list given = rows if type(rows) is list else list(rows)
    cdef vector[PromptRow] packed
    cdef _Borrowed borrowed = _Borrowed()
    packed.reserve(len(given))
    for row in given:
        packed.push_back(_prompt_row(row, packed.size(), borrowed))
    return _lay_out(packed, block_size, out)


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


cdef tuple _lay_out(const vector[PromptRow]& packed, int32_t block_size, object out):
    """The rows end to end, into new arrays or the caller's; then where each begins."""
    cdef vector[int32_t] places
    cdef int64_t count = packed.size()
    cdef tuple arrays = _slices_of(packed, block_size, out, places)
    row_offsets = _room(out, 8, count, "row_offsets")
    row_segments = _room(out, 9, count, "row_segments")
    if count:
        memcpy(_data(row_offsets), places.data(), count * sizeof(int32_t))
        memcpy(_data(row_segments), places.data() + count, count * sizeof(int32_t))
    return arrays + (row_offsets, row_segments)


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
    where that had as many, since what they hold is the same."""
    global _last_plain
    cdef tuple last = _last_plain
    if count == <int64_t>last[0]:
        return last[1]
    arrays = (_new_int32(count), _new_int32(count), _new_int32(count + 1), _new_int32(0))
    _last_plain = (count, arrays)
    return arrays


cdef tuple _slices_of(const vector[PromptRow]& packed, int32_t block_size, object out, vector[int32_t]& places):
    """The first eight arrays of ``pack_prompt``. ``places``: every row's first token, then every row's first
    segment."""
    if block_size < 1:
        raise ValueError(f"block_size: {block_size} is less than 1")
    cdef int64_t count = packed.size()
    cdef PromptSizes sizes = measure(packed.data(), count, block_size)
    if sizes.reason != NULL:
        raise ValueError(f"row {sizes.bad_row}: {sizes.reason.decode()}")

    cdef PromptArrays a
    places.resize(2 * count)
    token_ids = _room(out, 0, sizes.tokens, "token_ids")
    positions = _room(out, 1, sizes.tokens, "positions")
    starts = _room(out, 2, sizes.segments + 1, "starts")
    if out is None and _are_plain(packed, sizes):
        parents, context_lens, context_indptr, context_blocks = _plain_arrays(count)
    else:
        parents = _room(out, 3, sizes.segments, "parents")
        context_lens = _room(out, 4, sizes.segments, "context_lens")
        context_indptr = _room(out, 5, sizes.segments + 1, "context_indptr")
        context_blocks = _room(out, 6, sizes.context, "context_blocks")
    write_slots = _room(out, 7, sizes.tokens, "write_slots") if sizes.writes else None
    a.token_ids, a.positions, a.starts, a.parents = _data(token_ids), _data(positions), _data(starts), _data(parents)
    a.context_lens, a.context_indptr = _data(context_lens), _data(context_indptr)
    a.context_blocks = _data(context_blocks)
    a.write_slots = _data(write_slots) if sizes.writes else NULL
    a.row_offsets, a.row_segments = places.data(), places.data() + count
    cdef PyThreadState* state = _let_go(sizes.tokens // 64)
    fill_prompt(packed.data(), count, block_size, a)
    _take_back(state)
    return token_ids, positions, starts, parents, context_lens, context_indptr, context_blocks, write_slots


def pack_decode(rows, int32_t block_size, out=None):
    """One token of each running row: (token_ids, positions, write_slots, context_lens, block_indptr, block_ids).

    A row is a tuple ``(tokens, num_known, shared_blocks, own_blocks)``: the last of ``num_known`` tokens is fed,
    and the two lists of blocks, end to end, are its block table. ``out``: six buffers to fill instead.
    """
    cdef list given = rows if type(rows) is list else list(rows)
    cdef vector[DecodeRow] packed
    cdef DecodeRow r
    cdef _Borrowed borrowed = _Borrowed()
    cdef tuple row
    packed.reserve(len(given))
    for row in given:
        if len(row) != 4:
            raise ValueError(f"row {packed.size()}: 4 fields are needed, not {len(row)}")
        r.tokens = borrowed.take(row[0], "tokens", &r.num_tokens)
        r.known = row[1]
        r.shared = borrowed.take(row[2], "shared_blocks", &r.shared_blocks)
        r.own = borrowed.take(row[3], "own_blocks", &r.own_blocks)
        packed.push_back(r)
    return _lay_out_running(packed, block_size, out)


cdef tuple _lay_out_running(const vector[DecodeRow]& packed, int32_t block_size, object out):
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
    token_ids, positions = _room(out, 0, count, "token_ids"), _room(out, 1, count, "positions")
    write_slots, context_lens = _room(out, 2, count, "write_slots"), _room(out, 3, count, "context_lens")
    block_indptr, block_ids = _room(out, 4, count + 1, "block_indptr"), _room(out, 5, blocks, "block_ids")
    a.token_ids, a.positions, a.write_slots = _data(token_ids), _data(positions), _data(write_slots)
    a.context_lens, a.block_indptr, a.block_ids = _data(context_lens), _data(block_indptr), _data(block_ids)
    fill_decode(packed.data(), count, block_size, a)
    return token_ids, positions, write_slots, context_lens, block_indptr, block_ids
