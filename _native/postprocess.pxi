# The results of a step applied to its rows, in one call over all of them. Part of core.pyx.

cdef class StopRule:
    """When a generated text ends: the one home of this rule. A stop id ends it, which is part of the text with
    ``include_stop`` only; so does the token that fills its budget. Stop strings are found in the text
    (``prelude/streaming/text.py``), and end it like a stop id.

    It keeps the settings of the row before: rows of one step mostly share them."""

    cdef object sampling, ids
    cdef bint keeps

    cdef inline int follow(self, sampling) except -1:
        if sampling is not self.sampling or self.ids is None:
            self.sampling = sampling
            self.ids = frozenset() if sampling is None else sampling.stop_ids
            self.keeps = sampling is not None and sampling.include_stop
        return 0

    cdef inline str end(self, Record r, object token, int64_t count):
        """Why the text of ``r`` ends with ``token``, its ``count``-th one: "stop", "length", or None: it goes on."""
        self.follow(r.sampling)
        if self.ids and token in self.ids:
            return "stop"
        return "length" if count >= r.max_new_tokens else None

    cdef inline bint kept(self, str reason):
        """Whether the token that ``end`` was asked of is part of the text."""
        return self.keeps or reason != "stop"


def end_with(Record r not None, token) -> tuple:
    """The effect of a Decode request's next token: (whether it is part of the text, why the text ends or None)."""
    cdef StopRule rule = StopRule()
    cdef str reason = rule.end(r, token, len(r.output) + 1)
    return rule.kept(reason), reason


def postprocess_group(KvPool pool not None, plan, packed, result, bad_rows, int64_t vocab_size):
    """Ends the OneShot rows of a step that went well: publishes, gives leases back. (requests, their outcomes,
    [(request, token)] of those that failed: by numbers that are none, token None, or a token outside the vocabulary;
    these are not ended). ``packed.row_ends`` and ``packed.pair_ends`` say where each row's part of its output ends,
    None where it has one row. ``bad_rows``: of each output, those with numbers that are none."""
    cdef tuple rows = plan.oneshot
    cdef int64_t batch_size = len(rows) + len(plan.prefill) + len(plan.decode)
    at = packed.outputs[0]
    output = result.outputs[at]
    return _postprocess_rows(pool, rows, packed.computed, packed.row_ends, packed.pair_ends, output,
                             output.sampled_ids, bad_rows[at], vocab_size, <double>result.seconds * 1e3, batch_size)


cdef int _check_ends(int64_t rows, cnp.ndarray computed, cnp.ndarray row_ends, cnp.ndarray pair_ends,
                     cnp.ndarray token_ids) except -1:
    """Checks that each row's part lies within the step's output."""
    cdef int64_t i, read = rows
    if _len(computed) != rows or (pair_ends is not None and _len(pair_ends) != rows):
        raise ValueError(f"not one number for each of {rows} rows")
    if row_ends is not None:
        if _len(row_ends) != rows:
            raise ValueError(f"{_len(row_ends)} ends for {rows} rows")
        for i in range(rows):
            if _data(row_ends)[i] < (_data(row_ends)[i - 1] if i else 0):
                raise ValueError(f"row_ends falls at {i}")
        read = _data(row_ends)[rows - 1] if rows else 0
    if token_ids is not None and _len(token_ids) < read:
        raise ValueError(f"{_len(token_ids)} tokens for {read} rows that are read")
    return 0


cdef tuple _postprocess_rows(KvPool pool, tuple rows, computed, row_ends, pair_ends, output, token_ids, bad,
                        int64_t vocab_size, double forward_ms, int64_t batch_size):
    cdef OneShotRow row
    cdef Record r
    cdef RequestStats stats
    cdef Lease lease
    cdef Outcome outcome
    cdef Result wrong
    cdef int64_t i = 0, k, a, b, c = 0, d = 0, token
    computed = _int32(computed, "computed")
    row_ends = None if row_ends is None else _int32(row_ends, "row_ends")
    pair_ends = None if pair_ends is None else _int32(pair_ends, "pair_ends")
    token_ids = None if token_ids is None else _int32(token_ids, "token_ids")
    _check_ends(len(rows), computed, row_ends, pair_ends, token_ids)
    cdef const int32_t* brought = _data(computed)
    cdef const int32_t* ends = NULL
    if row_ends is not None:
        ends = _data(row_ends)
    cdef const int32_t* pairs = NULL
    if pair_ends is not None:
        pairs = _data(pair_ends)
    cdef const int32_t* drawn = NULL
    if token_ids is not None:
        drawn = _data(token_ids)
    cdef Py_ssize_t well = 0
    cdef list requests = [None] * len(rows), outcomes = [None] * len(rows), failed = []
    cdef StopRule rule = StopRule()
    cdef object number
    cdef bint fine, any_bad = bool(bad)
    b = 0
    for row in rows:
        r = row.request
        stats = r.stats
        lease = r.lease
        a, b = b, ends[i] if ends != NULL else i + 1
        if pairs != NULL:
            c, d = d, pairs[i]
        stats.forward_ms += forward_ms
        stats.batch_size_seen = max(stats.batch_size_seen, batch_size)
        stats.computed_tokens = brought[i]
        stats.chunks = 1
        stats.queue_ms = (r.planned - r.arrived) * 1e3
        r.failures = 0
        fine = True
        if any_bad:
            for k in range(a, b):
                fine = fine and k not in bad
        if not fine:
            failed.append((r, None))
            i += 1
            continue
        token = 0 if drawn == NULL else drawn[a]
        if r.state is not _PREFILL or lease is None:
            raise RuntimeError(f"a request that is {r.state} cannot be postprocessed")
        if row.publish:
            pool.allocator.enter()
            try:
                wrong = pool.c.publish(lease.c, r.row.tokens, row.skip + row.publish * pool.c.block_size(), r.row.salt,
                                       r.row.cache == CacheMode.always, True)
            finally:
                pool.allocator.writer.leave()
            _check(wrong)
        if drawn != NULL and not 0 <= token < vocab_size:
            failed.append((r, token))
            i += 1
            continue
        outcome = Outcome.__new__(Outcome)
        outcome.token_ids = ()
        if drawn != NULL:
            number = token
            stats.finish_reason = rule.end(r, number, 1)
            if rule.kept(stats.finish_reason):
                outcome.token_ids = (number,)
        outcome.whole, outcome.uncut, outcome.stats = output, True, stats
        outcome.rows[0], outcome.rows[1], outcome.rows[2], outcome.rows[3] = a, b, c, d
        _give_back(r, pool)
        _move(r, _FINISHED)
        requests[well], outcomes[well] = r, outcome
        well += 1
        i += 1
    if well < len(rows):
        del requests[well:], outcomes[well:]
    return requests, outcomes, failed


def postprocess_running(tuple requests, token_ids, bad, gone, int64_t vocab_size, double forward_ms,
                   int64_t batch_size) -> tuple:
    """The results of a step for its decode rows. The sampled token is appended where a row needs no other work but a
    choice of the ids that may come next. (The other rows, by number: their first token, one that may be their last,
    or one of a request with a stream, a timeline or penalties; [(row, error)] of choices that failed.)
    Left alone are those that have ended meanwhile, and those whose ids are in ``gone``."""
    cdef Record r
    cdef RequestStats stats
    cdef cnp.ndarray known, drawn = None if token_ids is None else _int32(token_ids, "token_ids")
    cdef list output, more = [], failed = []
    cdef int64_t i, token
    cdef object history
    cdef StopRule rule = StopRule()
    cdef object number
    cdef bint any_bad = bool(bad), any_gone = bool(gone)
    if drawn is not None and _len(drawn) != len(requests):
        raise ValueError(f"{_len(drawn)} tokens for {len(requests)} rows")
    for i in range(len(requests)):
        r = requests[i]
        if r.state is _FINISHED or (any_gone and r.id in gone):
            continue
        stats = r.stats
        stats.forward_ms += forward_ms
        stats.batch_size_seen = max(stats.batch_size_seen, batch_size)
        stats.computed_tokens += 1
        r.failures = 0
        r.cached_len = r.num_known
        token = -1 if drawn is None else _data(drawn)[i]
        number = token
        output, known, history = r.output, _int32(r.known, "known"), r.history
        if (not 0 <= token < vocab_size or (any_bad and i in bad) or rule.end(r, number, len(output) + 1) is not None
                or not output or r.sink.streams or r.timeline is not None
                or (history is not None and history.weighs) or not 0 <= r.num_known < _len(known)):
            more.append(i)
        else:
            _data(known)[r.num_known] = <int32_t>token
            r.num_known += 1
            output.append(number)
            if history is not None:
                try:
                    history.allowed = history.choose(output, len(output) < r.sampling.min_tokens)
                except BaseException as raised:
                    failed.append((i, raised))
    return more, failed
