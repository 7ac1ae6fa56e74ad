"""The shape of a step: how many of each thing there are room for. A captured graph serves every step of its shape.

Sizes are rounded up to buckets; the unused part is padding:

    tokens      id 0, position 0, written nowhere; they stand in no attention request
    decode      rows whose table is the scratch block and that write there, nowhere else
    requests    empty ones, at the end of the indptr
    read rows   row 0 again; its results are not read
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from prelude._native.gpu import Places

from prelude.readouts.batch import I32

if TYPE_CHECKING:
    from prelude._native.gpu import StepSizes
    from prelude.cuda.readout_operation import RecordedReadout
    from prelude.cuda.staging import Fields

    from prelude.models.spec import Attention

LONG_QUERY = 256
"""Tokens of a prompt from which on attention is FA3's, if there is one."""
SPLIT_KEYS = 512
"""Keys up to which one block reads all of a row's: joining parts costs a kernel a layer."""
FLOAT_WORKSPACE = 256 << 20
"""Bytes for the float32 sums of parts that are joined."""
QUERY_TILE = 128
"""Queries of a block of FlashInfer's prefill, those of a group of heads together."""


@dataclass(frozen=True, slots=True)
class Choices:
    """The bounds between attention's ways. ``long_query``: see ``LONG_QUERY``; a number above every length if
    there is no FA3. ``whole_rows``: decode rows that fill the device, so that splitting their keys gains nothing;
    ``whole_tiles``: tiles of prompts that do. ``group``: query heads that share a key."""

    long_query: int = 1 << 30
    split_keys: int = SPLIT_KEYS
    whole_rows: int = 1 << 30
    whole_tiles: int = 1 << 30
    group: int = 1

    @classmethod
    def of(cls, fa3: bool, processors: int, heads: Attention) -> Choices:
        """``processors``: multiprocessors of the device, each of which runs two blocks at a time."""
        whole = max(1, -(-2 * processors // heads.kv_heads))
        # A bucket has at most twice the tiles, and each of them room for its float32 sums in FlashInfer's workspace.
        room = FLOAT_WORKSPACE // (2 * heads.heads * QUERY_TILE * (heads.head_dim + 1) * 4)
        group = heads.heads // heads.kv_heads
        return cls(LONG_QUERY if fa3 else 1 << 30, SPLIT_KEYS, whole, min(whole, room), group)


@dataclass(frozen=True, slots=True)
class PagedShape:
    requests: int
    entries: int  # pages in all
    page_size: int
    pool: bool
    split: bool = False  # keys are split among blocks


@dataclass(frozen=True, slots=True)
class Shape:
    """Capacities. Tokens are rounded up to multiples of 32, above 256 of 64: few enough shapes to record them all
    before a request comes. All else is rounded up to powers of two. ``keys`` > 0:
    attention by explicit key lists of so many keys; the level sizes are 0 then."""

    prompts: int
    own: int  # requests of the own level
    more: tuple[PagedShape, ...]
    decoding: int
    decode_entries: int
    read_prompts: int  # read rows among the prompts; those of decode rows stand behind them
    read_decoding: int
    cut: bool  # the last layer has queries for the read rows only
    keys: int
    readouts: tuple[RecordedReadout, ...] | None  # recorded in the graph; None: they run after it
    long_query: bool = False  # the own level is FA3's
    decode_split: bool = False  # keys of decode rows are split among blocks

    @property
    def rows(self) -> int:
        return self.prompts + self.decoding

    @property
    def levels(self) -> bool:
        """Whether FlashInfer attends."""
        return not self.keys

    @property
    def read(self) -> int:
        return self.read_prompts + self.read_decoding

    @classmethod
    def of(cls, sizes: StepSizes, readouts: tuple[RecordedReadout, ...] | None = None) -> Shape:
        """Make the shape that ``StepPacker`` measured."""
        prompts, own, levels, decoding, entries, read_prompts, read_decoding, cut, keys, *ways = sizes
        more = tuple(PagedShape(*level) for level in levels)
        return cls(
            prompts, own, more, decoding, entries, read_prompts, read_decoding, cut, keys, readouts, *map(bool, ways)
        )

    def places(self, fields: Fields, scratch_block: int) -> Places:
        """Where ``StepPacker`` puts a step's arrays."""
        sizes = {
            "prompts": self.prompts,
            "own": self.own,
            "decoding": self.decoding,
            "entries": self.decode_entries,
            "read_prompts": self.read_prompts,
            "read_decoding": self.read_decoding,
            "keys": self.keys,
            "scratch_block": scratch_block,
        }
        offsets = {name: place.offset for name, place in fields.places.items()}
        levels = tuple((level.requests, level.entries) for level in self.more)
        return Places(offsets, sizes, key_range(fields, [name for name, _ in self.lengths()]), levels)

    def sizes(self) -> list[tuple[str, int, str]]:
        """Return the arrays that go to the device, in the order of the packed copy."""
        found = [
            ("ticket", 2, "i32"),  # the step's number and the index of its output area
            ("ids", self.rows, "i32"),
            ("positions", self.rows, "i32"),
            ("slots", self.rows, "i32"),
            ("read", self.read, "i32"),
            ("read_positions", self.read, "i32"),
        ]
        if self.keys:
            found += [("keys", self.keys, "i32"), ("first", self.rows, "i32"), ("count", self.rows, "i32")]
            found += [("read_first", self.read, "i32"), ("read_count", self.read, "i32")]
        found += [(name, count, "i32") for name, count in self.lengths()]
        for i, level in enumerate(self.more):
            if not level.split:
                found += [(f"{i}.indptr", level.requests + 1, "i32"), (f"{i}.last", level.requests, "i32")]
            found.append((f"{i}.pages", level.entries, "i32"))
        if self.decode_entries:
            if not self.decode_split:
                found.append(("decode.indptr", self.decoding + 1, "i32"))
            found += [("decode.last", self.decoding, "i32"), ("decode.pages", self.decode_entries, "i32")]
        return found

    def lengths(self) -> list[tuple[str, int]]:
        """The arrays that attention plans depend on, which stand side by side: a plan is kept for each content. A
        plan whose keys are not split depends on the queries alone, and in decode each row is one query."""
        found: list[tuple[str, int]] = []
        if self.own:
            found += [("own.qo", self.own + 1), ("own.kv", self.own + 1)]
            if self.cut:
                found.append(("own.last.qo", self.own + 1))
        for i, level in enumerate(self.more):
            found.append((f"{i}.qo", level.requests + 1))
            if level.split:
                found += [(f"{i}.indptr", level.requests + 1), (f"{i}.last", level.requests)]
            if self.cut:
                found.append((f"{i}.last.qo", level.requests + 1))
        if self.decode_entries and self.decode_split:
            found.append(("decode.indptr", self.decoding + 1))
        return found


def key_range(fields: Fields, names: Sequence[str]) -> tuple[int, int]:
    """Return the bytes of arrays that stand side by side."""
    return (fields.places[names[0]].offset, fields.places[names[-1]].end) if names else (0, 0)


def write_idle(shape: Shape, fields: Fields, area: np.ndarray, scratch_block: int, block_size: int) -> None:
    """A step of nothing but padding that has the most rows in every request list. Graphs are recorded on it. It reads
    the scratch block and writes nowhere else."""

    def array(name: str) -> np.ndarray:
        place = fields.places[name]
        return area[place.offset : place.end].view(np.int32)

    area[: fields.nbytes] = 0
    slots = array("slots")
    slots[: shape.prompts] = -1
    slots[shape.prompts :] = scratch_block * block_size
    if shape.keys:
        array("keys")[:] = -1 - scratch_block * block_size
        for name in ("count", "read_count"):
            array(name)[:] = 1
        return
    if shape.own:
        for name in ("own.qo", "own.kv"):
            array(name)[:] = _spread(shape.prompts, shape.own)
        if shape.cut:
            array("own.last.qo")[:] = _spread(shape.read_prompts, shape.own)
    for i, level in enumerate(shape.more):
        array(f"{i}.qo")[:] = _spread(shape.prompts, level.requests)
        if shape.cut:
            array(f"{i}.last.qo")[:] = _spread(shape.read_prompts, level.requests)
        array(f"{i}.last")[:] = 0
        # No request has keys: the scratch block is not part of this step's K and V.
    if shape.decode_entries:
        array("decode.indptr")[:] = np.arange(shape.decoding + 1)
        array("decode.last")[:] = 1
        array("decode.pages")[:] = scratch_block


def _spread(rows: int, requests: int) -> I32:
    """Return an indptr of ``requests`` that covers ``rows``: one each, the first has the rest; empty ones if rows
    lack."""
    edges = rows - np.arange(requests, -1, -1, dtype=np.int64)
    spread: I32 = np.maximum(edges, 0).astype(np.int32)
    spread[0] = 0
    return spread
