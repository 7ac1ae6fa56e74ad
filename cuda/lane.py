"""The host's lane for steps of recorded shapes: prompts with cached prefixes and folds, decode rows, or both, and
readouts that are recorded with them.

    asked             kinds and sizes of its readouts      ─┐
    measure (native)  the step's shape as a tuple          ─┴▶ a program that was recorded ─ or None: the general path
    fill (native)     the arrays, in the program's places ─ the plan kept for these lengths ─ one copy, one launch

The bytes that go to the device are those that the general path writes (``shapes.Writer``), and the results are read
from the same places. The shapes are those of ``Shape.bucket``.
"""

from __future__ import annotations

from functools import partial
from operator import itemgetter
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
from prelude.cuda.shapes import PagedShape, Shape, key_range, power_bucket
from prelude.cuda.staging import HEADER, Area
from prelude.cuda.step_readouts import groups_of, is_plain

from prelude.batch import (
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

if TYPE_CHECKING:
    from prelude.cuda.executor import CudaExecutor
    from prelude.cuda.submitted import SubmittedStep

ShapeKey: TypeAlias = tuple[int, int, tuple[Any, ...], int, int, int, int, bool, bool, bool, bool]
Asked: TypeAlias = tuple[tuple[str, int, int], ...]  # as RecordedReadout, one for each group
Groups: TypeAlias = "tuple[tuple[Readout, ...], ...]"
Results: TypeAlias = "tuple[tuple[Output, ...], tuple[I32, ...]]"

_NO_ROWS: I32 = np.zeros(0, np.int32)
_NO_ROWS.setflags(write=False)
_MOST_KNOWN = 4096


def asked_of(groups: Groups) -> Asked | None:
    """Kind and bucketed sizes of each group of readouts; None where a graph may not hold one of them."""
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
                sampled = sampled or any_above_zero(one.temperature)  # type: ignore[attr-defined]
            found.append(("sample" if sampled else "greedy", power_bucket(rows), 0))
        elif kind is LogprobRows:
            if readout.top or readout.ranks or not is_ascending(readout.target_rows):
                return None
            name = "labels" if readout.raw else "logprobs"
            found.append((name, power_bucket(len(readout.rows)), power_bucket(len(readout.targets))))
        else:
            return None
    return tuple(found)


class KnownReadout:
    """One recorded operation: where its arrays and its results lie."""

    def __init__(self, k: int, asked: tuple[str, int, int], places: Any, outputs: Any) -> None:
        self.kind, self.rows, self.pairs = asked
        self.at: int = places[f"r{k}.at"].offset
        names = ("temperature", "top_k", "top_p", "min_p", "uniform") if self.kind == "sample" else ()
        self.settings: Any = tuple(places[f"r{k}.{name}"].offset for name in names)
        self.targets: Any = tuple(places[f"r{k}.{name}"].offset for name in ("pair_rows", "targets") if self.pairs)

        def result(name: str) -> int:
            return HEADER + int(outputs[name].offset) if name in outputs else -1

        self.finite, self.tokens = result(f"r{k}.finite"), result("tokens")
        self.values = result(f"r{k}.{'logits' if self.kind == 'labels' else 'logprobs'}")

    def write(self, area: int, group: tuple[Readout, ...], chunk_rows: int) -> bool:
        """The readout's arrays but its rows. False where one of them has not the readout's size."""
        if self.settings:
            return fill_settings(area, self.settings, self.rows, group)
        if self.targets:
            readout: Any = group[0]
            rows_at, targets_at = self.targets
            return fill_pairs(area, rows_at, targets_at, self.pairs, readout.target_rows, readout.targets, chunk_rows)
        return True

    def read(self, group: tuple[Readout, ...], address: int) -> list[Output] | None:
        """The outputs of a group; None where a number is not finite."""
        readout: Any = group[0]
        if self.kind == "labels":
            logits = copied_f64(address + self.values, len(readout.targets))
            return [LogprobOutput(logits, None, None, None)] if np.isfinite(logits).all() else None
        rows = len(readout.rows) if len(group) == 1 else sum(len(one.rows) for one in group)
        if zeros_in(address + self.finite, rows):
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
        shape, places, outputs = program.shape, program.inputs.places, program.outputs.places
        self.program = program
        self.asked = asked
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
        levels = tuple((level.requests, level.entries) for level in shape.more)
        self.places = Places({name: place.offset for name, place in places.items()}, sizes, lengths, levels)
        self.readouts = [KnownReadout(k, one, places, outputs) for k, one in enumerate(asked)]

    def write(self, packer: StepPacker, area: int, groups: Groups) -> bool:
        """The readouts' arrays. False where one of them has not its readout's size."""
        first = 0
        for known, group in zip(self.readouts, groups):
            count = len(group[0].rows) if len(group) == 1 else sum(len(one.rows) for one in group)
            packer.fill_at(self.places, area, known.at, known.rows, first, count)
            first += count
            if not known.write(area, group, self.chunk_rows):
                return False
        return True

    def read(self, groups: Groups, order: tuple[int, ...], area: Area) -> Results | None:
        """The readouts' outputs; None where a number of them is not finite. ``order``: for each output in the order
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
        choices = executor.choices
        self.executor = executor
        self.packer = StepPacker(
            executor.block_size,
            executor.config.vocab_size,
            executor.seen_whole,
            executor.step_tokens + executor.step_rows,
            executor.cut_last_layer,
            choices.long_query,
            choices.split_keys,
            choices.whole_rows,
            choices.whole_tiles,
            choices.group,
            choices.alone_rows,
        )
        self._known: dict[tuple[ShapeKey, Asked], KnownStep] = {}

    def submit(self, batch: ForwardBatch, began: float) -> SubmittedStep | None:
        """None for a step that the general path must take: nothing has happened then."""
        kind = type(batch)
        slices: Any = None
        decode: Any = None
        readouts: list[tuple[Any, bool]]
        if kind is OneShotBatch:
            slices, readouts = batch.slices, [(batch.readout, False)]  # type: ignore[union-attr]
        elif kind is DecodeBatch:
            decode, readouts = batch.rows, [(batch.readout, True)]  # type: ignore[union-attr]
        elif kind is MixedBatch:
            slices, decode = batch.slices, batch.decode  # type: ignore[union-attr]
            readouts = [(readout, False) for readout in batch.readouts]  # type: ignore[union-attr]
            if batch.decode_readout is not None:  # type: ignore[union-attr]
                readouts.append((batch.decode_readout, True))  # type: ignore[union-attr]
        else:
            return None
        order: tuple[int, ...] = (0,)
        groups: Groups = ((readouts[0][0],),) if len(readouts) == 1 else ()
        if len(readouts) != 1:
            indices = groups_of([readout for readout, _ in readouts])
            order = tuple(i for group in indices for i in group)
            groups = tuple(tuple(readouts[i][0] for i in group) for group in indices)
        asked = asked_of(groups)
        if asked is None:
            return None
        executor, packer = self.executor, self.packer
        reads = tuple((readouts[i][0].rows, readouts[i][1]) for i in order) if readouts else ()
        shape = packer.measure(slices, decode, reads, executor.num_blocks, executor.num_pending)
        if shape is None:
            return None
        known = self._known.get((shape, asked))
        if known is None or known.program.graph is None:
            known = self._look_up(shape, asked)
            if known is None:
                return None
        return self._launch(known, groups, order, began)

    def _look_up(self, shape: ShapeKey, asked: Asked) -> KnownStep | None:
        executor = self.executor
        if not all(0 < rows <= executor.chunk_rows for _, rows, _ in asked):
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

    def _launch(self, known: KnownStep, groups: Groups, order: tuple[int, ...], began: float) -> SubmittedStep | None:
        executor, packer, program = self.executor, self.packer, known.program
        graph, attention = program.graph, program.attention
        if graph is None or attention is None:
            return None
        area = executor.staging.inputs.take()
        packer.fill(known.places, area.address)
        if not known.write(packer, area.address, groups):
            return None
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
        attended = packer.attended
        packer.forget()
        read = partial(self._read, known, groups, order)
        return executor.enter(read, vocab_rows, attended, area, ended, True, began)

    def _read(self, known: KnownStep, groups: Groups, order: tuple[int, ...], area: Area) -> Results:
        found = known.read(groups, order, area)
        if found is None:  # a number is not finite: the operations' own reading names the rows
            asked: list[Any] = [None] * len(order)
            for i, readout in zip(order, (one for group in groups for one in group)):
                asked[i] = readout
            recorded = tuple(RecordedReadout(*one) for one in known.asked)
            readouts = self.executor.readouts_of(recorded, asked)
            found = readouts.results(known.program.outputs, area.bytes[HEADER:])
        return found


def shape_of(key: ShapeKey, asked: Asked) -> Shape:
    prompts, own, levels, decoding, entries, read_prompts, read_decoding, cut, long_query, split, alone = key
    return Shape(
        prompts,
        own,
        tuple(PagedShape(*level) for level in levels),
        decoding,
        entries,
        read_prompts,
        read_decoding,
        cut,
        0,
        tuple(RecordedReadout(*one) for one in asked),
        long_query,
        split,
        alone,
    )
