"""Flight: a step that was submitted and is not settled yet.

With overlap two of them are in the air for a moment: step n runs, and n + 1, which goes on from tokens that n is
still drawing, is submitted behind it before n is waited for.

    request.known  [ prompt | drawn and settled | -1 - j ]     the j-th token that step n draws
                    └────────── num_known ─────┘└ ahead ┘

Rows of n + 1 whose request turns out to have ended are dropped when n + 1 lands, and so are those that went on from a
step that failed. A request that ended keeps what it holds until the last step that has a row of it has landed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

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
    void: set[int] = field(default_factory=set)  # ids of requests that went on from a step that failed

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
            if edits is not None and edits.penalised:
                return True
        return False
