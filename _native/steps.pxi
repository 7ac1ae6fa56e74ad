# The work of a step beside its rows, all of which a lone request pays. Part of core.pyx.


cdef vector[Py_ssize_t] _slot_offsets(type kind) except *:
    """Where the fields of a dataclass of slots lie, in order."""
    cdef vector[Py_ssize_t] offsets
    cdef Py_ssize_t offset
    for field in _dataclasses.fields(kind):
        offset = member_offset(kind, getattr(kind, field.name, None))
        if offset < 0:
            raise TypeError(f"{kind.__name__}: {field.name} is not a slot")
        offsets.push_back(offset)
    return offsets


@cython.final
cdef class Maker:
    """Makes instances of a dataclass of slots from values in order, as the ``__init__`` of a frozen one does,
    without a call of ``object.__setattr__`` a field. Fields at the end that have a value by default may be left
    out."""

    cdef type kind
    cdef vector[Py_ssize_t] offsets
    cdef tuple defaults

    def __cinit__(self, type kind not None):
        self.kind = kind
        self.offsets = _slot_offsets(kind)
        self.defaults = tuple([field.default for field in _dataclasses.fields(kind)])

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
        self.note(tokens, keys, rows, seconds)

    cdef void note(self, double tokens, double keys, double rows, double seconds):
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
        return self.expect(tokens, keys, rows)

    cdef double expect(self, double tokens, double keys, double rows):
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


def begin_plan(plan, double now, CostFit cost not None, Inbox inbox not None) -> tuple:
    """(the requests of a plan whose step begins; those of them that are planned for the first time; whether one of
    these has a timeline). Those of the first time have their expected seconds now, and wait no more."""
    cdef Record r
    cdef double cached, uncached
    cdef bint traced = False
    cdef list requests = requests_of(plan.oneshot), fresh = []
    prompts, running = plan.prefill, plan.decode
    if prompts:
        requests += [row.request for row in prompts]
    if running:
        requests += running
    for r in requests:
        if r.planned == 0.0:
            r.planned = now
            cached = <double>r.stats.cached_tokens
            uncached = <double>r.num_known - cached
            r.stats.estimated_jct = cost.expect(uncached, c_prompt_keys(uncached, cached), <double>r.row.logits_rows)
            inbox.admission.leave(r.queued_tokens)
            fresh.append(r)
            traced = traced or r.timeline is not None
    return requests, fresh, traced


cpdef list requests_of(rows):
    cdef OneShotRow row
    return [row.request for row in rows]


cpdef list readouts_of(rows, nothing):
    """The readout of each row; ``nothing`` for a request that reads none."""
    cdef OneShotRow row
    return [nothing if row.request.readout is None else row.request.readout for row in rows]


cdef class StepCounts:
    """The sums over steps since the engine was made: ``steps`` by kind, tokens, rows that met the vocabulary, requests
    that ended well."""

    cdef public int64_t prefill_tokens, decode_tokens, prefix_hit_tokens, folded_tokens, lm_head_rows
    cdef public int64_t eager_steps, graph_replays, peak_activation_bytes
    cdef public int64_t finished
    cdef public double forward_seconds
    cdef readonly dict steps

    def __cinit__(self, *args, **fields):
        self.steps = {"oneshot": 0, "mixed": 0, "decode": 0}

    def count_step(self, plan, batch, result, Pacer pacer not None, CostFit fit not None) -> int:
        """The rows of a step are counted, its seconds go to the pacer and the cost model. The tokens of its batch."""
        cdef OneShotRow row
        cdef tuple oneshot = plan.oneshot, prompts = plan.prefill, running = plan.decode
        cdef int64_t prefill = 0, decode = len(running), peak = result.peak_bytes
        cdef int64_t tokens, rows = result.lm_head_rows
        cdef double seconds = result.seconds
        cdef str kind = "mixed"
        if not prompts and bool(oneshot) != bool(decode):
            kind = "oneshot" if oneshot else "decode"
        tokens = len(batch.slices.token_ids) if kind == "oneshot" else batch.num_tokens
        self.steps[kind] = self.steps[kind] + 1
        for row in oneshot:
            self.prefix_hit_tokens += row.skip
        for prompt in prompts:
            prefill += <int64_t>prompt.count
            request = prompt.request
            if not request.stats.chunks and not request.output:
                self.prefix_hit_tokens += <int64_t>prompt.start
        for fold in plan.folds:
            self.folded_tokens += <int64_t>fold.tokens * (len(fold.members) - 1)
        self.prefill_tokens += tokens - decode
        self.decode_tokens += decode
        self.lm_head_rows += rows
        if result.eager:
            self.eager_steps += 1
        else:
            self.graph_replays += 1
        self.peak_activation_bytes = max(self.peak_activation_bytes, peak)
        self.forward_seconds += seconds
        pacer.add(decode, tokens - prefill - decode, prefill, seconds)
        fit.note(tokens, result.attended_tokens, rows, seconds)
        return tokens

    def counted(self) -> dict:
        return {"steps": dict(self.steps), "prefill_tokens": self.prefill_tokens, "decode_tokens": self.decode_tokens,
                "prefix_hit_tokens": self.prefix_hit_tokens, "folded_tokens": self.folded_tokens,
                "lm_head_rows": self.lm_head_rows, "eager_steps": self.eager_steps,
                "graph_replays": self.graph_replays, "peak_activation_bytes": self.peak_activation_bytes,
                "forward_seconds": self.forward_seconds, "finished": self.finished}


@cython.final
cdef class ResultCheck:
    """Checks an executor's result against its batch. ``result`` and ``mixed`` are the classes of results and of batches
    with several readouts; ``error`` is raised where an output and its readout do not belong together."""

    cdef type result, mixed, error

    def __cinit__(self, type result not None, type mixed not None, type error not None):
        self.result, self.mixed, self.error = result, mixed, error

    def __call__(self, packed, result) -> list:
        """Of each output its rows (items, for pooled ones) with a number that is not finite: those that the executor
        lists, and those that it missed."""
        cdef tuple readouts
        if not isinstance(result, self.result):
            raise self.error(f"the executor returned a {type(result).__name__}, not a {self.result.__name__}")
        batch = packed.batch
        if isinstance(batch, self.mixed):
            readouts = batch.readouts
            if batch.decode_readout is not None:
                readouts = (*readouts, batch.decode_readout)
        else:
            readouts = (batch.readout,)
        try:
            return _check_outputs(readouts, result)
        except ValueError as error:
            raise self.error(str(error)) from None


cdef list _check_outputs(tuple readouts, result):
    cdef list found = []
    cdef Py_ssize_t i, n = len(readouts)
    cdef object readout, output, listed, missed
    cdef tuple outputs = tuple(result.outputs), bad_rows = tuple(result.bad_rows)
    if len(outputs) != n or len(bad_rows) != n:
        raise ValueError(f"the executor returned {len(outputs)} outputs, the batch has {n}")
    for i in range(n):
        readout, output = readouts[i], outputs[i]
        if not readout.answers(output):
            raise ValueError(f"the executor answered {type(readout).__name__} of {len(readout.rows)} rows with a "
                             f"{type(output).__name__} of another kind or shape")
        listed = _rows_listed(bad_rows[i], readout)
        missed = readout.not_finite(output)
        found.append(frozenset([*missed.tolist(), *listed]) if len(missed) or listed else _NO_ROWS)
    return found


cdef frozenset _NO_ROWS = frozenset()


cdef list _rows_listed(bad, readout):
    """The bad rows that an executor names, checked."""
    if cnp.PyArray_Check(bad) and cnp.PyArray_NDIM(<cnp.ndarray>bad) == 1 and _len(<cnp.ndarray>bad) == 0:
        return []
    rows = np.asarray(bad)
    if rows.size and (rows.min() < 0 or rows.max() >= readout.items):
        raise ValueError("the executor names bad rows that the batch does not have")
    return rows.tolist()
