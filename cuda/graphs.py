"""Which steps are replayed: programs by shape, recorded ahead of the steps that they serve, and forgotten at last.

A ``Program`` is a shape with its places and its attention; with a graph it can be launched in one call, without one
it is run operation by operation. Recording takes some tens of milliseconds, so it is no part of a request's path: a
shape without a program is *wanted* from its ``after``-th sighting on, its steps run eagerly, and the engine records
the wanted shapes when it is idle (``CudaExecutor.idle``), or before it serves (``warm_up``). Eager steps are counted
by reason.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from prelude.cuda.device import Graph
from prelude.cuda.levels import StepAttention
from prelude.cuda.shapes import Shape
from prelude.cuda.staging import Fields

from prelude.errors import ExecutionError

log = logging.getLogger("prelude.cuda")


@dataclass(frozen=True, slots=True)
class GraphPolicy:
    enabled: bool = True
    max_rows: int = 2048
    """From about 2,000 tokens on the device is busy longer than the host needs to launch."""
    max_graphs: int = 256
    after: int = 1
    at_once: bool = False
    """Record in the step that wants it: for ranks, which record together, and for runs without an engine."""
    search: bool = False
    """Search matmuls in that step too, which takes seconds: no request waits for it."""


@dataclass(slots=True, eq=False)
class Program:
    shape: Shape
    inputs: Fields
    outputs: Fields
    attention: StepAttention | None = None  # eager: made when it is known where the arrays go
    graph: Graph | None = None
    used: int = 0  # when it was used last, as a count of uses


class Left(Exception):
    """A recording that was left because a step is due."""


class DoesNotFit(ValueError):
    """The arrays of a shape are larger than the standing areas. On all ranks of a divided model, as shapes are."""


class Graphs:
    """The table. ``replays`` and ``eager`` count steps, ``captures`` recordings, ``failures`` shapes that could not
    be recorded, ``reasons`` the eager steps by their reason. ``divided``: the steps add up over ranks."""

    def __init__(self, policy: GraphPolicy, divided: bool) -> None:
        self.policy = policy
        self._divided = divided
        self.replays = 0
        self.eager = 0
        self.captures = 0
        self.failures = 0
        self.reasons: Counter[str] = Counter()
        self._programs: dict[Shape, Program] = {}
        self._wanted: OrderedDict[Shape, int] = OrderedDict()
        self._refused: dict[Shape, str] = {}
        self._uses = 0

    def find(self, shape: Shape) -> Program | None:
        """Return the program that serves a bucketed ``shape``; without one the shape is wanted."""
        if self.never(shape) is not None:
            return None
        program = self._programs.get(shape)
        if program is not None:
            self.touch(program)
            return program
        seen = self._wanted.pop(shape, 0) + 1
        self._wanted[shape] = seen
        while len(self._wanted) > 8 * self.policy.max_graphs:
            self._wanted.popitem(last=False)
        return None

    def touch(self, program: Program) -> None:
        self._uses += 1
        program.used = self._uses

    def wants(self, shape: Shape) -> bool:
        return self._wanted.get(shape, 0) >= self.policy.after and self.never(shape) is None

    def next_wanted(self) -> Shape | None:
        """Return the shape that was wanted last among those that are due."""
        return next((shape for shape in reversed(self._wanted) if self.wants(shape)), None)

    def record(self, shape: Shape, make: Callable[[Shape], Program]) -> Program | None:
        """Makes the program of ``shape``; if that fails, the shape is refused from then on. Of a divided model
        ``ExecutionError``: recording adds up over the ranks, and the others may have recorded it."""
        seen = self._wanted.pop(shape, 0)
        try:
            program = make(shape)
        except Left:
            self._wanted[shape] = seen
            return None
        except (RuntimeError, ValueError) as error:
            if self._divided and not isinstance(error, DoesNotFit):
                raise ExecutionError(f"a step of {shape.rows} rows could not be recorded: {error}") from error
            self.failures += 1
            self._refused[shape] = type(error).__name__
            log.warning("a step of %d rows could not be recorded and stays eager: %s", shape.rows, error)
            return None
        self.captures += 1
        self.touch(program)
        self._programs[shape] = program
        while len(self._programs) > self.policy.max_graphs:
            oldest = min(self._programs.values(), key=lambda kept: kept.used)
            del self._programs[oldest.shape]
            self._close(oldest)
        return program

    def ran_eagerly(self, shape: Shape, fields: str | None = None) -> None:
        """Counts an eager step of bucketed ``shape``; each reason is logged the first time. ``fields``: a reason that
        is not the shape's own."""
        reason = fields or self.never(shape) or "not recorded yet"
        self.eager += 1
        self.reasons[reason] += 1
        if self.reasons[reason] == 1:
            log.info("a step of %d rows runs eagerly: %s", shape.rows, reason)

    def never(self, shape: Shape) -> str | None:
        """Return why no graph will ever serve ``shape``."""
        if not self.policy.enabled:
            return "graphs are off"
        if shape.rows > self.policy.max_rows:
            return f"more than {self.policy.max_rows} rows"
        if not shape.rows:
            return "no rows"
        refused = self._refused.get(shape)
        return None if refused is None else f"could not be recorded: {refused}"

    @staticmethod
    def _close(program: Program) -> None:
        graph, program.graph = program.graph, None  # other holders of the program see that it has no graph
        if graph is not None:
            graph.close()

    def __contains__(self, shape: Shape) -> bool:
        return shape in self._programs

    def __len__(self) -> int:
        return len(self._programs)

    def close(self) -> None:
        for program in self._programs.values():
            self._close(program)
        self._programs.clear()
        self._wanted.clear()
