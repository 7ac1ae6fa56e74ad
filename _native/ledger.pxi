# The budgets of a step, and the pace of OneShot work beside running rows. Part of core.pyx.


@cython.final
cdef class StepLimits:
    """The limits of a step and of its group of OneShot requests, which hold for all steps of an engine. ``overlap``:
    the next step is planned before this one is postprocessed."""

    cdef GroupLimits most
    cdef bint overlap

    def __cinit__(self, *, int64_t step_tokens, int64_t step_requests, int64_t logits_bytes, int64_t logits_row_bytes,
                  int64_t logits_chunk_rows, int64_t group_tokens, int64_t defer_tokens, int64_t defer_steps,
                  cbool fold, cbool overlap=False):
        self.most.tokens, self.most.rows, self.most.logits_bytes = step_tokens, step_requests, logits_bytes
        self.most.logits_row_bytes, self.most.logits_chunk_rows = logits_row_bytes, logits_chunk_rows
        self.most.group_tokens, self.most.allowance = group_tokens, -1
        self.most.defer_tokens, self.most.defer_steps = defer_tokens, defer_steps
        self.most.fold, self.most.retry, self.most.seen = fold, False, False
        self.overlap = overlap

    cpdef Ledger ledger(self, limit=None):
        """The budgets of a step, of ``limit`` rows at most."""
        cdef Ledger ledger = Ledger.__new__(Ledger)
        ledger.tokens, ledger.rows, ledger.logits_bytes = self.most.tokens, self.most.rows, self.most.logits_bytes
        if limit is not None:
            ledger.rows = min(<int64_t>limit, ledger.rows)
        return ledger


@cython.final
cdef class Ledger:
    """The budgets that a step still has: ``tokens`` to compute, cached ones not counted; ``rows``; bytes of
    logits."""

    cdef readonly int64_t tokens, rows, logits_bytes

    def fits(self, int64_t tokens) -> bool:
        """Whether a row of so many tokens fits."""
        return tokens <= self.tokens and self.rows >= 1

    def take(self, int64_t tokens) -> bool:
        """A row of so many tokens; False, and nothing is changed, where it does not fit."""
        if tokens > self.tokens or self.rows < 1:
            return False
        self.tokens -= tokens
        self.rows -= 1
        return True

    def give_back(self, int64_t tokens) -> None:
        """A row of so many tokens is not in the step."""
        self.tokens += tokens
        self.rows += 1


cdef double _WEIGHT = 0.2  # of a new measurement
cdef int _SAVED_STEPS = 8  # an account holds at most the earnings of so many steps
cdef double _MOST_TOKENS = 1e15  # of an allowance: a few fast steps make the time of a token nearly nothing
cdef int _LOOK_AGAIN = 32  # steps until the rows' own pace is measured again


cdef inline double _blend(double old, double new, double weight) noexcept:
    """A moving average that one outlier (a busy machine) cannot carry away."""
    return new if old == 0.0 else old + weight * (min(new, 3 * old) - old)


cdef inline double _quiet(double old, double new) noexcept:
    """About the seconds of a step on a quiet machine. A lower measurement counts at once, a higher one slowly.
    Others' load must not look like a slow pace that leaves time for more work."""
    return _blend(old, new, _WEIGHT if new < old else _WEIGHT / 8)


cdef inline int _bits(int64_t count) noexcept:
    cdef int n = 0
    while count > 0:
        count >>= 1
        n += 1
    return n


@cython.final
cdef class Pacer:
    """How much OneShot work a step may carry beside running rows: ``prelude/scheduling/pacing.py`` says how."""

    cdef public double share
    cdef double ratio
    cdef double alone[65]  # seconds of a step of running rows, by bit length of their number; -1: none was measured
    cdef double token  # seconds of one more prompt token
    cdef double credit
    cdef int64_t mixed

    def __cinit__(self, double share):
        self.share = share
        self.ratio = share / (1 - share) if share < 1 else 0.0
        for i in range(65):
            self.alone[i] = -1.0

    cpdef allowance(self, int64_t rows):
        """Tokens of OneShot work for a step beside ``rows``; ``None``: as many as fit. A positive number admits one
        request of any length."""
        if rows <= 0 or self.share >= 1:
            return None
        if self.alone[_bits(rows)] < 0.0 or self.credit <= 0 or self.mixed >= _LOOK_AGAIN:
            return 0
        return max(1, int(min(self.credit / self.token, _MOST_TOKENS))) if self.token > 0 else None

    def measured(self, int64_t rows, int64_t oneshot_tokens, int64_t prefill_tokens, double seconds) -> None:
        """The rows of a step: running rows, tokens of OneShot rows, tokens of Decode prompts."""
        self.add(rows, oneshot_tokens, prefill_tokens, seconds)

    cdef void add(self, int64_t rows, int64_t oneshot, int64_t prefill, double seconds) noexcept:
        cdef int64_t tokens = oneshot + prefill
        cdef int bucket = _bits(rows)
        cdef double longer, alone = max(0.0, self.alone[bucket])
        if rows <= 0:
            if tokens:
                self.token = _blend(self.token, seconds / tokens, _WEIGHT)
            if self.credit < 0.0:
                self.credit = 0.0  # no running row waited
            return
        if tokens == 0:
            self.alone[bucket] = _quiet(alone, seconds)
            self.mixed = 0
            self.earn(self.alone[bucket])
            return
        longer = max(0.0, seconds - alone)
        self.token = _blend(self.token, longer / tokens, _WEIGHT)
        self.earn(alone)
        self.credit -= longer * oneshot / tokens
        self.mixed += oneshot > 0

    cdef void earn(self, double seconds) noexcept:
        self.credit = min(self.credit + self.ratio * seconds, _SAVED_STEPS * self.ratio * seconds)
