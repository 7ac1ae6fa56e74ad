"""Flight: a step that was submitted and is not settled yet.

With overlap two of them are in the air for a moment: step n runs, and n + 1, which goes on from tokens that n is
still drawing, is submitted behind it before n is waited for.

    request.known  [ prompt | drawn and settled | -1 - j ]     the j-th token that step n draws
                    └────────── num_known ─────┘└ ahead ┘

Rows of n + 1 whose request turns out to have ended are dropped when n + 1 lands, and so are those that went on from a
step that failed. A request that ended keeps what it holds until the last step that has a row of it has landed.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from prelude._native.core import Maker
from prelude.scheduling.lease import KvPool
from prelude.scheduling.pack import Packed
from prelude.scheduling.plan import Plan
from prelude.scheduling.request import Request


@dataclass(slots=True, eq=False)
class Flight:
    plan: Plan
    packed: Packed
    began: float  # perf_counter
    requests: list[Request]
    handle: Any = None  # the executor's
    request_ids: frozenset[int] = frozenset()  # of OneShot rows, where steps overlap
    void: frozenset[int] = frozenset()  # ids of requests that went on from a step that failed

    def rows(self) -> list[Request]:
        """Its Decode requests: chunks of prompts and running rows. None stands there twice."""
        return [*(row.request for row in self.plan.prefill), *self.plan.decode]

    def drawing(self) -> tuple[Request, ...]:
        """Those that it draws a token for, in the order of their places."""
        return (*self.packed.prefill, *self.packed.decode)

    def leave(self) -> None:
        """Submitted: what it draws may be named by the next step."""
        for place, request in enumerate(self.drawing(), self.packed.first_drawn):
            request.known[request.num_known + request.ahead] = -1 - place
            request.ahead += 1
        for request in self.rows():
            request.in_flight += 1

    def arrive(self) -> None:
        """Over, whatever came of it; before it is settled."""
        for request in self.drawing():
            request.ahead -= 1
        for request in self.rows():
            request.in_flight -= 1

    @property
    def comes_first(self) -> bool:
        """Whether it has to be settled before the next step is planned. So it is with penalties, which count what was
        drawn, and the counting is the host's; and with half a prompt: what the other half promises to those who
        share it must not hang on a step that can still fail."""
        if any(not row.samples for row in self.plan.prefill):
            return True
        for request in self.drawing():
            edits = request.sampling.edits if request.sampling is not None else None
            if edits is not None and edits.follows:
                return True
        return False


make_flight = Maker(Flight)


class Flights(deque[Flight]):
    """The steps in flight (one at most, two while the first is waited for), and what hangs on them: which OneShot
    requests fly, and which Decode requests have ended and hold what a step still writes. Without ``overlap`` nothing
    is planned beside a step, and nobody is counted."""

    def __init__(self, pool: KvPool, overlap: bool) -> None:
        super().__init__()
        self.overlap = overlap
        self._pool = pool
        self._oneshot: frozenset[int] = frozenset()
        self._ended: dict[int, Request] = {}

    def has(self, request: Request) -> bool:
        """Whether it is a OneShot row in flight, which ends when its step is settled."""
        return request.id in self._oneshot

    def leave(self, flight: Flight) -> None:
        """It was submitted."""
        if self.overlap:
            flight.request_ids = frozenset([row.request.id for row in flight.plan.oneshot])
            self._oneshot |= flight.request_ids
            flight.leave()
        self.append(flight)

    def arrive(self, flight: Flight, failed: bool) -> None:
        """It was waited for, and is about to be settled. What goes on from one that failed means nothing."""
        if self[0] is flight:
            self.popleft()
        else:
            self.remove(flight)
        if self.overlap:
            self._oneshot -= flight.request_ids
            flight.arrive()
        if failed:
            for later in self:
                later.void |= frozenset([request.id for request in flight.rows()])

    def linger(self, request: Request) -> None:
        """A request that ended while a step in flight had a row of it."""
        self._ended[request.id] = request

    def let_go(self) -> None:
        """What ended requests hold goes back, once no step in flight writes it."""
        if not self._ended:
            return
        for request in [request for request in self._ended.values() if not request.in_flight]:
            del self._ended[request.id]
            request.give_back(self._pool)

    def living(self, flight: Flight) -> Plan:
        """The rows of a step that has arrived which still mean something."""
        return flight.plan.without(flight.void) if self._ended or flight.void else flight.plan

    @property
    def lingering(self) -> list[Request]:
        return list(self._ended.values())

    def audit(self, waiting: Iterable[Request]) -> None:
        """What requests say of steps in flight, against the steps; raises with the numbers."""
        steps = self if self.overlap else ()
        rows = Counter(request.id for flight in steps for request in flight.rows())
        drawn = Counter(request.id for flight in steps for request in flight.drawing())
        for request in [*waiting, *self._ended.values()]:
            if (request.in_flight, request.ahead) != (rows[request.id], drawn[request.id]):
                raise RuntimeError(
                    f"request {request.id} counts {request.in_flight} steps in flight that draw {request.ahead} "
                    f"tokens; they are {rows[request.id]} and {drawn[request.id]}"
                )
        if any(not request.in_flight for request in self._ended.values()):
            raise RuntimeError("a request that ended holds blocks that no step in flight writes")
