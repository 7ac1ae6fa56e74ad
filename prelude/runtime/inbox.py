"""Inbox: the way in, bounded before anything is made.

    reserve ── a place, taken before the text is tokenised ──▶ charge ── its tokens ──▶ post ──▶ items ──▶ engine
        └─ full: QueueFull at once                       └─ given back where nothing came of it

A request counts from its place being taken until it is planned for the first time, or ends. The lock is held for a
few additions; what it guards is exact whatever the number of threads.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from types import TracebackType

from prelude._native.core import charge_all, leave_all, tokens_of
from prelude.errors import EngineClosed, QueueFull
from prelude.scheduling.request import Request


class Inbox:
    def __init__(self, max_requests: int, max_tokens: int) -> None:
        self.max_requests = max_requests
        self.max_tokens = max_tokens
        self.items: deque[Request] = deque()
        self.requests = 0  # waiting, being tokenised or on their way
        self.tokens = 0
        self.rejected: dict[str, int] = {}
        self.closed = False
        self._lock = threading.Lock()

    def reserve(self, count: int) -> Places:
        """Up to ``count`` places; as many as there are."""
        with self._lock:
            self._check_open()
            granted = max(0, min(count, self.max_requests - self.requests))
            self.requests += granted
            if granted < count:
                self._refused("queued_requests", count - granted)
        return Places(self, granted)

    def reserve_all(self, count: int) -> Places | None:
        """``count`` places, or none and nobody refused."""
        with self._lock:
            self._check_open()
            if self.requests + count > self.max_requests:
                return None
            self.requests += count
        return Places(self, count)

    def charge(self, request: Request) -> None:
        """Counts the tokens of a request that has a place."""
        tokens = request.num_known
        with self._lock:
            self._check_open()
            if self.tokens + tokens <= self.max_tokens:
                self.tokens += tokens
                request.queued_tokens = tokens
                return
            self._refused("queued_tokens", 1)
            waiting = self.tokens
        raise QueueFull(
            f"{waiting} tokens are waiting and the request brings {tokens}; the limit is {self.max_tokens} "
            "(max_queued_tokens); try again later or raise the limit"
        )

    def charge_all(self, requests: list[Request]) -> bool:
        """``charge`` of requests that all fit; False, and nothing counted, where they do not."""
        tokens = tokens_of(requests)
        with self._lock:
            self._check_open()
            if self.tokens + tokens > self.max_tokens:
                return False
            self.tokens += tokens
            charge_all(requests)
        return True

    def refused(self, reason: str) -> None:
        """Counts a request that was turned away before it was posted, by one that knows why."""
        with self._lock:
            self._refused(reason, 1)

    def _refused(self, reason: str, count: int) -> None:
        self.rejected[reason] = self.rejected.get(reason, 0) + count

    def full(self) -> QueueFull:
        return QueueFull(
            f"{self.max_requests} requests are waiting (max_queued_requests); try again later or raise the limit"
        )

    def post(self, requests: Iterable[Request]) -> None:
        """What is posted will be answered; after ``close`` nothing is."""
        with self._lock:
            self._check_open()
            self.items.extend(requests)

    def leave(self, request: Request) -> None:
        """The request waits no more: planned for the first time, or ended. Once; further calls do nothing."""
        if request.queued_tokens < 0:  # it never goes back
            return
        with self._lock:
            if request.queued_tokens >= 0:
                self.requests -= 1
                self.tokens -= request.queued_tokens
                request.queued_tokens = -1

    def leave_all(self, requests: list[Request]) -> None:
        with self._lock:
            count, tokens = leave_all(requests)
            self.requests -= count
            self.tokens -= tokens

    def take(self) -> list[Request]:
        """What was posted until now. For the holder of the baton."""
        items = self.items
        return [items.popleft() for _ in range(len(items))]

    def give_back(self, places: int) -> None:
        with self._lock:
            self.requests -= places

    def close(self) -> None:
        with self._lock:
            self.closed = True

    def _check_open(self) -> None:
        if self.closed:
            raise EngineClosed("the engine is closed; make a new one")


class Places:
    """Places of one call. Leaving the ``with`` block gives back those that no posted request took."""

    __slots__ = ("_inbox", "_unposted", "left")

    def __init__(self, inbox: Inbox, count: int) -> None:
        self._inbox = inbox
        self.left = count
        self._unposted: list[Request] = []

    def take(self, request: Request) -> None:
        """Makes one place this request's. Raises ``QueueFull`` when there is none, or no room for its tokens."""
        if self.left == 0:
            raise self._inbox.full()
        self._inbox.charge(request)
        self.left -= 1
        self._unposted.append(request)

    def take_all(self, requests: list[Request]) -> bool:
        """``take`` of requests that all find room; False, and nothing taken, where they do not."""
        if self.left < len(requests) or not self._inbox.charge_all(requests):
            return False
        self.left -= len(requests)
        self._unposted.extend(requests)
        return True

    def posted(self) -> None:
        self._unposted.clear()

    def __enter__(self) -> Places:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for request in self._unposted:
            self._inbox.leave(request)
        self._unposted.clear()
        if self.left:
            self._inbox.give_back(self.left)
            self.left = 0
