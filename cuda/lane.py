"""The host's lane for plain steps of recorded shapes: roots without cached context, or decode rows, and one readout.

    measure (native)  the step's shape as a tuple         ─┐
    asked             its readout's kind and sizes        ─┴▶ a program that was recorded ─ or None: the general path
    fill (native)     the arrays, in the program's places ─ the plan kept for these lengths ─ one copy, one launch

The bytes that go to the device are those that the general path writes (``shapes.Writer``), and the results are read
from the same places. The shapes are those of ``Shape.bucket``.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from prelude._native.gpu import (
    Places,
    StepPacker,
    any_above_zero,
    copied_f64,
    copied_i32,
    fill_pairs,
    fill_settings,
    is_ascending,
    zeros_in,
)
from prelude.cuda.graphs import Program
from prelude.cuda.readout_operation import RecordedReadout
from prelude.cuda.shapes import Shape, key_range, power_bucket
from prelude.cuda.staging import HEADER, Area

from prelude.batch import (
    I32,
    DecodeBatch,
    ForwardBatch,
    LogprobOutput,
    LogprobRows,
    OneShotBatch,
    Output,
    SampleOutput,
    SampleRows,
)

if TYPE_CHECKING:
    from prelude.cuda.executor import CudaExecutor
    from prelude.cuda.submitted import SubmittedStep

ShapeKey: TypeAlias = tuple[int, int, int, int, int, int, bool, bool, bool]
Asked: TypeAlias = tuple[str, int, int]  # as RecordedReadout
Results: TypeAlias = "tuple[tuple[Output, ...], tuple[I32, ...]]"

_NO_ROWS: I32 = np.zeros(0, np.int32)
_NO_ROWS.setflags(write=False)
_NO_BAD_ROWS = (_NO_ROWS,)
_MOST_KNOWN = 4096


def asked_of(readout: Any) -> Asked | None:
    """Kind and bucketed sizes of a readout that a graph may hold; None for any other."""
    kind = type(readout)
    if kind is SampleRows:
        if readout.edits is not None or readout.top or readout.logprobs:
            return None
        name = "sample" if any_above_zero(readout.temperature) else "greedy"
        return name, power_bucket(len(readout.rows)), 0
    if kind is LogprobRows:
        if readout.top or readout.ranks or not is_ascending(readout.target_rows):
            return None
        name = "labels" if readout.raw else "logprobs"
        return name, power_bucket(len(readout.rows)), power_bucket(len(readout.targets))
    return None


class KnownStep:
    """A recorded program with the places of its arrays, for one kind of readout."""

    def __init__(self, program: Program, scratch_block: int, chunk_rows: int, asked: Asked) -> None:
        shape, places, outputs = program.shape, program.inputs.places, program.outputs.places
        self.program = program
        self.kind, self.rows, self.pairs = asked
        self.nbytes = program.inputs.nbytes
        self.chunk_rows = chunk_rows
        sizes = {
            "prompts": shape.prompts,
            "own": shape.own,
            "decoding": shape.decoding,
            "entries": shape.decode_entries,
            "scratch_block": scratch_block,
            "read_prompts": shape.read_prompts,
            "read_decoding": shape.read_decoding,
        }
        lengths = key_range(program.inputs, [name for name, _ in shape.lengths()])
        self.places = Places({name: place.offset for name, place in places.items()}, sizes, lengths)
        self.at = places["r0.at"].offset
        names = ("temperature", "top_k", "top_p", "min_p", "uniform") if self.kind == "sample" else ()
        self.settings: Any = tuple(places[f"r0.{name}"].offset for name in names)
        self.targets: Any = tuple(places[f"r0.{name}"].offset for name in ("pair_rows", "targets") if self.pairs)
        self.results = {name: HEADER + place.offset for name, place in outputs.items()}

    def write(self, packer: StepPacker, area: int, readout: Any) -> bool:
        """The readout's arrays. False where one of them has not the readout's size."""
        packer.fill_at(area, self.at, self.rows)
        if self.settings:
            return fill_settings(area, self.settings, self.rows, readout)
        if self.targets:
            rows_at, targets_at = self.targets
            return fill_pairs(
                area, rows_at, targets_at, self.pairs, readout.target_rows, readout.targets, self.chunk_rows
            )
        return True

    def read(self, readout: Any, area: Area) -> Results | None:
        """The readout's output; None where a number of it is not finite."""
        address, results = area.address, self.results
        if self.kind == "labels":
            logits = copied_f64(address + results["r0.logits"], len(readout.targets))
            finite = bool(np.isfinite(logits).all())
            return ((LogprobOutput(logits, None, None, None),), _NO_BAD_ROWS) if finite else None
        rows = len(readout.rows)
        if zeros_in(address + results["r0.finite"], rows):
            return None
        if self.kind == "logprobs":
            values = copied_f64(address + results["r0.logprobs"], len(readout.targets))
            return (LogprobOutput(values, None, None, None),), _NO_BAD_ROWS
        return (SampleOutput(copied_i32(address + results["tokens"], rows)),), _NO_BAD_ROWS


class Lane:
    """Belongs to one executor; its submitting thread alone calls ``submit``."""

    def __init__(self, executor: CudaExecutor) -> None:
        choices = executor.choices
        self.executor = executor
        self.packer = StepPacker(
            executor.block_size,
            executor.config.vocab_size,
            executor.weights.rope_table.shape[0],
            executor.step_tokens + executor.step_rows,
            executor.cut_last_layer,
            choices.long_query,
            choices.split_keys,
            choices.whole_rows,
        )
        self._known: dict[tuple[ShapeKey, Asked], KnownStep] = {}

    def submit(self, batch: ForwardBatch, began: float) -> SubmittedStep | None:
        """None for a step that the general path must take: nothing has happened then."""
        kind = type(batch)
        slices: Any = None
        rows: Any = None
        if kind is OneShotBatch:
            slices = batch.slices  # type: ignore[union-attr]
        elif kind is DecodeBatch:
            rows = batch.rows  # type: ignore[union-attr]
        else:
            return None
        readout: Any = batch.readout  # type: ignore[union-attr]
        asked = asked_of(readout)
        if asked is None:
            return None
        executor, packer = self.executor, self.packer
        shape = packer.measure(slices, rows, readout.rows, executor.num_blocks, executor.num_pending)
        if shape is None:
            return None
        known = self._known.get((shape, asked))
        if known is None or known.program.graph is None:
            known = self._look_up(shape, asked)
            if known is None:
                return None
        return self._launch(known, readout, began)

    def _look_up(self, shape: ShapeKey, asked: Asked) -> KnownStep | None:
        executor = self.executor
        if not 0 < asked[1] <= executor.chunk_rows:
            return None
        self._known.pop((shape, asked), None)
        program = executor.recorder.find(shape_of(shape, asked))
        if program is None:
            return None
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        known = KnownStep(program, executor.num_blocks, executor.chunk_rows, asked)
        self._known[shape, asked] = known
        return known

    def _launch(self, known: KnownStep, readout: Any, began: float) -> SubmittedStep | None:
        executor, packer, program = self.executor, self.packer, known.program
        graph, attention = program.graph, program.attention
        if graph is None or attention is None:
            return None
        area = executor.staging.inputs.take()
        packer.fill(known.places, area.address)
        if not known.write(packer, area.address, readout):
            return None
        attention.plan(area)
        ended, _ = executor.next_output(program.outputs.nbytes)
        packer.fill_ticket(area.address, ended.number, ended.area.index)
        executor.device.replay(graph, area, known.nbytes, executor.staging.input_area)
        executor.graphs.replays += 1
        executor.graphs.touch(program)
        executor.num_pending = readout.draws or executor.num_pending
        attended = packer.attended
        packer.forget()
        read = partial(self._read, known, readout)
        vocab_rows = 0 if known.kind == "labels" else len(readout.rows)
        return executor.enter(read, vocab_rows, attended, area, ended, True, began)

    def _read(self, known: KnownStep, readout: Any, area: Area) -> Results:
        found = known.read(readout, area)
        if found is None:  # a number is not finite: the operation's own reading names the rows
            recorded = RecordedReadout(known.kind, known.rows, known.pairs)
            readouts = self.executor.readouts_of(recorded, readout)
            found = readouts.results(known.program.outputs, area.bytes[HEADER:])
        return found


def shape_of(key: ShapeKey, asked: Asked) -> Shape:
    prompts, own, decoding, entries, read_prompts, read_decoding, cut, long_query, split = key
    return Shape(
        prompts,
        own,
        (),
        decoding,
        entries,
        read_prompts,
        read_decoding,
        cut,
        0,
        RecordedReadout(*asked),
        long_query,
        split,
    )
