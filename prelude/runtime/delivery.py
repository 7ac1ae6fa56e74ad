"""How a request's end reaches whoever waits: a blocked thread, or a future in an event loop.

Ends may come from the engine thread, from a caller that runs steps itself, or from the watchdog.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any, Protocol

from prelude._native.core import Outlet, put_ends
from prelude.admission.prepared import Outcome
from prelude.batch import SampleOutput
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
    """Collects the ends of a group of requests, by request id; ``wait`` returns when all have ended."""

    def __init__(self) -> None:
        self.ends: dict[int, tuple[Outcome | None, BaseException | None]] = {}
        self.expected = 0
        self._done: threading.Event | None = None  # made by whoever has to wait

    def deliver(self, request: Request, outcome: Outcome | None, error: BaseException | None) -> None:
        self.ends[request.id] = (outcome, error)
        self._tell()

    def deliver_all(self, requests: list[Request], outcomes: list[Outcome]) -> None:
        put_ends(self.ends, requests, outcomes)
        self._tell()

    def _tell(self) -> None:
        if self._done is not None and len(self.ends) >= self.expected:
            self._done.set()

    def wait(self) -> None:
        if len(self.ends) < self.expected:
            self._done = threading.Event()
            self._tell()  # the last end may have come before it was there to be set
            self._done.wait()


class Ends(Protocol):
    """What an outbox hands ends to, in the loop."""

    def end(self, request: Request, outcome: Outcome | None, error: BaseException | None) -> None: ...


class Outbox(LoopFlush):
    """Between one event loop and the engine: what the tasks of one turn of the loop ask for is posted together, so
    that a step begins with all of it; ends of requests are collected during a step and handed over by one wake-up."""

    def __init__(self, loop: asyncio.AbstractEventLoop, core: EngineCore) -> None:
        self._loop = loop
        self._core = core
        core.loops.append(self)
        self._ends = Outlet()  # of calls of `_deliver`'s
        self._posting: list[Request] = []  # of this turn of the loop; they have their places

    def post(self, requests: list[Request]) -> None:
        """In the loop. Whoever gives up before the turn is over takes them back."""
        if not self._posting:
            self._loop.call_soon(self._post)
        self._posting.extend(requests)

    def take_back(self, requests: list[Request]) -> None:
        """Those that are not posted yet: nobody waits for them."""
        if self._posting:
            gone = set(requests)
            for request in self._posting:
                if request in gone:
                    self._core.inbox.leave(request)
            self._posting = [request for request in self._posting if request not in gone]

    def _post(self) -> None:
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

    def put(self, sink: Ends, request: Request, outcome: Outcome | None, error: BaseException | None) -> None:
        self._put((sink.end, request, outcome, error))

    def put_all(self, sink: GroupSink, requests: list[Request], outcomes: list[Outcome]) -> None:
        self._put((sink.end_all, requests, outcomes))

    def _put(self, call: tuple[Any, ...]) -> None:
        if self._ends.put(call):  # else the loop has been told, or will be at the step's end
            self._core.on_step_end.append(self)

    def flush(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._deliver)
        except RuntimeError:  # the loop is closed: nobody is waiting any more
            self._ends.take()

    def closed(self) -> bool:
        return self._loop.is_closed()

    def _deliver(self) -> None:
        for end, *given in self._ends.take():
            try:
                end(*given)
            except Exception:  # the others' ends are in the same queue
                log.exception("handing over a request's end failed")


class GroupSink(EndSink):
    """The ends of a group of requests, and one future for all of them, in the loop that awaits it."""

    def __init__(self, outbox: Outbox, future: asyncio.Future[None]) -> None:
        self._outbox = outbox
        self.future = future
        self.expected = 0
        self.ends: dict[int, tuple[Outcome | None, BaseException | None]] = {}

    def deliver(self, request: Request, outcome: Outcome | None, error: BaseException | None) -> None:
        self._outbox.put(self, request, outcome, error)

    def deliver_all(self, requests: list[Request], outcomes: list[Outcome]) -> None:
        self._outbox.put_all(self, requests, outcomes)

    def end(self, request: Request, outcome: Outcome | None, error: BaseException | None) -> None:
        self.ends[request.id] = (outcome, error)
        self._told()

    def end_all(self, requests: list[Request], outcomes: list[Outcome]) -> None:
        put_ends(self.ends, requests, outcomes)
        self._told()

    def _told(self) -> None:
        if len(self.ends) == self.expected and not self.future.done():
            self.future.set_result(None)
