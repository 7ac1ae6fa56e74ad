"""The path of one request, as spans on one clock.

    prompt ─ accept ─ tokenise ─ schedule ─ run ─ sample ─ append ─ detokenise ─ stream ─ repeat
                                            └───────── again for every further token ───────┘

``prompt``      the call and its settings
``accept``      a place in the queue is taken
``tokenise``    text to ids, readout, budget
``schedule``    in the inbox and the queue, until the first step that has it
``run``         a forward of a step that has it (``sample``, its end, takes no time);
                of one that was submitted behind another, from when that was postprocessed
``append``      the step's numbers are postprocessed, the token joins its sequence
``detokenise``  ids to text, numbers to the caller's result; the time between it and the last ``append`` is the
                hand-over to the caller's loop or thread. If the text is streamed, or stop strings are looked for,
                one a token, in the engine's own thread
``stream``      the result on its way out; of a streamed text, one a chunk, from when its first token was ready until
                it was in the reader's hands
``repeat``      everything from the first token's ``append`` to the last one's, if there is more than one
"""

from __future__ import annotations

import time

from prelude.records import dataclass

MAX_SPANS = 512  # a long text has thousands of steps; the first ones tell the story


@dataclass(frozen=True, slots=True)
class Span:
    """Seconds on ``time.perf_counter``'s clock."""

    name: str
    start: float
    end: float

    @property
    def ms(self) -> float:
        return (self.end - self.start) * 1e3


class Timeline:
    """Spans of a request that is traced, in the order of their ends. ``mark`` is for one thread at a time: the
    caller's, then the engine's, then the caller's again. A stream's reader adds to it beside the engine."""

    __slots__ = ("_first_append", "_last", "_last_append", "spans")

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self._last = time.perf_counter()
        self._first_append = 0.0
        self._last_append = 0.0

    def mark(self, name: str, start: float | None = None, end: float | None = None) -> None:
        """``name`` lasted from ``start`` (the end of the span before) until ``end`` (now)."""
        end = time.perf_counter() if end is None else end
        start = self._last if start is None else start
        self._last = end
        if name == "append":
            self._first_append = self._first_append or end
            self._last_append = end
        self.add(name, start, end)

    def mark_run(self, began: float) -> None:
        """A forward that began at ``began`` and ends now. It samples the token too, so ``sample`` takes no time."""
        self.mark("run", max(began, self._last))
        self.mark("sample", self._last, self._last)

    def add(self, name: str, start: float, end: float) -> None:
        """Add a span that the next one does not follow. From any thread."""
        if len(self.spans) < MAX_SPANS:
            self.spans.append(Span(name, start, end))

    def close(self) -> tuple[Span, ...]:
        if self._last_append > self._first_append:
            self.spans.append(Span("repeat", self._first_append, self._last_append))
        return tuple(self.spans)
