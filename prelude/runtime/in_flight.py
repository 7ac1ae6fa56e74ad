"""Steps in flight: submitted to the executor, and not postprocessed yet.

With overlap there are two of them for a moment: step n runs, and n + 1, which goes on from tokens that n still
samples, is submitted before n is waited for.

    request.known  [ prompt | sampled and applied | -1 - j ]     the j-th token that step n samples
                    └──────────── num_known ─────┘└ ahead ┘

Rows of n + 1 whose request ended with step n are dropped when n + 1 is complete, and so are rows that go on from a
step that failed. A request that has ended keeps its lease until the last step that has a row of it is complete.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from typing import Any

from prelude._native.core import KvPool
from prelude.records import dataclass
from prelude.scheduling.pack import Packed
from prelude.scheduling.plan import Plan
from prelude.scheduling.request import Request


@dataclass(slots=True, eq=False)
class InFlightStep:
    plan: Plan
    packed: Packed
    began: float  # perf_counter
    requests: list[Request]
    handle: Any = None  # the executor's
    request_ids: frozenset[int] = frozenset()  # of OneShot rows, if steps overlap
    void: frozenset[int] = frozenset()  # ids of requests that go on from a step that failed

    def rows(self) -> list[Request]:
        """Its Decode requests: chunks of prompts and running rows. Each stands there once."""
        return [*(row.request for row in self.plan.prefill), *self.plan.decode]

    def sampled(self) -> tuple[Request, ...]:
        """Return the requests that it samples a token for, in the order of their places."""
        return (*self.packed.prefill, *self.packed.decode)

    def submitted(self) -> None:
        """The next step may name the tokens that this one samples."""
        for place, request in enumerate(self.sampled(), self.packed.first_drawn):
            request.known[request.num_known + request.ahead] = -1 - place
            request.ahead += 1
        for request in self.rows():
            request.in_flight += 1

    def completed(self) -> None:
        """It has succeeded or failed, and is not postprocessed yet."""
        for request in self.sampled():
            request.ahead -= 1
        for request in self.rows():
            request.in_flight -= 1

    @property
    def comes_first(self) -> bool:
        """Whether it is postprocessed before the next step is planned. Penalties need it: the host counts the sampled
        tokens. So does a part of a prompt: other requests may read the blocks that the next part promises, and this
        step may still fail."""
        if any(not row.samples for row in self.plan.prefill):
            return True
        for request in self.sampled():
            edits = request.sampling.edits
            if edits is not None and edits.follows:
                return True
        return False


class StepsInFlight(deque[InFlightStep]):
    """The steps in flight, the oldest first: one at most, two while the first is waited for. It knows which OneShot
    requests are in them, and which Decode requests have ended and hold blocks that a step still writes. Without
    ``overlap`` no step is planned beside another, and requests are not counted."""

    def __init__(self, pool: KvPool, overlap: bool) -> None:
        super().__init__()
        self.overlap = overlap
        self._pool = pool
        self._oneshot: frozenset[int] = frozenset()
        self.holding: dict[int, Request] = {}  # that have ended and hold a lease, by id

    def has(self, request: Request) -> bool:
        """Return whether it is a OneShot row of a step in flight. It ends with that step."""
        return request.id in self._oneshot

    def add(self, step: InFlightStep) -> None:
        """Add a step that was submitted."""
        if self.overlap:
            step.request_ids = frozenset([row.request.id for row in step.plan.oneshot])
            self._oneshot |= step.request_ids
            step.submitted()
        self.append(step)

    def complete(self, step: InFlightStep, failed: bool) -> None:
        """Take a step that was waited for, and is postprocessed next. Rows that go on from a failed step are void."""
        if self[0] is step:
            self.popleft()
        else:
            self.remove(step)
        if self.overlap:
            self._oneshot -= step.request_ids
            step.completed()
        if failed:
            for later in self:
                later.void |= frozenset([request.id for request in step.rows()])

    def keep_lease(self, request: Request) -> None:
        """Note a request that ended while a step in flight has a row of it."""
        self.holding[request.id] = request

    def give_back_ended(self) -> None:
        """Give back leases of ended requests once no step in flight writes their blocks."""
        for request in [request for request in self.holding.values() if not request.in_flight]:
            del self.holding[request.id]
            request.give_back(self._pool)

    def valid(self, step: InFlightStep) -> Plan:
        """Return the rows of a completed step whose requests have not ended and are not void."""
        return step.plan.without(step.void) if self.holding or step.void else step.plan

    @property
    def ended(self) -> list[Request]:
        """Requests that have ended and still hold a lease."""
        return list(self.holding.values())

    def audit(self, waiting: Iterable[Request]) -> None:
        """Check the requests' counts of steps in flight against the steps; raise with the numbers."""
        steps = self if self.overlap else ()
        rows = Counter(request.id for step in steps for request in step.rows())
        sampled = Counter(request.id for step in steps for request in step.sampled())
        for request in [*waiting, *self.holding.values()]:
            if (request.in_flight, request.ahead) != (rows[request.id], sampled[request.id]):
                raise RuntimeError(
                    f"request {request.id} counts {request.in_flight} steps in flight that sample {request.ahead} "
                    f"tokens; they are {rows[request.id]} and {sampled[request.id]}"
                )
        if any(not request.in_flight for request in self.holding.values()):
            raise RuntimeError("a request that ended holds blocks that no step in flight writes")
