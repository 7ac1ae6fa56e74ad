# A row of a step, and the numbers of its request. Part of core.pyx.

@cython.final
@cython.freelist(256)
cdef class OneShotRow:
    """``skip`` trunk tokens come from the cache; ``publish`` blocks of the lease receive the KV of the tokens after
    them."""

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


cdef double _LEAST = float(np.finfo(np.float32).min)  # stands for the logprob of an impossible token


@cython.final
@cython.no_gc  # its members do not lead back to it
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
        """The request's own part of its step's output."""
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
