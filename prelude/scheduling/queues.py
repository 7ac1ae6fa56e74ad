"""Waiting and running requests. Owned by the holder of the step lock; any thread may read the counts."""

from __future__ import annotations

from collections.abc import Iterator

from prelude._native.core import KvPool
from prelude.admission.prepared import ExecutionClass
from prelude.records import dataclass, field
from prelude.scheduling.policies import FirstComeFirstServed, ShortestPrefillFirst
from prelude.scheduling.request import Request, State
from prelude.scheduling.waiting_queue import WaitingQueue
from prelude.values.policy import Policy


@dataclass(frozen=True, slots=True)
class Policies:
    """The orders of OneShot requests, and of Decode requests that wait for their prompt."""

    oneshot: Policy = field(default_factory=ShortestPrefillFirst)
    decode: Policy = field(default_factory=FirstComeFirstServed)


class Queues:
    """``oneshot`` and ``decode`` wait; ``running`` hold a row: highest priority first, then oldest.

    The first of ``running`` is never preempted, and its blocks fit the pool alone: under any load,
    it moves on, so no two requests can push each other out for ever.

    ``served`` counts the tokens of all plans so far: the clock of policies. ``not_kept`` counts the OneShot prompts
    without a block that was kept, for want of room.
    """

    def __init__(self, policies: Policies | None = None, pool: KvPool | None = None) -> None:
        """``pool`` is asked how much of a prompt is cached, for policies that read it."""
        policies = policies or Policies()
        self.oneshot = WaitingQueue(policies.oneshot, pool)
        self.decode = WaitingQueue(policies.decode, pool)
        self.served = self.not_kept = 0
        self.running: list[Request] = []
        self.arrivals = 0

    @property
    def empty(self) -> bool:
        return not (self.running or self.oneshot or self.decode)

    def add(self, request: Request) -> None:
        self.arrivals += 1
        request.order = self.arrivals
        self._waiting(request).append(request, self.served)

    def start(self, request: Request) -> None:
        """Move a request from waiting to running."""
        self.decode.serve(request)
        at = len(self.running)
        while at and self.running[at - 1].rank > request.rank:
            at -= 1
        self.running.insert(at, request)

    def requeue(self, request: Request) -> None:
        """Put a request that gave back its place in a step in front of all that arrived later."""
        if request.execution_class is ExecutionClass.DECODE:
            self.running.remove(request)
        self._waiting(request).push_front(request)

    def discard(self, request: Request) -> None:
        """Remove a request from the queue that its state names; OneShot rows in a step are in no queue."""
        if request.state is State.WAITING:
            self._waiting(request).remove(request)
        elif request.execution_class is ExecutionClass.DECODE and request.state is not State.FINISHED:
            self.running.remove(request)

    def _waiting(self, request: Request) -> WaitingQueue:
        return self.oneshot if request.execution_class is ExecutionClass.ONESHOT else self.decode

    @property
    def num_waiting(self) -> int:
        return len(self.oneshot) + len(self.decode)

    def __iter__(self) -> Iterator[Request]:
        yield from self.running
        yield from self.decode
        yield from self.oneshot

    def __len__(self) -> int:
        return self.num_waiting + len(self.running)

    def audit(self) -> None:
        """Check counts against contents; raise with the numbers."""
        waiting = [*self.oneshot, *self.decode]
        if len(waiting) != self.num_waiting or any(r.state is not State.WAITING for r in waiting):
            raise RuntimeError(f"{len(waiting)} requests are queued, {self.num_waiting} are counted as waiting")
        if any(r.state not in (State.PREFILL, State.DECODE) or r.lease is None for r in self.running):
            raise RuntimeError("a running request holds no lease or is in no running state")
        if any(a.rank > b.rank for a, b in zip(self.running, self.running[1:])):
            raise RuntimeError("running requests are out of order")
