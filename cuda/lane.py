"""A step on the host: its shape, the program that its arrays go to, and its launch.

    asked             kinds and sizes of its readouts      ─┐
    measure (native)  the step's shape                     ─┴▶ a program that was recorded ─ or an eager one
    fill (native)     the arrays, in the program's places ─ the plan kept for these lengths ─ one copy, one launch

A recorded program whose readouts are recorded too is known: its readouts' arrays are packed natively, and its results
are read at their addresses. Every other step goes on in ``CudaExecutor.run``.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from prelude._native.gpu import Places, StepPacker, copied_f64, copied_i32, power_bucket
from prelude.cuda.graphs import Program
from prelude.cuda.readout_operation import RecordedReadout
from prelude.cuda.shapes import Shape
from prelude.cuda.staging import HEADER, Area
from prelude.cuda.step_readouts import groups_of, is_plain, joined

from prelude.readouts.batch import (
    I32,
    DecodeBatch,
    ForwardBatch,
    LogprobOutput,
    LogprobRows,
    MixedBatch,
    OneShotBatch,
    Output,
    Readout,
    SampleOutput,
    SampleRows,
)
from prelude.readouts.draw import uniforms

if TYPE_CHECKING:
    from prelude._native.gpu import StepSizes
    from prelude.cuda.executor import CudaExecutor
    from prelude.cuda.submitted import SubmittedStep

Groups: TypeAlias = "tuple[tuple[Readout, ...], ...]"
Asked: TypeAlias = "tuple[RecordedReadout, ...]"  # one for each group
Results: TypeAlias = "tuple[tuple[Output, ...], tuple[I32, ...]]"

_NO_ROWS: I32 = np.zeros(0, np.int32)
_NO_ROWS.setflags(write=False)
_MOST_KNOWN = 4096
_Arrays: TypeAlias = "tuple[tuple[str, type[np.generic], int], ...]"
_SETTINGS: _Arrays = (
    ("temperature", np.float32, 0),
    ("top_k", np.int32, 0),
    ("top_p", np.float32, 1),
    ("min_p", np.float32, 0),
    ("uniform", np.float64, 0),
)
_PAIRS: _Arrays = (("pair_rows", np.int32, -1), ("targets", np.int32, 0))


@dataclass(slots=True)
class MeasuredStep:
    """A step whose sizes ``packer`` has measured. ``order``: of the readouts, group by group, the indices."""

    packer: StepPacker
    sizes: StepSizes
    readouts: list[Any]
    order: tuple[int, ...]

    def indices(self, places: Places) -> list[I32]:
        """Return for each readout the places of its rows among the read rows."""
        found, first = [_NO_ROWS] * len(self.readouts), 0
        for i in self.order:
            count = len(self.readouts[i].rows)
            found[i] = self.packer.indices(places, first, count)
            first += count
        return found


def parts(batch: ForwardBatch) -> tuple[Any, Any, list[tuple[Any, bool]]]:
    """Prompts, decode rows and ``(readout, of decode rows)``."""
    kind = type(batch)
    if kind is OneShotBatch:
        return batch.slices, None, [(batch.readout, False)]  # type: ignore[union-attr]
    if kind is DecodeBatch:
        return None, batch.rows, [(batch.readout, True)]  # type: ignore[union-attr]
    if kind is not MixedBatch:
        raise TypeError(f"an executor runs OneShotBatch, DecodeBatch and MixedBatch, not {kind.__name__}")
    readouts = [(readout, False) for readout in batch.readouts]  # type: ignore[union-attr]
    if batch.decode_readout is not None:  # type: ignore[union-attr]
        readouts.append((batch.decode_readout, True))  # type: ignore[union-attr]
    return batch.slices, batch.decode, readouts  # type: ignore[union-attr]


def asked_of(groups: Groups, chunk_rows: int) -> Asked | None:
    """What a graph holds of each group of readouts; None if it may not hold one of them."""
    found = []
    for group in groups:
        readout: Any = group[0]
        kind = type(readout)
        if kind is SampleRows:
            sampled, rows = False, 0
            for one in group:
                if not is_plain(one):
                    return None
                rows += len(one.rows)
                sampled = sampled or bool((one.temperature > 0).any())  # type: ignore[attr-defined]
            asked = RecordedReadout("sample" if sampled else "greedy", power_bucket(rows), 0)
        elif kind is LogprobRows:
            if readout.top or readout.ranks or (np.diff(readout.target_rows) < 0).any():
                return None
            name = "labels" if readout.raw else "logprobs"
            asked = RecordedReadout(name, power_bucket(len(readout.rows)), power_bucket(len(readout.targets)))
        else:
            return None
        if not 0 < asked.rows <= chunk_rows:
            return None
        found.append(asked)
    return tuple(found)


class KnownReadout:
    """One recorded operation: where its arrays and its results lie."""

    def __init__(self, k: int, asked: tuple[str, int, int], places: Any, outputs: Any) -> None:
        self.kind, self.rows, self.pairs = asked
        names = _SETTINGS if self.kind == "sample" else _PAIRS if self.pairs else ()
        arrays = (("at", np.int32, 0), *names)
        self.arrays = [(places[f"r{k}.{name}"], dtype, rest) for name, dtype, rest in arrays]

        def result(name: str) -> int:
            return HEADER + int(outputs[name].offset) if name in outputs else -1

        self.finite, self.tokens = result(f"r{k}.finite"), result("tokens")
        self.values = result(f"r{k}.{'logits' if self.kind == 'labels' else 'logprobs'}")

    def write(self, area: Area, group: tuple[Readout, ...], at: I32, chunk_rows: int) -> None:
        values: list[Any] = [at]
        if len(self.arrays) > 1:
            readout: Any = joined(group)
            if self.kind == "sample":
                values += [getattr(readout, name) for name, _, _ in _SETTINGS[:-1]]
                values.append(uniforms(readout.seeds, readout.steps))
            else:
                values += [readout.target_rows % chunk_rows, readout.targets]
        for (place, dtype, rest), own in zip(self.arrays, values):
            array: np.ndarray = area.array[place.offset : place.end].view(dtype)
            array[: len(own)] = own
            array[len(own) :] = rest

    def read(self, group: tuple[Readout, ...], address: int) -> list[Output] | None:
        """Return the outputs of a group; None if a number is not finite."""
        readout: Any = group[0]
        if self.kind == "labels":
            logits = copied_f64(address + self.values, len(readout.targets))
            return [LogprobOutput(logits, None, None, None)] if np.isfinite(logits).all() else None
        rows = len(readout.rows) if len(group) == 1 else sum(len(one.rows) for one in group)
        if not copied_i32(address + self.finite, rows).all():
            return None
        if self.kind == "logprobs":
            return [LogprobOutput(copied_f64(address + self.values, len(readout.targets)), None, None, None)]
        start, found = address + self.tokens, list[Output]()
        for one in group:
            found.append(SampleOutput(copied_i32(start, len(one.rows))))
            start += 4 * len(one.rows)
        return found


class KnownStep:
    """A recorded program with the places of its arrays, for readouts of some kinds and sizes."""

    def __init__(self, program: Program, scratch_block: int, chunk_rows: int, asked: Asked) -> None:
        places, outputs = program.inputs.places, program.outputs.places
        self.program = program
        self.asked = asked
        self.nbytes = program.inputs.nbytes
        self.chunk_rows = chunk_rows
        self.places = program.shape.places(program.inputs, scratch_block)
        self.readouts = [KnownReadout(k, one, places, outputs) for k, one in enumerate(asked)]

    def write(self, packer: StepPacker, area: Area, groups: Groups) -> None:
        first = 0
        for known, group in zip(self.readouts, groups):
            count = len(group[0].rows) if len(group) == 1 else sum(len(one.rows) for one in group)
            known.write(area, group, packer.indices(self.places, first, count), self.chunk_rows)
            first += count

    def read(self, groups: Groups, order: tuple[int, ...], area: Area) -> Results | None:
        """The readouts' outputs; None if a number of them is not finite. ``order``: for each output in the order
        of the groups the index of its readout."""
        found: list[Output] = []
        for known, group in zip(self.readouts, groups):
            outputs = known.read(group, area.address)
            if outputs is None:
                return None
            found += outputs
        if len(found) > 1:
            found = [output for _, output in sorted(zip(order, found), key=itemgetter(0))]
        return tuple(found), (_NO_ROWS,) * len(found)


class Lane:
    """Belongs to one executor; its submitting thread alone calls ``submit``."""

    def __init__(self, executor: CudaExecutor) -> None:
        self.executor = executor
        self.packer = StepPacker(
            {
                "block_size": executor.block_size,
                "vocab": executor.config.vocab_size,
                "positions": executor.weights.rope_table.shape[0],
                "seen_whole": executor.seen_whole,
                "rows": executor.step_tokens + executor.step_rows,
                "by_keys": executor.calls is None,
                **asdict(executor.choices),
            }
        )
        self._known: dict[tuple[StepSizes, Asked], KnownStep] = {}

    def submit(self, batch: ForwardBatch) -> SubmittedStep:
        executor, packer = self.executor, self.packer
        slices, decode, readouts = parts(batch)
        order: tuple[int, ...] = (0,)
        groups: Groups = ((readouts[0][0],),) if len(readouts) == 1 else ()
        if len(readouts) != 1:
            indices = groups_of([readout for readout, _ in readouts])
            order = tuple(i for group in indices for i in group)
            groups = tuple(tuple(readouts[i][0] for i in group) for group in indices)
        reads = tuple((readouts[i][0].rows, readouts[i][1]) for i in order)
        sizes = packer.measure(slices, decode, reads, executor.num_blocks, executor.num_pending)
        asked = asked_of(groups, executor.chunk_rows)
        program = None
        if asked is not None:
            known = self._known.get((sizes, asked))
            if known is None or known.program.graph is None:
                known = None
                program = executor.recorder.find(Shape.of(sizes, asked))
                if program is not None:
                    known = self._keep(sizes, asked, program)
            if known is not None:
                return self._launch(known, groups, order)
        else:
            program = executor.recorder.find(Shape.of(sizes))
        step = MeasuredStep(packer, sizes, [readout for readout, _ in readouts], order)
        with executor.device.scope():
            return executor.run(step, program, asked)

    def _keep(self, sizes: StepSizes, asked: Asked, program: Program) -> KnownStep:
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        known = KnownStep(program, self.executor.num_blocks, self.executor.chunk_rows, asked)
        self._known[sizes, asked] = known
        return known

    def _launch(self, known: KnownStep, groups: Groups, order: tuple[int, ...]) -> SubmittedStep:
        executor, packer, program = self.executor, self.packer, known.program
        graph, attention = program.graph, program.attention
        if graph is None or attention is None:
            raise RuntimeError("a known step without a graph")
        area = executor.staging.inputs.take()
        packer.fill(known.places, area.address)
        known.write(packer, area, groups)
        attention.plan(area)
        ended, _ = executor.next_output(program.outputs.nbytes)
        packer.fill_ticket(area.address, ended.number, ended.area.index)
        try:
            executor.device.replay(graph, area, known.nbytes, executor.staging.input_area)
        except Exception:
            executor.staging.give_back(ended.area)  # else a later step takes the area of one that is not read yet
            raise
        executor.graphs.replays += 1
        executor.graphs.touch(program)
        draws = vocab_rows = 0
        for group, readout in zip(groups, known.readouts):
            count = 0 if readout.kind == "labels" else sum(len(one.rows) for one in group)
            vocab_rows += count
            draws += count if readout.kind in ("sample", "greedy") else 0
        executor.num_pending = draws or executor.num_pending
        attended = executor.attended(packer, program.shape)
        packer.forget()
        read = partial(self._read, known, groups, order)
        return executor.enter(read, vocab_rows, attended, area, ended, True)

    def _read(self, known: KnownStep, groups: Groups, order: tuple[int, ...], area: Area) -> Results:
        found = known.read(groups, order, area)
        if found is None:  # a number is not finite: the operations' own reading names the rows
            asked: list[Any] = [None] * len(order)
            for i, readout in zip(order, (one for group in groups for one in group)):
                asked[i] = readout
            readouts = self.executor.readouts_of(known.asked, asked)
            found = readouts.results(known.program.outputs, area.bytes[HEADER:])
        return found
