"""The arrays of a step: the places of tokens and the keys that they read, against an oracle that follows parents and
contexts one token at a time; padding; steps that are not sound."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from prelude._native.gpu import StepPacker, power_bucket, token_bucket
from prelude.cuda.lane import parts
from prelude.cuda.shapes import Choices, Shape, write_idle
from prelude.cuda.staging import Fields

from prelude.batch import DecodeBatch, ForwardBatch, LogprobRows, MixedBatch, OneShotBatch, PromptSlices
from tests.cuda.plans import BLOCKS, random_batch, random_decode, random_slices
from tests.execution.helpers import BLOCK, VOCAB, Segment, decode_rows, ends, i32, prompts, sampling, slices

LIMIT = 4096
SEEDS = range(60)


def packer(**changed: Any) -> StepPacker:
    limits = {"block_size": BLOCK, "vocab": VOCAB, "positions": LIMIT, "rows": LIMIT, "cut": True}
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

    def level_keys(self, level: str, row: int, page_size: int, pool: bool, qo: str = "qo") -> list[int]:
        r = row if level == "decode" else int(np.searchsorted(self[f"{level}.{qo}"], row, side="right")) - 1
        indptr, last = self[f"{level}.indptr"], self[f"{level}.last"]
        pages = self[f"{level}.pages"][indptr[r] : indptr[r + 1]]
        count = (len(pages) - 1) * page_size + int(last[r]) if len(pages) else 0
        slots = [int(pages[i // page_size]) * page_size + i % page_size for i in range(count)]
        return [-1 - slot for slot in slots] if pool else slots

    def prompt_keys(self, row: int, last: bool = False, causal_at: int = -1) -> list[int]:
        """Keys of query ``row`` over all levels, of the last layer's queries where ``last``."""
        qo = "last.qo" if last else "qo"
        r = int(np.searchsorted(self[f"own.{qo}"], row, side="right")) - 1
        first, end = self["own.kv"][r : r + 2].tolist()
        found = list(range(first, end if last else causal_at + 1))
        for i, level in enumerate(self.shape.more):
            found += self.level_keys(str(i), row, level.page_size, level.pool, qo)
        return sorted(found)

    def listed(self, row: int) -> list[int]:
        return self["keys"][self["first"][row] :][: self["count"][row]].tolist()


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


def steps() -> Iterator[tuple[np.random.Generator, PromptSlices]]:
    """Forests whose token ids are the tokens' numbers."""
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        s = random_slices(rng, VOCAB)
        yield rng, replace(s, token_ids=np.arange(s.num_tokens, dtype=np.int32))


@pytest.mark.feature("H6")
@pytest.mark.feature("D5")
@pytest.mark.parametrize("recorded", [False, True], ids=["exact", "recorded"])
def test_levels_and_key_lists_are_the_keys_of_every_row(recorded: bool) -> None:
    for rng, s in steps():
        rows = random_decode(rng, VOCAB)
        read = i32(rng.permutation(s.num_tokens)[: rng.integers(1, 5)])
        batch = MixedBatch(s, (LogprobRows(read, i32([]), i32([])),), rows, None)
        levels = Written(batch, recorded, vocab=LIMIT, cut=False)
        lists = Written(batch, recorded, vocab=LIMIT, by_keys=True)
        place = np.argsort(levels["ids"][: s.num_tokens])
        assert np.array_equal(levels["ids"][place], s.token_ids)
        assert np.array_equal(levels["positions"][place], s.positions)
        expected, decoding = prompt_keys(s), levels.shape.prompts
        for token, keys in enumerate(expected):
            row = int(place[token])
            moved = [key if key < 0 else int(place[key]) for key in keys]
            assert levels.prompt_keys(row, causal_at=row) == sorted(moved)
            assert lists.listed(row) == moved
        for b in range(rows.num_rows):
            table = rows.block_ids[rows.block_indptr[b] : rows.block_indptr[b + 1]]
            keys = [-1 - int(table[i // BLOCK] * BLOCK + i % BLOCK) for i in range(int(rows.context_lens[b]) + 1)]
            assert levels.level_keys("decode", b, BLOCK, True) == lists.listed(decoding + b) == keys
            assert -1 - keys[-1] == rows.write_slots[b] == levels["slots"][decoding + b]
        found = levels["read"][levels.packer.indices(levels.places, 0, len(read))]
        assert found.tolist() == place[read].tolist()
        total = sum(map(len, expected)) + int(rows.context_lens.sum()) + rows.num_rows
        assert levels.packer.attended == lists.packer.attended_within(1 << 30) == total
        within = sum(min(len(keys), 9) for keys in expected) + int(np.minimum(rows.context_lens + 1, 9).sum())
        assert lists.packer.attended_within(9) == within


@pytest.mark.parametrize("recorded", [False, True], ids=["exact", "recorded"])
def test_a_cut_last_layer_reads_the_same_keys(recorded: bool) -> None:
    cut = 0
    for rng, s in steps():
        last = ends(s)
        chosen = i32(rng.permutation(last)[: rng.integers(1, len(last) + 1)])
        batch = OneShotBatch(s, LogprobRows(chosen, i32([]), i32([])))
        levels, lists = Written(batch, recorded, vocab=LIMIT), Written(batch, recorded, vocab=LIMIT, by_keys=True)
        assert levels.shape.cut == lists.shape.cut == (len(chosen) < s.num_tokens)
        if not levels.shape.cut:
            continue
        cut += 1
        for at in range(len(chosen)):
            row = int(levels["read"][at])
            assert levels.prompt_keys(at, last=True) == levels.prompt_keys(row, causal_at=row)
            listed = lists["keys"][lists["read_first"][at] :][: lists["read_count"][at]].tolist()
            assert listed == lists.listed(row)
    assert cut > len(SEEDS) // 2
    two = slices([Segment(i32(range(10))), Segment(i32(range(5)))])
    for rows, may in (([9], True), ([14, 9], True), ([8], False), ([8, 9], False)):
        assert Written(OneShotBatch(two, sampling(rows))).shape.cut == may, rows


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
    limits = asdict(Choices.of(True, 132, heads, 0)) | most
    state = Segment(i32([1] * tokens), context=keys, blocks=list(range(-(-keys // BLOCK))))
    step = packer(**limits)
    asked = slices([state, *[Segment(i32([2] * tokens), parent=0) for _ in range(questions - 1)]])
    sizes = measured(step, OneShotBatch(asked, sampling([tokens - 1])), blocks=1 << 20)
    assert [level[4] for level in sizes[2] if level[3]] == [split]


# ------------------------------------------------------------------ padding


def test_buckets_hold_their_tokens_and_waste_little() -> None:
    for count in range(1, 20_000):
        bucket = token_bucket(count)
        assert bucket >= count and bucket % 32 == 0 and token_bucket(bucket) == bucket
        assert bucket - count < (32 if count <= 256 else max(64, count / 32))
    assert len({token_bucket(n) for n in range(1, 2049)}) == 36, "few enough to record them all"
    assert [power_bucket(n) for n in (0, 1, 2, 3, 5, 64, 65)] == [0, 1, 2, 4, 8, 64, 128]
    assert power_bucket(3, 64) == 64 and token_bucket(0) == 0


@pytest.mark.feature("H10")
@pytest.mark.parametrize("by_keys", [False, True], ids=["levels", "keys"])
def test_padding_and_idle_steps_touch_the_scratch_block_only(by_keys: bool) -> None:
    """Padding rows of a recorded step: not written if they are prompts, to the scratch block if they decode; and
    their requests read nothing but that block. The step that a graph is recorded on has as many rows as the shape,
    and no more requests than rows."""
    for seed in SEEDS:
        batch = random_batch(np.random.default_rng(seed), VOCAB)
        written, exact = Written(batch, by_keys=by_keys), Written(batch, False, by_keys=by_keys)
        shape, own = written.shape, exact.shape
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
        write_idle(shape, written.fields, written.area, BLOCKS, BLOCK)
        assert (slots[: shape.prompts] == -1).all() and (slots[shape.prompts :] == BLOCKS * BLOCK).all()
        rows = {"qo": shape.prompts, "last.qo": shape.read_prompts}
        for name in written.fields.places:
            level_name, _, kind = name.partition(".")
            if kind in rows:
                indptr = written[name]
                assert indptr[0] == 0 and indptr[-1] == rows[kind] and (np.diff(indptr) >= 0).all()
                assert rows[kind] >= len(indptr) - 1 or not shape.cut
            if kind == "pages":
                assert (written[name][: written[f"{level_name}.indptr"][-1]] == BLOCKS).all()
        assert not shape.keys or (written["keys"] == -1 - BLOCKS * BLOCK).all()


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
