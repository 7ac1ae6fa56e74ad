"""Flight: a step that was submitted and is not settled yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from prelude.scheduling.pack import Packed
from prelude.scheduling.plan import Plan
from prelude.scheduling.request import Request


@dataclass(frozen=True, slots=True)
class Flight:
    plan: Plan
    packed: Packed
    handle: Any  # the executor's
    began: float  # perf_counter
    requests: list[Request]
    request_ids: frozenset[int]

    @property
    def alone(self) -> bool:
        """Whether the next step can be planned before this one's result is known: nobody in it goes on after it. A
        Decode row's next token is read from the one that is being sampled."""
        return not (self.plan.decode or self.plan.prefill)
