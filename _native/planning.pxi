# The OneShot rows of a step: matched, charged, given leases, folded, and their prefixes kept. Part of core.pyx.


@cython.final
cdef class StepLimits:
    """The limits of a step and of its group of OneShot requests, which hold for all steps of an engine."""

    cdef GroupLimits most

    def __cinit__(self, *, int64_t step_tokens, int64_t step_requests, int64_t logits_bytes, int64_t logits_row_bytes,
                  int64_t logits_chunk_rows, int64_t group_tokens, int64_t defer_tokens, int64_t defer_steps,
                  cbool fold):
        self.most.tokens, self.most.rows, self.most.logits_bytes = step_tokens, step_requests, logits_bytes
        self.most.logits_row_bytes, self.most.logits_chunk_rows = logits_row_bytes, logits_chunk_rows
        self.most.group_tokens, self.most.allowance = group_tokens, -1
        self.most.defer_tokens, self.most.defer_steps = defer_tokens, defer_steps
        self.most.fold, self.most.retry, self.most.seen = fold, False, False

    def must_wait(self, KvPool pool not None, Lease lease not None, tokens, uint64_t salt, int64_t deferred,
                  cbool retry) -> bool:
        """Whether a Decode prompt, which holds ``lease``, waits for a leader that is filling its next blocks. If rows
        share and the leader is in the same step, the lease reads these blocks instead."""
        cdef cnp.ndarray t = _int32(tokens, "tokens")
        cdef GroupLimits most = self.most
        most.retry = retry
        return c_must_wait(pool.c[0], most, lease.c, _data(t), _len(t), salt, deferred)


@cython.final
cdef class OneShotGroup:
    """The OneShot rows of one step: of ``requests``, in order, those that the step has room for. ``tokens``, ``rows``
    and ``logits_bytes``: the rest of the step. ``allowance``: beside running rows the group ends past so many tokens;
    -1 for none. ``seen``: other requests may need at once the blocks that a row computes. ``found``: others that wait
    may find a prefix before it is kept. Requests may match prefixes while they are iterated.

    rows      (request, lease, tokens that come from the cache)
    deferred  requests that are to wait for another that computes their prefix
    folds     (rows, by number, tokens): their next tokens after the cached ones are the same. The first row may publish
              for all
    left      (tokens, rows, bytes of logits) that the step has after the group
    publish   of each row the blocks that its step publishes
    lacking   the first row without blocks for its prefix for want of room, -1 for none; ``evict`` goes on there"""

    cdef COneShotGroup* c  # owned
    cdef KvPool pool
    cdef readonly list rows, deferred, folds, publish
    cdef readonly tuple left
    cdef readonly Py_ssize_t lacking
    cdef vector[int64_t] ends  # of each row the end of the prefix that it publishes
    cdef cbool found

    def __cinit__(self, KvPool pool not None, StepLimits limits not None, requests, int64_t tokens, int64_t rows,
                  int64_t logits_bytes, int64_t allowance, cbool retry, cbool seen, cbool found):
        cdef GroupLimits most = limits.most
        cdef Record r
        most.tokens, most.rows, most.logits_bytes = tokens, rows, logits_bytes
        most.allowance, most.retry, most.seen = allowance, retry, seen
        self.pool, self.found, self.lacking = pool, found, -1
        self.rows, self.deferred, self.folds, self.publish = [], [], [], []
        self.c = new COneShotGroup(pool.c[0])
        self.c.begin(most)
        try:
            for r in requests:
                if self.c.done() or not self.admit(r):
                    break
            self.c.end()
            self.left = (self.c.left().tokens, self.c.left().rows, self.c.left().logits_bytes)
            self.fold()
            self.keep(0)
        except BaseException:
            for _, lease, _ in self.rows:
                pool.release(lease)
            raise

    def __dealloc__(self):
        del self.c

    cdef cbool admit(self, Record r) except *:
        """Return whether the next request may be admitted too."""
        if r is None:
            raise TypeError("a request is None")
        cdef Lease lease = Lease.__new__(Lease)
        cdef int64_t skip = 0, publish = 0
        cdef Result wrong
        cdef Writing writing
        _check_prompt(r, 0)
        self.pool.enter(writing)
        cdef Verdict verdict = self.c.admit(r.row, r.deferred, lease.c, &skip, &publish, &wrong)
        _check(wrong)
        if verdict == Verdict.admitted:
            self.rows.append((r, lease, skip))
            self.publish.append(publish)
            self.ends.push_back(r.row.trunk)
        elif verdict != Verdict.full:
            self.deferred.append(r)
        return verdict != Verdict.full

    cdef int fold(self) except -1:
        """Folded rows publish their common part once, through the first member."""
        cdef int32_t member
        cdef int64_t k
        cdef size_t g
        cdef FoldGroup fold
        cdef Record r
        for g in range(self.c.folds().groups().size()):
            fold = self.c.folds().groups()[g]
            if fold.count < 2:
                continue
            first, behind, member = [], [], fold.first  # behind: those that publish nothing
            for k in range(fold.count):
                self.ends[member] = 0
                r = self.rows[member][0]
                (behind if r.cache == "never" else first).append(member)
                member = self.c.folds().next(member)
            first += behind
            member = first[0]
            self.ends[member] = <int64_t>self.rows[member][2] + fold.shared
            self.folds.append((tuple(first), fold.shared))
        return 0

    cdef int keep(self, Py_ssize_t first) except -1:
        """Blocks for the prefixes of the rows from ``first`` on, up to one for which there is no room."""
        cdef Py_ssize_t at
        for at in range(first, len(self.rows)):
            if not self.keep_row(at, self.ends[at], False):
                self.lacking = at
                return 0
        self.lacking = -1
        return 0

    cdef cbool keep_row(self, Py_ssize_t at, int64_t end, cbool evict_hit) except *:
        """Return whether there was room."""
        cdef Record r
        cdef Lease lease
        cdef int64_t skip, publish = 0
        cdef Result wrong
        cdef Writing writing
        r, lease, skip = self.rows[at]
        if self.publish[at] or end <= skip:
            return True
        if lease.c.released:
            raise ValueError("a row's lease is released")
        self.pool.enter(writing)
        cdef cbool room = self.c.keep(r.row, lease.c, skip, end, evict_hit, self.found, &publish, &wrong)
        _check(wrong)
        self.publish[at] = publish
        return room

    def evict(self, int64_t most) -> bool:
        """Blocks for at most ``most`` tokens of the row ``lacking``, if need be those of prefixes that were hit before,
        the coldest first; then for the rows behind it. Return whether the row publishes any."""
        cdef Py_ssize_t at = self.lacking
        if at < 0:
            raise ValueError("no row lacks room")
        self.keep_row(at, min(most, self.ends[at]), True)
        self.keep(at + 1)
        return self.publish[at] > 0
