"""A step between ``submit`` and its result, and the time it took."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from prelude._native.gpu import clock_at
from prelude.cuda.staging import Area, Ticket

from prelude.readouts.batch import I32, Output, StepResult

Read: TypeAlias = Callable[[Area], tuple[tuple[Output, ...], tuple[I32, ...]]]
"""The outputs of a step and their bad rows, out of the area that holds its results."""


@dataclass(slots=True, eq=False)
class SubmittedStep:
    """A submitted step. It holds its host areas: their allocator does not know of copies under way."""

    read: Read
    lm_head_rows: int
    attended: int
    sent: Area
    ended: Ticket
    replayed: bool
    follows: bool  # it was submitted while the step before was under way
    launched: float
    result: StepResult | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass(frozen=True, slots=True)
class Failed:
    """A step that could not be submitted."""

    error: Exception


class StepClock:
    """The times of steps, without events on the stream."""

    def __init__(self) -> None:
        self._device_end = 0  # nanoseconds on the device's clock, at the end of the last step that was waited for

    def seconds(self, step: SubmittedStep) -> float:
        """Time a step that has just ended. Behind another one it began where that one ended, by the device's
        clock; else when it was launched, and it ended now."""
        now, before = time.perf_counter(), self._device_end
        end = self._device_end = clock_at(step.ended.area.address + 8)
        return (end - before) * 1e-9 if step.follows and 0 < before < end else now - step.launched
