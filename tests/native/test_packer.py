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
