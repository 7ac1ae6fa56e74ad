"""Inbox: the way in, bounded before anything is made.

    reserve ── a place, taken before the text is tokenised ──▶ charge ── its tokens ──▶ post ──▶ take ──▶ engine
        └─ full: QueueFull at once                       └─ given back if nothing came of it

A request counts from its place being taken until it is planned for the first time, or ends. Counts are exact and
no thread waits for a lock, however many there are: ``_native/include/prelude/handover.hpp`` draws how.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from prelude._native import core
from prelude._native.core import Tally
from prelude.errors import EngineClosed, QueueFull

if TYPE_CHECKING:
    import asyncio

    from typing_extensions import Self


class Inbox(core.Inbox):
    def __init__(self, max_requests: int, max_tokens: int) -> None:
        self.closed_by: str | None = None  # the error that closed the engine
        self._refused = {reason: Tally() for reason in ("queued_requests", "queued_tokens", "deadline")}

    @property
    def rejected(self) -> dict[str, int]:
        """The number of rejected requests, by reason."""
        return {reason: tally.count for reason, tally in self._refused.items() if tally.count}

    def refused(self, reason: str, count: int = 1) -> None:
        """Counts rejected requests."""
        self._refused[reason].add(count)

    def reserve(self, count: int) -> Reservation:
        """Up to ``count`` places; as many as there are."""
        if self.closed:
            raise self.ended()
        places = Reservation(self)
        places.left = self.take_places(count)
        if places.left < count:
            self.refused("queued_requests", count - places.left)
        return places

    def enter(self, requests: list[Any]) -> None:
        """``post``; ``EngineClosed`` after ``close``."""
        if not self.post(requests):
            raise self.ended()

    def ended(self) -> EngineClosed:
        why = f" by an error of its own: {self.closed_by}" if self.closed_by else ""
        return EngineClosed(f"the engine is closed{why}; make a new one")

    def full(self) -> QueueFull:
        return QueueFull(
            f"{self.max_requests} requests are waiting (max_queued_requests); try again later or raise the limit"
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


class Reservation:
    """A call's places in the queue. Leaving the ``with`` block gives back those that no posted request took."""

    left = 0

    def __init__(self, inbox: Inbox) -> None:
        self._unposted: list[Any] = []
        self._inbox = inbox

    def take(self, request: Any) -> None:
        """Makes one place this request's. ``QueueFull`` if there is none, or no room for its tokens."""
        inbox = self._inbox
        if inbox.closed:
            raise inbox.ended()
        if self.left == 0:
            raise inbox.full()
        self._unposted.append(request)
        if not inbox.charge(request, request.num_known):
            inbox.refused("queued_tokens")
            raise QueueFull(
                f"{inbox.tokens} tokens are waiting and the request brings {request.num_known}; the limit is "
                f"{inbox.max_tokens} (max_queued_tokens); try again later or raise the limit"
            )
        self.left -= 1

    def posted(self) -> None:
        self._unposted = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        unposted, self._unposted = self._unposted, []
        for request in unposted:
            self._inbox.leave(request)
        if self.left:
            left, self.left = self.left, 0
            self._inbox.give_back(left)

    def __del__(self) -> None:
        """An error may come between the taking of places and the ``with`` block."""
        self.__exit__(None, None, None)


__all__ = ["Inbox", "Reservation", "Turn"]
