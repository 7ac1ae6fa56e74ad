# The cost model of steps. Part of core.pyx.

cdef FourDoubles _terms(double constant, double tokens, double keys, double rows) noexcept:
    cdef FourDoubles x
    (&x[0])[0], (&x[1])[0], (&x[2])[0], (&x[3])[0] = constant, tokens, keys, rows
    return x


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
        self.c.observe(_terms(1.0, tokens, keys, rows), seconds)

    def add(self, double tokens, double keys, double rows, double seconds, double weight) -> None:
        """A step that is taken as it is; it counts as ``weight`` of them."""
        self.c.add(_terms(1.0, tokens, keys, rows), seconds, weight)

    def start_from(self, double constant, double token, double key, double row, cbool trusted) -> None:
        """Coefficients of an earlier fit; ``trusted`` where its steps have been added."""
        self.c.start_from(_terms(constant, token, key, row), trusted)

    def predict(self, double tokens, double keys, double rows) -> float:
        """Seconds of a step; 0 before anything was measured."""
        return self.c.predict(_terms(1.0, tokens, keys, rows))

    def seconds(self) -> tuple:
        """The coefficients, by term."""
        cdef FourDoubles x = self.c.fitted()
        return x[0], x[1], x[2], x[3]
