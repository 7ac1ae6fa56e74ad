"""The shape of a step: how many of each thing there are room for. A captured graph serves every step of its shape.

Sizes are rounded up to buckets; the unused part is padding:

    tokens      id 0, position 0, written nowhere; they stand in no attention request
    decode      rows whose table is the scratch block and that write there, nowhere else
    requests    empty ones, at the end of the indptr
    read rows   row 0 again; its results are not read
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from prelude.cuda.key_lists import key_lists
from prelude.cuda.layout import Levels, Paged, Ragged, StepLayout

from prelude.batch import I32

if TYPE_CHECKING:
    from prelude.cuda.readout_operation import RecordedReadout
    from prelude.cuda.staging import Fields

    from prelude.models.spec import Attention

SHORT, SHORT_STEP, STEP = 256, 32, 64
"""Tokens in steps of 32 to 256, then of 64; from 4,096 on at most 1/32 is padding. Few enough shapes to record them
all before a request comes. Up to 256 tokens a step's time is that of reading the weights, for any number of rows."""
LONG_QUERY = 256
"""Tokens of a prompt from which on attention is FA3's, where there is one."""
SPLIT_KEYS = 512
"""Keys up to which one block reads all of a row's: joining parts costs a kernel a layer."""
FLOAT_WORKSPACE = 256 << 20
"""Bytes for the float32 sums of parts that are joined."""
QUERY_TILE = 128
"""Queries of a block of FlashInfer's prefill, those of a group of heads together."""


def token_bucket(count: int) -> int:
    """The least bucket that holds ``count`` tokens; 0 for none."""
    if count <= 0:
        return 0
    step = SHORT_STEP if count <= SHORT else STEP
    while step * 64 <= count:
        step *= 2
    return -(-count // step) * step


def power_bucket(count: int, least: int = 1) -> int:
    """The least power of two that holds ``count``, at least ``least``; 0 for none."""
    if count <= 0:
        return 0
    return max(least, 1 << (count - 1).bit_length())


@dataclass(frozen=True, slots=True)
class Choices:
    """When attention takes which of its ways. ``long_query``: see ``LONG_QUERY``; a number above every length where
    there is no FA3. ``whole_rows``: decode rows that fill the device, so that splitting their keys gains nothing;
    ``whole_tiles``: tiles of prompts that do. ``group``: query heads that share a key; ``alone_rows``: see ``alone``.
    """

    long_query: int = 1 << 30
    split_keys: int = SPLIT_KEYS
    whole_rows: int = 1 << 30
    whole_tiles: int = 1 << 30
    group: int = 1
    alone_rows: int = 0

    @classmethod
    def of(cls, fa3: bool, processors: int, heads: Attention, alone_rows: int) -> Choices:
        """``processors``: multiprocessors of the device, each of which runs two blocks at a time."""
        whole = max(1, -(-2 * processors // heads.kv_heads))
        # A bucket has at most twice the tiles, and each of them room for its float32 sums in FlashInfer's workspace.
        room = FLOAT_WORKSPACE // (2 * heads.heads * QUERY_TILE * (heads.head_dim + 1) * 4)
        group = heads.heads // heads.kv_heads
        return cls(LONG_QUERY if fa3 else 1 << 30, SPLIT_KEYS, whole, min(whole, room), group, alone_rows)

    def splits(self, level: Paged, rows: int) -> bool:
        """Whether the keys of a recorded level are split among blocks: each tile of its ``rows`` has a block for each
        KV head, and without a split these would not fill the device. An eager call's plan counts them itself."""
        tiles = -(-rows * self.group // QUERY_TILE) + level.requests - 1
        return tiles < self.whole_tiles and most_keys(level) > self.split_keys

    def alone(self, layout: StepLayout) -> bool:
        """Whether this project's kernel attends, in every layer: a few rows of prompts that read nothing but
        themselves. Their last layer is not cut, as its time is that of reading its weights."""
        return 0 < layout.prompts <= self.alone_rows and not layout.decoding and not layout.body.more


@dataclass(frozen=True, slots=True)
class PagedShape:
    requests: int
    entries: int  # pages in all
    page_size: int
    pool: bool
    split: bool = False  # keys are split among blocks


@dataclass(frozen=True, slots=True)
class Shape:
    """Capacities. ``keys`` > 0: attention by explicit key lists of so many keys; the level sizes are 0 then."""

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
    alone: bool = False  # see ``Choices.alone``

    @property
    def rows(self) -> int:
        return self.prompts + self.decoding

    @property
    def levels(self) -> bool:
        """Whether FlashInfer attends."""
        return not self.keys and not self.alone

    @property
    def read(self) -> int:
        return self.read_prompts + self.read_decoding

    @classmethod
    def exact(cls, layout: StepLayout, keys: int = 0, choices: Choices | None = None) -> Shape:
        body, choices = layout.body, choices or Choices()
        levels = keys == 0
        alone = levels and choices.alone(layout)
        own = body.own if levels else None
        decode = body.decode if levels else None
        return cls(
            prompts=layout.prompts,
            own=0 if own is None else own.requests,
            more=tuple(paged_shape(m, choices.splits(m, layout.prompts)) for m in body.more) if levels else (),
            decoding=layout.decoding,
            decode_entries=0 if decode is None else len(decode.pages),
            read_prompts=layout.read_prompts,
            read_decoding=len(layout.read) - layout.read_prompts,
            cut=layout.last is not None and not alone,
            keys=keys,
            readouts=None,
            long_query=own is not None and not alone and int(np.diff(own.qo).max(initial=0)) >= choices.long_query,
            decode_split=decode is not None
            and layout.decoding < choices.whole_rows
            and most_keys(decode) > choices.split_keys,
            alone=alone,
        )

    def bucket(self, readouts: tuple[RecordedReadout, ...] | None) -> Shape:
        """This shape rounded up to the shapes of graphs. FlashInfer wants no more requests than rows, so the cut
        last layer has at least as many rows as any level has requests."""
        prompts = token_bucket(self.prompts)
        own = min(power_bucket(self.own), prompts)
        more = tuple(
            replace(m, requests=min(power_bucket(m.requests), prompts), entries=power_bucket(m.entries, 64))
            for m in self.more
        )
        read_prompts, spare = power_bucket(self.read_prompts), power_bucket(self.decoding) - self.decoding
        if self.cut and prompts:
            read_prompts = max([read_prompts, own, *(m.requests for m in more)])
        return replace(
            self,
            prompts=prompts,
            own=own,
            more=more,
            decoding=power_bucket(self.decoding),
            decode_entries=power_bucket(self.decode_entries + spare, 64) if self.decode_entries else 0,
            read_prompts=read_prompts,
            read_decoding=power_bucket(self.read_decoding),
            keys=power_bucket(self.keys + (1 if self.keys else 0), 256),
            readouts=readouts,
        )

    def sizes(self) -> list[tuple[str, int, str]]:
        """The arrays that go to the device, in the order of the packed copy."""
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


def most_keys(level: Paged) -> int:
    """Of one request."""
    pages = np.diff(level.indptr)
    return int(((pages - 1) * level.page_size + level.last)[pages > 0].max(initial=0))


def paged_shape(level: Paged, split: bool) -> PagedShape:
    return PagedShape(level.requests, len(level.pages), level.page_size, level.pool, split)


def key_range(fields: Fields, names: Sequence[str]) -> tuple[int, int]:
    """The bytes of arrays that stand side by side."""
    return (fields.places[names[0]].offset, fields.places[names[-1]].end) if names else (0, 0)


def _fill(target: np.ndarray, values: np.ndarray, rest: int) -> None:
    target[: len(values)] = values
    target[len(values) :] = rest


def _fill_indptr(target: np.ndarray, values: np.ndarray) -> None:
    _fill(target, values, int(values[-1]))


class Writer:
    """Writes a step's arrays into a host area of its shape."""

    def __init__(self, shape: Shape, fields: Fields, scratch_block: int, block_size: int) -> None:
        self.shape = shape
        self.fields = fields
        self.scratch_block = scratch_block
        self.block_size = block_size

    def write(self, area: np.ndarray, layout: StepLayout) -> None:
        """``area`` are the bytes of a host area."""
        shape, prompts, decoding = self.shape, layout.prompts, layout.decoding
        for name, values, idle in (
            ("ids", layout.token_ids, 0),
            ("positions", layout.positions, 0),
            ("slots", layout.slots, -1),
        ):
            target = self._array(area, name)
            _fill(target[: shape.prompts], values[:prompts], idle)
            waste = self.scratch_block * self.block_size if name == "slots" else idle
            _fill(target[shape.prompts :], values[prompts:], waste)
        self._fill_read(self._array(area, "read"), self._device_rows(layout), layout, 0)
        self._fill_read(self._array(area, "read_positions"), layout.positions[layout.read], layout, 0)
        if shape.keys:
            self._write_keys(area, layout)
            return
        first, end = key_range(self.fields, [name for name, _ in shape.lengths()])
        area[first:end] = 0  # between the arrays too: they are compared as one run of bytes
        if layout.body.own is not None:
            self._write_own(area, layout.body.own, layout.last if shape.cut else None)
        for i, level in enumerate(layout.body.more):
            self._write_level(area, i, level, layout.last)
        if shape.decoding:
            self._write_decode(area, layout.body.decode, decoding)

    def _fill_read(self, target: np.ndarray, values: np.ndarray, layout: StepLayout, rest: int) -> None:
        _fill(target[: self.shape.read_prompts], values[: layout.read_prompts], rest)
        _fill(target[self.shape.read_prompts :], values[layout.read_prompts :], rest)

    def _device_rows(self, layout: StepLayout) -> I32:
        """The rows that are read, where the bucket puts them: decode rows stand behind the padded prompts."""
        rows: I32 = layout.read.copy()
        rows[layout.read_prompts :] += self.shape.prompts - layout.prompts
        return rows

    def read_index(self, at: I32, layout: StepLayout) -> I32:
        """Indices into ``layout.read`` as indices into the shape's read rows."""
        moved: I32 = np.where(at >= layout.read_prompts, at + (self.shape.read_prompts - layout.read_prompts), at)
        return moved.astype(np.int32)

    def _array(self, area: np.ndarray, name: str) -> np.ndarray:
        place = self.fields.places[name]
        return area[place.offset : place.end].view(np.int32)

    def _write_own(self, area: np.ndarray, own: Ragged, last: Levels | None) -> None:
        _fill_indptr(self._array(area, "own.qo"), own.qo)
        _fill_indptr(self._array(area, "own.kv"), own.kv)
        if last is not None and last.own is not None:
            _fill_indptr(self._array(area, "own.last.qo"), last.own.qo)

    def _write_level(self, area: np.ndarray, i: int, level: Paged, last: Levels | None) -> None:
        _fill_indptr(self._array(area, f"{i}.qo"), level.qo)
        _fill_indptr(self._array(area, f"{i}.indptr"), level.indptr)
        _fill(self._array(area, f"{i}.last"), level.last, 0)
        _fill(self._array(area, f"{i}.pages"), level.pages, 0)
        if last is not None:
            _fill_indptr(self._array(area, f"{i}.last.qo"), last.more[i].qo)

    def _write_decode(self, area: np.ndarray, level: Paged | None, decoding: int) -> None:
        spare = self.shape.decoding - decoding
        indptr = level.indptr if level is not None else np.zeros(1, np.int32)
        pages = level.pages if level is not None else np.zeros(0, np.int32)
        tail = indptr[-1] + 1 + np.arange(spare, dtype=np.int32)
        self._array(area, "decode.indptr")[:] = np.concatenate([indptr, tail])
        _fill(self._array(area, "decode.last"), level.last if level is not None else indptr[:0], 1)
        _fill(self._array(area, "decode.pages"), pages, self.scratch_block)

    def _write_keys(self, area: np.ndarray, layout: StepLayout) -> None:
        lists = key_lists(layout, self.block_size)
        scratch = -1 - self.scratch_block * self.block_size
        _fill(self._array(area, "keys"), lists.keys, scratch)
        for name, values, idle in (("first", lists.first, len(lists.keys)), ("count", lists.count, 1)):
            target = self._array(area, name)
            _fill(target[: self.shape.prompts], values[: layout.prompts], idle)
            _fill(target[self.shape.prompts :], values[layout.prompts :], idle)
            self._fill_read(self._array(area, f"read_{name}"), values[layout.read], layout, idle)

    def write_idle(self, area: np.ndarray) -> None:
        """A step of nothing but padding that has the most rows in every request list. Graphs are recorded on it. It
        reads the scratch block and writes nowhere else."""
        shape = self.shape
        area[: self.fields.nbytes] = 0
        slots = self._array(area, "slots")
        slots[: shape.prompts] = -1
        slots[shape.prompts :] = self.scratch_block * self.block_size
        if shape.keys:
            self._array(area, "keys")[:] = -1 - self.scratch_block * self.block_size
            for name in ("count", "read_count"):
                self._array(area, name)[:] = 1
            return
        if shape.own:
            for name in ("own.qo", "own.kv"):
                self._array(area, name)[:] = _spread(shape.prompts, shape.own)
            if shape.cut:
                self._array(area, "own.last.qo")[:] = _spread(shape.read_prompts, shape.own)
        for i, level in enumerate(shape.more):
            self._array(area, f"{i}.qo")[:] = _spread(shape.prompts, level.requests)
            if shape.cut:
                self._array(area, f"{i}.last.qo")[:] = _spread(shape.read_prompts, level.requests)
            self._array(area, f"{i}.last")[:] = 0
            # No request has keys: the scratch block is not part of this step's K and V.
        if shape.decode_entries:
            self._array(area, "decode.indptr")[:] = np.arange(shape.decoding + 1)
            self._array(area, "decode.last")[:] = 1
            self._array(area, "decode.pages")[:] = self.scratch_block


def _spread(rows: int, requests: int) -> I32:
    """An indptr of ``requests`` that covers ``rows``: one each, the first has the rest; empty ones where rows
    lack."""
    edges = rows - np.arange(requests, -1, -1, dtype=np.int64)
    spread: I32 = np.maximum(edges, 0).astype(np.int32)
    spread[0] = 0
    return spread
