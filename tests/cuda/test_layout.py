"""The places of tokens and the keys that they read, against an oracle that follows parents and contexts one token at
a time."""

from __future__ import annotations

import numpy as np
import pytest
from prelude.cuda.key_lists import key_lists
from prelude.cuda.layout import Levels, Paged, StepLayout, lay_out
from prelude.cuda.prompt_tree import Tree
from prelude.cuda.shapes import (
    FLOAT_WORKSPACE,
    SHORT,
    SHORT_STEP,
    STEP,
    Choices,
    Shape,
    Writer,
    power_bucket,
    token_bucket,
)
from prelude.cuda.staging import Fields

from bench.gpu.models import qwen3
from prelude.batch import LogprobRows, MixedBatch, OneShotBatch, PromptSlices
from tests.cuda.plans import BLOCKS, random_batch, random_decode, random_slices
from tests.execution.helpers import BLOCK, VOCAB, Segment, i32, slices

SEEDS = range(60)


def prompt_keys(s: PromptSlices) -> list[list[int]]:
    """For each batch token the keys it reads, in order of position: tokens, or -1 - slot of the pool."""
    whole: list[list[int]] = []
    found: list[list[int]] = []
    for segment in range(s.num_segments):
        start, end, parent = int(s.starts[segment]), int(s.starts[segment + 1]), int(s.parents[segment])
        if parent >= 0:
            before = whole[parent]
        else:
            blocks = s.context_blocks[s.context_indptr[segment] : s.context_indptr[segment + 1]]
            before = [-1 - int(blocks[i // BLOCK] * BLOCK + i % BLOCK) for i in range(int(s.context_lens[segment]))]
        for token in range(start, end):
            found.append([*before, *range(start, token + 1)])
        whole.append([*before, *range(start, end)])
    return found


def level_keys(level: Paged, row: int) -> list[int]:
    r = int(np.searchsorted(level.qo, row, side="right")) - 1
    pages = level.pages[level.indptr[r] : level.indptr[r + 1]]
    count = (len(pages) - 1) * level.page_size + int(level.last[r]) if len(pages) else 0
    slots = [int(pages[i // level.page_size]) * level.page_size + i % level.page_size for i in range(count)]
    return [-1 - slot for slot in slots] if level.pool else slots


def keys_of(levels: Levels, row: int, causal_at: int) -> list[int]:
    """Keys of query ``row`` over all levels; ``causal_at``: its place among the step's rows."""
    assert levels.own is not None
    r = int(np.searchsorted(levels.own.qo, row, side="right")) - 1
    first, end = int(levels.own.kv[r]), int(levels.own.kv[r + 1])
    if levels.own.causal:
        end = causal_at + 1
    return [key for level in levels.more for key in level_keys(level, row)] + list(range(first, end))


def reading(rows: int, keys: int) -> Paged:
    """One request behind cached keys."""
    pages = np.arange(-(-keys // BLOCK), dtype=np.int32)
    return Paged(i32([0, rows]), i32([0, len(pages)]), pages, i32([(keys - 1) % BLOCK + 1]), BLOCK, True)


@pytest.mark.parametrize(
    ("heads", "rows", "keys", "splits"),
    [
        *[(16, 64 * 8, 8192, True), (16, 300 * 8, 8192, False), (16, 4, 513, True), (16, 4, 512, False)],
        *[(32, 64 * 8, 8192, True), (32, 160 * 8, 8192, False)],
    ],
)
def test_keys_are_split_where_blocks_would_not_fill_the_device(
    heads: int, rows: int, keys: int, splits: bool
) -> None:
    """Two blocks for each of 132 multiprocessors, 8 KV heads: a block has 128 queries of the heads that share a key.
    64 questions of 8 tokens are 64 or 128 blocks."""
    choices = Choices.of(True, 132, qwen3(64, 1, heads, 64).spec.attention, 0)
    assert choices.splits(reading(rows, keys), rows) == splits


@pytest.mark.parametrize("heads", [16, 40, 64, 128])
def test_the_parts_of_split_keys_fit_into_flashinfers_workspace(heads: int) -> None:
    """A recorded call has room for the float32 sums of each tile of its bucket, at most twice those that split."""
    choices = Choices.of(True, 132, qwen3(64, 1, heads, 64).spec.attention, 0)
    assert 4 < choices.whole_tiles <= FLOAT_WORKSPACE / (2 * heads * 128 * (128 + 1) * 4)


@pytest.mark.feature("H6")
@pytest.mark.parametrize("seed", SEEDS)
def test_levels_and_key_lists_equal_the_batchs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    s = random_slices(rng, VOCAB)
    rows = random_decode(rng, VOCAB)
    read = i32(rng.permutation(s.num_tokens)[: rng.integers(1, 5)])
    layout = lay_out(MixedBatch(s, (LogprobRows(read, i32([]), i32([])),), rows, None), BLOCK, cut=False)
    place = Tree.of(s).place()
    assert sorted(place.tolist()) == list(range(s.num_tokens))
    assert np.array_equal(layout.token_ids[place], s.token_ids)
    assert np.array_equal(layout.positions[place], s.positions)
    expected = prompt_keys(s)
    lists = key_lists(layout, BLOCK)
    for token, keys in enumerate(expected):
        row = int(place[token])
        moved = [key if key < 0 else int(place[key]) for key in keys]
        assert sorted(keys_of(layout.body, row, row)) == sorted(moved)
        listed = lists.keys[lists.first[row] : lists.first[row] + lists.count[row]].tolist()
        assert listed == moved
        assert layout.positions[row] == len(keys) - 1
    assert layout.read[layout.reads[0].at].tolist() == place[read].tolist()
    assert layout.attended == sum(map(len, expected)) + int(rows.context_lens.sum()) + rows.num_rows


@pytest.mark.feature("H6")
@pytest.mark.feature("D5")
@pytest.mark.parametrize("seed", SEEDS)
def test_decode_tables_are_trimmed_to_the_written_entries(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = random_decode(rng, VOCAB)
    layout = lay_out(MixedBatch(slices([Segment(i32([]))]), (), rows, None), BLOCK)
    lists, level = key_lists(layout, BLOCK), layout.body.decode
    assert level is not None
    for b in range(rows.num_rows):
        table = rows.block_ids[rows.block_indptr[b] : rows.block_indptr[b + 1]]
        length = int(rows.context_lens[b]) + 1
        expected = [-1 - int(table[i // BLOCK] * BLOCK + i % BLOCK) for i in range(length)]
        assert level_keys(level, b) == expected
        assert lists.keys[lists.first[b] : lists.first[b] + lists.count[b]].tolist() == expected
        assert -1 - expected[-1] == rows.write_slots[b]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_cut_last_layer_reads_the_same_keys(seed: int) -> None:
    rng = np.random.default_rng(seed)
    s = random_slices(rng, VOCAB)
    ends = np.unique(s.starts[1:][np.diff(s.starts) > 0] - 1)
    chosen = rng.permutation(ends)[: rng.integers(1, len(ends) + 1)]
    layout = lay_out(OneShotBatch(s, LogprobRows(i32(chosen), i32([]), i32([]))), BLOCK)
    if len(layout.read) == layout.rows:
        assert layout.last is None
        return
    assert layout.last is not None
    for at, row in enumerate(layout.read.tolist()):
        assert sorted(keys_of(layout.last, at, row)) == sorted(keys_of(layout.body, row, row))


def test_a_layout_that_cannot_be_cut_is_not() -> None:
    s = slices([Segment(i32(range(10))), Segment(i32(range(5)))])

    def last(rows: list[int]) -> Levels | None:
        return lay_out(OneShotBatch(s, LogprobRows(i32(rows), i32([]), i32([]))), BLOCK).last

    assert last([9]) is not None and last([9, 14]) is not None and last([14]) is not None
    assert last([8]) is None, "a row in the middle of its segment"
    assert last([8, 9]) is None, "two rows of one segment"


def test_roots_on_the_same_blocks_stand_together() -> None:
    segments = [
        Segment(i32([1, 2]), context=32, blocks=[4, 7]),
        Segment(i32([3]), context=20, blocks=[4, 7]),
        Segment(i32([4, 5, 6]), context=32, blocks=[4, 7]),
        Segment(i32([7]), parent=0),
    ]
    layout = lay_out(OneShotBatch(slices(segments), LogprobRows(i32([6]), i32([]), i32([]))), BLOCK)
    assert layout.token_ids.tolist() == [1, 2, 7, 4, 5, 6, 3]
    context = layout.body.more[-1]
    assert context.qo.tolist() == [0, 6, 7] and context.indptr.tolist() == [0, 2, 4]
    assert context.last.tolist() == [16, 4] and context.pool


def test_malformed_forests_are_refused() -> None:
    s = slices([Segment(i32([1])), Segment(i32([2]), parent=0)])
    readout = LogprobRows(i32([0]), i32([]), i32([]))
    upside_down = PromptSlices(
        s.token_ids, s.positions, s.starts, i32([1, -1]), s.context_lens, s.context_indptr, s.context_blocks
    )
    with pytest.raises(ValueError, match="parents come before children"):
        lay_out(OneShotBatch(upside_down, readout), BLOCK)
    short = slices([Segment(i32([1]), context=17, blocks=[3])])
    with pytest.raises(ValueError, match="17 tokens do not lie in 1 blocks"):
        lay_out(OneShotBatch(short, readout), BLOCK)
    with pytest.raises(TypeError, match="not int"):
        lay_out(3, BLOCK)  # type: ignore[arg-type]


# ------------------------------------------------------------------ buckets and padding


def test_buckets_hold_their_tokens_and_waste_little() -> None:
    for count in range(1, 20_000):
        bucket = token_bucket(count)
        assert bucket >= count and bucket % SHORT_STEP == 0 and token_bucket(bucket) == bucket
        assert bucket - count < (SHORT_STEP if count <= SHORT else max(STEP, count / 32))
    loads = np.random.default_rng(0).integers(512, 8192, 2000)
    padded = np.array([token_bucket(int(n)) for n in loads])
    assert (padded - loads).sum() / loads.sum() < 0.03
    assert [power_bucket(n) for n in (0, 1, 2, 3, 5, 64, 65)] == [0, 1, 2, 4, 8, 64, 128]


@pytest.mark.feature("H10")
@pytest.mark.parametrize("seed", SEEDS)
def test_padding_writes_to_the_scratch_block_only(seed: int) -> None:
    """Padding rows of a bucketed step: not written if they are prompts, to the scratch block if they
    decode; and their requests read nothing but that block."""
    rng = np.random.default_rng(seed)
    batch = random_batch(rng, VOCAB)
    layout = lay_out(batch, BLOCK)
    keys = len(key_lists(layout, BLOCK).keys) if seed % 2 else 0
    shape = Shape.exact(layout, keys).bucket(None)
    fields = Fields(shape.sizes())
    area = np.full(fields.nbytes, 0x7F, np.uint8)
    writer = Writer(shape, fields, scratch_block=BLOCKS, block_size=BLOCK)
    writer.write(area, layout)

    def array(name: str) -> np.ndarray:
        place = fields.places[name]
        return area[place.offset : place.end].view(np.int32)

    slots = array("slots")
    assert np.array_equal(slots[: layout.prompts], layout.slots[: layout.prompts])
    assert (slots[layout.prompts : shape.prompts] == -1).all()
    late = slots[shape.prompts :]
    assert np.array_equal(late[: layout.decoding], layout.slots[layout.prompts :])
    assert (late[layout.decoding :] == BLOCKS * BLOCK).all()
    assert array("ids").max(initial=0) < VOCAB and array("positions").max(initial=0) < 1024
    assert array("read").max(initial=0) < max(shape.rows, 1)
    assert len(layout.read) == 0 or np.array_equal(array("ids")[array("read")][_asked(writer, layout)], _ids(layout))
    if shape.decode_entries:
        indptr, pages, last = array("decode.indptr"), array("decode.pages"), array("decode.last")
        assert len(indptr) == shape.decoding + 1 and indptr[-1] <= len(pages)
        assert (pages[indptr[layout.decoding] :] == BLOCKS).all() and (last[layout.decoding :] == 1).all()
        assert (np.diff(indptr)[layout.decoding :] == 1).all()
    for i, level in enumerate(layout.body.more if not keys else ()):
        qo, indptr = array(f"{i}.qo"), array(f"{i}.indptr")
        assert (np.diff(qo)[level.requests :] == 0).all() and (np.diff(indptr)[level.requests :] == 0).all()
    if keys:
        first, count = array("first"), array("count")
        idle = np.setdiff1d(np.arange(shape.rows), [*range(layout.prompts), *_decode_places(layout, shape)])
        assert (count[idle] == 1).all() and (array("keys")[first[idle]] == -1 - BLOCKS * BLOCK).all()


def _asked(writer: Writer, layout: StepLayout) -> np.ndarray:
    return writer.read_index(np.arange(len(layout.read), dtype=np.int32), layout)


def _ids(layout: StepLayout) -> np.ndarray:
    return layout.token_ids[layout.read]


def _decode_places(layout: StepLayout, shape: Shape) -> range:
    return range(shape.prompts, shape.prompts + layout.decoding)


@pytest.mark.parametrize("seed", SEEDS)
def test_an_idle_step_fills_its_buckets(seed: int) -> None:
    """The step that a graph is recorded on has as many rows as the bucket, no more requests than rows, and touches no
    block but the scratch one."""
    layout = lay_out(random_batch(np.random.default_rng(seed), VOCAB), BLOCK)
    keys = len(key_lists(layout, BLOCK).keys) if seed % 2 else 0
    shape = Shape.exact(layout, keys).bucket(None)
    fields = Fields(shape.sizes())
    area = np.full(fields.nbytes, 0x7F, np.uint8)
    Writer(shape, fields, BLOCKS, BLOCK).write_idle(area)

    def array(name: str) -> np.ndarray:
        place = fields.places[name]
        return area[place.offset : place.end].view(np.int32)

    assert (array("slots")[: shape.prompts] == -1).all()
    assert (array("slots")[shape.prompts :] == BLOCKS * BLOCK).all()
    rows = {"qo": shape.prompts, "last.qo": shape.read_prompts}
    for name in fields.places:
        level, _, kind = name.partition(".")
        if kind in rows and level != "decode":
            indptr = array(name)
            assert indptr[0] == 0 and indptr[-1] == rows[kind] and (np.diff(indptr) >= 0).all()
            assert rows[kind] >= len(indptr) - 1 or not shape.cut
        if kind == "pages":
            counted = array(f"{level}.indptr")[-1]
            assert (array(name)[:counted] == BLOCKS).all()
    if shape.keys:
        assert (array("keys") == -1 - BLOCKS * BLOCK).all()
