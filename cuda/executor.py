"""The CUDA executor: the same batches and results as the CPU one, which is its specification.

    submit   lay out ─ write arrays ─ one copy in ─ plan attention ─ replay a graph, or run eagerly ─ one copy out
    wait     until the mark behind the copy out is done; then numpy arrays

``submit`` never waits for the device: a second step may be submitted, and its arrays packed, while the first one
runs. A decode row may name a token that is not on the host yet: id -1 - j is the j-th token that the last sampling
step drew.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass, field

import torch
from prelude.cuda.attention import Calls
from prelude.cuda.device import Device, Mark
from prelude.cuda.forward import Forward, Inputs
from prelude.cuda.graphs import GraphPolicy, Graphs, Program
from prelude.cuda.layout import StepLayout, lay_out
from prelude.cuda.levels import KeysAttention, LevelsAttention, ReusedCalls, StepAttention
from prelude.cuda.reading import Bench
from prelude.cuda.readings import Readings, head_of
from prelude.cuda.shapes import Shape, Writer, power_bucket
from prelude.cuda.staging import Area, Fields, Staging
from prelude.cuda.weights import DeviceWeights
from prelude.cuda.workspace import Workspace
from torch import Tensor

from prelude.batch import ForwardBatch, StepResult
from prelude.errors import EngineClosed
from prelude.execution.executor import ExecutorLimits
from prelude.execution.pending import num_drawn
from prelude.models.config import ModelConfig

log = logging.getLogger("prelude.cuda")

_IN_FLIGHT = 3
"""Host areas in turn: a step that runs, one that is packed, one whose results are read."""
_STAGING = 4 << 20


@dataclass(slots=True)
class Ticket:
    """A submitted step. It holds its host areas: nobody tells their allocator of copies under way."""

    layout: StepLayout
    readings: Readings
    outputs: Fields
    sent: Area
    area: Area
    began: Mark
    ended: Mark
    replayed: bool
    host_seconds: float
    result: StepResult | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass(frozen=True, slots=True)
class Failed:
    """A step that could not be submitted."""

    error: Exception


class CudaExecutor:
    """``calls`` are FlashInfer's; without them attention goes by key lists, as it does in deterministic mode."""

    def __init__(
        self,
        config: ModelConfig,
        weights: DeviceWeights,
        device: Device,
        *,
        num_blocks: int,
        block_size: int = 16,
        step_tokens: int,
        step_rows: int = 512,
        logits_chunk_rows: int = 64,
        calls: Calls | None = None,
        policy: GraphPolicy | None = None,
        cut_last_layer: bool = True,
    ) -> None:
        self.config = config
        self.device = device
        self.weights = weights
        self.block_size = block_size
        self.step_tokens = step_tokens
        self.calls = None if device.deterministic else calls
        self.cut_last_layer = cut_last_layer
        self.graphs = Graphs(policy or GraphPolicy())
        self._num_blocks = num_blocks
        step_rows = power_bucket(step_rows)  # as sampled rows are rounded up
        self._drawn_rows = step_rows
        self._drawn_count = 0
        self._closed = False
        self._pending: deque[Ticket] = deque()
        self._lock = threading.Lock()  # of the list of tickets; submitting itself is one thread's affair
        self._eager_calls = None if self.calls is None else ReusedCalls(self.calls)
        with device.scope():
            vocab = 0 if weights.lm_head is None else weights.lm_head.shape[0]
            self.work = Workspace.of(
                device,
                config.spec,
                rows=step_tokens + step_rows,
                block_size=block_size,
                chunk_rows=logits_chunk_rows,
                vocab=vocab,
            )
            self.pool = self._make_pool()
            self.staging = Staging.of(device, _STAGING, _STAGING, _IN_FLIGHT)
        self._drawn = self.staging.output_area[: 4 * step_rows].view(torch.int32)
        self._bench = Bench(device, config.spec, weights, self.work, logits_chunk_rows)
        self._forward = Forward(device, config.spec, weights, self.work, self.pool)

    def _make_pool(self) -> Tensor:
        """[layers, 2, slots, kv_heads, D]; one block more than anybody is told of: what padding reads and writes."""
        spec, slots = self.config.spec, (self._num_blocks + 1) * self.block_size
        shape = (len(spec.layers), 2, slots, spec.attention.kv_heads, spec.attention.head_dim)
        return self.device.zeros(shape, self.device.element)

    def set_blocks(self, num_blocks: int) -> None:
        """Another, empty pool; before anything was recorded, for graphs know where the pool lies."""
        if len(self.graphs):
            raise RuntimeError("the pool cannot move once graphs have been recorded")
        with self.device.scope():
            self._num_blocks = num_blocks
            self.pool = self._forward.pool = self.device.zeros((0,), self.device.element)
            self.pool = self._forward.pool = self._make_pool()

    def limits(self) -> ExecutorLimits:
        config, score = self.config, self.weights.score
        element = self.device.element
        return ExecutorLimits(
            vocab_size=config.vocab_size,
            max_positions=min(config.max_positions, self.weights.turns.shape[0]),
            hidden_size=config.hidden_size,
            num_labels=0 if score is None else score.shape[0],
            block_size=self.block_size,
            num_blocks=self._num_blocks,
            kv_bytes_per_token=config.spec.kv_bytes_per_token(element.itemsize),
            logits_chunk_rows=self._bench.chunk_rows,
            weight_bytes=self.weights.nbytes,
            device="cuda",
            dtype=str(element).removeprefix("torch."),
            lm_head=self.weights.lm_head is not None,
        )

    # ------------------------------------------------------------------ the two calls of a step

    def submit(self, batch: ForwardBatch) -> Ticket | Failed:
        began = time.perf_counter()
        if self._closed:
            raise EngineClosed("the executor is closed")
        try:
            with self.device.scope():
                layout = lay_out(batch, self.block_size, cut=self.cut_last_layer)
                self._check(layout)
                return self._submit(layout, began)
        except TypeError:
            raise
        except Exception as error:  # the step's own failure belongs to whoever waits for it
            self._drawn_count = num_drawn(batch) or self._drawn_count  # named by a step that nobody will read
            return Failed(error)

    def wait(self, handle: Ticket | Failed) -> StepResult:
        if isinstance(handle, Failed):
            raise handle.error
        if not isinstance(handle, Ticket):
            raise TypeError("this handle did not come from submit")
        return self._finish(handle)

    def close(self) -> None:
        """Refuse further steps; wait for those in flight; let go of graphs and pool."""
        if self._closed:
            return
        self._closed = True
        with self.device.scope():
            self.device.close()
            self.graphs.close()
            self.pool = self.device.zeros((0,), self.device.element)

    # ------------------------------------------------------------------ submitting

    def _check(self, layout: StepLayout) -> None:
        """What would be read or written out of bounds is refused here: on the device it would end the context."""
        if layout.rows > self.step_tokens + self._drawn_rows:
            raise ValueError(
                f"the step has {layout.rows} rows; there is room for {self.step_tokens + self._drawn_rows}"
            )
        if not layout.rows:
            return
        ids = layout.token_ids
        if ids.max() >= self.config.vocab_size or ids.min() < -self._drawn_count:
            raise ValueError(
                f"token ids run from {ids.min()} to {ids.max()}; the vocabulary has {self.config.vocab_size} tokens, "
                f"the step before drew {self._drawn_count}"
            )
        positions, table = layout.positions, self.weights.turns.shape[0]
        if positions.max() >= table or positions.min() < 0:
            raise IndexError(f"position {positions.max()} is past the model's last, {table - 1}")
        slots = self._num_blocks * self.block_size
        if layout.slots.max() >= slots or layout.slots.min() < -1:
            raise IndexError(f"slot {layout.slots.max()} is past the pool's last, {slots - 1}")
        body = layout.body
        for level in (*body.more, *(() if body.decode is None else (body.decode,))):
            if level.pool and len(level.pages) and not 0 <= level.pages.min() <= level.pages.max() < self._num_blocks:
                raise IndexError(f"block {level.pages.max()} is past the pool's last, {self._num_blocks - 1}")

    def _submit(self, layout: StepLayout, began: float) -> Ticket:
        program, readings = self._program(layout)
        area, device_area = self._input_area(program.inputs.nbytes)
        writer = Writer(program.shape, program.inputs, self._num_blocks, self.block_size)
        writer.write(area.bytes.numpy(), layout)
        readings.write(program.inputs, area.bytes, [writer.read_index(r.at, layout) for r in layout.reads])
        self.device.copy(area.bytes[: program.inputs.nbytes], device_area[: program.inputs.nbytes])
        attention = program.attention or self._eager_attention(program, device_area)
        attention.plan(area.bytes)
        out_area = self._output_area(program.outputs.nbytes)
        first = self.device.mark()
        if program.graph is not None:
            program.graph.launch()
            self.graphs.replays += 1
        else:
            self._run(program, device_area, attention)
            self.graphs.eager += 1
        if program.graph is None or program.shape.head is None:
            hidden = self.work.read_x[: program.shape.read]
            readings.enqueue(program.inputs, device_area, program.outputs, out_area, hidden)
        host = self._fetch(program.outputs.nbytes, out_area)
        area.busy = last = self.device.mark()
        self._drawn_count = readings.draws or self._drawn_count
        seconds = time.perf_counter() - began
        ticket = Ticket(
            layout, readings, program.outputs, area, host, first, last, program.graph is not None, seconds
        )
        with self._lock:
            self._pending.append(ticket)
        return ticket

    def _program(self, layout: StepLayout) -> tuple[Program, Readings]:
        """What runs this step, and its readings: replay first, eager where no graph fits. One readout of a simple
        kind is part of the graph; others are enqueued behind it, their arrays behind the body's in the same copy."""
        keys = 0 if self.calls is not None else max(1, len(layout.key_lists(self.block_size).keys))
        exact = Shape.exact(layout, keys)
        readouts = [read.readout for read in layout.reads]
        head = head_of(readouts[0], self._bench.chunk_rows) if len(readouts) == 1 else None
        readings = Readings.of(readouts, self._bench, head, self._drawn_rows)
        shape = exact.bucket(head)
        if head is not None:
            program = self._recorded(shape, readings)
            if program is not None:
                return program, readings
            readings = Readings.of(readouts, self._bench, None, self._drawn_rows)
        inputs, outputs = Fields([*shape.sizes(), *readings.inputs()]), readings.output_fields()
        if head is None and inputs.nbytes <= _STAGING:
            body = self._recorded(shape, Readings.of([], self._bench, None, self._drawn_rows))
            if body is not None:
                return Program(shape, inputs, outputs, body.attention, body.graph), readings
        return Program(exact, Fields([*exact.sizes(), *readings.inputs()]), outputs), readings

    def _recorded(self, bucket: Shape, readings: Readings) -> Program | None:
        try:
            return self.graphs.find(bucket, lambda shape: self._record(shape, readings))
        except (RuntimeError, ValueError) as error:
            log.warning("a step of %d rows could not be recorded and stays eager: %s", bucket.rows, error)
            self.graphs.refuse(bucket)
            return None

    def _record(self, shape: Shape, readings: Readings) -> Program:
        """Records a program on an idle step. What that draws is put back: the next step may name those tokens."""
        device, staging = self.device, self.staging
        program = Program(shape, Fields([*shape.sizes(), *readings.inputs()]), readings.output_fields())
        if max(program.inputs.nbytes, program.outputs.nbytes) > _STAGING:
            raise ValueError("its arrays do not fit the standing areas")
        attention = self._attention(program, staging.input_area, self.calls, record=True)
        area = staging.inputs.take()
        Writer(shape, program.inputs, self._num_blocks, self.block_size).write_idle(area.bytes.numpy())
        device.copy(area.bytes[: program.inputs.nbytes], staging.input_area[: program.inputs.nbytes])
        attention.plan(area.bytes)
        area.busy = device.mark()
        kept = device.empty(tuple(self._drawn.shape), torch.int32)
        device.copy(self._drawn, kept)

        def work() -> None:
            hidden = self._run(program, staging.input_area, attention)
            if shape.head is not None:
                readings.enqueue(program.inputs, staging.input_area, program.outputs, staging.output_area, hidden)

        program.graph = device.capture(work)
        device.copy(kept, self._drawn)
        program.attention = attention
        return program

    def _run(self, program: Program, area: Tensor, attention: StepAttention) -> Tensor:
        return self._forward.run(program.shape, Inputs.of(program.inputs, area, self._drawn), attention)

    def _eager_attention(self, program: Program, area: Tensor) -> StepAttention:
        if self._eager_calls is not None:
            self._eager_calls.begin()
        return self._attention(program, area, self._eager_calls, record=False)

    def _attention(self, program: Program, area: Tensor, calls: Calls | None, record: bool) -> StepAttention:
        if calls is None:
            return KeysAttention(
                self.device, program.shape, program.inputs, area, self.config.spec.attention.kv_heads
            )
        return LevelsAttention(calls, program.shape, program.inputs, area, self.work, record)

    # ------------------------------------------------------------------ areas

    def _input_area(self, nbytes: int) -> tuple[Area, Tensor]:
        """The standing areas, or some for this step alone where they are too small."""
        if nbytes <= _STAGING:
            return self.staging.inputs.take(), self.staging.input_area
        return Area(self.device.pinned((nbytes,), torch.uint8)), self.device.empty((nbytes,), torch.uint8)

    def _output_area(self, nbytes: int) -> Tensor:
        if nbytes <= _STAGING:
            return self.staging.output_area
        return self.device.empty((nbytes,), torch.uint8)

    def _fetch(self, nbytes: int, out_area: Tensor) -> Area:
        if out_area is not self.staging.output_area:
            self.device.copy(out_area[: self._drawn.nbytes], self._drawn.view(torch.uint8))
            area = Area(self.device.pinned((nbytes,), torch.uint8))
        else:
            while (oldest := self._overdue()) is not None:  # its results lie where these go
                self._finish(oldest)
            area = self.staging.outputs.take()
        self.device.copy(out_area[:nbytes], area.bytes[:nbytes])
        return area

    def _overdue(self) -> Ticket | None:
        with self._lock:
            return self._pending[0] if len(self._pending) >= _IN_FLIGHT else None

    # ------------------------------------------------------------------ results

    def _finish(self, ticket: Ticket) -> StepResult:
        with ticket.lock:
            if ticket.result is None:
                with self.device.scope():  # any thread may wait
                    ticket.ended.wait()
                    seconds = ticket.ended.seconds_since(ticket.began)
                outputs, bad_rows = ticket.readings.results(ticket.outputs, ticket.area.bytes)
                ticket.result = StepResult(
                    outputs,
                    bad_rows,
                    seconds=seconds,
                    lm_head_rows=ticket.readings.lm_head_rows,
                    attended_tokens=ticket.layout.attended,
                    peak_bytes=self.work.nbytes,
                    eager=not ticket.replayed,
                    extra={"host_seconds": ticket.host_seconds},
                )
                with self._lock:
                    self._pending = deque(other for other in self._pending if other is not ticket)
            return ticket.result
