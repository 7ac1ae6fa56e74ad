"""The events that listeners get: the changes of a request and of the engine, one small value each."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from prelude.records import dataclass, field

if TYPE_CHECKING:
    from prelude.scheduling.plan import Plan
    from prelude.scheduling.request import Request

log = logging.getLogger("prelude.engine")


@dataclass(frozen=True, slots=True)
class Event:
    """``name`` is one of:

    of a request    ``accepted``, ``scheduled``, ``first_token``, ``preempted``, ``replayed``, then exactly one of
                    ``finished``, ``failed``, ``cancelled``, ``expired``; ``rejected`` if it never got in
    of the engine   ``step``, ``step_failed``, ``unhealthy``, ``hung``, ``closed``

    ``time`` is on ``time.monotonic``'s clock; ``data`` describes the event in numbers and short strings.
    """

    name: str
    time: float
    request_id: str | None = None
    data: dict[str, Any] = field(default_factory=dict)


Listener = Callable[[Event], None]


class Listeners:
    """Calls the listeners. Whatever a listener raises is logged and counted, and does not reach the loop."""

    def __init__(self) -> None:
        self.heard: tuple[Listener, ...] = ()  # the listeners
        self._changing = threading.Lock()
        self.errors = 0

    def add(self, listener: Listener) -> Callable[[], None]:
        """Returns a function that removes it."""
        with self._changing:
            self.heard = (*self.heard, listener)

        def remove() -> None:
            with self._changing:
                self.heard = tuple(other for other in self.heard if other is not listener)

        return remove

    def emit(self, name: str, request_id: str | None = None, **data: Any) -> None:
        if self.heard:
            self._tell(Event(name, time.monotonic(), request_id, data))

    def emit_each(self, name: str, requests: Iterable[Request]) -> None:
        """Send an event without data for each request."""
        if self.heard:
            now = time.monotonic()
            for request in requests:
                self._tell(Event(name, now, request.options.request_id, {}))

    def emit_accepted(self, requests: Iterable[Request]) -> None:
        now = time.monotonic()
        for request in requests:
            self._tell(Event("accepted", now, request.options.request_id, {"tokens": request.num_known}))

    def emit_step(self, plan: Plan, tokens: int, seconds: float) -> None:
        """Send the event of a step of so many tokens that the executor took ``seconds`` for."""
        prefill, decode = sum([row.count for row in plan.prefill]), len(plan.decode)
        self.emit(
            "step",
            kind=plan.kind,
            seconds=seconds,
            decode_rows=decode,
            prefill_tokens=prefill,
            oneshot_rows=len(plan.oneshot),
            oneshot_tokens=tokens - prefill - decode,
        )

    def _tell(self, event: Event) -> None:
        for listener in self.heard:
            try:
                listener(event)
            except BaseException:
                self.errors += 1
                if self.errors.bit_count() == 1:  # the 1st, 2nd, 4th, ... : a broken hook must not flood a log
                    log.exception("an event listener raised (%d times so far)", self.errors)
