"""How a request's end reaches whoever waits: a blocked thread, or a future in an event loop.

Ends may come from the engine thread, from a caller that runs steps itself, or from the watchdog.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from typing import Any, Protocol

from prelude._native.core import Ends, Outlet, Ticket, bind_all, tell_all, waiting_alike
from prelude.admission.prepared import Outcome, finished, make_completion
from prelude.batch import SampleOutput
from prelude.options import NO_OPTIONS
from prelude.progress import Progress
from prelude.runtime.core import EngineCore
from prelude.runtime.stepper import LoopFlush
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


class Outbox(LoopFlush):
    """Between one event loop and the engine: what the tasks of one turn of the loop ask for is posted together, so
    that a step begins with all of it; ends of requests are collected during a step and handed over by one wake-up."""

    def __init__(self, loop: asyncio.AbstractEventLoop, core: EngineCore) -> None:
        self.loop = loop
        self.create_future = loop.create_future
        self._core = core
        core.loops.append(self)
        self._ends = Outlet()  # of calls of `_deliver`'s
        self._posting: list[Request] = []  # of this turn of the loop; they have their places
        self._asked: list[Ticket] = []  # likewise, and not requests yet

    def post(self, requests: list[Request]) -> None:
        """In the loop. Whoever gives up before the turn is over takes them back."""
        if not (self._posting or self._asked):
            self.loop.call_soon(self._post)
        self._posting.extend(requests)

    def ask(self, ticket: Ticket) -> None:
        """In the loop, for one task that nothing special was said about: what the tasks of this turn ask for in the
        same words is made requests together."""
        if not (self._posting or self._asked):
            self.loop.call_soon(self._post)
        self._asked.append(ticket)

    def _make_asked(self) -> None:
        """Requests of what was asked for. A ticket that finds no place, or whose request is to hear something of its
        own, is told so by ``None`` and takes the long way."""
        asked, self._asked = self._asked, []
        for tickets in waiting_alike(asked):  # others were given up meanwhile
            try:
                requests = self._requests_of(tickets)
            except Exception:  # closed meanwhile: the long way says so
                requests = None
            if requests is not None:
                self._posting.extend(requests)
                continue
            for ticket in tickets:
                ticket.future.set_result(None)

    def _requests_of(self, tickets: list[Ticket]) -> list[Request] | None:
        places = self._core.reserve_all(len(tickets))
        if places is None:
            return None
        with places:
            sink = TicketSink(self)
            prompts = [ticket.prompt for ticket in tickets]
            requests = self._core.alike(tickets[0].alike, prompts, sink, NO_OPTIONS, places, math.inf, self)
            if requests is not None:
                sink.tickets = bind_all(tickets, requests)
                places.posted()
        return requests

    def take_back(self, requests: list[Request]) -> None:
        """Those that are not posted yet: nobody waits for them."""
        if self._posting:
            gone = set(requests)
            for request in self._posting:
                if request in gone:
                    self._core.inbox.leave(request)
            self._posting = [request for request in self._posting if request not in gone]

    def _post(self) -> None:
        if self._asked:
            self._make_asked()
        requests, self._posting = self._posting, []
        if not requests:
            return
        try:
            self._core.submit_many(requests)
        except Exception as error:  # closed meanwhile, or in a forked child
            for request in requests:
                self._core.inbox.leave(request)
                request.sink.deliver(request, None, error)
            self.flush()  # there may be no step any more

    def put(self, sink: Told, request: Request, outcome: Outcome | None, error: BaseException | None) -> None:
        self._put((sink.end, request, outcome, error))

    def put_all(self, sink: GroupSink | TicketSink, requests: list[Request], outcomes: list[Outcome]) -> None:
        self._put((sink.end_all, requests, outcomes))

    def again(self, sink: TicketSink, requests: list[Request], outcomes: list[Outcome]) -> None:
        """In the loop, by a sink that is interrupted while it tells ends: ``_deliver`` comes back to these."""
        self._ends.put((sink.end_all, requests, outcomes))

    def _put(self, call: tuple[Any, ...]) -> None:
        if self._ends.put(call):  # else the loop has been told, or will be at the step's end
            self._core.on_step_end.append(self)

    def flush(self) -> None:
        try:
            self.loop.call_soon_threadsafe(self._deliver)
        except RuntimeError:  # the loop is closed: nobody is waiting any more
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


class GroupSink(EndSink):
    """The ends of a group of requests, and one future for all of them, in the loop that awaits it."""

    def __init__(self, outbox: Outbox, future: asyncio.Future[None], progress: Progress | None = None) -> None:
        self._outbox = outbox
        self._progress = progress
        self.future = future
        self.expected = 0
        self.ends = Ends()

    def deliver(self, request: Request, outcome: Outcome | None, error: BaseException | None) -> None:
        self._outbox.put(self, request, outcome, error)

    def deliver_all(self, requests: list[Request], outcomes: list[Outcome]) -> None:
        self._outbox.put_all(self, requests, outcomes)

    def end(self, request: Request, outcome: Outcome | None, error: BaseException | None) -> None:
        self.ends.put(request, outcome, error)
        self._told(1)

    def end_all(self, requests: list[Request], outcomes: list[Outcome]) -> None:
        self.ends.put_all(requests, outcomes)
        self._told(len(requests))

    def _told(self, count: int) -> None:
        if self._progress is not None:
            self._progress.advance(count)
        if len(self.ends) == self.expected and not self.future.done():
            self.future.set_result(None)


class TicketSink(EndSink):
    """The ends of what the tasks of one turn of a loop asked for: each has a future of its own."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self.tickets: dict[int, Ticket] = {}

    def deliver(self, request: Request, outcome: Outcome | None, error: BaseException | None) -> None:
        self._outbox.put(self, request, outcome, error)

    def deliver_all(self, requests: list[Request], outcomes: list[Outcome]) -> None:
        self._outbox.put_all(self, requests, outcomes)

    def end(self, request: Request, outcome: Outcome | None, error: BaseException | None) -> None:
        ticket = self.tickets[request.id]
        if not ticket.future.done():
            ticket.future.set_result(error if outcome is None else finished(ticket.alike, outcome))

    def end_all(self, requests: list[Request], outcomes: list[Outcome]) -> None:
        tell_all(requests, outcomes, self.tickets, make_completion, finished, self._again)

    def _again(self, requests: list[Request], outcomes: list[Outcome]) -> None:
        self._outbox.again(self, requests, outcomes)
