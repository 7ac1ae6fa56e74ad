"""How a request's end reaches its caller: a blocked thread, or a future in an event loop.

Ends may come from the engine thread, from a caller that runs steps itself, or from the watchdog.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any, Protocol

from prelude._native.core import Collector, Group, Outlet, tell_groups
from prelude.admission.prepared import Outcome
from prelude.batch import SampleOutput
from prelude.errors import INTERRUPTS
from prelude.progress import Progress
from prelude.runtime.core import EngineCore
from prelude.runtime.sinks import LoopFlush
from prelude.scheduling.request import Request, Sink

log = logging.getLogger("prelude.engine")


class EndSink:
    """A sink that wants the end alone."""

    streams = False

    def token(self, request: Request, token_id: int, output: SampleOutput, row: int) -> bool:
        return False


class BlockingSink(EndSink, Collector):
    """Collects the ends of a group of requests, by request id; ``wait`` returns when all have ended. ``progress``
    is called for them in the thread that made the sink and waits."""

    _said = 0

    def tell(self) -> None:
        if self.progress is not None and threading.get_ident() == self.owner:
            self._report(self.progress)
        if self.done is not None and (self.progress is not None or len(self.ends) >= self.expected):
            self.done.set()

    def wait_on(self) -> None:
        if len(self.ends) < self.expected:
            self.done = threading.Event()
            while len(self.ends) < self.expected:  # the last end may have come before it was there to be set
                self.done.wait()
                self.done.clear()
                if self.progress is not None:
                    self._report(self.progress)
        if self.progress is not None:
            self._report(self.progress)

    def _report(self, progress: Progress) -> None:
        count = len(self.ends)
        said, self._said = self._said, count
        progress.advance(count - said)


class EndReceiver(Protocol):
    """An object in the loop that an outbox gives ends to."""

    def end(self, request: Request, outcome: Outcome | None, error: BaseException | None) -> None: ...


class Outbox(LoopFlush):
    """Between one event loop and the engine: the requests of one turn of the loop are posted together, so
    that a step begins with all of them; ends of requests are collected during a step and handed over by one
    wake-up."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        core: EngineCore,
        prepare: Callable[[list[Any]], list[Any]],
        watching: Callable[[Any, Sink], Sink],
    ) -> None:
        """``prepare``: of tasks, in order; never an exception of one of them. ``watching(admitted, sink)``: the sink
        of a task whose text is followed."""
        self.loop = loop
        self._prepare, self._watching = prepare, watching
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
        for request in group.requests or ():
            self._core.cancel(request)
        group.let_go()

    def _post(self) -> None:
        """At the end of a turn: the requests of its calls, in one pass. Calls that have places of their own come
        after the others."""
        asked, self._asked = self._asked, []
        requests: list[Request] = []
        together = [group for group in asked if group.places is None]
        failed = self._begin(together, requests) if together else []
        for group in asked:
            if group.places is not None:
                failed += self._begin([group], requests)
        try:
            if requests:
                self._core.submit_many(requests)
        except Exception as error:
            for request in requests:
                self._core.inbox.leave(request)
                request.sink.deliver(request, None, error)
            self.flush()  # there may be no step any more
        self._tell_left_out(asked, failed)

    def _begin(self, groups: list[Group], requests: list[Request]) -> list[tuple[Group, BaseException]]:
        """Makes the requests of several calls. Where that fails, each call makes its own, and its error is its own:
        the engine was closed meanwhile, or this is a forked child."""
        try:
            requests += self._make(groups)
        except BaseException as error:
            if len(groups) == 1:
                return [(groups[0], error)]
            return [failure for group in groups for failure in self._begin([group], requests)]
        return []

    def _tell_left_out(self, asked: list[Group], failed: list[tuple[Group, BaseException]]) -> None:
        """Calls of which nothing was begun, or not all of it. An interrupt waits until all of them have been told."""
        interrupt: BaseException | None = None
        errors = dict(failed)
        for group in asked:
            error, begun = errors.get(group), group.expected
            try:
                if error is not None:
                    interrupt = error if isinstance(error, INTERRUPTS) else interrupt
                    group.fail(error)
                elif begun < len(group.calls) or not begun:
                    group.told(len(group.calls) - begun)
            except BaseException as raised:  # by the call's progress, or an interrupt of the task that goes on
                interrupt = raised if isinstance(raised, INTERRUPTS) else interrupt
                self.loop.call_soon(group.fail, raised)
        if interrupt is not None:
            raise interrupt

    def _make(self, groups: list[Group]) -> list[Request]:
        tasks = [task for group in groups for task in group.tasks]
        calls = [call for group in groups for call in group.calls]
        owners = [group for group in groups for _ in group.calls]
        timelines = [timeline for group in groups for timeline in group.timelines]
        with groups[0].places or self._core.reserve(len(tasks)) as places:
            admitted: list[Any] | None = groups[0].admitted
            if admitted is None:
                room = places.left
                for timeline in timelines:
                    timeline.mark("accept")
                admitted = self._prepare(tasks if room == len(tasks) else tasks[:room])
            admitted += [self._core.inbox.full() for _ in tasks[len(admitted) :]]
            for timeline in timelines:
                timeline.mark("tokenise")
            found = self._core.requests(admitted, calls, self.sink, places, self._watching, owners, self)
            places.posted()
        at, live = 0, list[Request]()
        for group in groups:
            end = at + len(group.calls)
            live += group.begin(admitted[at:end], found[at:end])
            at = end
        return live

    def put(self, sink: EndReceiver, request: Request, outcome: Outcome | None, error: BaseException | None) -> None:
        self._put((sink.end, request, outcome, error))

    def put_all(self, sink: LoopSink, requests: list[Request], outcomes: list[Outcome]) -> None:
        self._put((sink.end_all, requests, outcomes))

    def again(self, sink: LoopSink, requests: list[Request], outcomes: list[Outcome]) -> None:
        """In the loop, by a sink that is interrupted while it delivers ends: ``_deliver`` takes these again."""
        self._ends.put((sink.end_all, requests, outcomes))

    def _put(self, call: tuple[Any, ...]) -> None:
        if self._ends.put(call):  # else the loop has been woken, or will be at the step's end
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
        """Neighbours of one group together. After an interrupt the rest comes in another turn of the loop."""
        tell_groups(requests, outcomes, self._again)

    def _again(self, requests: list[Request], outcomes: list[Outcome]) -> None:
        self._outbox.again(self, requests, outcomes)
