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
from prelude.cuda.readout_operation import ReadoutContext
from prelude.cuda.shapes import Shape, Writer, power_bucket
from prelude.cuda.staging import Area, Fields, Staging
from prelude.cuda.step_readouts import StepReadouts, recorded_readout
from prelude.cuda.weights import DeviceWeights
from prelude.cuda.workspace import Workspace
from torch import Tensor

from prelude.batch import ForwardBatch, StepResult
from prelude.errors import EngineClosed
from prelude.execution.executor import ExecutorLimits
from prelude.execution.pending import num_sampled
from prelude.models.config import ModelConfig

log = logging.getLogger("prelude.cuda")

_HOST_AREAS = 3
"""Host areas in turn: a step that runs, one that is packed, one whose results are read."""
_STAGING = 4 << 20


@dataclass(slots=True)
class SubmittedStep:
    """A submitted step. It holds its host areas: their allocator does not know of copies under way."""

    layout: StepLayout
    readouts: StepReadouts
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
        self._sampled_rows = step_rows
        self._num_pending = 0
        self._closed = False
        self._in_flight: deque[SubmittedStep] = deque()
        self._lock = threading.Lock()  # of the list of submitted steps; submitting itself is one thread's affair
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
            self.staging = Staging.of(device, _STAGING, _STAGING, _HOST_AREAS)
        self._pending_tokens = self.staging.output_area[: 4 * step_rows].view(torch.int32)
        self._context = ReadoutContext(device, config.spec, weights, self.work, logits_chunk_rows)
        self._forward = Forward(device, config.spec, weights, self.work, self.pool)

    def _make_pool(self) -> Tensor:
        """[layers, 2, slots, kv_heads, D]; one block more than ``limits()`` states: padding reads and writes it."""
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
            max_positions=min(config.max_positions, self.weights.rope_table.shape[0]),
            hidden_size=config.hidden_size,
            num_labels=0 if score is None else score.shape[0],
            block_size=self.block_size,
            num_blocks=self._num_blocks,
            kv_bytes_per_token=config.spec.kv_bytes_per_token(element.itemsize),
            logits_chunk_rows=self._context.chunk_rows,
            weight_bytes=self.weights.nbytes,
            device="cuda",
            dtype=str(element).removeprefix("torch."),
            lm_head=self.weights.lm_head is not None,
        )

    # ------------------------------------------------------------------ the two calls of a step

    def submit(self, batch: ForwardBatch) -> SubmittedStep | Failed:
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
        except Exception as error:  # a failure of the step is raised in ``wait``
            self._num_pending = num_sampled(batch) or self._num_pending  # the next step may name these tokens
            return Failed(error)

    def wait(self, handle: SubmittedStep | Failed) -> StepResult:
        if isinstance(handle, Failed):
            raise handle.error
        if not isinstance(handle, SubmittedStep):
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
        """Refuses reads and writes out of bounds: on the device they would end the context."""
        if layout.rows > self.step_tokens + self._sampled_rows:
            raise ValueError(
                f"the step has {layout.rows} rows; there is room for {self.step_tokens + self._sampled_rows}"
            )
        if not layout.rows:
            return
        ids = layout.token_ids
        if ids.max() >= self.config.vocab_size or ids.min() < -self._num_pending:
            raise ValueError(
                f"token ids run from {ids.min()} to {ids.max()}; the vocabulary has {self.config.vocab_size} tokens, "
                f"the step before drew {self._num_pending}"
            )
        positions, table = layout.positions, self.weights.rope_table.shape[0]
        if positions.max() >= table or positions.min() < 0:
            raise IndexError(f"position {positions.max()} is past the model's last, {table - 1}")
        slots = self._num_blocks * self.block_size
        if layout.slots.max() >= slots or layout.slots.min() < -1:
            raise IndexError(f"slot {layout.slots.max()} is past the pool's last, {slots - 1}")
        body = layout.body
        for level in (*body.more, *(() if body.decode is None else (body.decode,))):
            if level.pool and len(level.pages) and not 0 <= level.pages.min() <= level.pages.max() < self._num_blocks:
                raise IndexError(f"block {level.pages.max()} is past the pool's last, {self._num_blocks - 1}")

    def _submit(self, layout: StepLayout, began: float) -> SubmittedStep:
        program, readouts = self._program(layout)
        area, device_area = self._input_area(program.inputs.nbytes)
        writer = Writer(program.shape, program.inputs, self._num_blocks, self.block_size)
        writer.write(area.bytes.numpy(), layout)
        readouts.write(program.inputs, area.bytes, [writer.read_index(r.at, layout) for r in layout.reads])
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
        if program.graph is None or program.shape.readout is None:
            hidden = self.work.read_x[: program.shape.read]
            readouts.enqueue(program.inputs, device_area, program.outputs, out_area, hidden)
        host = self._fetch(program.outputs.nbytes, out_area)
        area.busy = last = self.device.mark()
        self._num_pending = readouts.draws or self._num_pending
        seconds = time.perf_counter() - began
        step = SubmittedStep(
            layout, readouts, program.outputs, area, host, first, last, program.graph is not None, seconds
        )
        with self._lock:
            self._in_flight.append(step)
        return step

    def _program(self, layout: StepLayout) -> tuple[Program, StepReadouts]:
        """The program of this step and its readouts. A recorded program is replayed; a step that no graph fits runs
        eagerly. A lone readout of a simple kind is part of the graph. Other readouts are enqueued after the graph;
        their arrays follow the arrays of the body in the same copy."""
        keys = 0 if self.calls is not None else max(1, len(layout.key_lists(self.block_size).keys))
        exact = Shape.exact(layout, keys)
        asked = [read.readout for read in layout.reads]
        recorded = recorded_readout(asked[0], self._context.chunk_rows) if len(asked) == 1 else None
        readouts = StepReadouts.of(asked, self._context, recorded, self._sampled_rows)
        shape = exact.bucket(recorded)
        if recorded is not None:
            program = self._recorded(shape, readouts)
            if program is not None:
                return program, readouts
            readouts = StepReadouts.of(asked, self._context, None, self._sampled_rows)
        inputs, outputs = Fields([*shape.sizes(), *readouts.inputs()]), readouts.output_fields()
        if recorded is None and inputs.nbytes <= _STAGING:
            body = self._recorded(shape, StepReadouts.of([], self._context, None, self._sampled_rows))
            if body is not None:
                return Program(shape, inputs, outputs, body.attention, body.graph), readouts
        return Program(exact, Fields([*exact.sizes(), *readouts.inputs()]), outputs), readouts

    def _recorded(self, bucket: Shape, readouts: StepReadouts) -> Program | None:
        try:
            return self.graphs.find(bucket, lambda shape: self._record(shape, readouts))
        except (RuntimeError, ValueError) as error:
            log.warning("a step of %d rows could not be recorded and stays eager: %s", bucket.rows, error)
            self.graphs.refuse(bucket)
            return None

    def _record(self, shape: Shape, readouts: StepReadouts) -> Program:
        """Records a program on an idle step. The pending tokens are restored: the next step may name them."""
        device, staging = self.device, self.staging
        program = Program(shape, Fields([*shape.sizes(), *readouts.inputs()]), readouts.output_fields())
        if max(program.inputs.nbytes, program.outputs.nbytes) > _STAGING:
            raise ValueError("its arrays do not fit the standing areas")
        attention = self._attention(program, staging.input_area, self.calls, record=True)
        area = staging.inputs.take()
        Writer(shape, program.inputs, self._num_blocks, self.block_size).write_idle(area.bytes.numpy())
        device.copy(area.bytes[: program.inputs.nbytes], staging.input_area[: program.inputs.nbytes])
        attention.plan(area.bytes)
        area.busy = device.mark()
        kept = device.empty(tuple(self._pending_tokens.shape), torch.int32)
        device.copy(self._pending_tokens, kept)

        def work() -> None:
            hidden = self._run(program, staging.input_area, attention)
            if shape.readout is not None:
                readouts.enqueue(program.inputs, staging.input_area, program.outputs, staging.output_area, hidden)

        program.graph = device.capture(work)
        device.copy(kept, self._pending_tokens)
        program.attention = attention
        return program

    def _run(self, program: Program, area: Tensor, attention: StepAttention) -> Tensor:
        return self._forward.run(program.shape, Inputs.of(program.inputs, area, self._pending_tokens), attention)

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
            self.device.copy(out_area[: self._pending_tokens.nbytes], self._pending_tokens.view(torch.uint8))
            area = Area(self.device.pinned((nbytes,), torch.uint8))
        else:
            while (oldest := self._overdue()) is not None:  # its results lie where these go
                self._finish(oldest)
            area = self.staging.outputs.take()
        self.device.copy(out_area[:nbytes], area.bytes[:nbytes])
        return area

    def _overdue(self) -> SubmittedStep | None:
        with self._lock:
            return self._in_flight[0] if len(self._in_flight) >= _HOST_AREAS else None

    # ------------------------------------------------------------------ results

    def _finish(self, step: SubmittedStep) -> StepResult:
        with step.lock:
            if step.result is None:
                with self.device.scope():  # any thread may wait
                    step.ended.wait()
                    seconds = step.ended.seconds_since(step.began)
                outputs, bad_rows = step.readouts.results(step.outputs, step.area.bytes)
                step.result = StepResult(
                    outputs,
                    bad_rows,
                    seconds=seconds,
                    lm_head_rows=step.readouts.lm_head_rows,
                    attended_tokens=step.layout.attended,
                    peak_bytes=self.work.nbytes,
                    eager=not step.replayed,
                    extra={"host_seconds": step.host_seconds},
                )
                with self._lock:
                    self._in_flight = deque(other for other in self._in_flight if other is not step)
            return step.result
