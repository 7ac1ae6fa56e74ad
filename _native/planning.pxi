# The plan of a step: the order of its parts, and its OneShot rows from their queue to their leases. Part of core.pyx.


cdef class QueueSet:
    """The requests of an engine: ``oneshot`` and ``decode`` wait, ``running`` hold a row. ``arrivals`` counts those
    that came, ``served`` the tokens of all plans. ``estimates`` knows how much of each waiting prompt the prefix cache
    has, or is None. ``look_again()`` takes its news: by a subclass."""

    cdef public Waiting oneshot, decode
    cdef public list running
    cdef public object estimates, served, arrivals

    @property
    def empty(self) -> bool:
        return not (self.running or self.oneshot.arrivals or self.decode.arrivals)


cdef class Watched:
    """``watched``: the requests whose prompts are watched in the prefix cache, by watch. Without any there is no
    news of them."""

    cdef readonly dict watched

    def __cinit__(self, *args, **keywords):
        self.watched = {}


cdef inline bint _may_have_news(estimates) except -1:
    if estimates is None:
        return False
    return not isinstance(estimates, Watched) or bool((<Watched>estimates).watched)


@cython.final
cdef class Planner:
    """Plans a step in one call: matches prefixes, charges budgets, chooses OneShot rows and gives them their leases.
    ``make`` makes the plan of its fields in order. The other arguments are called where a step has more than OneShot
    requests that all fit:

        plan_running(queues, pool, ledger, retry, in_flight)       running rows, and those that were preempted for them;
                                                                   None for the rows: nothing can be planned
        plan_prompts(queues, pool, budgets, ledger, beside_rows, retry, deferred)    chunks of Decode prompts
        oneshot_first(queues)                                      whether OneShot requests come before these
        give_way(queues, pool)                                     the running request that was preempted
        one_group(queues, retry)                                   the OneShot requests in the order of the policy
        common(request, skip, estimates)                           tokens that a waiting request has in common with it
        fold(members, tokens), deferral(request, tokens)           make these parts of a plan
    """

    cdef Maker make
    cdef object plan_running, plan_prompts, oneshot_first, give_way, one_group, common, fold, deferral

    def __cinit__(self, *, Maker make not None, plan_running, plan_prompts, oneshot_first, give_way, one_group, common,
                  fold, deferral):
        self.make, self.plan_running, self.plan_prompts = make, plan_running, plan_prompts
        self.oneshot_first, self.give_way, self.one_group = oneshot_first, give_way, one_group
        self.common, self.fold, self.deferral = common, fold, deferral

    def __call__(self, QueueSet queues not None, KvPool pool not None, budgets, Pacer pacer=None, limit=None, *,
                 cbool in_flight=False):
        """``limit``: only rows of failed steps, so many at most. ``in_flight``: another step is not postprocessed; rows
        that it draws a token for go on from there, and no row is preempted beside it."""
        cdef StepLimits limits = budgets.limits
        cdef Ledger ledger = limits.ledger(limit)
        cdef bint retry = limit is not None, prompts
        cdef list deferred = []
        cdef object running = (), chunks = (), preempted = (), allowance = None
        cdef tuple rows, folds
        pool.c.begin_plan()
        if _may_have_news(queues.estimates):
            queues.look_again()
        if queues.running:
            running, preempted = self.plan_running(queues, pool, ledger, retry, in_flight)
            if running is None:
                return self.make.make(((), (), (), (), (), (), True))
        if pacer is not None and not retry:
            allowance = pacer.allowance(len(running))
        prompts = bool(queues.running) or bool(queues.decode.arrivals)  # of Decode requests, that may get a chunk
        if prompts and not self.oneshot_first(queues):
            chunks = self.plan_prompts(queues, pool, budgets, ledger, bool(running), retry, deferred)
            prompts = False
        rows, folds = self.plan_group(queues, pool, limits, ledger, allowance, retry, deferred)
        if prompts:
            chunks = self.plan_prompts(queues, pool, budgets, ledger, bool(running), retry, deferred)
        if len(queues.running) > 1 and not (rows or chunks or running or preempted or retry or in_flight):
            # Prompts that wait for each other's blocks: the last one gives way, so the first one moves on.
            preempted = [self.give_way(queues, pool)]
        queues.served = queues.served + (limits.most.tokens - ledger.tokens)
        return self.make.make((rows, folds, tuple(chunks), tuple(running), tuple(preempted), tuple(deferred), False))

    cdef tuple plan_group(self, QueueSet queues, KvPool pool, StepLimits limits, Ledger ledger, allowance, bint retry,
                          list deferred):
        """(rows, folds) of one group: the requests that may share a batch with the first one, in order, until one of
        them does not fit. Each is matched first, and charged for the tokens that the cache does not have.
        ``allowance`` bounds the group beside running rows; the first request may be longer than it. Those behind the
        first bring ``limits.group_tokens`` at most: a short request is not made to wait for the long one that would
        fill up its step."""
        cdef Waiting queue = queues.oneshot
        cdef Py_ssize_t waiting = len(queue.arrivals)
        cdef object group = None
        cdef list left = [], rows, taken, folds
        cdef bint overlap = limits.overlap
        if waiting == 0 or allowance == 0:
            return (), ()
        if allowance is None and not retry:  # where all waiting requests may share a batch and fit, the order is free
            group = queue.all_of(ledger, limits)
        if group is None:
            group = self.one_group(queues, retry)
        rows = _admit(pool, group, ledger, limits, allowance, retry, not retry and (overlap or waiting > 1), left)
        for request, tokens in left:
            deferred.append(self.deferral(request, tokens))
        taken = requests_of(rows)
        if queue.columns.count or not queue.serve_whole(taken):
            queue.serve_all(taken)
        folds = _folds_of(pool, rows) if len(rows) > 1 else []
        # A promise costs a few microseconds a row: only where another request may find it before it is kept.
        # The planned requests wait no more: a peer is one that does.
        _keep_all(pool, rows, folds, not retry and (overlap or bool(queues.decode.arrivals)), self.common,
                  queues.estimates)
        return tuple(rows), tuple([self.fold(members, tokens) for members, tokens in folds]) if folds else ()


cdef list _admit(KvPool pool, requests, Ledger ledger, StepLimits limits, allowance, bint retry, bint seen,
                 list deferred):
    """The OneShot rows of a step, from ``requests`` in order until one does not fit; ``ledger`` has the rest of the
    step then. ``allowance``: beside running rows the group ends past so many tokens. ``seen``: other requests may need
    at once the blocks that a row computes. ``deferred`` gets (request, tokens) of one that is to wait for a leader. The
    others hold their leases and are in state ``prefill`` now."""
    cdef GroupLimits most = limits.most
    most.tokens, most.rows, most.logits_bytes = ledger.tokens, ledger.rows, ledger.logits_bytes
    most.allowance = -1 if allowance is None else <int64_t>allowance
    most.retry, most.seen = retry, seen
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
            deferred.append((r, lease.c.ahead * pool.c.block_size()))
            continue
        _hold(r, lease)
        r.stats.cached_tokens = skip
        _move(r, _PREFILL)
        row = OneShotRow.__new__(OneShotRow)
        row.request, row.skip, row.publish = r, skip, publish
        rows.append(row)
    group.end()
    ledger.tokens, ledger.rows = group.left().tokens, group.left().rows
    ledger.logits_bytes = group.left().logits_bytes
    return rows


cdef list _folds_of(KvPool pool, list rows):
    """(members, tokens) of the folds of the group that was admitted last. The member that may publish for all comes
    first."""
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


cdef int _keep_all(KvPool pool, list rows, list folds, bint seen, common, estimates) except -1:
    """Blocks for the prefixes that the rows publish: folded ones their common part once, through the first member;
    others their trunk. ``common(request, skip, estimates)``: how many tokens a peer that waits shares with one that
    finds no room; for these blocks that were hit before are evicted, the coldest first."""
    cdef OneShotRow row
    cdef Record r
    cdef Result wrong
    cdef int64_t end, at = 0
    cdef cbool room
    cdef dict ends = {}
    if not pool.c.caching():
        return 0
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
            end = min(end, <int64_t>common(r, row.skip, estimates))
            pool.allocator.enter()
            try:
                pool.group.keep(r.row, r.lease.c, row.skip, end, True, seen, &row.publish, &wrong)
            finally:
                pool.allocator.writer.leave()
            _check(wrong)
            pool.unkept += not row.publish
    return 0
