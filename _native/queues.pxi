# Between threads: the inbox and the step lock. Part of core.pyx.
#
# The queues hold a reference on their contents, from push to take. Nothing here waits for a lock.

cdef list _contents(Link* link):
    """The contents of a chain, in its order; the queue's references on them are given back."""
    cdef list out = []
    try:
        while link != NULL:
            out.append(<object>(<Parcel*>link).content)
            link = _drop_first(link)
    finally:
        _drop_all(link)  # no memory for the list
    return out


cdef Link* _drop_first(Link* link) noexcept:
    """The link's content loses the queue's reference, which may end the link as well; the rest of the chain."""
    cdef Parcel* parcel = <Parcel*>link
    cdef PyObject* content = <PyObject*>parcel.content
    cdef Link* rest = parcel.next
    parcel.content = NULL
    Py_DECREF(<object>content)
    return rest


cdef void _drop_all(Link* link) noexcept:
    while link != NULL:
        link = _drop_first(link)


cdef list _seen(const Link* link):
    """The contents of a chain that stays where it is; ``link`` is the newest, the list begins with the oldest."""
    cdef list out = []
    while link != NULL:
        out.append(<object>(<const Parcel*>link).content)
        link = link.next
    out.reverse()
    return out


cdef class Inbox:
    """The way in. ``take_places`` comes before anything is made, ``post`` counts the requests' tokens and hands them
    over, all of a call in one piece; ``take`` is for the holder of the step lock. Any thread, no lock."""

    cdef Handover queue
    cdef Admission* admission  # owned
    cdef readonly int64_t max_requests, max_tokens

    def __cinit__(self, int64_t max_requests, int64_t max_tokens):
        self.admission = new Admission(max_requests, max_tokens)
        self.max_requests, self.max_tokens = max_requests, max_tokens

    def __dealloc__(self):
        _drop_all(self.queue.take())
        del self.admission

    @property
    def requests(self) -> int:
        """Waiting, being tokenised or on their way."""
        return self.admission.requests.count()

    @property
    def tokens(self) -> int:
        return self.admission.tokens.count()

    @property
    def closed(self) -> bool:
        return self.queue.closed()

    @property
    def items(self) -> list:
        """The posted items that were not taken, the oldest first. For the holder of the step lock."""
        return _seen(self.queue.newest())

    @property
    def empty(self) -> bool:
        return self.queue.empty()

    def take_places(self, int64_t count) -> int:
        """Up to ``count`` places; as many as there are."""
        return self.admission.requests.take(_count(count, "count"), False)

    def give_back(self, int64_t places) -> None:
        self.admission.requests.give_back(places)

    def post(self, list requests not None, places) -> list | None:
        """Counts the tokens of requests, and posts them: they will be answered. Each takes one of ``places.left``, in
        this call, so that an interrupt counts none twice. Returns those whose tokens have no room, each with the
        tokens that were waiting: of these nothing is counted or posted. None after ``close``: nothing is. Each request
        once."""
        cdef Record r
        cdef Parcel* newest = NULL
        cdef Parcel* oldest = NULL
        cdef int64_t tokens
        cdef list refused = []
        for r in requests:
            if r.parcel.content != NULL:
                raise RuntimeError("a request is posted once")
        if self.queue.closed():
            return None
        try:
            for r in requests:
                tokens = r.row.num_tokens
                if self.admission.tokens.take(tokens, True) < tokens:
                    refused.append((r, self.admission.tokens.count()))
                    continue
                Py_INCREF(r)
                r.queued_tokens = tokens
                r.parcel.content = <void*>r
                r.parcel.next = newest
                newest = &r.parcel
                if oldest == NULL:
                    oldest = newest
            places.left -= len(requests) - len(refused)
        except BaseException:  # no memory for the list
            self.roll_back(requests)
            raise
        if oldest != NULL and self.queue.push(newest, oldest) == Pushed.closed:
            places.left += len(requests) - len(refused)
            self.roll_back(requests)
            return None
        return refused

    cdef void roll_back(self, list requests) noexcept:
        """Undo the counting of requests that are not posted after all."""
        cdef Record r
        for r in requests:
            if r.parcel.content != NULL:
                self.admission.tokens.give_back(r.queued_tokens)
                r.queued_tokens = -1
                r.parcel.content = NULL
                Py_DECREF(r)

    def take(self) -> list:
        """The items posted until now. For the holder of the step lock."""
        return _contents(self.queue.take())

    def leave(self, Record request not None) -> None:
        """The request waits no more: planned for the first time, or ended. Once; further calls do nothing."""
        self.admission.leave(request.queued_tokens)

    def close(self) -> None:
        self.queue.close()


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
