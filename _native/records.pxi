# A request as planning, packing and settling know it, and what they do to all rows of a step in one call. Part of
# core.pyx.

import dataclasses as _dataclasses
import enum as _enum

# What a request took: names, types and defaults. The class below has them as fields of C.
_STATS = (
    ("execution_class", str, ""), ("prompt_tokens", int, 0), ("cached_tokens", int, 0), ("computed_tokens", int, 0),
    ("deferred_ticks", int, 0), ("chunks", int, 0), ("preemptions", int, 0), ("queue_ms", float, 0.0),
    ("forward_ms", float, 0.0), ("tokenize_ms", float, 0.0), ("detok_ms", float, 0.0), ("finish_reason", object, None),
    ("truncated_tokens", int, 0), ("estimated_jct", float, 0.0), ("batch_size_seen", int, 0), ("replays", int, 0),
    ("ttft_ms", float, 0.0), ("total_ms", float, 0.0), ("request_id", object, None), ("timeline", object, None),
)


@cython.no_gc  # numbers, strings and a tuple of marks
@cython.freelist(256)
cdef class RequestStats:
    """What one request took. Times are wall milliseconds.

    ``computed_tokens`` are tokens that went through the layers for this request, ``cached_tokens`` were read from
    the prefix cache; a state shared by N questions is counted once. ``ttft_ms`` and ``total_ms`` count from when the
    request was handed to the engine, after tokenising. ``timeline`` is there where it was asked for.
    ``estimated_jct`` is what the cost model expected when the request was planned: seconds of computing its prompt
    alone; 0 before a step was measured. ``deferred_ticks`` counts steps spent waiting for another to compute
    the prefix.
    """

    cdef public object execution_class, finish_reason, request_id, timeline
    cdef public int64_t prompt_tokens, cached_tokens, computed_tokens, deferred_ticks, chunks, preemptions
    cdef public int64_t truncated_tokens, batch_size_seen, replays
    cdef public double queue_ms, forward_ms, tokenize_ms, detok_ms, estimated_jct, ttft_ms, total_ms

    __dataclass_fields__ = _dataclasses.make_dataclass("RequestStats", _STATS).__dataclass_fields__

    def __cinit__(self, *args, **fields):
        self.execution_class = ""

    def __init__(self, *args, **fields):
        names = [name for name, _, _ in _STATS]
        if len(args) > len(names):
            raise TypeError(f"{len(args)} values for {len(names)} fields")
        for name, value in zip(names, args):
            setattr(self, name, value)
        for name, value in fields.items():
            setattr(self, name, value)

    def __repr__(self) -> str:
        return "RequestStats(" + ", ".join(f"{name}={getattr(self, name)!r}" for name, _, _ in _STATS) + ")"

    def __eq__(self, other) -> bool:
        if not isinstance(other, RequestStats):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name, _, _ in _STATS)

    def __reduce__(self):
        return RequestStats, tuple([getattr(self, name) for name, _, _ in _STATS])


class State(str, _enum.Enum):
    """Where a request is. ``_move`` has the legal transitions."""

    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"


cdef object _WAITING = State.WAITING, _PREFILL = State.PREFILL, _DECODE = State.DECODE, _FINISHED = State.FINISHED

cdef dict _CACHE_MODES = {"never": 0, "auto": 1, "always": 2}


cdef class Record:
    """What every stage of a step knows of a request. ``num_known`` tokens are the prompt and what was sampled;
    ``cached_len`` of them have their KV in the pool, ``staged_len`` counts tokens in flight as well. ``ahead`` tokens
    are being drawn by steps in flight; behind the known ones stands, for each, -1 minus its place among what its step
    draws. ``in_flight`` steps that hold a row of a Decode request are not settled."""

    cdef RequestRow row
    cdef Parcel parcel  # in the inbox; has the request in it from post to take
    cdef object held  # the arrays that the row points into
    cdef public object id, order, queued_at, turn, account, ending, execution_class, history, key, known, options
    cdef public object outbox, output, call, prepared, sink, timeline, sampling, cache, readout
    cdef readonly object state  # `_move` writes it
    cdef public RequestStats stats
    cdef readonly Lease lease  # `hold` and `_give_back` write it
    cdef public int64_t num_known, cached_len, staged_len, queued_tokens, failures, deferred, max_new_tokens
    cdef public int64_t ahead, in_flight
    cdef readonly int64_t num_read, first  # rows of the readout, and the token that they count from
    cdef public double arrived, planned, first_token, expires
    cdef public cbool cancelled

    def bind(self, tokens, positions, starts, parents, readout, int64_t first, int64_t read, int64_t num_read,
             int64_t unread, int64_t logits_rows, uint64_t salt, str cache) -> None:
        """The prompt, and what is read of it: ``num_read`` rows of ``readout``, which count from token ``first``;
        ``read`` is the first of these tokens, -1 for none. ``unread`` tokens of the trunk are only attended to, -1
        for a request that decodes."""
        self.readout, self.first, self.num_read = readout, first, num_read
        cdef cnp.ndarray t = _int32(tokens, "tokens"), p, s, u
        self.row.tokens, self.row.num_tokens = _data(t), _len(t)
        self.row.segments, self.row.trunk = 1, _len(t)
        self.row.positions = self.row.starts = self.row.parents = NULL
        self.held = t
        if starts is not None and len(parents) > 1:
            p, s, u = _int32(positions, "positions"), _int32(starts, "starts"), _int32(parents, "parents")
            self.held = (t, p, s, u)
            self.row.positions, self.row.starts, self.row.parents = _data(p), _data(s), _data(u)
            self.row.segments, self.row.trunk = _len(u), _data(s)[1]
        self.row.read, self.row.unread, self.row.logits_rows = read, unread, logits_rows
        self.row.salt = salt
        self.cache = cache
        self.row.cache = <CacheMode><int>_CACHE_MODES[cache]

    def __cinit__(self):
        self.state = _WAITING

    def move(self, state not None) -> None:
        """To another state. ``RuntimeError`` where the transition is illegal."""
        _move(self, state)

    def hold(self, Lease lease not None) -> None:
        """The request holds ``lease`` until ``give_back``. ``RuntimeError`` where it holds one."""
        _hold(self, lease)

    def give_back(self, KvPool pool not None) -> None:
        """Its lease, where it holds one, goes back to the pool that the lease is of."""
        if self.lease is not None:
            _give_back(self, pool)

    @property
    def prompt_tokens(self) -> int:
        """With all branches."""
        return self.row.num_tokens

    @property
    def trunk(self) -> int:
        """Tokens that are common to all branches."""
        return self.row.trunk

    @property
    def unread(self) -> int:
        return self.row.unread

    @property
    def first_read(self) -> int:
        return self.row.read

    @property
    def logits_rows(self) -> int:
        return self.row.logits_rows

    @property
    def salt(self) -> int:
        return self.row.salt

    @property
    def reusable(self) -> int:
        """How many tokens the prefix cache may stand in for. A request that reads nothing still computes a token: it
        is there to warm the cache, and a step is never empty."""
        if self.row.cache == CacheMode.never:
            return 0
        return self.num_known - 1 if self.row.unread < 0 else self.row.unread


cdef inline bint _may_move(object old, object new) noexcept:
    if old is _WAITING:
        return new is _PREFILL or new is _FINISHED
    if old is _PREFILL:
        return new is _DECODE or new is _FINISHED or new is _WAITING
    return old is _DECODE and (new is _WAITING or new is _FINISHED)


cdef int _move(Record r, object state) except -1:
    """The only writer of a request's state:

        waiting -> prefill -> decode -> finished      waiting and prefill may end, prefill and decode may wait again
    """
    if not _may_move(r.state, state):
        raise RuntimeError(f"illegal transition {r.state.value} -> {State(state).value}")
    r.state = state
    return 0


cdef int _hold(Record r, Lease lease) except -1:
    if r.lease is not None:
        raise RuntimeError(f"request {r.id} holds a lease and is given another")
    r.lease = lease
    return 0


cdef int _give_back(Record r, KvPool pool) except -1:
    """The only place where a request's lease goes back to its pool. The request holds nothing then, also where the
    pool's accounts turn out to be wrong, which raises."""
    cdef Lease lease = r.lease
    r.lease = None
    pool.take_back(lease)
    return 0


def begin_request(Record r not None, prepared, sink, options, execution_class, id, double now) -> None:
    """A request that waits, from what the preparer made of its task. ``execution_class`` has ``value`` "oneshot" or
    "decode"."""
    cdef int64_t read = -1, first = prepared.first, trunk, unread, logits_rows = 0, count = 0, most
    cdef cnp.ndarray rows, tokens, known
    cdef RequestStats stats
    tree, readout = prepared.tree, prepared.readout
    tokens = _int32(tree.token_ids, "token_ids")
    parents = tree.parents
    trunk = _len(tokens) if len(parents) == 1 else tree.starts[1]
    r.key = None
    if readout is not None:
        r.key, logits_rows = readout.key, readout.logits_rows
        rows = _int32(readout.rows, "rows")
        count = _len(rows)
        if count:
            read = _data(rows)[0] + first
    unread = trunk - 1 if read < 0 else min(trunk, read)
    most = prepared.max_new_tokens
    r.known, r.output = tokens, ()
    if execution_class.value == "decode":
        unread = -1
        r.output = []
        known = r.known = _new_int32(_len(tokens) + most)
        memcpy(_data(known), _data(tokens), _len(tokens) * sizeof(int32_t))
    r.bind(tokens, tree.positions, tree.starts, parents, readout, first, read, count, unread, logits_rows,
           prepared.salt, prepared.cache)
    r.id, r.order, r.queued_at, r.turn = id, 0, 0, 0
    r.prepared, r.sink, r.options, r.execution_class = prepared, sink, options, execution_class
    r.sampling, r.max_new_tokens = prepared.sampling, most
    r.expires, r.queued_tokens, r.arrived, r.num_known = INFINITY, -1, now, _len(tokens)
    stats = r.stats = RequestStats.__new__(RequestStats)
    stats.execution_class, stats.request_id = execution_class.value, options.request_id
    stats.prompt_tokens = r.num_known
    stats.truncated_tokens, stats.tokenize_ms = prepared.truncated_tokens, prepared.tokenize_ms


def begin_requests(type kind not None, list prepared not None, sink, options, tuple classes not None, ids, ending,
                   call, outbox, double expires, double now) -> list:
    """A request of ``kind`` each. ``classes``: of at most one new token, and of more."""
    cdef list out = []
    cdef Record r
    oneshot, decode = classes
    for one in prepared:
        r = kind.__new__(kind)
        begin_request(r, one, sink, options, decode if one.max_new_tokens > 1 else oneshot, next(ids), now)
        r.ending, r.call, r.outbox, r.expires = ending, call, outbox, expires
        out.append(r)
    return out


def all_fit(list requests not None, oneshot, int64_t most) -> bool:
    """Whether all are of class ``oneshot`` and have at most ``most`` tokens each."""
    cdef Record r
    for r in requests:
        if r.execution_class is not oneshot or r.row.num_tokens > most:
            return False
    return True


@cython.final
@cython.no_gc  # what it holds does not lead back to it
@cython.freelist(256)
cdef class OneShotRow:
    """``skip`` trunk tokens come from the cache; ``publish`` blocks of the lease receive the KV of what follows."""

    cdef readonly Record request
    cdef readonly int64_t skip, publish

    def __init__(self, Record request not None, int64_t skip, int64_t publish=0):
        self.request, self.skip, self.publish = request, skip, publish

    def __eq__(self, other) -> bool:
        if not isinstance(other, OneShotRow):
            return NotImplemented
        return (self.request is other.request and self.skip == other.skip and self.publish == other.publish)

    def __repr__(self) -> str:
        return f"OneShotRow(request={self.request!r}, skip={self.skip}, publish={self.publish})"


cdef double _LEAST = float(np.finfo(np.float32).min)  # stands for the logprob of what cannot be


@cython.final
@cython.no_gc  # what it holds does not lead back to it
@cython.freelist(256)
cdef class Outcome:
    """A request's raw numbers, before they become a public result. ``token_ids`` were generated; ``text`` and
    ``logprobs`` are there where a reader decoded the tokens on their way."""

    cdef object whole
    cdef bint uncut
    cdef int64_t rows[4]
    cdef readonly object token_ids, text, logprobs
    cdef readonly RequestStats stats

    def __init__(self, output, token_ids, RequestStats stats not None, text=None, logprobs=None):
        self.whole, self.token_ids, self.stats, self.text, self.logprobs = output, token_ids, stats, text, logprobs

    @property
    def output(self):
        """The request's own part of what its step put out."""
        if self.uncut:
            self.whole = self.whole.slice(slice(self.rows[0], self.rows[1]), slice(self.rows[2], self.rows[3]))
            self.uncut = False
        return self.whole

    def pairs(self) -> list:
        """The logprobs of the request's own (row, target) pairs, as Python numbers, none below ``_LEAST``."""
        cdef cnp.ndarray values
        cdef const double* p
        cdef int64_t k, first = 0, last
        cdef double value
        cdef list out = []
        values = np.ascontiguousarray(self.whole.logprobs, np.float64)
        last = _len(values)
        if self.uncut:
            first, last = self.rows[2], min(self.rows[3], last)
        p = <const double*>cnp.PyArray_DATA(values)
        for k in range(first, last):
            value = p[k]
            out.append(_LEAST if value < _LEAST else value)
        return out

    def __repr__(self) -> str:
        return f"Outcome(output={self.output!r}, token_ids={self.token_ids!r}, stats={self.stats!r})"


# --- in and out of the queue ----------------------------------------------------------------------------------

def number_all(list requests, order, queued_at):
    """Says who came when: (known tokens, rows that meet the vocabulary, whether all are alike) of all of them."""
    cdef Record r, first = requests[0]
    cdef int64_t tokens = 0, rows = 0
    cdef bint alike = True
    for r in requests:
        order += 1
        r.order = order
        r.queued_at = queued_at
        tokens += r.num_known
        rows += r.row.logits_rows
        alike = alike and (r.execution_class is first.execution_class and r.options is first.options
                           and r.key is first.key)
    return tokens, rows, alike


def join_line(list requests not None, account, arrivals) -> None:
    """Requests of one account join a line: ``arrivals`` has them by order."""
    cdef Record r
    for r in requests:
        r.account = account
        arrivals[r.order] = r


def totals(list requests):
    """(known tokens, rows that meet the vocabulary, whether all have one account) of requests in a line."""
    cdef Record r, first = requests[0]
    cdef int64_t tokens = 0, rows = 0
    cdef bint alike = True
    for r in requests:
        tokens += r.num_known
        rows += r.row.logits_rows
        alike = alike and r.account is first.account
    return tokens, rows, alike


def plain(list requests, oneshot) -> bool:
    """Whether none of them is out of the ordinary: cancelled, with a deadline, or told of single tokens."""
    cdef Record r
    for r in requests:
        if r.cancelled or r.expires != INFINITY or r.execution_class is not oneshot:
            return False
    return True


# --- planning -------------------------------------------------------------------------------------------------

def admit_group(KvPool pool not None, requests, tuple limits, defer):
    """The OneShot rows of a step, from ``requests`` in order until one does not fit: (rows, what is left of tokens,
    rows and bytes). ``limits``: the fields of GroupLimits. ``defer(request, tokens)`` hears of one that is
    to wait for a leader. The others hold their leases and are in state ``prefill`` now."""
    cdef GroupLimits most
    (most.tokens, most.rows, most.logits_bytes, most.logits_row_bytes, most.logits_chunk_rows, most.group_tokens,
     most.allowance, most.defer_tokens, most.defer_steps, most.fold, most.retry, most.seen) = limits
    cdef COneShotGroup* group = pool.group
    cdef list rows = []
    cdef Record r
    cdef Lease lease = None
    cdef OneShotRow row
    cdef int64_t skip = 0, publish = 0
    cdef Result wrong
    cdef Verdict verdict
    group.begin(most)
    for r in requests:
        if group.done():
            break
        if r.state is not _WAITING:
            raise RuntimeError(f"a request that is {r.state} cannot be planned")
        lease = Lease.__new__(Lease)
        pool.allocator.enter()
        try:
            verdict = group.admit(r.row, r.deferred, lease.c, &skip, &publish, &wrong)
        finally:
            pool.allocator.writer.leave()
        _check(wrong)
        if verdict == Verdict.full:
            break
        if verdict == Verdict.deferred:
            r.deferred += 1
            r.stats.deferred_ticks += 1
            defer(r, lease.c.ahead * pool.c.block_size())
            continue
        _hold(r, lease)
        r.stats.cached_tokens = skip
        _move(r, _PREFILL)
        row = OneShotRow.__new__(OneShotRow)
        row.request, row.skip, row.publish = r, skip, publish
        rows.append(row)
    group.end()
    return rows, group.left().tokens, group.left().rows, group.left().logits_bytes


def folds_of(KvPool pool not None, list rows) -> list:
    """(members, tokens) of the folds of the group that was admitted last. Who may publish for all comes first."""
    cdef list out = []
    cdef list first, after
    cdef int32_t member
    cdef int64_t k
    cdef size_t g
    cdef FoldGroup fold
    for g in range(pool.group.folds().groups().size()):
        fold = pool.group.folds().groups()[g]
        if fold.count < 2:
            continue
        first, after = [], []
        member = fold.first
        for k in range(fold.count):
            if (<OneShotRow?>rows[member]).request.row.cache == CacheMode.never:
                after.append(member)
            else:
                first.append(member)
            member = pool.group.folds().next(member)
        out.append((tuple(first + after), fold.shared))
    return out


def keep_all(KvPool pool not None, list rows, list folds, cbool seen, common) -> None:
    """Blocks for what the rows publish: folded ones their common part once, through the first member; others their
    trunk. ``common(request, skip)``: how many tokens a peer that waits shares with one that finds no room; for these
    what was hit before gives way, the coldest first."""
    cdef OneShotRow row
    cdef Record r
    cdef Result wrong
    cdef int64_t end, at = 0
    cdef cbool room
    cdef dict ends = {}
    if not pool.c.caching():
        return
    for members, tokens in folds:
        for member in members:
            ends[member] = 0
        row = rows[members[0]]
        ends[members[0]] = row.skip + tokens
    for row in rows:
        r = row.request
        end = ends.get(at, r.row.trunk) if ends else r.row.trunk
        at += 1
        if row.publish:
            continue
        pool.allocator.enter()
        try:
            room = pool.group.keep(r.row, r.lease.c, row.skip, end, r.row.cache == CacheMode.always, seen,
                                   &row.publish, &wrong)
        finally:
            pool.allocator.writer.leave()
        _check(wrong)
        if not room:
            end = min(end, <int64_t>common(r, row.skip))
            pool.allocator.enter()
            try:
                pool.group.keep(r.row, r.lease.c, row.skip, end, True, seen, &row.publish, &wrong)
            finally:
                pool.allocator.writer.leave()
            _check(wrong)
            pool.unkept += not row.publish


# --- packing --------------------------------------------------------------------------------------------------

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


def pack_step(rows, folds, more, int32_t block_size):
    """The rows of a step end to end, all int32: OneShot rows, those of ``folds`` ((members, tokens)) computed once, and
    after them ``more``. (arrays, where each of ``more`` begins, the tokens of the batch that the OneShot rows read one
    after another, where those of each end, how many tokens each brought: a fold's, to its first member.) ``arrays``:

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
    return arrays, offsets, read, ends, _brought(rows, folds, packed)


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


def join_pairs(readouts, row_ends):
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


cdef tuple _last_settings = (None, 0, None)  # what was asked for last, by how many rows, and its arrays


def sampling_arrays(list settings not None):
    """One row a set of sampling settings: (temperature, top_k, top_p, min_p, seeds, steps, the most alternatives,
    whether logprobs are wanted, whether logits are edited); ``steps`` are 0. Rows that all ask for the same, without
    edits, share arrays with the call before: they are not to be written."""
    global _last_settings
    cdef Py_ssize_t i, n = len(settings)
    cdef tuple last = _last_settings
    cdef bint same = n > 0
    cdef object before = settings[0] if n else None
    for i in range(n):
        same = same and settings[i] is before
    if same and before is last[0] and n == <Py_ssize_t>last[1]:
        return last[2]
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
    return values
