"""Recording shapes: in a step that wants it at once, when the engine is idle, and before it serves.

Recording runs the step twice and captures it, on arrays of padding. When the engine is idle it is left as soon as a
step is due, between two layers; a shape that was run is not run again. Matmul algorithms are searched by ``warm_up``:
a search takes half a second and more.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from prelude._native.gpu import power_bucket, token_bucket
from prelude.cuda.forward import Inputs
from prelude.cuda.graphs import DoesNotFit, Left, Program
from prelude.cuda.levels import RecordedLevels, StepAttention, plan_room
from prelude.cuda.matmul_search import LARGE_ROWS
from prelude.cuda.readout_operation import RecordedReadout
from prelude.cuda.shapes import Shape, write_idle
from prelude.cuda.staging import Area, Fields
from prelude.cuda.step_readouts import StepReadouts

if TYPE_CHECKING:
    from prelude.cuda.executor import CudaExecutor

log = logging.getLogger("prelude.cuda")

WARM_TOKENS = 512
"""Lone prompts up to so many tokens are recorded by ``warm_up``."""
WARM_ROWS = 64
"""Decode steps up to so many rows."""
WARM_KEYS = 256
"""Keys of each of their rows."""
WARM_PAIRS = (2, 4)
"""(row, label) pairs of a lone prompt's readout."""


class Recorder:
    """Makes the programs of one executor."""

    def __init__(self, executor: CudaExecutor) -> None:
        self.executor = executor
        self._warm: Shape | None = None  # was run last, and its capture left

    def find(self, shape: Shape) -> Program | None:
        """Return the program that serves ``shape``, recorded now if the policy wants that."""
        graphs = self.executor.graphs
        program = graphs.find(shape)
        if program is None and graphs.policy.at_once and graphs.wants(shape):
            with self.executor.device.scope():
                program = graphs.record(shape, self._searched if graphs.policy.search else self._record)
        return program

    def idle(self, due: Callable[[], bool]) -> bool:
        """Records one wanted shape, or leaves it if a step is ``due``. Whether more are wanted."""
        graphs = self.executor.graphs
        shape = graphs.next_wanted()
        if shape is None:
            return False
        with self.executor.device.scope():
            graphs.record(shape, lambda shape: self._record(shape, due=due))
        return graphs.next_wanted() is not None

    def warm_up(self) -> int:
        """Records the shapes that every engine meets, the shortest first; how many there are now."""
        executor = self.executor
        graphs, began = executor.graphs, time.perf_counter()
        with executor.device.scope():
            for shape in self._expected():
                if len(graphs) >= graphs.policy.max_graphs:
                    break
                if shape not in graphs and graphs.never(shape) is None:
                    graphs.record(shape, self._searched)
            self.search_large_rows()
        log.info("%d shapes recorded in %.1f s", len(graphs), time.perf_counter() - began)
        return len(graphs)

    def search_large_rows(self) -> None:
        """Searches the matmuls of the steps that are too large to be recorded."""
        for rows in LARGE_ROWS:
            if rows <= self.executor.step_tokens:
                self._search_rows(rows)

    def _search_rows(self, rows: int) -> None:
        """Searches the matmuls of steps of so many tokens, which run eagerly, on one of padding."""
        executor = self.executor
        device, staging = executor.device, executor.staging
        keys = 0 if executor.calls is not None else rows
        shape = Shape(rows, 1 if not keys else 0, (), 0, 0, 1, 0, False, keys, None)
        program = Program(shape, Fields(shape.sizes()), Fields([]))
        area = staging.inputs.take()
        try:
            self._write_idle(shape, program.inputs, area)
            device.copy(area.bytes[: program.inputs.nbytes], staging.input_area[: program.inputs.nbytes])
            attention = executor.eager_attention(program, staging.input_area)
            attention.plan(area)
            arrays = Inputs.of(program.inputs, staging.input_area, executor.pending_tokens)
            device.warm(lambda: executor.forward.run(shape, arrays, attention), search=True)
        finally:
            area.busy = device.mark()

    def _expected(self) -> Iterator[Shape]:
        executor = self.executor
        if executor.calls is None:
            return  # key lists: their number is part of a shape
        kinds: list[tuple[RecordedReadout, ...] | None] = [None]
        if executor.weights.lm_head is not None:
            kinds = [(RecordedReadout("greedy", 1, 0),)]
            kinds += [(RecordedReadout(kind, 1, n),) for n in WARM_PAIRS for kind in ("logprobs", "labels")]
        longest = min(WARM_TOKENS, executor.step_tokens, executor.graphs.policy.max_rows)
        # A bucket may have prompts on both sides of the length from which on another kernel attends.
        least = executor.choices.long_query
        for tokens, long in sorted({(token_bucket(n), n >= least) for n in range(1, longest + 1)}):
            for readouts in kinds:
                yield Shape(tokens, 1, (), 0, 0, 1, 0, True, 0, readouts, long)
        if executor.weights.lm_head is None:
            return
        rows = 1
        while rows <= min(WARM_ROWS, executor.step_rows):
            for keys in (WARM_KEYS // 2, WARM_KEYS):
                entries = power_bucket(rows * -(-keys // executor.block_size), 64)
                yield Shape(0, 0, (), rows, entries, 0, rows, False, 0, (RecordedReadout("greedy", rows, 0),))
            rows *= 2

    # ------------------------------------------------------------------ one shape

    def _searched(self, shape: Shape) -> Program:
        return self._record(shape, search=True)

    def _record(self, shape: Shape, search: bool = False, due: Callable[[], bool] = lambda: False) -> Program:
        """Records a program on an idle step. The pending tokens are restored: the next step may name them."""
        executor = self.executor
        device, staging, pending = executor.device, executor.staging, executor.pending_tokens
        readouts = executor.readouts_of(shape.readouts)
        area = staging.inputs.take()
        try:
            program, attention = self._planned(shape, readouts, area)
            inputs = program.inputs
            # The ticket of no area: nothing is published.
            inputs.array(area.bytes, "ticket")[:] = 0, -1
            device.copy(area.bytes[: inputs.nbytes], staging.input_area[: inputs.nbytes])
        finally:
            area.busy = device.mark()
        kept = device.empty(tuple(pending.shape), pending.dtype)
        device.copy(pending, kept)

        def look() -> None:
            if due():
                raise Left

        def work() -> None:
            arrays = Inputs.of(inputs, staging.input_area, pending)
            hidden = executor.forward.run(shape, arrays, attention, look)
            if shape.readouts is not None:
                readouts.enqueue(inputs, staging.input_area, program.outputs, staging.output_area, hidden)
                executor.publish(program, staging.input_area, staging.output_area, None)

        try:
            if shape != self._warm:
                device.warm(work, search=search)
            self._warm = shape
            program.graph = device.capture(work)
        finally:  # a recording that is left, or fails, has run the step too
            device.copy(kept, pending)
        program.attention = attention
        return program

    def _planned(self, shape: Shape, readouts: StepReadouts, area: Area) -> tuple[Program, StepAttention]:
        """The places of a shape, with room for its attention's plans, and its attention, planned for an idle step
        that is written to ``area``."""
        executor, staging = self.executor, self.executor.staging
        outputs = readouts.output_fields()
        fields = Fields([*shape.sizes(), *readouts.inputs()])
        self._write_idle(shape, fields, area)
        calls = executor.calls
        if calls is None or not shape.levels:
            return Program(shape, fields, outputs), executor.keys_attention(shape, fields, staging.input_area)

        def levels(fields: Fields) -> RecordedLevels:
            return RecordedLevels(calls, shape, fields, staging.input_area, executor.work, executor.device)

        sizes = levels(fields).sizes(area)
        if plan_room(sizes):
            fields = fields.extended([("plans", plan_room(sizes), "u8")])
        self._write_idle(shape, fields, area)
        recorded = levels(fields)
        if plan_room(sizes):
            recorded.bind(sizes)
            recorded.plan(area)
        return Program(shape, fields, outputs), recorded

    def _write_idle(self, shape: Shape, fields: Fields, area: Area) -> None:
        executor = self.executor
        if fields.nbytes > len(area.array):
            raise DoesNotFit("its arrays do not fit the standing areas")
        write_idle(shape, fields, area.array, executor.num_blocks, executor.block_size)
