"""Which steps are replayed: programs by shape, recorded when a shape comes back, forgotten when it does not.

A ``Program`` is a shape with its places and its attention; with a graph it can be launched in one call, without one
it is run operation by operation. Recording costs some tens of milliseconds, so a shape is recorded at its second
sighting (``after``), and never where a step is so large that launches do not show (``max_rows``).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from prelude.cuda.device import Graph
from prelude.cuda.levels import StepAttention
from prelude.cuda.shapes import Shape
from prelude.cuda.staging import Fields


@dataclass(frozen=True, slots=True)
class GraphPolicy:
    enabled: bool = True
    max_rows: int = 2048
    """From about 2,000 tokens on the device is busy longer than the host needs to launch."""
    max_graphs: int = 96
    after: int = 2


@dataclass(slots=True)
class Program:
    shape: Shape
    inputs: Fields
    outputs: Fields
    attention: StepAttention | None = None  # eager: made when it is known where the arrays go
    graph: Graph | None = None


class Graphs:
    """The table. ``replays``, ``eager`` and ``captures`` count steps; ``failures`` shapes that could not be
    recorded."""

    def __init__(self, policy: GraphPolicy) -> None:
        self.policy = policy
        self.replays = 0
        self.eager = 0
        self.captures = 0
        self.failures = 0
        self._programs: OrderedDict[Shape, Program] = OrderedDict()
        self._sightings: OrderedDict[Shape, int] = OrderedDict()
        self._refused: set[Shape] = set()

    def find(self, shape: Shape, record: Callable[[Shape], Program]) -> Program | None:
        """The program to replay for a bucketed ``shape``; ``record`` makes it when its time has come."""
        if not self.policy.enabled or not 0 < shape.rows <= self.policy.max_rows or shape in self._refused:
            return None
        program = self._programs.get(shape)
        if program is not None:
            self._programs.move_to_end(shape)
            return program
        if not self._due(shape):
            return None
        program = record(shape)
        self.captures += 1
        self._programs[shape] = program
        while len(self._programs) > self.policy.max_graphs:
            _, oldest = self._programs.popitem(last=False)
            if oldest.graph is not None:
                oldest.graph.close()
        return program

    def refuse(self, shape: Shape) -> None:
        """``shape`` could not be recorded; its steps stay eager."""
        self.failures += 1
        self._refused.add(shape)

    def _due(self, shape: Shape) -> bool:
        seen = self._sightings.pop(shape, 0) + 1
        self._sightings[shape] = seen
        while len(self._sightings) > 8 * self.policy.max_graphs:
            self._sightings.popitem(last=False)
        return seen >= self.policy.after

    def __len__(self) -> int:
        return len(self._programs)

    def close(self) -> None:
        for program in self._programs.values():
            if program.graph is not None:
                program.graph.close()
        self._programs.clear()
