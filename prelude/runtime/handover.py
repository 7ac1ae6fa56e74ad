"""Between callers and the engine. The Inbox is the way in, bounded before anything is made. Sinks are the way out, to
a blocked thread or a future in an event loop.

    reserve ── a place, taken before the text is tokenised ──▶ post ── its tokens are counted ──▶ take ──▶ engine
        └─ full: QueueFull at once                       └─ given back if nothing came of it

A request counts from its place being taken until it is planned for the first time, or ends. Counts are exact and
no thread waits for a lock, however many there are: ``_native/include/prelude/handover.hpp`` draws how.

Ends may come from the engine thread, from a caller that runs steps itself, or from the watchdog.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import Counter, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from prelude._native import core
from prelude.admission.prepared import Admitted, Outcome, Reader
from prelude.errors import EngineClosed, QueueFull
from prelude.readouts.batch import SampleOutput
from prelude.results import SampledLogprob
from prelude.runtime.stats import EngineStats
from prelude.scheduling.request import Request, Sink
from prelude.terminal.progress import Progress

if TYPE_CHECKING:
    import asyncio

    from typing_extensions import Self

log = logging.getLogger("prelude.engine")

Completions: TypeAlias = "dict[int, tuple[Outcome | None, BaseException | None]]"  # by request id
Refusals: TypeAlias = "dict[int, tuple[None, QueueFull | EngineClosed]]"  # the same, of requests that are not posted


class Inbox(core.Inbox):
    def __init__(self, max_requests: int, max_tokens: int) -> None:
        self.closed_by: str | None = None  # the error that closed the engine
        self._refused: Counter[tuple[str, int]] = Counter()  # by reason and thread: each adds to its own

    @property
    def rejected(self) -> dict[str, int]:
        """The number of rejected requests, by reason."""
        found: Counter[str] = Counter()
        for (reason, _), count in list(self._refused.items()):  # a copy: threads add theirs meanwhile
            found[reason] += count
        return dict(found)

    def refused(self, reason: str, count: int = 1) -> None:
        """Counts rejected requests."""
        self._refused[reason, threading.get_ident()] += count

    def reserve(self, count: int) -> Reservation:
        """Up to ``count`` places; as many as there are."""
        if self.closed:
            raise self.ended()
        places = Reservation(self)
        places.left = self.take_places(count)
        if places.left < count:
            self.refused("queued_requests", count - places.left)
        return places

    def enter(self, requests: list[Request], places: Reservation) -> Refusals:
        """Post requests, each with one of ``places``. Return the ends of those whose tokens have no room; after
        ``close``, of all."""
        refused = self.post(requests, places)
        if refused is None:
            return {one.id: (None, self.ended()) for one in requests}
        if refused:
            self.refused("queued_tokens", len(refused))
        return {one.id: (None, self._full_of_tokens(one, waiting)) for one, waiting in refused}

    def ended(self) -> EngineClosed:
        why = f" by an error of its own: {self.closed_by}" if self.closed_by else ""
        return EngineClosed(f"the engine is closed{why}; make a new one")

    def full(self) -> QueueFull:
        return QueueFull(
            f"{self.max_requests} requests are waiting (max_queued_requests); try again later or raise the limit"
        )

    def _full_of_tokens(self, request: Request, waiting: int) -> QueueFull:
        return QueueFull(
            f"{waiting} tokens are waiting and the request brings {request.num_known}; the limit is "
            f"{self.max_tokens} (max_queued_tokens); try again later or raise the limit"
        )


class Turn:
    """One turn of an event loop: its requests gather in the inbox, and the engine is woken when the turn is over, so
    that a step begins with all of them. Used in the loop alone."""

    def __init__(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        self._loop, self._wake = loop, wake
        self._under_way = False

    def posted(self) -> None:
        """Note that a call of this turn has posted its requests."""
        if not self._under_way:
            self._under_way = True
            self._loop.call_soon(self._over)

    def _over(self) -> None:
        self._under_way = False
        self._wake()


class WakeEvent:
    """Wakes one sleeping thread. ``set`` after the work is in its place; ``wait`` returns once for any number of
    calls of ``set`` before it, and clears the event. ``set`` waits for nothing and may be called by a finaliser."""

    def __init__(self) -> None:
        self._sleeper = threading.Lock()  # released by ``set``, taken again by ``wait``
        self._sleeper.acquire()

    def set(self) -> None:
        if self._sleeper.locked():
            with contextlib.suppress(RuntimeError):  # another thread has set it meanwhile
                self._sleeper.release()

    def wait(self, timeout: float | None = None) -> bool:
        return self._sleeper.acquire(timeout=-1 if timeout is None else min(timeout, threading.TIMEOUT_MAX))


class Reservation:
    """A call's places in the queue. Leaving the ``with`` block gives back those that no posted request took."""

    left = 0

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.left:
            left, self.left = self.left, 0
            self._inbox.give_back(left)

    def __del__(self) -> None:
        """An error may come between the taking of places and the ``with`` block."""
        self.__exit__(None, None, None)


class EndSink:
    """A sink that wants the end alone."""

    streams = False

    def token(self, request: Request, token_id: int, output: SampleOutput, row: int) -> bool:
        return False


class BlockingSink(EndSink):
    """Collects the ends of a call's requests; ``wait`` returns when ``expected`` have ended. ``progress`` is told of
    them by the thread that waits."""

    def __init__(self, progress: Progress | None) -> None:
        self.ends: Completions = {}
        self.expected = 0
        self._progress = progress
        self._some: threading.Event | None = None  # while the thread waits
        self._told = 0

    def deliver(self, request: Request, outcome: Outcome | None, error: BaseException | None) -> None:
        self.ends[request.id] = (outcome, error)
        if self._some is not None and (self._progress is not None or len(self.ends) >= self.expected):
            self._some.set()

    def wait(self) -> None:
        if len(self.ends) < self.expected:
            self._some = threading.Event()
            while len(self.ends) < self.expected:  # the last end may have come before it was there to be set
                self._some.wait()
                self._some.clear()
                self.report()
        self.report()

    def report(self) -> None:
        if self._progress is not None:
            count = len(self.ends)
            told, self._told = self._told, count
            self._progress.advance(count - told)


class WatchSink:
    """Follows one text for a sink that wants its end alone."""

    streams = True

    def __init__(self, reader: Reader, sink: Sink) -> None:
        self._reader = reader
        self._sink = sink
        self._text: list[str] = []
        self._logprobs: list[SampledLogprob] = []

    def token(self, request: Request, token_id: int, output: SampleOutput, row: int) -> bool:
        text, logprob, stop = self._reader.token(token_id, output, row)
        if request.timeline is not None:
            request.timeline.mark("detokenise")
        self._text.append(text)
        if logprob is not None:
            self._logprobs.append(logprob)
        return stop

    def deliver(self, request: Request, outcome: Outcome | None, error: BaseException | None) -> None:
        if outcome is None:
            self._reader.close()
        else:
            self._text.append(self._reader.finish(outcome.stats))
            text, logprobs = "".join(self._text), tuple(self._logprobs)
            outcome = Outcome(outcome.output, outcome.token_ids, outcome.stats, text, logprobs)
        self._sink.deliver(request, outcome, error)


def watching(admitted: Admitted, sink: Sink) -> Sink:
    """Return ``sink``, with a reader before it if the text has to be followed to find its end."""
    return WatchSink(admitted.reader(False), sink) if admitted.watched and admitted.reader else sink


class Sinks:
    """``loops``: the ways to the event loops of all callers, each woken once a step."""

    def __init__(self, stats: EngineStats) -> None:
        self.loops: list[CompletionQueue] = []
        self._stats = stats
        self.to_wake: deque[CompletionQueue] = deque()  # event loops that are flushed when the step is over

    def remove_closed(self) -> list[CompletionQueue]:
        """Event loops that were closed since the last call."""
        closed = [one for one in self.loops if one.loop.is_closed()]
        for loop in closed:
            self.loops.remove(loop)
        return closed

    def flush(self) -> None:
        """Wake each event loop that has ends, once."""
        while self.to_wake:
            try:
                loop = self.to_wake[0]
                self._stats.loop_wakeups += 1  # before: a caller that is woken may read it
                loop.flush()  # before it is removed: if memory is missing, it is flushed later
                self.to_wake.popleft()
            except IndexError:  # the watchdog flushed meanwhile
                return


class CompletionQueue:
    """Leads from the engine to one event loop: ends of requests are collected during a step and handed over by one
    wake-up."""

    def __init__(self, loop: asyncio.AbstractEventLoop, sinks: Sinks) -> None:
        self.loop = loop
        self._sinks = sinks
        self._sinks.loops.append(self)
        self._calls: deque[tuple[Any, ...]] = deque()  # (function, its arguments), for the loop
        self._woken = False

    def _deliver(self) -> None:
        self._woken = False
        try:
            while self._calls:
                function, *given = self._calls.popleft()
                function(*given)
        finally:
            if self._calls:  # a function raised: the others' ends are in the same queue
                self.loop.call_soon(self._deliver)

    def put(self, function: Callable[..., None], *given: Any) -> None:
        """Has the loop call ``function``, once or more often. Any thread."""
        self._calls.append((function, *given))
        if not self._woken:  # else the loop has been woken, or will be at the step's end
            self._sinks.to_wake.append(self)
            self._woken = True

    def flush(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: no task waits there any more
            self.loop.call_soon_threadsafe(self._deliver)


class LoopSink(EndSink):
    """Collects the ends of a call of an event loop. ``future`` is resolved when ``expected`` requests have ended;
    ``progress`` is called for them in the loop."""

    def __init__(self, completions: CompletionQueue, expected: int, progress: Progress | None) -> None:
        self.ends: Completions = {}
        self.expected = expected
        self.future: asyncio.Future[None] = completions.loop.create_future()
        self._queue = completions
        self._progress = progress

    def deliver(self, request: Request, outcome: Outcome | None, error: BaseException | None) -> None:
        self._queue.put(self._end, request.id, outcome, error)

    def _end(self, request: int, outcome: Outcome | None, error: BaseException | None) -> None:
        self.ends[request] = (outcome, error)
        if self.future.done():
            return
        if len(self.ends) >= self.expected:
            self.future.set_result(None)
        if self._progress is not None:
            self._progress.advance(1)


def log_failure(message: str, error: BaseException, request_id: str | None = None) -> None:
    """Log an error as its last handling: a record that finds no memory is dropped."""
    with contextlib.suppress(MemoryError):
        log.error(message, exc_info=error, extra={"request_id": request_id} if request_id else None)
