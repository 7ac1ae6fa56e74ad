"""How a request's end reaches whoever waits: a blocked thread, or a future in an event loop.

Ends may come from the engine thread, from a caller that runs steps itself, or from the watchdog.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any, Protocol

from prelude._native.core import Ends, Outlet
from prelude.admission.prepared import Outcome
from prelude.batch import SampleOutput
from prelude.progress import Progress
from prelude.runtime.core import EngineCore
from prelude.runtime.events import INTERRUPTS
from prelude.runtime.sinks import LoopFlush
from prelude.scheduling.request import Request

log = logging.getLogger("prelude.engine")


class EndSink:
    """A sink that wants the end alone."""

    streams = False

    def token(self, request: Request, token_id: int, output: SampleOutput, row: int) -> bool:
        return False


class BlockingSink(EndSink):
    """Collects the ends of a group of requests, by request id; ``wait`` returns when all have ended. ``progress``
    hears of them in the thread that made the sink and waits."""

    def __init__(self, progress: Progress | None = None) -> None:
        self.ends = Ends()
        self.expected = 0
        self._done: threading.Event | None = None  # made by whoever has to wait
        self._progress = progress
        self._owner = threading.get_ident()
        self._said = 0

    def deliver(self, request: Request, outcome: Outcome | None, error: BaseException | None) -> None:
        self.ends.put(request, outcome, error)
        self._tell()

    def deliver_all(self, requests: list[Request], outcomes: list[Outcome]) -> None:
        self.ends.put_all(requests, outcomes)
        if self._done is not None or self._progress is not None:
            self._tell()

    def _tell(self) -> None:
        if self._progress is not None and threading.get_ident() == self._owner:
            self._report(self._progress)
        if self._done is not None and (self._progress is not None or len(self.ends) >= self.expected):
            self._done.set()

    def wait(self) -> None:
        if len(self.ends) < self.expected:
            self._done = threading.Event()
            while len(self.ends) < self.expected:  # the last end may have come before it was there to be set
                self._done.wait()
                self._done.clear()
                if self._progress is not None:
                    self._report(self._progress)
        if self._progress is not None:
            self._report(self._progress)

    def _report(self, progress: Progress) -> None:
        count = len(self.ends)
        said, self._said = self._said, count
        progress.advance(count - said)


class Told(Protocol):
    """What an outbox hands ends to, in the loop."""

    def end(self, request: Request, outcome: Outcome | None, error: BaseException | None) -> None: ...


class Group:
    """Requests of one call in an event loop: their ends, and the future that is resolved when all have ended.

    ``make`` turns the call's tasks into requests. It runs at the end of the turn of the loop in which the call was
    made, together with those of the other calls of that turn. ``tasks`` are those that are still to be prepared; what
    comes of them is put into ``admitted``, where ``make`` looks for it.
    """

    __slots__ = ("admitted", "ends", "expected", "future", "make", "progress", "requests", "tasks")

    def __init__(
        self,
        future: asyncio.Future[None],
        make: Callable[[Group], list[Request]],
        progress: Progress | None,
        tasks: list[Any],
        admitted: list[Any],
    ) -> None:
        self.tasks, self.admitted = tasks, admitted
        self.future = future
        self.make: Callable[[Group], list[Request]] | None = make
        self.progress = progress
        self.requests: list[Request] = []
        self.expected = 0
        self.ends = Ends()

    def end(self, request: Request, outcome: Outcome | None, error: BaseException | None) -> None:
        self.ends.put(request, outcome, error)
        self.told(1)

    def told(self, count: int) -> None:
        """``count`` more have ended."""
        if self.progress is not None:
            self.progress.advance(count)
        if len(self.ends) >= self.expected:
            self.requests = []  # which refer to this group
            if not self.future.done():
                self.future.set_result(None)


class Outbox(LoopFlush):
    """Between one event loop and the engine: what the calls of one turn of the loop ask for is posted together, so
    that a step begins with all of it; ends of requests are collected during a step and handed over by one wake-up."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, core: EngineCore, prepare: Callable[[list[Any]], list[Any]]
    ) -> None:
        """``prepare``: of tasks, in order; never an exception of one of them."""
        self.loop = loop
        self._prepare = prepare
        self.create_future = loop.create_future
        self._core = core
        core.sinks.loops.append(self)
        self._ends = Outlet()  # of calls of `_deliver`'s
        self._asked: list[Group] = []  # of this turn of the loop
        self.sink = LoopSink(self)

    def ask(self, group: Group) -> None:
        """In the loop."""
        if not self._asked:
            self.loop.call_soon(self._post)
        self._asked.append(group)

    def give_up(self, group: Group) -> None:
        """In the loop: the caller of ``group`` does not wait any more."""
        if group in self._asked:
            self._asked.remove(group)
        for request in group.requests:
            self._core.cancel(request)

    def _post(self) -> None:
        asked, self._asked = self._asked, []
        requests: list[Request] = []
        interrupt = self._prepare_together(asked)
        for group in asked:
            make, group.make = group.make, None
            try:
                live = make(group) if make is not None else []
                group.requests, group.expected = live, len(live)
                requests += live
            except BaseException as error:  # closed meanwhile, in a forked child, interrupted
                if not group.future.done():
                    group.future.set_exception(error)
                if isinstance(error, INTERRUPTS):
                    interrupt = error
                continue
            if not group.requests and not group.future.done():
                group.future.set_result(None)
        try:
            if requests:
                self._core.submit_many(requests)
        except Exception as error:
            for request in requests:
                self._core.inbox.leave(request)
                request.sink.deliver(request, None, error)
            self.flush()  # there may be no step any more
        if interrupt is not None:
            raise interrupt

    def _prepare_together(self, asked: list[Group]) -> BaseException | None:
        """Prepares the tasks of several calls in one call of the preparer. Where that fails, each call prepares its
        own; an interrupt is returned, for when the others have been served."""
        groups = [group for group in asked if group.tasks and not group.admitted]
        if len(groups) < 2:
            return None
        try:
            found = self._prepare([task for group in groups for task in group.tasks])
        except BaseException as error:
            return error if isinstance(error, INTERRUPTS) else None
        at = 0
        for group in groups:
            group.admitted += found[at : at + len(group.tasks)]
            at += len(group.tasks)
        return None

    def put(self, sink: Told, request: Request, outcome: Outcome | None, error: BaseException | None) -> None:
        self._put((sink.end, request, outcome, error))

    def put_all(self, sink: LoopSink, requests: list[Request], outcomes: list[Outcome]) -> None:
        self._put((sink.end_all, requests, outcomes))

    def again(self, sink: LoopSink, requests: list[Request], outcomes: list[Outcome]) -> None:
        """In the loop, by a sink that is interrupted while it tells ends: ``_deliver`` comes back to these."""
        self._ends.put((sink.end_all, requests, outcomes))

    def _put(self, call: tuple[Any, ...]) -> None:
        if self._ends.put(call):  # else the loop has been told, or will be at the step's end
            self._core.sinks.wake_later(self)

    def flush(self) -> None:
        try:
            self.loop.call_soon_threadsafe(self._deliver)
        except RuntimeError:  # the loop is closed: no task waits there any more
            self._ends.take()

    def closed(self) -> bool:
        return self.loop.is_closed()

    def _deliver(self) -> None:
        calls = self._ends.take()
        for at, (end, *given) in enumerate(calls):
            try:
                end(*given)
            except Exception:  # the others' ends are in the same queue
                log.exception("handing over a request's end failed")
            except BaseException:  # an interrupt: the others' come in another turn of the loop
                for call in calls[at + 1 :]:
                    self._ends.put(call)
                self.loop.call_soon(self._deliver)
                raise


class LoopSink(EndSink):
    """The ends of requests of one loop, to the groups that they belong to (``request.call``)."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    def deliver(self, request: Request, outcome: Outcome | None, error: BaseException | None) -> None:
        self._outbox.put(self, request, outcome, error)

    def deliver_all(self, requests: list[Request], outcomes: list[Outcome]) -> None:
        self._outbox.put_all(self, requests, outcomes)

    def end(self, request: Request, outcome: Outcome | None, error: BaseException | None) -> None:
        request.call.end(request, outcome, error)

    def end_all(self, requests: list[Request], outcomes: list[Outcome]) -> None:
        """Neighbours of one group together."""
        at, count = 0, len(requests)
        try:
            while at < count:
                group: Group = requests[at].call
                end = at + 1
                while end < count and requests[end].call is group:
                    end += 1
                if end - at == 1:
                    group.ends.put(requests[at], outcomes[at], None)
                else:
                    group.ends.put_all(requests[at:end], outcomes[at:end])
                group.told(end - at)
                at = end
        except BaseException:  # an interrupt: the rest comes in another turn of the loop
            self._outbox.again(self, requests[at:], outcomes[at:])
            raise
