# The cost model of steps. Part of core.pyx.

@cython.final
cdef class CostFit:
    """The expected seconds of a step: a constant, tokens, keys that queries read, rows that meet the vocabulary."""

    cdef CCostFit* c  # owned

    def __cinit__(self, int64_t memory):
        self.c = new CCostFit(memory)

    def __dealloc__(self):
        del self.c

    @property
    def steps(self) -> int:
        return self.c.steps()

    def observe(self, double tokens, double keys, double rows, double seconds) -> None:
        """A measured step. Values that cannot be a time (zero, not a number) are ignored."""
        cdef FourDoubles x
        (&x[0])[0], (&x[1])[0], (&x[2])[0], (&x[3])[0] = 1.0, tokens, keys, rows
        self.c.observe(x, seconds)

    def add(self, double tokens, double keys, double rows, double seconds, double weight) -> None:
        """A step that is taken as it is; it counts as ``weight`` of them."""
        cdef FourDoubles x
        (&x[0])[0], (&x[1])[0], (&x[2])[0], (&x[3])[0] = 1.0, tokens, keys, rows
        self.c.add(x, seconds, weight)

    def start_from(self, double constant, double token, double key, double row, cbool trusted) -> None:
        """Coefficients of an earlier fit; ``trusted`` where its steps have been added."""
        cdef FourDoubles x
        (&x[0])[0], (&x[1])[0], (&x[2])[0], (&x[3])[0] = constant, token, key, row
        self.c.start_from(x, trusted)

    def predict(self, double tokens, double keys, double rows) -> float:
        """Seconds of a step; 0 before anything was measured."""
        cdef FourDoubles x
        (&x[0])[0], (&x[1])[0], (&x[2])[0], (&x[3])[0] = 1.0, tokens, keys, rows
        return self.c.predict(x)

    def seconds(self) -> tuple:
        """The coefficients, by term."""
        cdef FourDoubles x = self.c.fitted()
        return x[0], x[1], x[2], x[3]

    def largest(self) -> float:
        """Of the sums of squares: they stay bounded however long they run."""
        return self.c.largest()


def prompt_keys(uncached, cached):
    """Key positions that ``uncached`` tokens behind ``cached`` ones read: of one prompt, a float; of arrays of one
    length, float64 of that length."""
    cdef cnp.ndarray of, behind, out
    cdef const double* n
    cdef const double* m
    cdef double* p
    cdef int64_t i
    if not isinstance(uncached, np.ndarray):
        return c_prompt_keys(uncached, cached)
    of, behind = np.ascontiguousarray(uncached, np.float64), np.ascontiguousarray(cached, np.float64)
    if _len(of) != _len(behind):
        raise ValueError(f"{_len(of)} prompts, of which {_len(behind)} have a cached part")
    out = np.empty(_len(of), np.float64)
    n, m = <const double*>cnp.PyArray_DATA(of), <const double*>cnp.PyArray_DATA(behind)
    p = <double*>cnp.PyArray_DATA(out)
    for i in range(_len(of)):
        p[i] = c_prompt_keys(n[i], m[i])
    return out
