# Prepared tasks become requests with places in the queue, in one call over a call's tasks. Part of core.pyx.


cdef class Entry:
    """``kind`` is the class of requests, ``classes`` are the execution classes of at most one new token, and of more.
    ``ids`` numbers requests, ``ending`` is told of their end. ``owner`` knows whether the process was forked.
    ``placed(request, places)``: the request, checked by itself, or its error; by a subclass. Any thread."""

    cdef type kind
    cdef public tuple classes
    cdef object ids, ending, events, owner, oneshot
    cdef Inbox inbox
    cdef readonly int64_t most_oneshot  # tokens of a OneShot request, beside running rows

    def __init__(self, type kind not None, tuple classes not None, ids, ending, Inbox inbox not None, events, owner,
                 int64_t most_oneshot):
        self.kind, self.classes, self.ids, self.ending, self.inbox = kind, classes, ids, ending, inbox
        self.events, self.owner, self.oneshot, self.most_oneshot = events, owner, classes[0], most_oneshot

    def reserve(self, int64_t count) -> Places:
        """Places in the queue, before anything is tokenised; use it in a ``with`` block around ``requests`` and the
        posting of them."""
        cdef Places places
        if self.owner.forked:
            self.owner.check_process()
        places = self.inbox.reserve(count)
        if places.left < count and self.events.heard:
            self.events.emit("rejected", reason="queued_requests", count=count - places.left)
        return places

    def requests(self, list admitted not None, list calls not None, sink, Places places not None, watching,
                 list groups=None, outbox=None) -> list:
        """The request of each admitted task, checked against everything that could keep it from ever being planned; or
        the error of one that was not admitted, or is refused. They hold nothing but their ``places``. ``calls``: of the
        task at the same place, its options, the moment it expires and its timeline. ``groups``: of that task the call
        of an event loop that it belongs to. ``watching(admitted, sink)``: the sink of a task that is ``watched``."""
        cdef list found = self.begin(admitted, calls, sink, watching, groups, outbox)
        if places.take_all(found, self.oneshot, self.most_oneshot):
            return found
        return [self.placed(one, places) if isinstance(one, Record) else one for one in found]

    cdef list begin(self, list admitted, list calls, sink, watching, list groups, outbox):
        """The request of each admitted task, and the error of one that was not admitted."""
        cdef list out = []
        cdef Record r
        cdef Py_ssize_t i, n = len(admitted)
        cdef object item, prepared, call, before = None, options = None, timeline = None, readout = None
        cdef tuple facts = (None, 0)  # requests of one decision share their readout
        cdef double expires = INFINITY, now
        oneshot, decode = self.classes
        now = _perf_counter()
        if len(calls) < n or (groups is not None and len(groups) < n):
            raise ValueError(f"{len(calls)} calls of {n} tasks, or not a group of each")
        for i in range(n):
            item, call = admitted[i], calls[i]
            if isinstance(item, BaseException):
                out.append(item)
                continue
            if call is not before:
                options, expires, timeline, before = call.options, call.expires, call.timeline, call
            prepared = item.prepared
            if prepared.readout is not readout:
                readout = prepared.readout
                facts = _facts_of(readout)
            r = self.kind.__new__(self.kind)
            _begin(r, prepared, watching(item, sink) if item.watched else sink, options,
                   decode if prepared.max_new_tokens > 1 else oneshot, next(self.ids), now, facts)
            r.ending, r.outbox, r.expires, r.timeline = self.ending, outbox, expires, timeline
            r.call = None if groups is None else groups[i]
            out.append(r)
        return out
