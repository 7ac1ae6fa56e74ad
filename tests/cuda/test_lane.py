"""The host's lane: the same shapes, bytes and results as the general path, and nothing unsound is taken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from prelude._native.gpu import StepPacker
from prelude.cuda.executor import CudaExecutor
from prelude.cuda.graphs import GraphPolicy, Program
from prelude.cuda.lane import KnownStep, asked_of, shape_of
from prelude.cuda.layout import lay_out
from prelude.cuda.readout_operation import RecordedReadout
from prelude.cuda.shapes import Choices, Shape, Writer, power_bucket, token_bucket
from prelude.cuda.staging import Area, Fields
from prelude.cuda.step_readouts import groups_of, recorded_readouts
from torch import from_numpy

from prelude.batch import (
    DecodeBatch,
    DecodeRows,
    ForwardBatch,
    LogprobRows,
    MixedBatch,
    OneShotBatch,
    Readout,
    SampleRows,
)
from tests.cuda.plans import BLOCKS, random_batch
from tests.cuda.test_parity import same
from tests.execution.helpers import (
    BLOCK,
    VOCAB,
    Model,
    Segment,
    decode_rows,
    ends,
    i32,
    prompts,
    random_ids,
    run,
    sampling,
    slices,
)

CHOICES = Choices(long_query=64, split_keys=40, whole_rows=6, whole_tiles=3, group=2)
LIMIT = 4096


def packer(**changed: Any) -> StepPacker:
    limits = {"block_size": BLOCK, "vocab": VOCAB, "positions": LIMIT, "rows": LIMIT, "cut": True}
    limits |= {"long_query": CHOICES.long_query, "split_keys": CHOICES.split_keys, "whole_rows": CHOICES.whole_rows}
    limits |= {"whole_tiles": CHOICES.whole_tiles, "group": CHOICES.group, "alone_rows": 0}
    return StepPacker(**limits | changed)


def drawn(rng: np.random.Generator, rows: np.ndarray) -> SampleRows:
    n, sampled = len(rows), rng.random() < 0.5
    f32 = np.float32
    return SampleRows(
        rows,
        rng.uniform(0, 2, n).astype(f32) * f32(sampled),
        i32(rng.integers(0, 30, n)),
        rng.uniform(0, 1, n).astype(f32),
        rng.uniform(0, 1, n).astype(f32),
        rng.integers(0, 1 << 63, n).astype(np.uint64) * np.uint64(2),
        i32(rng.integers(0, 1 << 30, n)),
    )


def plain_batch(rng: np.random.Generator) -> OneShotBatch | DecodeBatch:
    if rng.random() < 0.4:
        count = int(rng.integers(1, 9))
        lengths = rng.integers(0, 5 * BLOCK, count).tolist()
        spare = rng.integers(0, 3, count)
        tables = [rng.integers(0, BLOCKS, n // BLOCK + 1 + int(s)).tolist() for n, s in zip(lengths, spare)]
        rows = decode_rows(rng.integers(-3, VOCAB, count).tolist(), lengths, tables)
        read = np.sort(rng.permutation(count)[: rng.integers(1, count + 1)])
        return DecodeBatch(rows, drawn(rng, i32(read)))
    segments = []
    for _ in range(int(rng.integers(1, 7))):
        length = int(rng.integers(0 if rng.random() < 0.2 else 1, 90))
        ids = i32(rng.integers(0, VOCAB, length))
        blocks = rng.permutation(BLOCKS)[: -(-length // BLOCK)].tolist()
        segments.append(Segment(ids, write=blocks) if rng.random() < 0.3 and length else Segment(ids))
    segments.append(Segment(i32(rng.integers(0, VOCAB, 3))))
    s = slices(segments)
    last = ends(s)
    some = np.sort(rng.permutation(s.num_tokens)[: rng.integers(1, s.num_tokens + 1)])
    rows = i32(last if rng.random() < 0.7 else some)
    if rng.random() < 0.5:
        return OneShotBatch(s, drawn(rng, rows))
    pairs = int(rng.integers(0, 9))
    target_rows = i32(np.sort(rng.integers(0, len(rows), pairs)))
    targets = i32(rng.integers(0, VOCAB, pairs))
    return OneShotBatch(s, LogprobRows(rows, target_rows, targets, raw=bool(rng.random() < 0.5)))


def parts(batch: ForwardBatch) -> tuple[Any, Any, list[tuple[Readout, bool]]]:
    """Prompts, decode rows, and the readouts with whether they are of decode rows."""
    if isinstance(batch, OneShotBatch):
        return batch.slices, None, [(batch.readout, False)]
    if isinstance(batch, DecodeBatch):
        return None, batch.rows, [(batch.readout, True)]
    assert isinstance(batch, MixedBatch)
    late = [] if batch.decode_readout is None else [(batch.decode_readout, True)]
    return batch.slices, batch.decode, [*((readout, False) for readout in batch.readouts), *late]


def measured(step: StepPacker, batch: ForwardBatch, blocks: int = BLOCKS, pending: int = 3) -> Any:
    slices, rows, readouts = parts(batch)
    order = [i for group in groups_of([readout for readout, _ in readouts]) for i in group]
    return step.measure(slices, rows, tuple((readouts[i][0].rows, readouts[i][1]) for i in order), blocks, pending)


def check_bytes(executor: CudaExecutor, step: StepPacker, batch: ForwardBatch) -> Shape | None:
    """That the lane's shape and arrays are those of the general path. None for readouts that are not recorded."""
    readouts = [readout for readout, _ in parts(batch)[2]]
    groups = tuple(tuple(readouts[i] for i in group) for group in groups_of(readouts))
    asked, recorded = asked_of(groups), recorded_readouts(readouts, executor.chunk_rows)
    unsorted = any(isinstance(r, LogprobRows) and (np.diff(r.target_rows) < 0).any() for r in readouts)
    if recorded is None or unsorted:
        assert unsorted or asked is None or not all(rows for _, rows, _ in asked)
        return None
    assert asked is not None and tuple(RecordedReadout(*one) for one in asked) == recorded
    key = measured(step, batch)
    layout = lay_out(batch, BLOCK)
    shape = Shape.exact(layout, choices=CHOICES).bucket(recorded)
    assert shape_of(key, asked) == shape and step.attended == layout.attended
    operations = executor.readouts_of(recorded, readouts)
    program = Program(shape, Fields([*shape.sizes(), *operations.inputs()]), operations.output_fields())
    known = KnownStep(program, BLOCKS, executor.chunk_rows, asked)
    nbytes = program.inputs.nbytes
    theirs, ours = np.zeros(nbytes, np.uint8), np.zeros(nbytes + 64, np.uint8)
    writer = Writer(shape, program.inputs, BLOCKS, BLOCK)
    writer.write(theirs, layout)
    operations.write(program.inputs, from_numpy(theirs), [writer.read_index(r.at, layout) for r in layout.reads])
    ours[:] = 0xA5  # bytes of another step; between the arrays they stay
    step.fill(known.places, ours.ctypes.data)
    assert known.write(step, ours.ctypes.data, groups)
    assert (ours[nbytes:] == 0xA5).all()
    for name, place in program.inputs.places.items():
        if name != "ticket":
            assert np.array_equal(ours[place.offset : place.end], theirs[place.offset : place.end]), name
    keys = [program.inputs.places[name] for name, _ in shape.lengths()]
    if keys:
        run_of_bytes = slice(keys[0].offset, keys[-1].end)
        assert np.array_equal(ours[run_of_bytes], theirs[run_of_bytes]), "as one run of bytes"
    return shape


def test_shapes_and_bytes_are_those_of_the_general_path(model: Model, on_device: Callable[..., CudaExecutor]) -> None:
    executor = on_device(model, step_rows=512, logits_chunk_rows=512)
    rng, step = np.random.default_rng(5), packer()
    kinds = set()
    for _ in range(150):
        batch = plain_batch(rng)
        shape = check_bytes(executor, step, batch)
        assert shape is not None and shape.readouts is not None
        kinds.add((type(batch).__name__, shape.readouts[0].kind, shape.cut, shape.long_query, shape.decode_split))
    assert len(kinds) >= 12


def ascending(batch: Any) -> Any:
    """With the pairs of every readout in order of their rows, as the engine's readouts have them."""

    def sort(readout: Any) -> Any:
        if not isinstance(readout, LogprobRows):
            return readout
        return replace(readout, target_rows=np.sort(readout.target_rows))

    if isinstance(batch, OneShotBatch):
        return replace(batch, readout=sort(batch.readout))
    if isinstance(batch, MixedBatch):
        return replace(batch, readouts=tuple(map(sort, batch.readouts)))
    return batch


def test_forests_hits_and_several_readouts_are_packed_alike(
    model: Model, on_device: Callable[..., CudaExecutor]
) -> None:
    """Random forests over cached prefixes, beside decode rows, with any number of readouts."""
    executor = on_device(model, step_rows=512, logits_chunk_rows=512)
    rng, step = np.random.default_rng(6), packer()
    seen: Counter[str] = Counter()
    for _ in range(500):
        batch = ascending(random_batch(rng, VOCAB))
        shape = check_bytes(executor, step, batch)
        if shape is None:
            continue
        assert shape.readouts is not None
        slices_of = parts(batch)[0]
        seen["hits"] += any(level.pool for level in shape.more)
        seen["folds"] += any(not level.pool for level in shape.more)
        seen["three levels"] += len(shape.more) >= 3
        seen["cut with levels"] += shape.cut and len(shape.more) > 0
        seen["two readouts"] += len(shape.readouts) == 2
        seen["joined draws"] += len(parts(batch)[2]) > len(shape.readouts)
        seen["no readout"] += not shape.readouts
        seen["beside decode"] += bool(shape.prompts and shape.decoding)
        seen["moved"] += slices_of is not None and (slices_of.parents >= 0).any()
    assert len(seen) == 9 and min(seen.values()) >= 3, seen


def test_long_contexts_are_split_alike(model: Model, on_device: Callable[..., CudaExecutor]) -> None:
    """Few rows behind many cached keys, deep folds, and roots of one context that stand apart in the batch."""
    executor = on_device(model, step_rows=512, logits_chunk_rows=512)
    step, many = packer(), list(range(40))
    split = slices([Segment(i32(range(9)), context=40 * BLOCK - 3, blocks=many)])
    deep = [Segment(i32(range(3)), context=20, blocks=[3, 4])]
    deep += [Segment(i32(range(k % 3)), parent=k) for k in range(12)]
    apart = [
        Segment(i32(range(5)), context=20, blocks=[3, 4]),
        Segment(i32(range(6))),
        Segment(i32(range(7)), context=20, blocks=[3, 4]),
        Segment(i32([]), context=BLOCK, blocks=[3]),
        Segment(i32(range(4)), context=BLOCK, blocks=[3]),
        Segment(i32(range(2)), parent=0),
        Segment(i32(range(3)), context=20, blocks=[4, 3]),
    ]
    for s, splits in ((split, True), (slices(deep), False), (slices(apart), False)):
        for rows in (np.unique(ends(s)), i32(range(s.num_tokens))[::-1].copy()):
            shape = check_bytes(executor, step, OneShotBatch(s, sampling(rows)))
            assert shape is not None and any(level.split for level in shape.more) == splits


def test_results_are_those_of_the_cpu(model: Model, on_device: Callable[..., CudaExecutor]) -> None:
    """Steps with forests, hits and several readouts by the lane, in a chain whose decode rows name drawn tokens."""
    executor = on_device(model, policy=GraphPolicy(at_once=True), logits_chunk_rows=64)
    reference = model.executor(num_blocks=BLOCKS)
    rng, taken = np.random.default_rng(8), 0
    lane = executor._lane
    assert lane is not None
    fill = slices([Segment(random_ids(1, 40), write=[0, 1, 2]), Segment(random_ids(2, 30), write=[4, 5])])
    for batch in (
        OneShotBatch(fill, sampling(ends(fill))),
        *(ascending(random_batch(rng, VOCAB)) for _ in range(25)),
    ):
        known = lane.submit(batch, 0.0)
        theirs = run(reference, batch)
        same(run(executor, batch) if known is None else executor.wait(known), theirs, 2e-4)
        taken += known is not None
    first = slices([Segment(random_ids(3, 20), write=[8, 9]), Segment(random_ids(4, 21), write=[10, 11])])
    rows = decode_rows([7], [20], [[8, 9]])
    mixed = MixedBatch(first, (sampling([40, 19]),), rows, sampling([0]))
    following = DecodeBatch(decode_rows([-3, -1, -2], [21, 21, 20], [[8, 9], [10, 11], [8, 9]]), sampling([0, 1, 2]))
    ours = [executor.submit(batch) for batch in (mixed, following)]
    for ticket, batch in zip(ours, (mixed, following)):
        same(executor.wait(ticket), run(reference, batch), 2e-4)
    assert taken >= 8 and ours[0].replayed  # type: ignore[union-attr]


def test_a_step_that_is_not_sound_is_left_to_the_general_path() -> None:
    step = packer()
    s = prompts(i32(range(20)), i32(range(7)))
    good = OneShotBatch(s, sampling(ends(s)))
    assert measured(step, good) is not None
    child = slices([Segment(i32(range(5))), Segment(i32(range(3)), 0)])
    hit = slices([Segment(i32(range(5)), context=BLOCK, blocks=[1])])
    assert measured(step, OneShotBatch(child, sampling(ends(child)))) is not None
    assert measured(step, OneShotBatch(hit, sampling(ends(hit)))) is not None
    outside = [
        OneShotBatch(replace(child, parents=i32([-1, 1])), sampling([3])),
        OneShotBatch(replace(child, parents=i32([1, -1])), sampling([3])),
        OneShotBatch(replace(child, context_lens=i32([0, 4])), sampling([3])),
        OneShotBatch(replace(hit, context_lens=i32([-1])), sampling([3])),
        OneShotBatch(replace(hit, context_lens=i32([BLOCK + 1])), sampling([3])),
        OneShotBatch(replace(hit, context_lens=i32([2**31 - 1])), sampling([3])),
        OneShotBatch(replace(hit, context_blocks=i32([BLOCKS])), sampling([3])),
        OneShotBatch(replace(hit, context_blocks=i32([-1])), sampling([3])),
        OneShotBatch(replace(hit, context_indptr=i32([0, 2])), sampling([3])),
        OneShotBatch(replace(hit, context_indptr=i32([1, 0])), sampling([3])),
        OneShotBatch(replace(hit, context_indptr=i32([0])), sampling([3])),
        OneShotBatch(s, sampling([-1])),
        OneShotBatch(s, sampling([27])),
        OneShotBatch(replace(s, token_ids=s.token_ids + np.int32(VOCAB)), sampling([3])),
        OneShotBatch(replace(s, token_ids=s.token_ids - np.int32(1)), sampling([3])),
        OneShotBatch(replace(s, positions=s.positions - np.int32(1)), sampling([3])),
        OneShotBatch(replace(s, positions=s.positions + np.int32(LIMIT)), sampling([3])),
        OneShotBatch(replace(s, starts=i32([0, 20, 28])), sampling([3])),
        OneShotBatch(replace(s, starts=i32([0, 30, 27])), sampling([3])),
        OneShotBatch(replace(s, starts=i32([0, 27])), sampling([3])),
        OneShotBatch(replace(s, write_slots=i32([BLOCKS * BLOCK] * 27)), sampling([3])),
        OneShotBatch(replace(s, write_slots=i32([-1] * 26)), sampling([3])),
        OneShotBatch(replace(s, token_ids=s.token_ids.astype(np.int64)), sampling([3])),
    ]
    assert [measured(step, batch) for batch in outside] == [None] * len(outside)
    assert measured(packer(rows=26), good) is None
    rows = decode_rows([5, -1], [3, 20], [[1], [2, 4]])
    assert measured(step, DecodeBatch(rows, sampling([0, 1]))) is not None
    assert measured(step, DecodeBatch(rows, sampling([0, 1])), pending=0) is None
    assert measured(step, DecodeBatch(rows, sampling([0, 1])), blocks=4) is None
    wrong: list[DecodeRows] = [
        replace(rows, context_lens=i32([3, 32])),
        replace(rows, context_lens=i32([-1, 20])),
        replace(rows, block_indptr=i32([0, 3, 1])),
        replace(rows, block_indptr=i32([0, 1, 9])),
        replace(rows, write_slots=i32([0, BLOCKS * BLOCK])),
        replace(rows, token_ids=i32([VOCAB, 0])),
        replace(rows, block_ids=i32([1, -2, 4])),
    ]
    assert [measured(step, DecodeBatch(r, sampling([0, 1]))) for r in wrong] == [None] * len(wrong)


def test_buckets_are_those_of_python() -> None:
    step = packer(rows=1 << 20, positions=1 << 20)
    for count in [*range(1, 600), 1023, 1025, 2047, 2049, 4095, 4096, 4097, 8191, 8193, 70_000]:
        ids = np.zeros(count, np.int32)
        s = replace(prompts(i32([0])), token_ids=ids, positions=ids, starts=i32([0, count]))
        key = measured(step, OneShotBatch(s, sampling([count - 1])))
        assert key[0] == token_bucket(count) >= count
        assert count < 4096 or key[0] <= count * (1 + 1 / 32)
    assert [token_bucket(n) for n in (1, 32, 33, 256, 257, 2048)] == [32, 32, 64, 256, 320, 2048]
    assert len({token_bucket(n) for n in range(1, 2049)}) == 36, "few enough to record them all"
    assert [power_bucket(n) for n in (0, 1, 3, 64, 65)] == [0, 1, 4, 64, 128]


def test_rows_that_are_not_finite_are_named(model: Model, on_device: Callable[..., CudaExecutor]) -> None:
    executor, reference = on_device(model, policy=GraphPolicy(at_once=True)), model.executor()
    s = prompts(i32(range(30)), i32(range(40)), i32(range(20)))
    asked = LogprobRows(ends(s), i32([0, 1, 2]), i32([5, 6, 7]))
    for batch in (
        OneShotBatch(s, sampling(ends(s))),
        OneShotBatch(s, asked),
        OneShotBatch(s, replace(asked, raw=True)),
    ):
        same(run(executor, batch), run(reference, batch), 1e-4)
        executor.device.close()
        with executor.device.scope():
            weights = executor.weights.embeddings
            kept = weights[25].clone()
            weights[25] = float("nan")  # a token of the first two prompts
            result = run(executor, batch)
            weights[25] = kept
        assert not result.eager and result.bad_rows[0].tolist() == [0, 1]
    assert executor._lane is not None and len(executor._lane._known) == 3


def test_a_row_of_joined_draws_that_is_not_finite_is_its_readouts(
    model: Model, on_device: Callable[..., CudaExecutor]
) -> None:
    executor = on_device(model, policy=GraphPolicy(at_once=True))
    s = prompts(i32(range(30)), i32([1, 2, 3]))
    rows = decode_rows([25, 4], [3, 20], [[1], [2, 4]])
    batch = MixedBatch(s, (LogprobRows(i32([32]), i32([0]), i32([7])), sampling([29, 32])), rows, sampling([0, 1]))
    run(executor, batch)
    with executor.device.scope():
        executor.device.close()
        executor.weights.embeddings[25] = float("nan")
        result = run(executor, batch)
    assert not result.eager and [bad.tolist() for bad in result.bad_rows] == [[], [0], [0]]
    assert [len(output.token_ids) for output in result.outputs[1:]] == [2, 2]  # type: ignore[attr-defined]


def test_places_of_another_shape_are_refused(model: Model, on_device: Callable[..., CudaExecutor]) -> None:
    executor, step = on_device(model), packer()
    small = OneShotBatch(prompts(i32(range(20))), sampling([19]))
    asked = asked_of(((small.readout,),))
    assert asked is not None
    shape = shape_of(measured(step, small), asked)
    operations = executor.readouts_of(shape.readouts)
    fields = Fields([*shape.sizes(), *operations.inputs()])
    known = KnownStep(Program(shape, fields, operations.output_fields()), BLOCKS, 64, asked)
    room = np.zeros(fields.nbytes, np.uint8)
    for batch in (
        OneShotBatch(prompts(i32(range(40))), sampling([39])),
        OneShotBatch(slices([Segment(i32(range(5))), Segment(i32(range(3)), 0)]), sampling([7])),
        DecodeBatch(decode_rows([5], [3], [[1]]), sampling([0])),
    ):
        assert measured(step, batch) is not None
        with pytest.raises(ValueError, match="no room"):
            step.fill(known.places, room.ctypes.data)
    with pytest.raises(ValueError, match="are not rows"):
        step.fill_at(known.places, room.ctypes.data, 0, 8, 1, 1)
    step.forget()
    with pytest.raises(ValueError, match="no step"):
        step.fill(known.places, room.ctypes.data)


def test_a_step_without_prompts_is_not_filled_into_places_of_prompts(
    model: Model, on_device: Callable[..., CudaExecutor]
) -> None:
    """Its segments would be those of the step before."""
    executor, step = on_device(model), packer()
    rows = decode_rows([5], [3], [[1]])
    both = MixedBatch(prompts(i32(range(20))), (sampling([19]),), rows, sampling([0]))
    asked = asked_of(((sampling([19]), sampling([0])),))
    assert asked is not None
    shape = shape_of(measured(step, both), asked)
    operations = executor.readouts_of(shape.readouts)
    fields = Fields([*shape.sizes(), *operations.inputs()])
    known = KnownStep(Program(shape, fields, operations.output_fields()), BLOCKS, 64, asked)
    room = np.zeros(fields.nbytes, np.uint8)
    step.fill(known.places, room.ctypes.data)
    assert measured(step, DecodeBatch(rows, sampling([0]))) is not None
    with pytest.raises(ValueError, match="no room"):
        step.fill(known.places, room.ctypes.data)


def test_a_step_of_the_lane_names_tokens_that_the_general_path_drew(
    model: Model, on_device: Callable[..., CudaExecutor]
) -> None:
    executor, reference = on_device(model, policy=GraphPolicy(at_once=True)), model.executor(num_blocks=BLOCKS)
    fill = slices([Segment(i32(range(20)), write=[4, 5]), Segment(i32(range(3)), 0)])
    first = OneShotBatch(fill, sampling([19, 22]))
    following = [DecodeBatch(decode_rows([-1], [20 + at], [[4, 5]]), sampling([0])) for at in range(4)]
    tickets = [executor.submit(batch) for batch in (first, *following)]
    ours = [int(executor.wait(t).outputs[0].token_ids[0]) for t in tickets]  # type: ignore[attr-defined]
    theirs = [int(run(reference, first).outputs[0].token_ids[0])]
    for at in range(4):
        batch = DecodeBatch(decode_rows([theirs[-1]], [20 + at], [[4, 5]]), sampling([0]))
        theirs.append(int(run(reference, batch).outputs[0].token_ids[0]))
    assert ours == theirs and executor.graphs.replays >= 4


@pytest.mark.parametrize("value", [1, 0x7FFF_FFFE, 0xFFFF_FFFD])
def test_tickets_wrap_around(model: Model, on_device: Callable[..., CudaExecutor], value: int) -> None:
    executor, reference = on_device(model, policy=GraphPolicy(at_once=True)), model.executor()
    executor.staging.number = value
    for area in executor.staging.outputs.areas:
        area.array[:4].view(np.uint32)[0] = value
    batch = OneShotBatch(prompts(i32(range(30))), sampling([29]))
    for _ in range(5):
        ticket: Any = executor.submit(batch)
        assert not ticket.ended.done()
        same(executor.wait(ticket), run(reference, batch), 1e-4)
        assert ticket.ended.done()
    assert Area.of(from_numpy(np.zeros(16, np.uint8))).busy is None
