"""The packer against an oracle that appends one token after the other."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prelude._native import core

NAMES = (
    "token_ids",
    "positions",
    "starts",
    "parents",
    "context_lens",
    "context_indptr",
    "context_blocks",
    "write_slots",
    "row_offsets",
    "row_segments",
)


def oracle(rows: list[Any], size: int) -> dict[str, list[int] | None]:
    o: dict[str, list[int]] = {name: [] for name in NAMES}
    o["starts"].append(0)
    o["context_indptr"].append(0)
    for tokens, positions, starts, parents, begin, end, parent, context, length, blocks, first, kept in rows:
        base = len(o["parents"])
        o["row_offsets"].append(len(o["token_ids"]))
        o["row_segments"].append(base)
        segments = [(begin, end)] if starts is None else list(pairwise(starts))
        segments[0] = (begin, segments[0][1])
        for s, (a, b) in enumerate(segments):
            for k, t in enumerate(range(a, b)):
                o["token_ids"].append(int(tokens[t]))
                o["positions"].append(t if positions is None else int(positions[t]))
                p = first + k
                o["write_slots"].append(blocks[p // size] * size + p % size if s == 0 and k < kept else -1)
            if s == 0:
                o["parents"].append(-1 if parent < 0 else o["row_segments"][parent])
            else:
                o["parents"].append(-1 if parents[s] < 0 else base + int(parents[s]))
            o["context_lens"].append(length if s == 0 else 0)
            o["context_blocks"] += [int(b) for b in context] if s == 0 and context is not None else []
            o["starts"].append(len(o["token_ids"]))
            o["context_indptr"].append(len(o["context_blocks"]))
    writes = any(row[11] for row in rows)
    return {name: None if name == "write_slots" and not writes else values for name, values in o.items()}


def ids(values: Any) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.array(values, np.int32)


@st.composite
def prompt_rows(draw: st.DrawFn) -> tuple[list[Any], int]:
    size = draw(st.integers(1, 4))
    rows: list[Any] = []
    for index in range(draw(st.integers(0, 5))):
        n = draw(st.integers(0, 9))
        cuts = sorted(draw(st.lists(st.integers(0, n), max_size=4)))
        tree = draw(st.booleans())
        starts = [0, *cuts, n] if tree else None
        trunk = starts[1] if starts else draw(st.integers(0, n))
        begin = draw(st.integers(0, trunk))
        parents = None
        if starts:
            parents = ids([draw(st.integers(-1, max(-1, s - 1))) for s in range(len(starts) - 1)])
        context = draw(st.none() | st.lists(st.integers(0, 50), max_size=3))
        length = draw(st.integers(0, len(context) * size)) if context else 0
        kept = draw(st.integers(0, trunk - begin))
        first = draw(st.integers(0, 5))
        blocks = draw(st.permutations(range(60, 75)))[: -(-(first + kept) // size)]
        rows.append(
            (
                ids(range(1000 * index, 1000 * index + n)),
                draw(st.none() | st.just(ids(range(7, 7 + n)))),
                None if starts is None else ids(starts),
                parents,
                begin,
                -1 if tree else trunk,
                draw(st.integers(-1, index - 1)),
                context if draw(st.booleans()) or context is None else ids(context),  # a list or an array
                length,
                blocks,
                first,
                kept,
            )
        )
    return rows, size


@pytest.mark.feature("H6")
@settings(max_examples=200, deadline=None)
@given(prompt_rows())
def test_prompt_rows(case: tuple[list[Any], int]) -> None:
    rows, size = case
    want = oracle(rows, size)
    arrays, offsets, *_ = core.pack_step([], [], rows, size)
    for name, array in zip(NAMES, (*arrays, offsets)):
        expected = want[name]
        if expected is None:
            assert array is None
            continue
        assert array is not None and array.dtype == np.int32 and array.flags.c_contiguous
        assert array.tolist() == expected, name


@pytest.mark.feature("H6")
@settings(max_examples=100, deadline=None)
@given(st.data())
def test_decode_rows(data: st.DataObject) -> None:
    """Running requests with blocks of the prefix cache and blocks of their own."""
    size = data.draw(st.integers(1, 4))
    pool = core.KvPool(64, size)
    want: list[list[int]] = [[], [], [], [], [0], []]
    records = []
    for index in range(data.draw(st.integers(0, 5))):
        tokens = ids(range(100 * index, 100 * index + data.draw(st.integers(1, 12))))
        known = data.draw(st.integers(1, len(tokens)))
        record = running(pool, tokens, known, published=data.draw(st.booleans()))
        table = record.lease.table().tolist()
        records.append(record)
        at = known - 1
        for column, value in zip(want, (tokens[at], at, table[at // size] * size + at % size, at)):
            column.append(int(value))
        want[5] += table
        want[4].append(len(want[5]))
    assert [a.tolist() for a in core.pack_running(records, size)] == want


def running(pool: core.KvPool, tokens: Any, known: int, published: bool = False) -> Any:
    """A request that decodes and holds the blocks of its ``known`` tokens."""
    lease = pool.attach(tokens[:known], 0, known - 1, growable=True)
    pool.grow(lease, -(-known // pool.block_size))
    if published:
        pool.publish(lease, tokens[:known], 0)
    return SimpleNamespace(known=tokens, num_known=known, ahead=0, lease=lease)


def row(**changes: Any) -> tuple[Any, ...]:
    fields = dict(
        token_ids=ids(range(8)),
        positions=None,
        starts=None,
        parents=None,
        begin=0,
        end=8,
        parent=-1,
        context=ids([3]),
        context_len=4,
        slot_blocks=ids([1, 2]),
        slot_start=0,
        slot_count=8,
    )
    assert not changes.keys() - fields.keys()
    return tuple({**fields, **changes}.values())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"end": 9}, "begin and end"),
        ({"begin": -1}, "begin and end"),
        ({"begin": 5, "end": 4}, "begin and end"),
        ({"parent": 1}, "parent"),
        ({"parent": -2}, "parent"),
        ({"context_len": 5}, "context_len"),
        ({"context": None}, "context_len"),
        ({"slot_count": 9}, "slot_count"),
        ({"slot_count": -1}, "slot_count"),
        ({"slot_start": 1}, "slot_blocks"),
        ({"slot_start": -1}, "slot_blocks"),
        ({"slot_blocks": None}, "slot_blocks"),
        ({"positions": ids([1])}, "positions"),
        ({"starts": ids([0, 9]), "parents": ids([-1])}, "past the tokens"),
        ({"starts": ids([1, 8]), "parents": ids([-1])}, "begin with 0"),
        ({"starts": ids([0]), "parents": ids([])}, "have a segment"),
        ({"starts": ids([0, 5, 3]), "parents": ids([-1, 0])}, "falls"),
        ({"starts": ids([0, 5, 8]), "parents": ids([-1, 1])}, "not an earlier segment"),
        ({"starts": ids([0, 5, 8]), "parents": ids([-1])}, "one parent"),
        ({"starts": ids([0, 5, 8])}, "one parent"),
        ({"end": 2**40}, "begin and end"),
    ],
)
def test_a_wrong_row_is_named(changes: dict[str, Any], message: str) -> None:
    core.pack_step([], [], [row(), row()], 4)
    with pytest.raises(ValueError, match=rf"row 1.*{message}"):
        core.pack_step([], [], [row(), row(**changes)], 4)


def test_other_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match="12 fields"):
        core.pack_step([], [], [(1, 2)], 4)  # type: ignore[list-item]
    with pytest.raises(TypeError):
        core.pack_step([], [], [row(token_ids=np.zeros(8))], 4)
    pool = core.KvPool(16, 4)
    record = running(pool, ids(range(9)), 4)
    for wrong in (0, 5, 10):  # none is fed, one past the lease's blocks, one past the tokens
        record.num_known = wrong
        with pytest.raises(ValueError, match="row 0"):
            core.pack_running([record], 4)
    for pack in (lambda size: core.pack_step([], [], [], size), lambda size: core.pack_running([], size)):
        with pytest.raises(ValueError, match="block_size"):
            pack(0)
