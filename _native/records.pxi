# A request as planning, packing and postprocessing read it. Part of core.pyx.

import enum as _enum


class State(str, _enum.Enum):
    """Where a request is. ``_move`` has the legal transitions."""

    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"


cdef object _WAITING = State.WAITING, _PREFILL = State.PREFILL, _DECODE = State.DECODE, _FINISHED = State.FINISHED

cdef dict _CACHE_MODES = {"never": 0, "auto": 1, "always": 2}


cdef class Record:
    """The values of a request that every stage of a step reads. ``num_known``: tokens of the prompt and sampled ones;
    ``cached_len`` of them have their KV in the pool, ``staged_len`` counts tokens in flight as well. ``ahead`` tokens
    are being sampled by steps in flight. Each of them has an entry behind the known tokens: -1 minus its place among
    the tokens that its step draws. ``in_flight`` steps that hold a row of a Decode request are not postprocessed."""

    cdef RequestRow row
    cdef Parcel parcel  # in the inbox; has the request in it from post to take
    cdef object held  # the arrays that the row points into
    cdef public object id, order, queued_at, turn, account, ending, execution_class, history, key, known, options
    cdef public object outbox, output, prepared, sink, timeline, sampling, cache, readout
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
        """The prompt and its readout: ``num_read`` rows of ``readout``, which count from token ``first``;
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


cdef tuple _facts_of(readout):
    """A readout's key and how many rows of it meet the vocabulary."""
    return (None, 0) if readout is None else (readout.key, readout.logits_rows)


def begin_request(Record r not None, prepared, sink, options, execution_class, id, double now) -> None:
    """A waiting request, from the ``Prepared`` of its task. ``execution_class`` is a member of an Enum whose
    value is "oneshot" or "decode"."""
    _begin(r, prepared, sink, options, execution_class, id, now, _facts_of(prepared.readout))


cdef int _begin(Record r, prepared, sink, options, execution_class, id, double now, tuple facts) except -1:
    """``facts``: those of the readout."""
    cdef int64_t read = -1, first = prepared.first, trunk, unread, logits_rows, count = 0, most
    cdef cnp.ndarray rows, tokens, known
    cdef RequestStats stats
    cdef object class_name = execution_class._value_  # ``value`` is a property in Python
    tree, readout = prepared.tree, prepared.readout
    tokens = _int32(tree.token_ids, "token_ids")
    parents = tree.parents
    trunk = _len(tokens) if len(parents) == 1 else tree.starts[1]
    r.key, logits_rows = facts
    if readout is not None:
        rows = _int32(readout.rows, "rows")
        count = _len(rows)
        if count:
            read = _data(rows)[0] + first
    unread = trunk - 1 if read < 0 else min(trunk, read)
    most = prepared.max_new_tokens
    r.known, r.output = tokens, ()
    if class_name == "decode":
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
    stats.execution_class, stats.request_id = class_name, options.request_id
    stats.prompt_tokens = r.num_known
    stats.truncated_tokens, stats.tokenize_ms = prepared.truncated_tokens, prepared.tokenize_ms
    return 0
