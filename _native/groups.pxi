# OneShot rows of a step: from the queue into the plan. Part of core.pyx.

def plain(list requests, oneshot) -> bool:
    """Whether none of them is out of the ordinary: cancelled, with a deadline, or told of single tokens."""
    cdef Record r
    for r in requests:
        if r.cancelled or r.expires != INFINITY or r.execution_class is not oneshot:
            return False
    return True


def admit_group(KvPool pool not None, requests, Ledger ledger not None, StepLimits limits not None, allowance,
                cbool retry, cbool seen, list deferred not None) -> list:
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


def folds_of(KvPool pool not None, list rows) -> list:
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


def keep_all(KvPool pool not None, list rows, list folds, cbool seen, common, estimates) -> None:
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
            end = min(end, <int64_t>common(r, row.skip, estimates))
            pool.allocator.enter()
            try:
                pool.group.keep(r.row, r.lease.c, row.skip, end, True, seen, &row.publish, &wrong)
            finally:
                pool.allocator.writer.leave()
            _check(wrong)
            pool.unkept += not row.publish
