# The packer: the tokens that the rows of a step read, and their targets and settings, end to end. Part of core.pyx.

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
    cdef PyThreadState* state = _let_go(worth_releasing_gil(sizes.tokens // 64))
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


cdef Record _record(row):
    request = row.request
    if not isinstance(request, Record):
        raise TypeError(f"a row of {type(request).__name__}, not of a request")
    _check_prompt(request, 0)
    return request


cdef Lease _lease_of(request):
    lease = request.lease
    if not isinstance(lease, Lease):
        raise TypeError("a planned request holds no lease")
    return lease


cdef int _collect(rows, folds, int32_t block_size, size_t more, PackedRows& into, list held) except -1:
    """OneShot rows for the packer, those of ``folds`` ((members, tokens)) computed once. There will be ``more``.
    ``held`` gets the objects that ``into`` points into."""
    cdef int64_t i, begin, root, skip, publish, n = len(rows)
    cdef Record r
    cdef Lease lease
    into.rows.clear()
    into.at.assign(n, -1)
    into.begins.resize(n)
    into.roots.assign(n, -1)
    into.heads.resize(n)
    into.rows.reserve(n + 2 * len(folds) + more)
    for members, tokens in folds:
        for i in members:
            if not 0 <= i < n:
                raise IndexError(f"a fold's member {i} is none of {n} rows")
        row = rows[members[0]]
        r, lease, skip, publish = _record(row), _lease_of(row.request), row.skip, row.publish
        held.append((r, lease))
        begin = skip + <int64_t>tokens
        root = into.rows.size()
        into.rows.push_back(prompt_row(r.row, skip, begin, -1, &lease.c, skip, publish, block_size))
        for i in members:
            r = _record(rows[i])
            held.append(r)
            into.roots[i], into.heads[i], into.begins[i] = root, skip, begin
            if begin == r.row.num_tokens:  # the fold has all of it
                into.at[i] = root
                continue
            into.at[i] = into.rows.size()
            into.rows.push_back(prompt_row(r.row, begin, -1, root, NULL, 0, 0, block_size))
    for i in range(n):
        if into.at[i] < 0:
            row = rows[i]
            r, lease, skip, publish = _record(row), _lease_of(row.request), row.skip, row.publish
            held.append((r, lease))
            into.at[i], into.begins[i] = into.rows.size(), skip
            into.rows.push_back(prompt_row(r.row, skip, -1, -1, &lease.c, skip, publish, block_size))
    return 0


cdef object _brought(rows, folds, PackedRows& packed):
    """How many tokens each OneShot row brought; a fold's, to its first member."""
    cdef int64_t i, n = len(rows)
    cdef Record r
    computed = _new_int32(n)
    cdef int32_t* brought = _data(computed)
    for i in range(n):
        r = _record(rows[i])
        brought[i] = <int32_t>(r.row.num_tokens - packed.begins[i])
    for members, tokens in folds:  # `_collect` has seen that they are rows
        brought[<int64_t>members[0]] += <int32_t>tokens
    return computed


def pack_step(rows, folds, more, int32_t block_size, cbool states=False):
    """The rows of a step end to end, all int32: OneShot rows, those of ``folds`` ((members, tokens)) computed once,
    and after them ``more``. (arrays, where each of ``more`` begins, the tokens of the batch that the OneShot rows
    read one after another, where those of each end, how many tokens each brought: a fold's, to its first member;
    with ``states``, of the OneShot rows that go on from a state or leave one: (first segment, offset from a token of
    the prompt to the batch's token, lease).) ``arrays``:

        token_ids, positions, starts, parents, context_lens, context_indptr, context_blocks, write_slots or None

    One of ``more`` is a tuple

        (token_ids, positions, starts, parents, begin, end, parent, context, context_len,
         slot_blocks, slot_start, slot_count)

    ``positions`` None: a token's index. ``starts`` and ``parents`` None: one segment of tokens ``begin`` to ``end``;
    else a tree of segments, of whose trunk the first ``begin`` tokens are left out (``end`` is not read). ``parent``:
    the earlier row whose first segment this row continues, or -1. ``context``: pool blocks of the ``context_len``
    tokens before, or None. The first ``slot_count`` tokens are written to ``slot_blocks``, from their position
    ``slot_start`` on."""
    cdef int64_t i, n = len(rows), m = len(more)
    cdef PackedRows packed
    cdef list held = []
    cdef _Borrowed borrowed = _Borrowed()
    _collect(rows, folds, block_size, m, packed, held)
    cdef size_t first = packed.rows.size()
    for row in more:
        packed.rows.push_back(_prompt_row(row, packed.rows.size(), borrowed))
    cdef tuple arrays = _slices_of(packed.rows, block_size, packed.places)
    offsets = _new_int32(m)
    for i in range(m):
        _data(offsets)[i] = packed.places[first + i]
    read, ends = _tokens_read(rows, packed)
    return arrays, offsets, read, ends, _brought(rows, folds, packed), _with_states(rows, packed) if states else ()


cdef list _with_states(rows, PackedRows& packed):
    cdef Lease lease
    cdef int64_t i, at, head, n = len(rows)
    cdef list out = []
    for i in range(n):
        lease = _lease_of(rows[i].request)
        if lease.c.state_from < 0 and lease.c.num_kept == 0:
            continue
        at, head = packed.at[i], packed.begins[i]
        if packed.roots[i] >= 0:
            at, head = packed.roots[i], packed.heads[i]
        out.append((packed.places[packed.rows.size() + at], packed.places[at] - head, lease))
    return out


cdef tuple _tokens_read(rows, PackedRows& packed):
    """The tokens of the batch that OneShot rows read, and where those of each row end."""
    cdef Record r
    cdef cnp.ndarray own, read, ends = _new_int32(len(rows))
    cdef int64_t i, k, token, total = 0, at = 0, n = len(rows)
    for i in range(n):
        r = _record(rows[i])
        total += r.num_read
        _data(ends)[i] = <int32_t>total
    read = _new_int32(total)
    for i in range(n):
        r = _record(rows[i])
        if r.num_read == 1:
            _data(read)[at] = <int32_t>(packed.shift(i, r.row.read) + r.row.read)
            at += 1
        elif r.num_read > 1:
            own = _int32(r.readout.rows, "rows")
            if _len(own) != r.num_read:
                raise ValueError(f"{_len(own)} rows are read where {r.num_read} were announced")
            for k in range(r.num_read):
                token = r.first + _data(own)[k]
                _data(read)[at] = <int32_t>(packed.shift(i, token) + token)
                at += 1
    return read, ends


def pack_running(requests, int32_t block_size):
    """One token of each running request, the last that it knows or is about to: (token_ids, positions, write_slots,
    context_lens, block_indptr, block_ids)."""
    cdef int64_t i, blocks = 0, count = len(requests)
    cdef vector[DecodeRow] packed
    cdef DecodeRow row
    cdef Lease lease
    cdef cnp.ndarray known
    cdef list held = []
    packed.reserve(count)
    for r in requests:
        known, lease = _int32(r.known, "known"), _lease_of(r)
        held.append((known, lease))
        row.tokens, row.num_tokens, row.known = _data(known), _len(known), r.num_known + r.ahead
        row.shared, row.shared_blocks = lease.c.shared.data(), lease.c.shared.size()
        row.own, row.own_blocks = lease.c.own.data(), lease.c.own.size()
        packed.push_back(row)
    return _lay_out_running(packed, block_size)
