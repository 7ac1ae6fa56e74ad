"""The arrays of a step: when keys are split and the last layer is cut, padding, and steps that are not sound.

The keys of each row are seen in the numbers (``test_parity.py``)."""

from __future__ import annotations

from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from prelude._native.gpu import StepPacker, power_bucket, token_bucket
from prelude.cuda.lane import parts
from prelude.cuda.shapes import Choices, Shape
from prelude.cuda.staging import Fields

from prelude.readouts.batch import DecodeBatch, ForwardBatch, MixedBatch, OneShotBatch, PromptSlices
from tests.cuda.plans import BLOCKS, random_batch
from tests.execution.helpers import BLOCK, VOCAB, Segment, decode_rows, ends, i32, prompts, sampling, slices

LIMIT = 4096
SEEDS = range(60)


def packer(**changed: Any) -> StepPacker:
    limits = {"block_size": BLOCK, "vocab": VOCAB, "positions": LIMIT, "rows": LIMIT}
    limits |= {"seen_whole": LIMIT, "by_keys": False, **asdict(Choices())}
    return StepPacker(limits | changed)


def measured(step: StepPacker, batch: ForwardBatch, blocks: int = BLOCKS, pending: int = 3) -> Any:
    prompts, rows, readouts = parts(batch)
    return step.measure(prompts, rows, tuple((readout.rows, late) for readout, late in readouts), blocks, pending)


class Written:
    """A step's arrays in the places of its shape, recorded or exact."""

    def __init__(self, batch: ForwardBatch, recorded: bool = True, **limits: Any) -> None:
        self.packer = packer(**limits)
        sizes = measured(self.packer, batch)
        self.shape = Shape.of(sizes if recorded else self.packer.exact())
        self.fields = Fields(self.shape.sizes())
        self.area = np.full(self.fields.nbytes + 16, 0x7F, np.uint8)
        self.places = self.shape.places(self.fields, BLOCKS)
        self.packer.fill(self.places, self.area.ctypes.data)

    def __getitem__(self, name: str) -> np.ndarray:
        place = self.fields.places[name]
        return self.area[place.offset : place.end].view(np.int32)

    def listed(self, row: int) -> list[int]:
        return self["keys"][self["first"][row] :][: self["count"][row]].tolist()


@pytest.mark.parametrize(("rows", "cut"), [([9], True), ([14, 9], True), ([8], False), ([8, 9], False)])
def test_the_last_layer_is_cut_to_rows_that_end_their_segments(rows: list[int], cut: bool) -> None:
    two = slices([Segment(i32(range(10))), Segment(i32(range(5)))])
    for by_keys in (False, True):
        assert Written(OneShotBatch(two, sampling(rows)), by_keys=by_keys).shape.cut == cut


def test_roots_on_the_same_blocks_stand_together() -> None:
    segments = [
        Segment(i32([1, 2]), context=32, blocks=[4, 7]),
        Segment(i32([3]), context=20, blocks=[4, 7]),
        Segment(i32([4, 5, 6]), context=32, blocks=[4, 7]),
        Segment(i32([7]), parent=0),
    ]
    written = Written(OneShotBatch(slices(segments), sampling([6])), recorded=False)
    assert written["ids"].tolist() == [1, 2, 7, 4, 5, 6, 3]
    assert written["1.qo"].tolist() == [0, 6, 7] and written["1.indptr"].tolist() == [0, 2, 4]
    assert written["1.last"].tolist() == [16, 4] and written.shape.more[1].pool


@pytest.mark.parametrize(
    ("questions", "tokens", "keys", "split"),
    [(1, 9, 600, True), (64, 8, 8192, True), (1, 9, 512, False), (64, 300, 600, False)],
)
def test_keys_of_a_prefix_are_split_if_its_tiles_would_not_fill_the_device(
    questions: int, tokens: int, keys: int, split: bool
) -> None:
    heads: Any = SimpleNamespace(heads=16, kv_heads=8, head_dim=128)
    most = dict.fromkeys(("rows", "positions", "seen_whole"), 1 << 20)
    limits = asdict(Choices.of(True, 132, heads)) | most
    state = Segment(i32([1] * tokens), context=keys, blocks=list(range(-(-keys // BLOCK))))
    step = packer(**limits)
    asked = slices([state, *[Segment(i32([2] * tokens), parent=0) for _ in range(questions - 1)]])
    sizes = measured(step, OneShotBatch(asked, sampling([tokens - 1])), blocks=1 << 20)
    assert [level[4] for level in sizes[2] if level[3]] == [split]


# ------------------------------------------------------------------ padding
def test_buckets_hold_their_tokens_and_waste_little() -> None:
    for count in range(1, 5000):
        bucket = token_bucket(count)
        assert bucket >= count and bucket % 32 == 0 and token_bucket(bucket) == bucket
        assert bucket - count < (32 if count <= 256 else 64)
    assert len({token_bucket(n) for n in range(1, 2049)}) == 36, "few enough to record them all"
    assert [power_bucket(n) for n in (0, 1, 2, 3, 5, 64, 65)] == [0, 1, 2, 4, 8, 64, 128]
    assert power_bucket(3, 64) == 64 and token_bucket(0) == 0


@pytest.mark.feature("H10")
@pytest.mark.parametrize("by_keys", [False, True], ids=["levels", "keys"])
def test_padding_touches_the_scratch_block_only(by_keys: bool) -> None:
    """Padding rows of a recorded step: not written if they are prompts, to the scratch block if they decode; and
    their requests read nothing but that block."""
    for seed in SEEDS:
        batch = random_batch(np.random.default_rng(seed), VOCAB)
        written, exact = Written(batch, by_keys=by_keys), Written(batch, False, by_keys=by_keys)
        shape, own = written.shape, exact.shape
        assert (shape.prompts, shape.decoding) == (token_bucket(own.prompts), power_bucket(own.decoding))
        slots = written["slots"]
        assert np.array_equal(slots[: own.prompts], exact["slots"][: own.prompts])
        assert (slots[own.prompts : shape.prompts] == -1).all()
        assert np.array_equal(slots[shape.prompts :][: own.decoding], exact["slots"][own.prompts :])
        assert (slots[shape.prompts + own.decoding :] == BLOCKS * BLOCK).all()
        assert written["ids"].max(initial=0) < VOCAB and written["positions"].max(initial=0) < 1024
        assert written["read"].max(initial=0) < max(shape.rows, 1)
        if shape.decode_entries:
            indptr, pages, last = written["decode.indptr"], written["decode.pages"], written["decode.last"]
            assert len(indptr) == shape.decoding + 1 and indptr[-1] <= len(pages)
            assert (pages[indptr[own.decoding] :] == BLOCKS).all() and (last[own.decoding :] == 1).all()
        for i, level in enumerate(own.more):
            for name in (f"{i}.qo", f"{i}.indptr"):
                assert (np.diff(written[name])[level.requests :] == 0).all()
        if by_keys:
            used = [*range(own.prompts), *range(shape.prompts, shape.prompts + own.decoding)]
            for row in np.setdiff1d(np.arange(shape.rows), used).tolist():
                assert written.listed(row) == [-1 - BLOCKS * BLOCK]


# ------------------------------------------------------------------ steps that are not sound
def test_a_step_that_is_not_sound_is_refused() -> None:
    step = packer()
    s = prompts(i32(range(20)), i32(range(7)))
    child = slices([Segment(i32(range(5))), Segment(i32(range(3)), 0)])
    hit = slices([Segment(i32(range(5)), context=BLOCK, blocks=[1])])
    for sound in (s, child, hit):
        measured(step, OneShotBatch(sound, sampling(ends(sound))))
    wrong: list[tuple[PromptSlices, str]] = [
        (replace(child, parents=i32([-1, 1])), "segment 1 has parent 1; parents come before children"),
        (replace(child, parents=i32([1, -1])), "parents come before children"),
        (replace(child, context_lens=i32([0, 4])), "a parent and a context of its own"),
        (replace(hit, context_lens=i32([-1])), "a context of -1 tokens"),
        (replace(hit, context_lens=i32([BLOCK + 1])), "17 tokens do not lie in 1 blocks of 16"),
        (replace(hit, context_lens=i32([2**31 - 1])), "a context of"),
        (replace(hit, context_blocks=i32([BLOCKS])), f"block {BLOCKS} is out of bounds: 0 to {BLOCKS - 1}"),
        (replace(hit, context_blocks=i32([-1])), "block -1"),
        (replace(hit, context_indptr=i32([0, 2])), "the edges of 1 segments"),
        (replace(hit, context_indptr=i32([1, 0])), "the edges"),
        (replace(hit, context_indptr=i32([0])), "differ in length"),
        (replace(child, context_indptr=i32([0, 9, 0])), "its blocks end behind all"),
        (replace(s, token_ids=s.token_ids + np.int32(VOCAB)), f"token id {VOCAB}"),
        (replace(s, token_ids=s.token_ids - np.int32(1)), "token id -1"),
        (replace(s, positions=s.positions - np.int32(1)), "position -1"),
        (replace(s, positions=s.positions + np.int32(LIMIT)), f"position {LIMIT}"),
        (replace(s, starts=i32([0, 20, 28])), "the edges"),
        (replace(s, starts=i32([0, 30, 27])), "ends before it begins"),
        (replace(s, starts=i32([0, 27])), "differ in length"),
        (replace(s, write_slots=i32([BLOCKS * BLOCK] * 27)), f"slot {BLOCKS * BLOCK}"),
        (replace(s, write_slots=i32([-1] * 26)), "26 slots"),
        (replace(s, token_ids=s.token_ids.reshape(3, 9)), "not flat"),
    ]
    for bad, said in wrong:
        with pytest.raises(ValueError, match=said):
            measured(step, OneShotBatch(bad, sampling([3])))
        with pytest.raises(ValueError, match="no step"):
            step.exact()
    for row in (-1, 27):
        with pytest.raises(ValueError, match=f"row {row}"):
            measured(step, OneShotBatch(s, sampling([row])))
    with pytest.raises(ValueError, match="27 rows; there is room for 26"):
        measured(packer(rows=26), OneShotBatch(s, sampling([3])))
    rows = decode_rows([5, -1], [3, 20], [[1], [2, 4]])
    measured(step, DecodeBatch(rows, sampling([0, 1])))
    for limits in ({"pending": 0}, {"blocks": 4}):
        with pytest.raises(ValueError, match="out of bounds"):
            measured(step, DecodeBatch(rows, sampling([0, 1])), **limits)
    for change, said in (
        ({"context_lens": i32([3, 32])}, "33 tokens do not lie in 2 blocks"),
        ({"context_lens": i32([-1, 20])}, "decode row 0 has -1 tokens"),
        ({"block_indptr": i32([0, 3, 1])}, "decode row 1"),
        ({"block_indptr": i32([0, 9, 3])}, "decode row 0"),
        ({"block_indptr": i32([0, 1, 9])}, "the edges of 2 tables"),
        ({"write_slots": i32([0, BLOCKS * BLOCK])}, "slot"),
        ({"token_ids": i32([VOCAB, 0])}, "token id"),
        ({"block_ids": i32([1, -2, 4])}, "block -2"),
    ):
        with pytest.raises(ValueError, match=said):
            measured(step, DecodeBatch(replace(rows, **change), sampling([0, 1])))


def test_places_of_another_shape_are_refused() -> None:
    """Segments in them would be those of the step before."""
    rows = decode_rows([5], [3], [[1]])
    small = Written(OneShotBatch(prompts(i32(range(20))), sampling([19])))
    both = Written(MixedBatch(prompts(i32(range(20))), (sampling([19]),), rows, sampling([0])))
    for written, batch in (
        (small, OneShotBatch(prompts(i32(range(40))), sampling([39]))),
        (small, OneShotBatch(slices([Segment(i32(range(5))), Segment(i32(range(3)), 0)]), sampling([7]))),
        (small, DecodeBatch(rows, sampling([0]))),
        (both, DecodeBatch(rows, sampling([0]))),
    ):
        measured(written.packer, batch)
        with pytest.raises(ValueError, match="no room"):
            written.packer.fill(written.places, written.area.ctypes.data)
    lists = Written(DecodeBatch(rows, sampling([0])), by_keys=True)
    with pytest.raises(ValueError, match="no room"):
        both.packer.fill(lists.places, lists.area.ctypes.data)
    with pytest.raises(ValueError, match="are not rows"):
        small.packer.indices(small.places, 1, 1)
    small.packer.forget()
    with pytest.raises(ValueError, match="no step"):
        small.packer.fill(small.places, small.area.ctypes.data)
