# What a step costs beside its rows, where a request that comes alone pays all of it. Part of core.pyx.


@cython.final
cdef class Maker:
    """Makes instances of a dataclass of slots from values in order: what the ``__init__`` of a frozen one does, without
    a call of ``object.__setattr__`` a field. Fields at the end that have a value by default may be left out."""

    cdef type kind
    cdef vector[Py_ssize_t] offsets
    cdef tuple defaults

    def __init__(self, type kind not None):
        cdef Py_ssize_t offset
        fields = _dataclasses.fields(kind)
        self.kind = kind
        self.offsets.clear()
        for field in fields:
            offset = slot_offset(getattr(kind, field.name))
            if offset < 0:
                raise TypeError(f"{kind.__name__}: {field.name} is not a slot")
            self.offsets.push_back(offset)
        self.defaults = tuple([field.default for field in fields])

    def __call__(self, *values):
        return self.make(values)

    cdef object make(self, tuple values):
        if len(values) != <Py_ssize_t>self.offsets.size():
            values = self.completed(values)
        return new_filled(<PyTypeObject*>self.kind, self.offsets.data(), PySequence_Fast_ITEMS(values),
                          self.offsets.size())

    cdef tuple completed(self, tuple values):
        values += self.defaults[len(values):]
        if len(values) != len(self.defaults) or any([value is _dataclasses.MISSING for value in values]):
            raise TypeError(f"{self.kind.__name__}: not a value for each of its {len(self.defaults)} fields")
        return values


@cython.final
cdef class CostFit:
    """What a step is expected to take: a constant, tokens, keys that queries read, rows that meet the vocabulary."""

    cdef CCostFit* c  # owned

    def __cinit__(self, int64_t memory):
        self.c = new CCostFit(memory)

    def __dealloc__(self):
        del self.c

    @property
    def steps(self) -> int:
        return self.c.steps()

    def observe(self, double tokens, double keys, double rows, double seconds) -> None:
        """A measured step. What cannot be one (no time, not a number) is ignored."""
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

    def seconds(self) -> tuple:
        """The coefficients, by term."""
        cdef FourDoubles x = self.c.fitted()
        return x[0], x[1], x[2], x[3]

    def largest(self) -> float:
        """Of the sums of squares: they stay bounded however long they run."""
        return self.c.largest()


def begin_all(list requests, double now, CostFit cost not None, Inbox inbox not None) -> list:
    """Requests of a step that begins: those that are planned for the first time have their expected seconds now, and
    wait no more. These."""
    cdef Record r
    cdef FourDoubles c = cost.c.fitted()
    cdef double cached, uncached
    cdef list fresh = []
    for r in requests:
        if r.planned == 0.0:
            r.planned = now
            cached = <double>r.stats.cached_tokens
            uncached = <double>r.num_known - cached
            r.stats.estimated_jct = (c[0] + c[3] * <double>r.row.logits_rows
                                     + uncached * (c[1] + c[2] * (cached + (uncached + 1) / 2)))
            inbox.admission.leave(r.queued_tokens)
            fresh.append(r)
    return fresh


def admit_at_once(KvPool pool not None, list requests, tuple limits, oneshot, waiting, planned, int64_t order,
                  int64_t served):
    """Plans OneShot requests that came together where nobody waits or runs: all that ``number_all``, ``admit_group``,
    ``folds_of`` and ``keep_all`` do for them, without a line. None, and nothing done, where one of them is out of the
    ordinary or they may not all fit one step. Else (rows, folds, tokens taken, [(request, tokens)] of those that wait
    for a leader); ``order`` is the first one's number, and ``served`` everybody's time."""
    cdef GroupLimits most
    cdef Record r, first = requests[0]
    cdef int64_t tokens = 0, bytes = 0, skip = 0, publish = 0, n = len(requests), at
    cdef object key = first.key
    (most.tokens, most.rows, most.logits_bytes, most.logits_row_bytes, most.logits_chunk_rows, most.group_tokens,
     most.allowance, most.defer_tokens, most.defer_steps, most.fold, most.retry, most.seen) = limits
    for r in requests:
        if (r.cancelled or r.expires != INFINITY or r.execution_class is not oneshot or r.state is not waiting
                or not (r.key is key or r.key == key)):
            return None
        tokens += r.num_known
        bytes += r.row.logits_rows * most.logits_row_bytes
    if tokens > min(most.tokens, most.group_tokens) or n > most.rows or bytes > most.logits_bytes:
        return None
    cdef cbool overlap = most.seen  # keep_all: a row that is planned waits no more
    most.seen = overlap or n > 1

    cdef COneShotGroup* group = pool.group
    cdef list rows = [], deferred = [], folds
    cdef Lease lease = None
    cdef OneShotRow row
    cdef Result wrong
    cdef Verdict verdict
    pool.c.begin_plan()
    group.begin(most)
    for at in range(n):
        r = requests[at]
        r.order, r.queued_at = order + at, served
        lease = Lease.__new__(Lease)
        pool.allocator.enter()
        verdict = group.admit(r.row, r.deferred, lease.c, &skip, &publish, &wrong)
        pool.allocator.writer.leave()
        _check(wrong)
        if verdict == Verdict.full:
            raise RuntimeError("a request does not fit the step that all of them fit")
        if verdict == Verdict.deferred:
            r.deferred += 1
            r.stats.deferred_ticks += 1
            deferred.append((r, lease.c.ahead * pool.c.block_size()))
            continue
        r.lease = lease
        r.stats.cached_tokens = skip
        r.state = planned
        row = OneShotRow.__new__(OneShotRow)
        row.request, row.skip, row.publish = r, skip, publish
        rows.append(row)
    group.end()
    folds = folds_of(pool, rows) if n > 1 else []
    keep_all(pool, rows, folds, overlap, _nobody)
    return tuple(rows), folds, most.tokens - group.left().tokens, deferred


cdef class _Nobody:
    def __call__(self, request, skip):
        return 0


cdef object _nobody = _Nobody()  # shares a prefix: nobody waits


def skipped(rows) -> int:
    """Tokens that OneShot rows have from the cache."""
    cdef OneShotRow row
    cdef int64_t tokens = 0
    for row in rows:
        tokens += row.skip
    return tokens


def requests_of(rows) -> list:
    cdef OneShotRow row
    return [row.request for row in rows]


cdef tuple _last_settings = (None, 0, None)  # what was asked for last, by how many rows, and its arrays


cdef tuple _draws(rows, cnp.ndarray at):
    """What ``SampleRows`` holds of OneShot rows that draw their first token each, in order, at rows ``at`` of the
    batch; its ``edits`` are True where some are asked for. Rows that all ask for the same share arrays with the step
    before, which nobody writes."""
    global _last_settings
    cdef OneShotRow row
    cdef int64_t n = _len(at)
    cdef object first = None
    cdef bint same = True
    cdef tuple last = _last_settings
    for row in rows:
        if first is None:
            first = row.request.sampling
        same = same and row.request.sampling is first
    if same and first is last[0] and n == <int64_t>last[1]:
        return (at, *(<tuple>last[2]))
    temperature, top_k, top_p, min_p, seeds, top, logprobs, edited = sampling_arrays(
        [(<OneShotRow>one).request.sampling for one in rows])
    steps = np.zeros(n, np.int32)
    if not same or edited:
        return at, temperature, top_k, top_p, min_p, seeds, steps, top, logprobs, True if edited else None
    values = (temperature, top_k, top_p, min_p, seeds, steps, top, logprobs, None)
    _last_settings = (first, n, values)
    return (at, *values)


def draws_of(rows, shifts):
    """What ``SampleRows`` holds of OneShot rows that draw their first token each, in order; its ``edits`` are True
    where some are asked for. ``shifts``: those of ``pack_step``."""
    cdef OneShotRow row
    cdef int64_t i = 0
    cdef cnp.ndarray s = shifts
    cdef cnp.ndarray at = _new_int32(_len(s))
    for row in rows:
        _data(at)[i] = _data(s)[i] + <int32_t>row.request.row.read
        i += 1
    return _draws(rows, at)


def pack_drawn(rows, folds, int32_t block_size, Maker slices not None, Maker draws not None, Maker batch not None,
               edits):
    """The batch of a step whose OneShot rows all draw one token, and how many tokens each brought (a fold's, to its
    first member). ``slices``, ``draws`` and ``batch`` make its parts; ``edits()`` what is done to logits, where
    anything is."""
    cdef int64_t i, n = len(rows)
    cdef PackedRows packed
    cdef tuple values
    _collect(rows, folds, block_size, 0, packed)
    cdef tuple arrays = _slices_of(packed.rows, block_size, None, packed.places)
    cdef cnp.ndarray at = _new_int32(n)
    for i in range(n):
        _data(at)[i] = <int32_t>(packed.places[packed.at[i]] - packed.begins[i]
                                 + (<OneShotRow>rows[i]).request.row.read)
    values = _draws(rows, at)
    if values[9] is not None:
        values = (*values[:9], edits())
    return batch.make((slices.make(arrays), draws.make(values))), _brought(rows, folds, packed)


def ids_alike(tasks, first, int64_t limit, int64_t most):
    """``all_ids_below`` of the prompts of tasks that are alike; None where one of either is not as it should be."""
    cdef list found
    prompts = prompts_alike(tasks, first)
    if prompts is None:
        return None
    found = all_ids_below(prompts, limit, most)
    for ids in found:
        if ids is None:
            return None
    return found


def prompts_alike(tasks, first):
    """The prompts of tasks that are ``first`` but for it, one type of object to all of them; None where one is not."""
    cdef list prompts = []
    kind, params = type(first), first.params
    truncation, cache, salt = first.truncation, first.cache, first.salt
    for task in tasks:
        if task is not first and (type(task) is not kind or task.params is not params
                                  or task.truncation != truncation or task.cache != cache or task.salt != salt):
            return None
        prompts.append(task.prompt)
    return prompts
