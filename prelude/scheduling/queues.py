"""Waiting and running requests. Owned by the holder of the baton; the counts may be read by anybody."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from prelude.admission.classes import ExecutionClass
from prelude.scheduling.request import Request, State


class Queues:
    """``oneshot`` and ``decode`` wait; ``running`` hold a row, oldest arrival first."""

    def __init__(self) -> None:
        self.oneshot: deque[Request] = deque()
        self.decode: deque[Request] = deque()
        self.running: list[Request] = []
        self.waiting_tokens = 0

    def add(self, request: Request) -> None:
        self._waiting(request).append(request)
        self.waiting_tokens += request.num_known

    def take_oneshot(self, requests: list[Request]) -> None:
        """Out of the queue, into a step; mostly a run at its head."""
        for request in requests:
            if self.oneshot[0] is request:
                self.oneshot.popleft()
            else:
                self.oneshot.remove(request)
            self.waiting_tokens -= request.num_known

    def start(self, request: Request) -> None:
        """Waiting -> running, kept in order of arrival."""
        self.decode.remove(request)
        self.waiting_tokens -= request.num_known
        at = len(self.running)
        while at and self.running[at - 1].arrived > request.arrived:
            at -= 1
        self.running.insert(at, request)

    def requeue(self, request: Request) -> None:
        """A preempted request waits in front of everything that arrived later."""
        self.running.remove(request)
        self.waiting_tokens += request.num_known
        at = 0
        while at < len(self.decode) and self.decode[at].arrived < request.arrived:
            at += 1
        self.decode.insert(at, request)

    def discard(self, request: Request) -> None:
        """Out of wherever its state says it is; OneShot rows in a step are in no queue."""
        if request.state is State.WAITING:
            self._waiting(request).remove(request)
            self.waiting_tokens -= request.num_known
        elif request.execution_class is ExecutionClass.DECODE and request.state is not State.FINISHED:
            self.running.remove(request)

    def _waiting(self, request: Request) -> deque[Request]:
        return self.oneshot if request.execution_class is ExecutionClass.ONESHOT else self.decode

    @property
    def num_waiting(self) -> int:
        return len(self.oneshot) + len(self.decode)

    @property
    def empty(self) -> bool:
        return not (self.oneshot or self.decode or self.running)

    def __iter__(self) -> Iterator[Request]:
        yield from self.running
        yield from self.decode
        yield from self.oneshot

    def __len__(self) -> int:
        return self.num_waiting + len(self.running)
