# Calls of an event loop: the object that their task awaits, and the ends of their requests. Part of core.pyx.

from contextvars import copy_context as _copy_context


cdef enum Waited:
    pending, resolved, failed, cancelled


cdef class Waiter:
    """An awaitable for one task of an event loop, once: a future to asyncio. Where ``asyncio.Future`` has the loop
    come back to each callback, ``resolve`` and ``fail`` run the callbacks themselves. They are called in the loop,
    where no task is running; ``cancel`` may be called by a task, and leaves the callbacks to another turn of the
    loop."""

    cdef public object _asyncio_future_blocking
    cdef readonly object loop
    cdef object error  # or the message of the cancellation
    cdef list callbacks  # [(callback, context)]
    cdef Waited waited

    def __cinit__(self, loop, *args):
        self.loop, self.callbacks, self._asyncio_future_blocking = loop, [], False
        self.waited = Waited.pending

    def get_loop(self):
        return self.loop

    def done(self) -> bool:
        return self.waited != Waited.pending

    def cancelled(self) -> bool:
        return self.waited == Waited.cancelled

    def result(self) -> None:
        if self.waited != Waited.resolved:
            error = self.exception()
            if error is not None:
                raise error

    def exception(self):
        from asyncio import CancelledError, InvalidStateError  # a waiter has an event loop, which has loaded it
        if self.waited == Waited.pending:
            raise InvalidStateError("the call has not ended")
        if self.waited == Waited.cancelled:
            raise CancelledError() if self.error is None else CancelledError(self.error)
        return self.error

    def add_done_callback(self, callback, *, context=None) -> None:
        if context is None:
            context = _copy_context()
        if self.waited == Waited.pending:
            self.callbacks.append((callback, context))
        else:
            self.loop.call_soon(callback, self, context=context)

    def remove_done_callback(self, callback) -> int:
        kept = [one for one in self.callbacks if one[0] != callback]
        removed = len(self.callbacks) - len(kept)
        self.callbacks = kept
        return removed

    def cancel(self, msg=None) -> bool:
        if self.waited != Waited.pending:
            return False
        self.waited, self.error = Waited.cancelled, msg
        called, self.callbacks = self.callbacks, []
        for callback, context in called:
            self.loop.call_soon(callback, self, context=context)
        return True

    def resolve(self) -> None:
        if self.waited == Waited.pending:
            self.close(Waited.resolved)

    def fail(self, error not None) -> None:
        if self.waited == Waited.pending:
            self.error = error
            self.close(Waited.failed)

    cdef int close(self, Waited waited) except -1:
        """Runs the callbacks. An interrupt in one of them leaves the rest to another turn of the loop."""
        cdef Py_ssize_t i = 0
        cdef list called = self.callbacks
        self.waited, self.callbacks = waited, []
        for i in range(len(called)):
            callback, context = called[i]
            try:
                context.run(callback, self)
            except Exception as error:
                self.loop.call_exception_handler(
                    {"message": f"Exception in callback {callback!r}", "exception": error, "future": self})
            except BaseException:
                for callback, context in called[i + 1:]:
                    self.loop.call_soon(callback, self, context=context)
                raise
        return 0

    def __await__(self):
        return self

    def __iter__(self):
        return self

    def __next__(self):
        if self.waited == Waited.pending:
            if self._asyncio_future_blocking or self.callbacks:
                raise RuntimeError("a call is awaited once, by a task of its loop")
            self._asyncio_future_blocking = True
            return self
        self.result()
        raise StopIteration


@cython.final
cdef class Group(Waiter):
    """Requests of one call in an event loop: its tasks, the request or error of each, and their ends. The task that
    made the call awaits the group, which is resolved when all of its requests have ended.

    ``admitted``: the prepared requests of ``tasks``, where that happened before the turn's end; ``places``: those of
    them in the queue. ``found``: of each task its request, or the error that kept it out. ``requests`` are those that
    run, and let go when all have ended: they refer to this group."""

    cdef readonly list calls, timelines
    cdef public object tasks
    cdef public list admitted, found, requests
    cdef public object places, progress
    cdef public Py_ssize_t expected
    cdef readonly Ends ends

    def __init__(self, loop, tasks not None, list calls not None, list timelines not None, progress=None):
        self.tasks, self.calls, self.timelines, self.progress = tasks, calls, timelines, progress
        self.ends = Ends()

    def begin(self, list admitted not None, list found not None) -> list:
        """The call's part of a turn has come to this: the requests among it, whose ends are expected."""
        self.admitted, self.found, self.tasks = admitted, found, ()
        self.requests = [one for one in found if isinstance(one, Record)]
        self.expected = len(self.requests)
        return self.requests

    def let_go(self) -> tuple:
        """The admitted requests, or errors, and their ends. The group refers to none of them any more: a
        request refers to its group."""
        cdef tuple found = (self.admitted, self.found, self.ends)
        self.admitted = self.found = self.requests = None
        self.ends = Ends()
        return found

    def end(self, request, outcome, error) -> None:
        self.ends.put(request, outcome, error)
        self.count(1)

    def told(self, Py_ssize_t count) -> None:
        """``count`` more have ended, or were never begun."""
        self.count(count)

    cdef int count(self, Py_ssize_t count) except -1:
        if self.progress is not None and count:
            self.progress.advance(count)
        if len(self.ends) >= self.expected and self.waited == Waited.pending:
            self.requests = []
            self.close(Waited.resolved)
        return 0


def tell_groups(list requests not None, list outcomes not None, again not None) -> None:
    """Ends of requests to the groups that they belong to (``request.call``), neighbours of one group together. Where
    an interrupt comes between, ``again(requests, outcomes)`` has the rest."""
    cdef Py_ssize_t at = 0, end, n = len(requests)
    cdef Group group
    if len(outcomes) != n:
        raise ValueError(f"{len(outcomes)} outcomes of {n} requests")
    while at < n:
        group = requests[at].call
        end = at + 1
        while end < n and requests[end].call is group:
            end += 1
        try:
            if end - at == n:
                group.ends.add_all(requests, outcomes)
            else:
                group.ends.add_all(requests[at:end], outcomes[at:end])
            group.count(end - at)
        except BaseException:
            if group.waited != Waited.pending:
                at = end  # its task was told, and interrupted
            again(requests[at:], outcomes[at:])
            raise
        at = end
