# What a step costs beside its rows, where a request that comes alone pays all of it. Part of core.pyx.


@cython.final
cdef class Maker:
    """Makes instances of a dataclass of slots from values in order: what the ``__init__`` of a frozen one does, without
    a call of ``object.__setattr__`` a field. Fields at the end that have a value by default may be left out."""

    cdef type kind
    cdef vector[Py_ssize_t] offsets
    cdef tuple defaults

    def __cinit__(self, type kind not None):
        cdef Py_ssize_t offset
        fields = _dataclasses.fields(kind)
        self.kind = kind
        for field in fields:
            offset = slot_offset(kind, getattr(kind, field.name, None))
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


@cython.final
cdef class AtOnce:
    """Plans OneShot requests that came together where nobody waits or runs. ``limits``: the fields of GroupLimits, of a
    step that has nothing else; ``make`` makes a plan."""

    cdef GroupLimits limits
    cdef object oneshot, waiting, planned
    cdef Maker make

    def __cinit__(self, tuple limits not None, oneshot, waiting, planned, Maker make not None):
        cdef GroupLimits most
        (most.tokens, most.rows, most.logits_bytes, most.logits_row_bytes, most.logits_chunk_rows, most.group_tokens,
         most.allowance, most.defer_tokens, most.defer_steps, most.fold, most.retry, most.seen) = limits
        self.limits, self.oneshot, self.waiting, self.planned, self.make = most, oneshot, waiting, planned, make

    def plan(self, KvPool pool not None, list requests not None, int64_t order, int64_t served):
        """All that ``number_all``, ``admit_group``, ``folds_of`` and ``keep_all`` do for them, without a line. None,
        and nothing done, where one of them is out of the ordinary or they may not all fit one step. Else (plan, its
        tokens, its folds, which the plan has not yet, [(request, tokens)] of those that wait for a leader); ``order``
        is the first one's number, and ``served`` everybody's time."""
        cdef GroupLimits most = self.limits
        cdef Record r, first = requests[0]
        cdef int64_t tokens = 0, bytes = 0, skip = 0, publish = 0, n = len(requests), at
        cdef object key = first.key
        for r in requests:
            if (r.cancelled or r.expires != INFINITY or r.execution_class is not self.oneshot
                    or r.state is not self.waiting or not (r.key is key or r.key == key)):
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
            try:
                verdict = group.admit(r.row, r.deferred, lease.c, &skip, &publish, &wrong)
            finally:
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
            r.state = self.planned
            row = OneShotRow.__new__(OneShotRow)
            row.request, row.skip, row.publish = r, skip, publish
            rows.append(row)
        group.end()
        folds = folds_of(pool, rows) if n > 1 else []
        keep_all(pool, rows, folds, overlap, _nobody)
        plan = self.make.make((tuple(rows), (), (), (), (), (), False))
        return plan, most.tokens - group.left().tokens, folds, deferred


cdef class _Nobody:
    def __call__(self, request, skip):
        return 0


cdef object _nobody = _Nobody()  # shares a prefix: nobody waits


def requests_of(rows) -> list:
    cdef OneShotRow row
    return [row.request for row in rows]


def readouts_of(rows) -> list:
    cdef OneShotRow row
    return [row.request.readout for row in rows]


cdef class StepCounts:
    """What steps came to since the engine was made: ``steps`` by kind, tokens, rows that met the vocabulary."""

    cdef public int64_t prefill_tokens, decode_tokens, prefix_hit_tokens, folded_tokens, lm_head_rows
    cdef public int64_t eager_steps, graph_replays, peak_activation_bytes
    cdef public double forward_seconds
    cdef readonly dict steps

    def __cinit__(self, *args, **fields):
        self.steps = {"oneshot": 0, "mixed": 0, "decode": 0}

    def count_step(self, str kind, int64_t prefill, int64_t decode, tuple rows, tuple folds, result) -> None:
        """A step of ``prefill`` and ``decode`` tokens with these OneShot rows and folds."""
        self.count(kind, prefill, decode, rows, folds, result)

    cdef int count(self, str kind, int64_t prefill, int64_t decode, tuple rows, tuple folds, result) except -1:
        cdef OneShotRow row
        cdef int64_t peak = result.peak_bytes
        self.steps[kind] = self.steps[kind] + 1
        self.prefill_tokens += prefill
        self.decode_tokens += decode
        for row in rows:
            self.prefix_hit_tokens += row.skip
        for fold in folds:
            self.folded_tokens += <int64_t>fold.tokens * (len(fold.members) - 1)
        self.lm_head_rows += <int64_t>result.lm_head_rows
        if result.eager:
            self.eager_steps += 1
        else:
            self.graph_replays += 1
        self.peak_activation_bytes = max(self.peak_activation_bytes, peak)
        self.forward_seconds += <double>result.seconds
        return 0

    def counted(self) -> dict:
        return {"steps": dict(self.steps), "prefill_tokens": self.prefill_tokens, "decode_tokens": self.decode_tokens,
                "prefix_hit_tokens": self.prefix_hit_tokens, "folded_tokens": self.folded_tokens,
                "lm_head_rows": self.lm_head_rows, "eager_steps": self.eager_steps,
                "graph_replays": self.graph_replays, "peak_activation_bytes": self.peak_activation_bytes,
                "forward_seconds": self.forward_seconds}


@cython.final
cdef class Settling:
    """Settles steps that have nothing but OneShot rows, all in one call: the step is counted, the cost model learns
    from it, rows are published, leases go back, requests that ended well are ready to be told of it."""

    cdef KvPool pool
    cdef StepCounts counts
    cdef CostFit cost
    cdef dict live
    cdef object planned, finished
    cdef int64_t vocab_size

    def __cinit__(self, KvPool pool not None, StepCounts counts not None, CostFit cost not None, dict live not None,
                  int64_t vocab_size, planned, finished):
        self.pool, self.counts, self.cost, self.live = pool, counts, cost, live
        self.vocab_size, self.planned, self.finished = vocab_size, planned, finished

    def settle(self, tuple rows, tuple folds, computed, row_ends, pair_ends, output, token_ids, bad, result,
               double now):
        """(its tokens, then what ``end_all`` says: runs and more; then those that failed, as ``settle_group`` has
        them). ``now``: the end of requests that ended well."""
        cdef int64_t tokens = 0, i
        cdef double seconds = result.seconds
        cdef cnp.ndarray brought = _int32(computed, "computed")
        for i in range(_len(brought)):
            tokens += _data(brought)[i]
        self.counts.count("oneshot", tokens, 0, rows, folds, result)
        self.cost.observe(tokens, result.attended_tokens, result.lm_head_rows, seconds)
        requests, outcomes, failed = _settle_rows(
            self.pool, rows, computed, row_ends, pair_ends, output, token_ids, bad, self.vocab_size,
            seconds * 1e3, len(rows), self.planned, self.finished)
        runs, more = _end_rows(requests, outcomes, self.live, now)
        return tokens, runs, more, failed


# --- prompts that have all else in common ----------------------------------------------------------------------

@cython.final
cdef class Ticket:
    """One task that waits for its result in a loop: ``future`` gets its error or its result, as a value, or None
    where it has to be asked for the long way. ``request`` is there from the end of the loop's turn on."""

    cdef readonly object alike, prompt, future
    cdef public object request

    def __cinit__(self, alike, prompt, future):
        self.alike, self.prompt, self.future = alike, prompt, future


@cython.final
cdef class Wording:
    """What tasks say beside their prompts: those of the same words become requests together. ``alike`` is what the
    preparer made of them; prompts have 1 to ``most`` ids below ``limit``."""

    cdef object kind, params, truncation, cache, salt
    cdef readonly object alike
    cdef int64_t limit, most
    cdef Py_ssize_t places[5]  # of a task's slots, in the order of _WORDS

    def __cinit__(self, task, alike, int64_t limit, int64_t most):
        self.kind, self.params, self.alike = type(task), task.params, alike
        self.truncation, self.cache, self.salt = task.truncation, task.cache, task.salt
        self.limit, self.most = limit, most
        for at, name in enumerate(_WORDS):
            self.places[at] = slot_offset(self.kind, getattr(self.kind, name, None))
            if self.places[at] < 0:
                raise TypeError(f"{self.kind.__name__}: {name} is not a slot")

    cdef bint says(self, task) except -1:
        if type(task) is not self.kind:
            return False
        cdef PyObject* params = slot_of(<PyObject*>task, self.places[0])
        cdef PyObject* truncation = slot_of(<PyObject*>task, self.places[1])
        cdef PyObject* cache = slot_of(<PyObject*>task, self.places[2])
        cdef PyObject* salt = slot_of(<PyObject*>task, self.places[3])
        return (params == <PyObject*>self.params and truncation != NULL and cache != NULL and salt != NULL
                and slot_of(<PyObject*>task, self.places[4]) != NULL
                and _same(<object>truncation, self.truncation) and _same(<object>cache, self.cache)
                and _same(<object>salt, self.salt))

    cdef object prompt_of(self, task):
        return <object>slot_of(<PyObject*>task, self.places[4])

    def prompts(self, tasks):
        """Those of tasks that say the same, one type of object to all of them; None where one does not."""
        cdef list found = []
        for task in tasks:
            if not self.says(task):
                return None
            found.append(self.prompt_of(task))
        return found

    def ids(self, tasks):
        """Copies of the prompts of tasks that say the same; None where one of either is not as it should be."""
        cdef list found
        given = self.prompts(tasks)
        if given is None:
            return None
        found = all_ids_below(given, self.limit, self.most)
        for ids in found:
            if ids is None:
                return None
        return found

    def ticket(self, task, create_future):
        """For a task that says the same; None where it, or its prompt, is not as it should be."""
        if not self.says(task):
            return None
        prompt = self.prompt_of(task)
        if not 0 < _length_of_ids(prompt) <= self.most:
            return None
        ids = ids_below(prompt, self.limit)
        return None if ids is None else Ticket(self.alike, ids, create_future())


cdef tuple _WORDS = ("params", "truncation", "cache", "salt", "prompt")


cdef inline bint _same(one, other) except -1:
    return one is other or one == other


cdef object _finish(alike, outcome, Maker make, finished, dict texts):
    """The caller's result, or its error, as a value. Where it is no more than a token's text, that is asked for once
    in ``texts``, and ``make`` makes it; else ``finished``."""
    cdef Outcome one
    cdef tuple ids
    if type(outcome) is not Outcome:
        return finished(alike, outcome)
    one = <Outcome?>outcome
    ids = one.token_ids
    if len(ids) != 1:
        return finished(alike, outcome)
    text = texts.get(ids[0])
    if text is None:
        word = alike.word
        if word is None:
            return finished(alike, outcome)
        try:
            text = texts[ids[0]] = word(ids[0])
        except Exception as error:
            return error
    return make.make((text, ids, one.stats.finish_reason, one.stats, None, None))


def finish_all(alike, list requests, Ends ends not None, Maker make not None, finished) -> list:
    """Results, or errors, of all requests of a call, in order. ``finished(alike, outcome)`` makes a result that
    ``make`` cannot."""
    cdef Py_ssize_t at
    cdef dict texts = {}
    cdef list results = [None] * len(requests)
    cdef list outcomes = ends.outcomes_of(requests)
    for at in range(len(requests)):
        if outcomes is not None:
            results[at] = _finish(alike, outcomes[at], make, finished, texts)
            continue
        outcome, error = ends[requests[at].id]
        results[at] = error if outcome is None else _finish(alike, outcome, make, finished, texts)
    return results


def tell_all(list requests, list outcomes, dict tickets, Maker make not None, finished, again) -> None:
    """Each ticket's future gets its result, or its error, as a value, where it still waits. ``again(requests,
    outcomes)`` hears of those that an interrupt left untold."""
    cdef Py_ssize_t at = 0
    cdef Ticket ticket
    cdef dict texts = {}
    cdef object alike = None
    try:
        for at in range(len(requests)):
            request = requests[at]
            ticket = tickets[(<Record?>request).id if isinstance(request, Record) else request.id]
            if ticket.future.done():
                continue
            if ticket.alike is not alike:
                alike, texts = ticket.alike, {}
            ticket.future.set_result(_finish(alike, outcomes[at], make, finished, texts))
    except BaseException:
        again(requests[at:], outcomes[at:])
        raise


def bind_all(list tickets, list requests) -> dict:
    """Every ticket has its request; tickets by their requests' ids."""
    cdef Py_ssize_t at
    cdef dict found = {}
    for at in range(len(requests)):
        (<Ticket?>tickets[at]).request = requests[at]
        found[(<Record?>requests[at]).id] = tickets[at]
    return found


def waiting_alike(list tickets) -> list:
    """[tickets] of each wording, of those whose futures still wait."""
    cdef Ticket ticket
    cdef list group = [], groups = []
    cdef object alike = None
    cdef dict known = {}
    for ticket in tickets:
        if ticket.future.done():
            continue
        if ticket.alike is not alike:
            alike = ticket.alike
            group = known.get(id(alike))
            if group is None:
                group = known[id(alike)] = []
                groups.append(group)
        group.append(ticket)
    return groups
