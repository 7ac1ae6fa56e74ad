# The ends of OneShot requests that a step ended well, all in one call; the results of texts. Part of core.pyx.

@cython.final
cdef class OneShotEnds:
    """Tells the ends of requests, and how long they took. ``live`` has the requests whose end was not told, by id: the
    thread that takes one out of it tells its end. ``stats`` counts them, ``events`` and ``sinks`` are told.
    ``one(request, outcome, error)`` ends a request that wants more than that (a timeline, a deadline), or whose run has
    one that was told meanwhile."""

    cdef dict live
    cdef StepCounts stats
    cdef object events, sinks, one

    def __cinit__(self, dict live not None, StepCounts stats not None, events, sinks, one):
        self.live, self.stats, self.events, self.sinks, self.one = live, stats, events, sinks, one

    def __call__(self, list requests not None, list outcomes not None) -> None:
        cdef list runs, more, some, theirs
        if len(outcomes) != len(requests):
            raise ValueError(f"{len(outcomes)} outcomes of {len(requests)} requests")
        runs, more = _end_rows(requests, outcomes, self.live, _perf_counter())
        for sink, some, theirs in runs:
            if _claim(self.live, some):
                self.tell(sink, some, theirs)
            else:  # the watchdog told some of them meanwhile
                more = [*zip(some, theirs), *more]
        for request, outcome in more:
            self.one(request, outcome, None)

    cdef int tell(self, sink, list requests, list outcomes) except -1:
        """Requests of one sink. Where it raises, for want of memory, they are in ``live`` again, and the next step
        tells them."""
        cdef object deliver_all
        self.stats.finished += len(requests)
        try:
            if self.events.heard:
                self.events.emit_finished(requests)
            deliver_all = getattr(sink, "deliver_all", None)
            if deliver_all is None:
                self.sinks.deliver_each(requests, outcomes)
                return 0
            try:
                deliver_all(requests, outcomes)
            except BaseException as raised:
                self.sinks.deliver_failed(requests, outcomes, raised)
        except BaseException:
            self.stats.finished -= len(requests)
            for request in requests:
                self.live[(<Record?>request).id] = request
            raise
        return 0


cdef bint _claim(dict live, list requests) except -1:
    """Takes all of them out of ``live``. False, and nothing done, where one of them is not there. Needs no memory."""
    cdef Py_ssize_t i, n = len(requests)
    for i in range(n):
        if (<Record?>requests[i]).id not in live:
            return False
    for i in range(n):
        live.pop((<Record?>requests[i]).id, None)
    return True


cdef tuple _end_rows(list requests, list outcomes, dict live, double now):
    cdef Record r
    cdef RequestStats stats
    cdef Py_ssize_t i, n = len(requests)
    cdef object sink = None
    cdef list runs = [], more = [], some = [], ends = []
    cdef bint whole = n > 0  # one run of all of them: most steps' ends are
    for i in range(n):
        r = requests[i]
        if i == 0:
            sink = r.sink
        whole = whole and r.sink is sink and _ends_plainly(r) and r.id in live
    if whole:
        runs.append((sink, requests, outcomes))
    for i in range(n):
        r = requests[i]
        if not whole and not _ends_plainly(r):
            more.append((r, outcomes[i]))
            continue
        if not whole and r.id not in live:
            continue
        stats = r.stats
        stats.total_ms = stats.ttft_ms = (now - r.arrived) * 1e3
        if whole:
            continue
        if not runs or r.sink is not sink:
            sink, some, ends = r.sink, [], []
            runs.append((sink, some, ends))
        some.append(r)
        ends.append(outcomes[i])
    return runs, more


cdef inline bint _ends_plainly(Record r) noexcept:
    return r.timeline is None and r.expires == INFINITY and r.queued_tokens < 0 and r.first_token == 0.0


@cython.final
cdef class CompletionReader:
    """Makes the result of a text. One token without logprobs or stop strings, whose text is in ``words``, is read here;
    ``complete(outcome)`` makes every other result. ``make`` makes it of its fields."""

    cdef Maker make
    cdef Memo words
    cdef object complete
    cdef bint plain

    def __cinit__(self, Maker make not None, Memo words not None, complete, *, cbool plain):
        self.make, self.words, self.complete, self.plain = make, words, complete, plain

    def __call__(self, Outcome outcome not None):
        cdef tuple ids
        cdef object text, reason
        if not self.plain or outcome.text is not None or type(outcome.token_ids) is not tuple:
            return self.complete(outcome)
        ids = outcome.token_ids
        text = self.words.get(ids[0]) if len(ids) == 1 else None if ids else ""
        if text is None:
            return self.complete(outcome)
        reason = outcome.stats.finish_reason or "length"
        outcome.stats.finish_reason = reason
        return self.make.make((text, ids, reason, outcome.stats, None, None))
