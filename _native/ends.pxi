# Ends of requests on their way to their callers, in one call over a step's. Part of core.pyx.

def traced(list requests) -> list:
    """Those that have a timeline."""
    return [r for r in requests if (<Record?>r).timeline is not None]


def any_lives(dict live, list requests) -> bool:
    """Whether one of them is in ``live``. The last one is looked for first: it mostly ends last."""
    cdef Py_ssize_t i
    for i in range(len(requests) - 1, -1, -1):
        if (<Record?>requests[i]).id in live:
            return True
    return False


@cython.final
cdef class Ends:
    """The ends of a call's requests, by request id: (outcome, error). A request that ends again has its last end."""

    cdef list requests, outcomes  # of the first run, while it is the only one; else None
    cdef dict found

    def __cinit__(self):
        self.found = {}

    def put(self, request, outcome, error) -> None:
        self.spread()
        self.found[request.id] = (outcome, error)

    def put_all(self, list requests not None, list outcomes not None) -> None:
        """Of requests that ended well. The lists are kept; the caller changes them no more."""
        self.add_all(requests, outcomes)

    cdef int add_all(self, list requests, list outcomes) except -1:
        if self.requests is None and not self.found:
            self.requests, self.outcomes = requests, outcomes
            return 0
        self.spread()
        for i in range(len(requests)):
            self.found[requests[i].id] = (outcomes[i], None)
        return 0

    cdef inline Py_ssize_t size(self):
        return len(self.found) if self.requests is None else len(self.requests)

    cdef int spread(self) except -1:
        cdef list requests = self.requests, outcomes = self.outcomes
        if requests is not None:
            for i in range(len(requests)):
                self.found[requests[i].id] = (outcomes[i], None)
            self.requests = self.outcomes = None  # last: no end is lost where there is no memory for one
        return 0

    def __len__(self) -> int:
        return self.size()

    def __getitem__(self, id):
        self.spread()
        return self.found[id]

    def outcomes_of(self, list requests not None):
        """Theirs, where all of them ended well, in this order, at once; else None. The requests are let go: each
        refers to its sink, which refers to these ends."""
        cdef Py_ssize_t i
        cdef list outcomes = self.outcomes
        if self.requests is None or len(self.requests) != len(requests):
            return None
        for i in range(len(requests)):
            if self.requests[i] is not requests[i]:
                return None
        self.spread()
        return outcomes


cdef class Collector:
    """Ends of a call's requests, for the thread that made the collector. ``expected``: how many there will be. With a
    ``progress``, or while that thread waits (``done``), ``tell()`` hears that there are more: by a subclass, as is
    ``wait_on()``, which returns when all have come."""

    cdef readonly Ends ends
    cdef public Py_ssize_t expected
    cdef public object done
    cdef readonly object progress
    cdef readonly unsigned long owner  # the thread that made it

    def __cinit__(self, progress=None):
        self.ends, self.progress, self.owner = Ends(), progress, PyThread_get_thread_ident()

    def deliver(self, request, outcome, error) -> None:
        self.ends.put(request, outcome, error)
        self.tell()

    def deliver_all(self, list requests not None, list outcomes not None) -> None:
        self.ends.add_all(requests, outcomes)
        if self.done is not None or self.progress is not None:
            self.tell()

    def wait(self) -> None:
        if self.progress is not None or self.ends.size() < self.expected:
            self.wait_on()


def records_in(list found not None) -> list:
    """Those that are requests; the others are errors of tasks that were not admitted."""
    return [one for one in found if isinstance(one, Record)]


def error_in(list results not None) -> int:
    """The place of the first error among them; -1: there is none."""
    cdef Py_ssize_t i
    for i in range(len(results)):
        if isinstance(results[i], Exception):
            return i
    return -1


def finish_each(list admitted not None, list calls not None, list outcomes not None, timed) -> list:
    """The callers' results of tasks that ended well, in order; an error of ``finish`` is a value.
    ``timed(admitted, timeline, outcome)`` makes the result of a call that has a timeline."""
    cdef Py_ssize_t i
    cdef list out = []
    for i in range(len(outcomes)):
        item, timeline = admitted[i], calls[i].timeline
        try:
            out.append(item.finish(outcomes[i]) if timeline is None else timed(item, timeline, outcomes[i]))
        except Exception as error:
            out.append(error)
    return out


def result_sizes(list admitted not None) -> list:
    """Of each admitted task, how many pairs of a token and its logprob its result has; 0 of an error."""
    cdef list out = []
    cdef object readout = None, size = 0
    for item in admitted:
        if isinstance(item, BaseException):
            out.append(0)
            continue
        if item.prepared.readout is not readout:
            readout = item.prepared.readout
            size = 0 if readout is None else readout.result_size
        out.append(size)
    return out
