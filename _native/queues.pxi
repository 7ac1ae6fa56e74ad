# Between threads: the inbox, the completions' way back, the step lock and the wake event. Part of core.pyx.
#
# The queues hold a reference on their contents, from push to take. Nothing here waits for a lock but WakeEvent.wait.

cdef Py_ssize_t _links(const Link* link) noexcept:
    cdef Py_ssize_t n = 0
    while link != NULL:
        n += 1
        link = link.next
    return n


cdef list _contents(Handover* queue, Link** left, bint owned):
    """Everything that was pushed until now, the oldest first. ``owned``: its parcels are the queue's own, and end
    here. Where there is no memory for the list, taken items stay in ``left`` and come first the next time."""
    cdef Py_ssize_t at, n
    cdef Link* link = queue.take()
    cdef Link* last = left[0]
    cdef list out
    if last == NULL:
        left[0] = link
    else:
        while last.next != NULL:
            last = last.next
        last.next = link
    while True:
        n = _links(left[0])
        out = [None] * n  # may run a finaliser, which may take from this queue
        if n == _links(left[0]):
            break
    for at in range(n):  # nothing here takes memory: an item that leaves the queue is in the list
        out[at] = <object>(<Parcel*>left[0]).content
        _drop_first(left, owned)
    return out


cdef void _drop_first(Link** left, bint owned) noexcept:
    """The first link's content loses the queue's reference, which may end the link as well."""
    cdef Parcel* parcel = <Parcel*>left[0]
    cdef PyObject* content = <PyObject*>parcel.content
    left[0] = parcel.next
    parcel.content = NULL
    if owned:
        del parcel
    Py_DECREF(<object>content)


cdef void _drop_all(Handover* queue, Link** left, bint owned) noexcept:
    while left[0] != NULL:
        _drop_first(left, owned)
    left[0] = queue.take()
    while left[0] != NULL:
        _drop_first(left, owned)


cdef list _seen(const Link* link):
    """The contents of a chain that stays where it is; ``link`` is the newest, the list begins with the oldest."""
    cdef list out = []
    while link != NULL:
        out.append(<object>(<const Parcel*>link).content)
        link = link.next
    out.reverse()
    return out


cdef tuple _REASONS = ("queued_requests", "queued_tokens", "deadline")


cdef class Inbox:
    """The way in. ``reserve`` takes places before anything is made, ``charge`` counts a request's tokens, ``post``
    hands requests over, all of a call in one piece; ``take`` is for the holder of the step lock. ``refusal(reason,
    tokens)`` makes the error of a rejected request: by a subclass. Any thread, no lock."""

    cdef Handover queue
    cdef Link* left  # taken from the queue, and no memory to hand it on
    cdef Admission* admission  # owned
    cdef Bounded* refusals[3]  # owned; counts by reason

    def __cinit__(self, int64_t max_requests, int64_t max_tokens):
        self.admission = new Admission(max_requests, max_tokens)
        for i in range(3):
            self.refusals[i] = new Bounded(INT64_MAX)

    def __dealloc__(self):
        _drop_all(&self.queue, &self.left, False)
        del self.admission
        for i in range(3):
            del self.refusals[i]

    @property
    def max_requests(self) -> int:
        return self.admission.requests.most()

    @property
    def max_tokens(self) -> int:
        return self.admission.tokens.most()

    @property
    def requests(self) -> int:
        """Waiting, being tokenised or on their way."""
        return self.admission.requests.count()

    @property
    def tokens(self) -> int:
        return self.admission.tokens.count()

    @property
    def rejected(self) -> dict:
        """How many were turned away, by reason."""
        counts = [(_REASONS[i], self.refusals[i].count()) for i in range(3)]
        return {reason: count for reason, count in counts if count}

    @property
    def closed(self) -> bool:
        return self.queue.closed()

    @property
    def items(self) -> list:
        """The posted items that were not taken, the oldest first. For the holder of the step lock."""
        cdef Link* link = self.left
        cdef list out = []
        while link != NULL:
            out.append(<object>(<Parcel*>link).content)
            link = link.next
        return out + _seen(self.queue.newest())

    @property
    def empty(self) -> bool:
        return self.left == NULL and self.queue.empty()

    cdef int check_open(self) except -1:
        if self.queue.closed():
            raise self.refusal("closed", 0)
        return 0

    def refused(self, reason: str, count: int = 1) -> None:
        """Counts rejected requests."""
        self.refusals[_REASONS.index(reason)].take(count, True)

    cpdef Places reserve(self, int64_t count):
        """Up to ``count`` places; as many as there are."""
        self.check_open()
        cdef Places places = Places.__new__(Places)
        places.inbox, places.unposted = self, []
        places.left = self.admission.requests.take(_count(count, "count"), False)
        if places.left < count:
            self.refused("queued_requests", count - places.left)
        return places

    def charge(self, Record request not None) -> None:
        """Counts the tokens of a request that has a place."""
        self.check_open()
        if self.admission.tokens.take(request.num_known, True) < request.num_known:
            self.refused("queued_tokens")
            raise self.refusal("queued_tokens", request.num_known)
        request.queued_tokens = request.num_known

    cdef bint charge_all(self, list requests) except -1:
        """``charge`` of requests that all fit; False, and nothing counted, where they do not."""
        cdef Record r
        cdef int64_t tokens = 0
        for r in requests:
            tokens += r.num_known
        self.check_open()
        if self.admission.tokens.take(tokens, True) < tokens:
            return False
        for r in requests:
            r.queued_tokens = r.num_known
        return True

    def post(self, list requests not None) -> None:
        """Posted requests will be answered; after ``close`` none is posted. Each request once."""
        cdef Record r
        cdef Parcel* newest = NULL
        cdef Parcel* oldest = NULL
        for r in requests:
            if r.parcel.content != NULL:
                raise RuntimeError("a request is posted once")
        for r in requests:
            Py_INCREF(r)
            r.parcel.content = <void*>r
            r.parcel.next = newest
            newest = &r.parcel
            if oldest == NULL:
                oldest = newest
        if oldest != NULL and self.queue.push(newest, oldest) == Pushed.closed:
            for r in requests:
                r.parcel.content = NULL
                Py_DECREF(r)
            raise self.refusal("closed", 0)

    def enter(self, list requests not None, dict live not None) -> None:
        """``post`` of requests that are in ``live`` from then on, by id; of none where it raises."""
        cdef Record r
        try:
            for r in requests:
                live[r.id] = r
            self.post(requests)
        except BaseException:
            for r in requests:
                live.pop(r.id, None)
                self.admission.leave(r.queued_tokens)
            raise

    def take(self) -> list:
        """The items posted until now. For the holder of the step lock."""
        return _contents(&self.queue, &self.left, False)

    def leave(self, Record request not None) -> None:
        """The request waits no more: planned for the first time, or ended. Once; further calls do nothing."""
        self.admission.leave(request.queued_tokens)

    def leave_all(self, list requests not None) -> None:
        cdef Record r
        for r in requests:
            self.admission.leave(r.queued_tokens)

    def give_back(self, int64_t places) -> None:
        self.admission.requests.give_back(places)

    def close(self) -> None:
        self.queue.close()


@cython.final
cdef class Places:
    """Places of one call. Leaving the ``with`` block gives back those that no posted request took."""

    cdef Inbox inbox
    cdef list unposted
    cdef readonly int64_t left

    def take(self, Record request not None) -> None:
        """Makes one place this request's. Raises ``QueueFull`` when there is none, or no room for its tokens."""
        if self.left == 0:
            raise self.inbox.refusal("queued_requests", 0)
        self.unposted.append(request)  # first: nothing is charged where there is no memory for it
        try:
            self.inbox.charge(request)
        except BaseException:
            self.unposted.pop()
            raise
        self.left -= 1

    cpdef bint take_all(self, list requests, oneshot, int64_t most) except -1:
        """``take`` of requests that all find room; False, and nothing taken, where they do not, or where one of them is
        to be checked by itself (``_all_fit``)."""
        cdef Py_ssize_t before = len(self.unposted)
        cdef bint charged = False
        if self.left < len(requests) or not _all_fit(requests, oneshot, most):
            return False
        try:
            self.unposted.extend(requests)  # first: nothing is charged where there is no memory for it
            charged = self.inbox.charge_all(requests)
        finally:
            if not charged:
                del self.unposted[before:]
        self.left -= len(requests) if charged else 0
        return charged

    def posted(self) -> None:
        self.unposted.clear()

    def __enter__(self) -> Places:
        return self

    def __exit__(self, kind, error, trace) -> None:
        self.give_back()

    def give_back(self) -> None:
        """Those that no posted request took. Takes no memory."""
        cdef Record r
        if self.unposted is not None:
            for r in self.unposted:
                self.inbox.admission.leave(r.queued_tokens)
            self.unposted.clear()
        if self.left:
            self.inbox.admission.requests.give_back(self.left)
            self.left = 0

    def __del__(self):
        """An error may come between the taking of places and the ``with`` block."""
        self.give_back()


@cython.final
cdef class Outlet:
    """The way back to one event loop: ``put`` by any thread, ``take`` in the loop. No lock."""

    cdef Handover queue
    cdef Link* left  # taken from the queue, and no memory to hand it on

    def __dealloc__(self):
        _drop_all(&self.queue, &self.left, True)

    def put(self, item) -> bool:
        """Whether it is the first since the last ``take``: then the taking thread has to be told."""
        cdef Parcel* parcel = new Parcel()
        Py_INCREF(item)
        parcel.content = <void*>item
        return self.queue.push(parcel, parcel) == Pushed.first

    def take(self) -> list:
        """The items put until now, the oldest first."""
        return _contents(&self.queue, &self.left, True)


@cython.final
cdef class Tally:
    """A count that any thread adds to, exact without a lock."""

    cdef Bounded* c  # owned

    def __cinit__(self):
        self.c = new Bounded(INT64_MAX)

    def __dealloc__(self):
        del self.c

    cpdef add(self, int64_t n):
        self.c.take(n, True)

    @property
    def count(self) -> int:
        return self.c.count()


@cython.final
cdef class StepLock:
    """Held by the one thread that may step. No thread waits for it: ``try_acquire_or_request`` of a lock that another
    thread holds leaves a mark, which that thread finds at its ``release``."""

    cdef CStepLock c

    def try_acquire(self) -> bool:
        return self.c.try_acquire(PyThread_get_thread_ident())

    def try_acquire_or_request(self) -> bool:
        return self.c.try_acquire_or_request(PyThread_get_thread_ident())

    def release(self) -> bool:
        """Whether another thread requested it meanwhile, and is to be woken."""
        return self.c.release()

    @property
    def held(self) -> bool:
        """Whether the calling thread holds it."""
        return self.c.holder() == PyThread_get_thread_ident()


@cython.final
cdef class WakeEvent:
    """Wakes one sleeping thread. ``set`` after the work is in its place; ``wait`` returns once for any number of calls
    of ``set`` before it, and clears the event. ``set`` waits for nothing and may be called by a finaliser."""

    cdef AtomicBool is_set
    cdef PyThread_type_lock sleeper  # released by the `set` that finds `is_set` false; taken again by wait

    def __cinit__(self):
        self.is_set.store(False)
        self.sleeper = PyThread_allocate_lock()
        if self.sleeper == NULL:
            raise MemoryError()
        PyThread_acquire_lock_timed(self.sleeper, 0, 0)

    def __dealloc__(self):
        if self.sleeper != NULL:
            if not self.is_set.exchange(True):
                PyThread_release_lock(self.sleeper)  # some systems mind freeing one that is taken
            PyThread_free_lock(self.sleeper)

    def set(self) -> None:
        if not self.is_set.exchange(True):
            PyThread_release_lock(self.sleeper)

    def wait(self, timeout=None) -> bool:
        cdef long long microseconds = -1 if timeout is None else <long long>(max(0.0, timeout) * 1e6)
        cdef PyLockStatus status
        with nogil:
            status = PyThread_acquire_lock_timed(self.sleeper, microseconds, 0)
        if status != PyLockStatus.PY_LOCK_ACQUIRED:
            return False
        self.is_set.store(False)  # before the work is looked at: work that comes later sets it again
        return True
