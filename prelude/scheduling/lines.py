"""Line: requests of one class that wait, in the order in which they may be planned.

    priority 5   tenant a  ▢▢▢▢       higher priorities first, strictly
    priority 0   tenant a  ▢▢         within one, the tenant that was served the fewest tokens so far (start-time fair
                 tenant b  ▢▢▢▢▢      queueing: one that was away starts level with the others, not ahead of them)
                                      within a tenant, order of arrival

Everything is O(1) but for the number of priorities and tenants that wait.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator

from prelude.scheduling.request import Request

_KEPT_TAGS = 1024


class _Level:
    """One priority."""

    __slots__ = ("now", "queues", "tags")

    def __init__(self) -> None:
        self.queues: dict[str | None, OrderedDict[int, Request]] = {}
        self.tags: dict[str | None, int] = {}  # tokens served; where a tenant stands on the common clock ``now``
        self.now = 0

    def queue(self, tenant: str | None) -> OrderedDict[int, Request]:
        queue = self.queues.get(tenant)
        if queue is None:
            queue = self.queues[tenant] = OrderedDict()
            self.tags[tenant] = max(self.tags.get(tenant, 0), self.now)
        return queue

    def remove(self, request: Request) -> None:
        tenant = request.options.tenant
        queue = self.queues[tenant]
        del queue[request.order]
        if not queue:
            del self.queues[tenant]
            if len(self.tags) > _KEPT_TAGS:
                self.tags = {t: tag for t, tag in self.tags.items() if tag > self.now or t in self.queues}

    def serve(self, request: Request) -> None:
        tenant = request.options.tenant
        self.now = max(self.now, self.tags[tenant])
        self.tags[tenant] += max(1, request.num_known)
        self.remove(request)

    def __iter__(self) -> Iterator[Request]:
        if len(self.queues) == 1:
            yield from next(iter(self.queues.values())).values()
            return
        ways = []
        for tenant, queue in self.queues.items():
            requests = iter(queue.values())
            first = next(requests)
            ways.append((self.tags[tenant], first.order, first, requests))
        heapq.heapify(ways)
        while ways:
            tag, _, request, requests = ways[0]
            yield request
            following = next(requests, None)
            if following is None:
                heapq.heappop(ways)
            else:
                heapq.heapreplace(ways, (tag + max(1, request.num_known), following.order, following, requests))


class Line:
    def __init__(self) -> None:
        self._levels: dict[int, _Level] = {}
        self._priorities: list[int] = []  # highest first
        self._count = 0

    def append(self, request: Request) -> None:
        """At the end of its priority and tenant."""
        self._level(request).queue(request.options.tenant)[request.order] = request
        self._count += 1

    def push_front(self, request: Request) -> None:
        """Back to where it was taken from: everything that it leaves behind in its tenant's queue came later."""
        level = self._level(request)
        queue = level.queue(request.options.tenant)
        queue[request.order] = request
        queue.move_to_end(request.order, last=False)
        level.tags[request.options.tenant] -= max(1, request.num_known)
        self._count += 1

    def remove(self, request: Request) -> None:
        """Out of the line without having been served."""
        self._levels[request.options.priority].remove(request)
        self._left(request)

    def serve(self, request: Request) -> None:
        self._levels[request.options.priority].serve(request)
        self._left(request)

    @property
    def head(self) -> Request:
        return next(iter(self))

    def __iter__(self) -> Iterator[Request]:
        for priority in self._priorities:
            yield from self._levels[priority]

    def __len__(self) -> int:
        return self._count

    def __bool__(self) -> bool:
        return self._count > 0

    def _level(self, request: Request) -> _Level:
        priority = request.options.priority
        level = self._levels.get(priority)
        if level is None:
            level = self._levels[priority] = _Level()
            self._priorities = sorted(self._levels, reverse=True)
        return level

    def _left(self, request: Request) -> None:
        self._count -= 1
        priority = request.options.priority
        if not self._levels[priority].queues and len(self._levels) > 16:  # keep the tenants' tags while they are few
            del self._levels[priority]
            self._priorities = sorted(self._levels, reverse=True)
