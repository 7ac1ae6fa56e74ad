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
    """The OneShot rows of one step. ``tokens``, ``rows`` and ``logits_bytes``: the rest of the step. ``allowance``:
    beside running rows the group ends past so many tokens; -1 for none. ``seen``: other requests may need at once the
    blocks that a row computes."""

    cdef COneShotGroup* c  # owned
    cdef KvPool pool
    cdef list held  # what the folds point into

    def __cinit__(self, KvPool pool not None, StepLimits limits not None, int64_t tokens, int64_t rows,
                  int64_t logits_bytes, int64_t allowance, cbool retry, cbool seen):
        cdef GroupLimits most = limits.most
        most.tokens, most.rows, most.logits_bytes = tokens, rows, logits_bytes
        most.allowance, most.retry, most.seen = allowance, retry, seen
        self.pool, self.held = pool, []
        self.c = new COneShotGroup(pool.c[0])
        self.c.begin(most)

    def __dealloc__(self):
        del self.c

    @property
    def done(self) -> bool:
        """Whether no further request can be admitted."""
        return self.c.done()

    def admit(self, Record r not None, int64_t deferred) -> tuple:
        """(lease, tokens that come from the cache, blocks that its step publishes). (lease, -1, 0): the request is to
        wait for another that computes its prefix. (None, -1, 0): it does not fit. ``deferred``: steps that it waited
        so far."""
        cdef Lease lease = Lease.__new__(Lease)
        cdef int64_t skip = 0, publish = 0
        cdef Result wrong
        cdef Verdict verdict
        cdef Writing writing
        _check_prompt(r, 0)
        self.pool.enter(writing)
        verdict = self.c.admit(r.row, deferred, lease.c, &skip, &publish, &wrong)
        _check(wrong)
        if verdict == Verdict.admitted:
            self.held.append((r, lease))
            return lease, skip, publish
        return (None if verdict == Verdict.full else lease), -1, 0

    def end(self) -> tuple:
        """(tokens, rows, bytes of logits) that the step still has. No request is admitted any more."""
        self.c.end()
        return self.c.left().tokens, self.c.left().rows, self.c.left().logits_bytes

    def folds(self) -> list:
        """(members, tokens): rows, by number, whose next tokens after the cached ones are the same."""
        cdef list out = []
        cdef int32_t member
        cdef int64_t k
        cdef size_t g
        cdef FoldGroup fold
        for g in range(self.c.folds().groups().size()):
            fold = self.c.folds().groups()[g]
            if fold.count < 2:
                continue
            members, member = [], fold.first
            for k in range(fold.count):
                members.append(member)
                member = self.c.folds().next(member)
            out.append((members, fold.shared))
        return out

    def keep(self, Record r not None, Lease lease not None, int64_t skip, int64_t end, cbool evict_hit,
             cbool seen) -> tuple:
        """Blocks for the prefix that a row computes, up to token ``end``: (whether there was room, blocks that its step
        publishes). ``evict_hit``: also blocks that were hit before give way.
        ``seen``: other requests may find the prefix before it is kept."""
        cdef int64_t publish = 0
        cdef Result wrong
        cdef Writing writing
        _check_prompt(r, end)
        if lease.c.released or not 0 <= skip <= end:
            raise ValueError(f"a lease that is released, or tokens {skip} to {end}")
        self.pool.enter(writing)
        cdef cbool room = self.c.keep(r.row, lease.c, skip, end, evict_hit, seen, &publish, &wrong)
        _check(wrong)
        return room, publish
