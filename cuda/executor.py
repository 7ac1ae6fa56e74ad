"""The CUDA executor: the same batches and results as the CPU one, which is its specification.

    submit   lay out ─ write arrays ─ plan attention ─ one copy in ─ replay a graph, or run eagerly ─ publish
    wait     until the last kernel has written the step's number behind its results; then numpy arrays

``lane.py`` has the host's part of a step. ``submit`` never waits for the device: a second step may be submitted, and
its arrays packed, while the first one runs. A decode row may name a token that is not on the host yet: id -1 - j is
the j-th token that the last sampling step drew.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

import torch
from prelude._native.gpu import StepPacker, power_bucket
from prelude.cuda import kernels
from prelude.cuda.attention import Calls
from prelude.cuda.device import Device
from prelude.cuda.driver import is_final
from prelude.cuda.forward import Forward, Inputs, windows_of
from prelude.cuda.graphs import GraphPolicy, Graphs, Program
from prelude.cuda.host_blocks import CudaHostBlocks
from prelude.cuda.lane import Asked, Lane, MeasuredStep
from prelude.cuda.levels import KeysAttention, LevelsAttention, ReusedCalls, StepAttention
from prelude.cuda.readout_operation import ReadoutContext, RecordedReadout
from prelude.cuda.recorder import Recorder
from prelude.cuda.shapes import Choices, Shape
from prelude.cuda.staging import HEADER, Area, Fields, Staging, Ticket
from prelude.cuda.step_readouts import StepReadouts, blank_readout
from prelude.cuda.submitted import Failed, Read, StepClock, SubmittedStep
from prelude.cuda.weights import DeviceWeights
from prelude.cuda.workspace import Workspace
from torch import Tensor

from prelude.errors import DeviceLost, EngineClosed
from prelude.execution.executor import ExecutorLimits, num_sampled
from prelude.execution.memory_plan import StepMemory
from prelude.models.config import ModelConfig
from prelude.readouts.batch import I32, ForwardBatch, Output, Readout, StepResult

log = logging.getLogger("prelude.cuda")

_HOST_AREAS = 3
"""Host areas in turn: a step that runs, one that is packed, one whose results are read."""
_STAGING = 4 << 20
_PUBLISHED = 256 << 10
"""Bytes of results that a kernel writes to the host; more are copied."""


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
    ) -> None:
        self.config = config
        self.device = device
        self.weights = weights
        self.block_size = block_size
        self.step_tokens = step_tokens
        self.calls = None if device.deterministic else calls
        self.graphs = Graphs(policy or GraphPolicy(), device.divided)
        self.num_blocks = num_blocks
        self.step_memory: StepMemory | None = None  # the measured memory of a full step
        step_rows = power_bucket(step_rows)  # as sampled rows are rounded up
        self.step_rows = step_rows
        self.num_pending = 0
        self.lost: DeviceLost | None = None
        """The error after which no step runs."""
        self._closed = False
        self._host: CudaHostBlocks | None = None
        self._in_flight: deque[SubmittedStep] = deque()
        self._lock = threading.Lock()  # of the list of submitted steps; submitting itself is one thread's affair
        self._clock = StepClock()
        heads, fa3 = config.spec.attention, self.calls is not None and self.calls.fa3
        self.choices = Choices.of(fa3, device.processors, heads)
        self._eager_calls = None if self.calls is None else ReusedCalls(self.calls)
        positions = weights.rope_table.shape[0]
        given = {window for window in windows_of(config.spec) if window is not None}
        self.windows = tuple(sorted(window for window in given if window + 1 < positions))
        """Windows of layers that leave a key out of the longest sequence."""
        self.seen_whole = min((window + 1 for window in self.windows), default=positions)
        """Positions up to which no window leaves anything out."""
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
            self._results = self.staging.results.view(torch.int32)
        self.pending_tokens = self.staging.output_area[: 4 * step_rows].view(torch.int32)
        self._context = ReadoutContext(device, config.spec, weights, self.work, logits_chunk_rows)
        self.forward = Forward(device, config.spec, weights, self.work, self.pool, self.windows)
        self._work_bytes = self.work.nbytes
        self.recorder = Recorder(self)
        self._lane = Lane(self)

    def _make_pool(self) -> Tensor:
        """[layers, 2, slots, kv_heads, D]; one block more than ``limits()`` states: padding reads and writes it."""
        spec, slots = self.config.spec, (self.num_blocks + 1) * self.block_size
        shape = (len(spec.layers), 2, slots, spec.attention.kv_heads, spec.attention.head_dim)
        return self.device.zeros(shape, self.device.element)

    def set_blocks(self, num_blocks: int) -> None:
        """Take another, empty pool, before anything was recorded, for graphs know where the pool lies, and before
        ``host_blocks``."""
        if len(self.graphs) or self._host is not None:
            raise RuntimeError(
                "the pool cannot move once graphs have been recorded, or its blocks are kept on the host"
            )
        with self.device.scope():
            self.num_blocks = num_blocks
            self.pool = self.forward.pool = self.device.zeros((0,), self.device.element)
            self.pool = self.forward.pool = self._make_pool()

    def host_blocks(self, entries: int) -> CudaHostBlocks:
        self._host = CudaHostBlocks(self.device, self.pool, entries, self.block_size)
        return self._host

    def limits(self) -> ExecutorLimits:
        config, score = self.config, self.weights.score
        element = self.device.element
        return ExecutorLimits(
            vocab_size=config.vocab_size,
            max_positions=min(config.max_positions, self.weights.rope_table.shape[0]),
            hidden_size=config.hidden_size,
            num_labels=0 if score is None else score.shape[0],
            block_size=self.block_size,
            num_blocks=self.num_blocks,
            kv_bytes_per_token=config.spec.kv_bytes_per_token(element.itemsize),
            logits_chunk_rows=self._context.chunk_rows,
            weight_bytes=self.weights.nbytes,
            device="cuda",
            dtype=str(element).removeprefix("torch."),
            lm_head=self.weights.lm_head is not None,
            step_memory=self.step_memory,
            overlap=True,
            poolings=("last", "cls", "mean"),
        )

    # ------------------------------------------------------------------ the two calls of a step

    def submit(self, batch: ForwardBatch) -> SubmittedStep | Failed:
        if self._closed:
            raise EngineClosed("the executor is closed")
        if self.lost is not None:
            return Failed(DeviceLost(str(self.lost)))
        try:
            return self._lane.submit(batch)
        except TypeError:
            raise
        except Exception as error:  # a failure of the step is raised in ``wait``
            self.num_pending = num_sampled(batch) or self.num_pending  # the next step may name these tokens
            return Failed(self._failure(error))

    def wait(self, handle: SubmittedStep | Failed) -> StepResult:
        if isinstance(handle, Failed):
            raise handle.error
        if not isinstance(handle, SubmittedStep):
            raise TypeError("this handle did not come from submit")
        if self.lost is not None:  # its results, if it has some, are of a device that failed
            raise DeviceLost(str(self.lost))
        try:
            return self._finish(handle)
        except Exception as error:
            raise self._failure(error)  # noqa: B904

    def _failure(self, error: Exception) -> Exception:
        """Return the error of a step: ``DeviceLost`` if the driver failed, and no step runs any more."""
        if self.lost is None and is_final(error):
            self.lost = DeviceLost(
                f"the GPU failed ({error}), through no request's fault: no step runs any more in this process, which "
                "has to be started again"
            )
        if self.lost is None:
            return error
        found = DeviceLost(str(self.lost))
        found.__cause__ = error
        return found

    def close(self) -> None:
        """Refuse further steps; wait for those in flight; let go of graphs and pool."""
        if self._closed:
            return
        self._closed = True
        if self.lost is not None:  # its context answers every call with the same error
            return
        with self.device.scope():
            self.device.close()
            self.graphs.close()
            if self._host is not None:
                self._host.close()
            self.pool = self.device.zeros((0,), self.device.element)

    # ------------------------------------------------------------------ submitting

    def run(self, step: MeasuredStep, program: Program | None, asked: Asked | None) -> SubmittedStep:
        """Submits a step whose readouts no graph holds, or one that no graph serves. Readouts of a replayed body are
        enqueued behind it; their arrays follow the arrays of the body in the same copy."""
        readouts = StepReadouts.of(step.readouts, self._context, None, self.step_rows)
        reason = None
        if program is not None:
            inputs = program.inputs.extended(readouts.inputs())
            reason = "arrays larger than the standing areas" if inputs.nbytes > _STAGING else None
        if program is None or reason is not None:
            self.graphs.ran_eagerly(Shape.of(step.sizes, asked), reason)
            shape = Shape.of(step.packer.exact())
            inputs, program = Fields([*shape.sizes(), *readouts.inputs()]), Program(shape, Fields([]), Fields([]))
        program = Program(
            program.shape, inputs, readouts.output_fields(), program.attention, None if reason else program.graph
        )
        return self._submit(step, program, readouts)

    def _submit(self, step: MeasuredStep, program: Program, readouts: StepReadouts) -> SubmittedStep:
        nbytes = program.inputs.nbytes
        area, device_area = self._input_area(nbytes)
        area.busy = None
        places = program.shape.places(program.inputs, self.num_blocks)
        step.packer.fill(places, area.address)
        readouts.write(program.inputs, area.bytes, step.indices(places))
        ended, out_area = self.next_output(program.outputs.nbytes)
        step.packer.fill_ticket(area.address, ended.number, ended.area.index)
        try:
            if program.graph is not None and program.attention is not None:
                program.attention.plan(area)
                self.device.replay(program.graph, area, nbytes, self.staging.input_area)
                self.graphs.replays += 1
                self.graphs.touch(program)
            else:
                self.device.copy(area.bytes[:nbytes], device_area[:nbytes])
                attention = self.eager_attention(program, device_area)
                attention.plan(area)
                self._run(program, device_area, attention)
            hidden = self.work.read_x[: program.shape.read]
            readouts.enqueue(program.inputs, device_area, program.outputs, out_area, hidden)
            self.publish(program, device_area, out_area, ended.area)
        except Exception:
            area.busy = self.device.mark()  # copies of it may be under way
            self.staging.give_back(ended.area)
            raise
        self.num_pending = readouts.draws or self.num_pending

        def read(results: Area) -> tuple[tuple[Output, ...], tuple[I32, ...]]:
            return readouts.results(program.outputs, results.bytes[HEADER:])

        attended = self.attended(step.packer, program.shape)
        step.packer.forget()
        return self.enter(read, readouts.lm_head_rows, attended, area, ended, program.graph is not None)

    def attended(self, packer: StepPacker, shape: Shape) -> int:
        """(query, key) pairs of one head, as an average over the layers. No window cuts a step without lists."""
        if not shape.keys or not self.windows:
            return packer.attended
        spans = [window + 1 if window is not None else 1 << 30 for window in self.forward.windows]
        return round(sum(packer.attended_within(span) for span in spans) / len(spans))

    def enter(
        self, read: Read, lm_head_rows: int, attended: int, area: Area, ended: Ticket, replayed: bool
    ) -> SubmittedStep:
        """Notes a step that was launched."""
        area.busy = ended
        now = time.perf_counter()
        with self._lock:
            follows = bool(self._in_flight) and not self._in_flight[-1].ended.done()
            step = SubmittedStep(read, lm_head_rows, attended, area, ended, replayed, follows, now)
            self._in_flight.append(step)
        return step

    def readouts_of(
        self, recorded: tuple[RecordedReadout, ...] | None, readouts: Sequence[Readout] | None = None
    ) -> StepReadouts:
        """Return the operations of recorded readouts: of ``readouts``, or of blank ones."""
        if readouts is None:
            readouts = [blank_readout(one) for one in recorded or ()]
        return StepReadouts.of(readouts, self._context, recorded, self.step_rows)

    @property
    def chunk_rows(self) -> int:
        """Rows that meet the vocabulary at a time."""
        return self._context.chunk_rows

    def _run(self, program: Program, area: Tensor, attention: StepAttention) -> Tensor:
        return self.forward.run(program.shape, Inputs.of(program.inputs, area, self.pending_tokens), attention)

    def keys_attention(self, shape: Shape, fields: Fields, area: Tensor) -> StepAttention:
        return KeysAttention(self.device, shape, fields, area, self.config.spec.attention.kv_heads)

    def eager_attention(self, program: Program, area: Tensor) -> StepAttention:
        shape, calls = program.shape, self._eager_calls
        if calls is None or not shape.levels:
            return self.keys_attention(shape, program.inputs, area)
        calls.begin()
        return LevelsAttention(calls, shape, program.inputs, area, self.work)

    # ------------------------------------------------------------------ recording

    def warm_up(self) -> int:
        """Records the shapes of lone prompts and of decode steps, and searches matmuls for them; how many."""
        return self.recorder.warm_up()

    def idle(self, due: Callable[[], bool]) -> bool:
        """Records one shape that steps wanted, or leaves it if a step is ``due``. The engine calls it when nothing
        waits. Whether more are wanted."""
        return not self._closed and self.recorder.idle(due)

    @property
    def wants_idle(self) -> bool:
        """Whether ``idle`` has a shape to record."""
        return not self._closed and self.graphs.next_wanted() is not None

    @property
    def eager_reasons(self) -> dict[str, int]:
        """How many steps ran eagerly, by reason."""
        return dict(self.graphs.reasons)

    # ------------------------------------------------------------------ areas

    def _input_area(self, nbytes: int) -> tuple[Area, Tensor]:
        """Return the standing areas, or some for this step alone if they are too small."""
        if nbytes <= _STAGING:
            return self.staging.inputs.take(), self.staging.input_area
        return Area.of(self.device.pinned((nbytes,), torch.uint8)), self.device.empty((nbytes,), torch.uint8)

    def next_output(self, nbytes: int) -> tuple[Ticket, Tensor]:
        """Return the next step's ticket with the host area of its results, and their device area."""
        staging = self.staging
        number = staging.next_number()
        if nbytes > _STAGING:
            area = Area.of(self.device.mapped((HEADER + nbytes,), torch.uint8))
            return Ticket(self.device, area, number), self.device.empty((nbytes,), torch.uint8)
        if len(self._in_flight) >= _HOST_AREAS:
            while (oldest := self._overdue()) is not None:  # its results lie where these go
                self._finish(oldest)
        return Ticket(self.device, staging.outputs.take(), number), staging.output_area

    def publish(self, program: Program, device_area: Tensor, out_area: Tensor, own: Area | None) -> None:
        """Enqueues the end of a step. ``own``: the area of a step that is not recorded; a recorded one finds it by
        the index in its ticket. Large results go by the copy engine, in front of the number."""
        nbytes = program.outputs.nbytes
        results, areas = self._results, _HOST_AREAS
        if out_area is not self.staging.output_area:
            if own is None:
                raise ValueError("results that do not fit the standing area need one of their own")
            tokens = self.pending_tokens.view(torch.uint8)
            self.device.copy(out_area[: tokens.nbytes], tokens)  # the next step may name them
            results, areas = own.bytes.view(torch.int32), 1
        count = nbytes // 4
        if nbytes > _PUBLISHED and own is not None:
            self.device.copy(out_area[:nbytes], own.bytes[HEADER : HEADER + nbytes])
            count = 0
        ticket = program.inputs.on(device_area, "ticket")
        kernels.publish(self.device, out_area[: 4 * count].view(torch.int32), ticket, areas, results)

    def _overdue(self) -> SubmittedStep | None:
        with self._lock:
            return self._in_flight[0] if len(self._in_flight) >= _HOST_AREAS else None

    # ------------------------------------------------------------------ results

    def _finish(self, step: SubmittedStep) -> StepResult:
        with step.lock:
            if step.result is None:
                step.ended.wait()
                area = step.ended.area
                seconds = self._clock.seconds(step)
                outputs, bad_rows = step.read(area)
                step.result = StepResult(
                    outputs,
                    bad_rows,
                    seconds,
                    step.lm_head_rows,
                    step.attended,
                    self._work_bytes,
                    not step.replayed,
                )
                with self._lock:
                    self._in_flight.remove(step)
            return step.result
