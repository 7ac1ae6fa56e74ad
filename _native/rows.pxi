# The tokens that the rows of a step read, and their targets and settings, end to end. Part of core.pyx.

cdef int _collect(rows, folds, int32_t block_size, size_t more, PackedRows& into) except -1:
    """OneShot rows for the packer, those of ``folds`` ((members, tokens)) computed once. There will be ``more``."""
    cdef int64_t i, begin, root, n = len(rows)
    cdef OneShotRow row
    cdef Record r
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
        r = row.request
        begin = row.skip + <int64_t>tokens
        root = into.rows.size()
        into.rows.push_back(prompt_row(r.row, row.skip, begin, -1, &r.lease.c, row.skip, row.publish, block_size))
        for i in members:
            r = (<OneShotRow?>rows[i]).request
            into.roots[i], into.heads[i], into.begins[i] = root, row.skip, begin
            if begin == r.row.num_tokens:  # the fold has all of it
                into.at[i] = root
                continue
            into.at[i] = into.rows.size()
            into.rows.push_back(prompt_row(r.row, begin, -1, root, NULL, 0, 0, block_size))
    for i in range(n):
        if into.at[i] < 0:
            row = rows[i]
            r = row.request
            into.at[i], into.begins[i] = into.rows.size(), row.skip
            into.rows.push_back(prompt_row(r.row, row.skip, -1, -1, &r.lease.c, row.skip, row.publish, block_size))
    return 0


cdef object _brought(rows, folds, PackedRows& packed):
    """How many tokens each OneShot row brought; a fold's, to its first member."""
    cdef int64_t i, n = len(rows)
    computed = _new_int32(n)
    cdef int32_t* brought = _data(computed)
    for i in range(n):
        brought[i] = <int32_t>((<OneShotRow?>rows[i]).request.row.num_tokens - packed.begins[i])
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
    return _pack_rows(rows, folds, more, block_size, states)


cdef tuple _pack_rows(rows, folds, more, int32_t block_size, bint states):
    cdef int64_t i, n = len(rows), m = len(more)
    cdef PackedRows packed
    cdef _Borrowed borrowed = _Borrowed()
    _collect(rows, folds, block_size, m, packed)
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
        lease = (<OneShotRow?>rows[i]).request.lease
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
        total += (<OneShotRow?>rows[i]).request.num_read
        _data(ends)[i] = <int32_t>total
    read = _new_int32(total)
    for i in range(n):
        r = (<OneShotRow>rows[i]).request
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


cdef tuple _join_pairs(readouts, row_ends):
    """(row, target) pairs of readouts in one piece: (target_rows, targets, where the pairs of each end). Rows of
    readout i come after those that end at ``row_ends[i - 1]``."""
    cdef cnp.ndarray ends = _int32(row_ends, "row_ends"), rows, ids, target_rows, targets, pair_ends
    cdef int64_t i, k, total = 0, at = 0, n = len(readouts)
    cdef int32_t first = 0
    cdef list parts = []
    if _len(ends) != n:
        raise ValueError(f"{_len(ends)} ends for {n} readouts")
    pair_ends = _new_int32(n)
    for i in range(n):
        readout = readouts[i]
        rows, ids = _int32(readout.target_rows, "target_rows"), _int32(readout.targets, "targets")
        if _len(rows) != _len(ids):
            raise ValueError(f"{_len(rows)} target_rows for {_len(ids)} targets")
        parts.append((rows, ids))
        total += _len(ids)
        _data(pair_ends)[i] = <int32_t>total
    target_rows, targets = _new_int32(total), _new_int32(total)
    for i in range(n):
        rows, ids = parts[i]
        for k in range(_len(ids)):
            _data(target_rows)[at] = _data(rows)[k] + first
            _data(targets)[at] = _data(ids)[k]
            at += 1
        first = _data(ends)[i]
    return target_rows, targets, pair_ends


cdef dict _pair_makers = {}


cdef class PairReadout:
    """The part of a readout of (row, target) pairs that every step asks for: a base of a dataclass of slots with the
    fields ``rows``, ``target_rows``, ``targets``, ``top``, ``ranks`` and ``raw``. ``output_kind`` is the class of its
    outputs."""

    @property
    def key(self) -> tuple:
        """Requests share a batch where these are equal."""
        return "logprobs", self.top, self.ranks, self.raw

    @property
    def logits_rows(self) -> int:
        """Rows that meet the vocabulary: of ``raw`` readouts, the targets' rows of the head do alone."""
        return 0 if self.raw else len(self.rows)

    def join(self, readouts, rows, row_ends):
        """``readouts`` of one key as one: (readout, row_ends, where the pairs of each end)."""
        cdef type kind = type(self)
        cdef object make = _pair_makers.get(kind)
        if make is None:
            make = _pair_makers[kind] = Maker(kind)
        target_rows, targets, pair_ends = _join_pairs(readouts, row_ends)
        return make(rows, target_rows, targets, self.top, self.ranks, self.raw), row_ends, pair_ends

    def answers(self, output) -> bool:
        """Whether ``output`` has the kind and the shapes that the readout asks for."""
        cdef object pairs = self.targets.shape, rows
        if not isinstance(output, self.output_kind) or _shape_of(output.logprobs) != pairs:
            return False
        if self.ranks and _shape_of(output.ranks) != pairs:
            return False
        if not self.top:
            return True
        rows = self.rows.shape
        return _shape_of(output.top_ids)[:1] == rows and _shape_of(output.top_logprobs)[:1] == rows

    def not_finite(self, output):
        """The row of each logprob that is NaN."""
        logprobs = output.logprobs
        return self.target_rows[np.isnan(logprobs)] if any_nan(logprobs) else _new_int32(0)


cdef object _shape_of(array):
    return getattr(array, "shape", ())


cdef class DrawReadout:
    """``join`` of a request's readout that draws one token: a base of a dataclass of slots with the field ``sampling``.
    ``make_rows`` makes the batch's readout of its fields, ``edits_of(readouts)`` the edits of logits."""

    def join(self, readouts, rows, row_ends):
        """``readouts`` as one: (readout, None, None), since each has one row and no pairs. Arrays of settings may be
        those of other batches: they are not to be written."""
        cdef list settings = [one.sampling for one in readouts]
        temperature, top_k, top_p, min_p, seeds, steps, top, logprobs, edited = sampling_arrays(settings)
        edits = self.edits_of(readouts) if edited else None
        made = self.make_rows(rows, temperature, top_k, top_p, min_p, seeds, steps, top, logprobs, edits)
        return made, None, None


cdef class TokenReadout:
    """The checks of an output of one drawn token a row: a base of a dataclass of slots with the field ``rows``.
    ``output_kind`` is the class of its outputs."""

    def answers(self, output) -> bool:
        """Whether ``output`` has the kind and the shape that the readout asks for."""
        if type(output) is not self.output_kind:
            return False
        ids = output.token_ids
        return cnp.PyArray_Check(ids) and ids.shape == self.rows.shape

    def not_finite(self, output):
        """None: token ids are numbers."""
        return _new_int32(0)


def pack_running(requests, int32_t block_size):
    """One token of each running request, the last that it knows or is about to: (token_ids, positions, write_slots,
    context_lens, block_indptr, block_ids)."""
    cdef int64_t i, blocks = 0, count = len(requests)
    cdef vector[DecodeRow] packed
    cdef DecodeRow row
    cdef Record r
    cdef cnp.ndarray known
    cdef list held = []
    packed.reserve(count)
    for r in requests:
        known = _int32(r.known, "known")
        if known is not r.known:
            held.append(known)
        row.tokens, row.num_tokens, row.known = _data(known), _len(known), r.num_known + r.ahead
        row.shared, row.shared_blocks = r.lease.c.shared.data(), r.lease.c.shared.size()
        row.own, row.own_blocks = r.lease.c.own.data(), r.lease.c.own.size()
        packed.push_back(row)
    return _lay_out_running(packed, block_size)


cdef object _F32 = np.dtype(np.float32)
cdef object _U64 = np.dtype(np.uint64)


cdef tuple _last_settings = (None, 0, None)  # the settings of the last call, their number of rows, and their arrays
cdef tuple _last_row = (None, None)  # numbers of a call for one row with edits, and their arrays


cpdef sampling_arrays(list settings):
    """One row a set of sampling settings: (temperature, top_k, top_p, min_p, seeds, steps, the most alternatives,
    whether logprobs are wanted, whether logits are edited); ``steps`` are 0. Rows that all ask for the same, without
    edits, share arrays with the call before: they are not to be written."""
    global _last_settings, _last_row
    cdef Py_ssize_t i, n = len(settings)
    cdef tuple last = _last_settings, row = _last_row
    cdef bint same = n > 0
    cdef object before = settings[0] if n else None
    for i in range(n):
        same = same and settings[i] is before
    if same and before is last[0] and n == <Py_ssize_t>last[1]:
        return last[2]
    cdef tuple numbers = None
    if n == 1 and before.edits is not None:  # edits are the caller's objects, which are not kept for a later call
        numbers = (before.temperature, before.top_p, before.min_p, before.seed, before.top_k, before.logprobs)
        if numbers == row[0]:
            return row[1]
    temperature, top_p, min_p = np.empty(n, _F32), np.empty(n, _F32), np.empty(n, _F32)
    seeds, top_k, steps = np.empty(n, _U64), _new_int32(n), np.zeros(n, np.int32)
    cdef float* t = <float*>cnp.PyArray_DATA(<cnp.ndarray>temperature)
    cdef float* p = <float*>cnp.PyArray_DATA(<cnp.ndarray>top_p)
    cdef float* m = <float*>cnp.PyArray_DATA(<cnp.ndarray>min_p)
    cdef uint64_t* s = <uint64_t*>cnp.PyArray_DATA(<cnp.ndarray>seeds)
    cdef int32_t* k = _data(top_k)
    cdef int64_t top = 0
    cdef bint logprobs = False, edited = False
    before = None
    for i in range(n):
        one = settings[i]
        if i and one is before:
            t[i], p[i], m[i], s[i], k[i] = t[i - 1], p[i - 1], m[i - 1], s[i - 1], k[i - 1]
            continue
        before = one
        t[i], p[i], m[i], s[i], k[i] = one.temperature, one.top_p, one.min_p, one.seed, one.top_k
        wanted = one.logprobs
        if wanted is not None:
            logprobs, top = True, max(top, <int64_t>wanted)
        edited = edited or one.edits is not None
    values = (temperature, top_k, top_p, min_p, seeds, steps, top, logprobs, edited)
    if same and not edited:
        _last_settings = (before, n, values)
    if numbers is not None:
        _last_row = (numbers, values)
    return values
