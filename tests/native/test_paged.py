"""Paged attention against the formula, row by row in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from prelude._native import cpu
from prelude._native.cpu import PagedRows

from tests.tensors import on_tensors


@dataclass
class Case:
    """Rows over a pool whose blocks are handed out in random order."""

    q: torch.Tensor  # [rows, heads, D]
    k: torch.Tensor  # [slots, kv_heads, D]
    v: torch.Tensor
    lengths: list[int]
    tables: list[list[int]]
    size: int
    skipped: list[int] | None = None
    """Keys of each row that lie in its table before those that it reads."""
    cap: float = 0.0

    @classmethod
    def make(
        cls, lengths: list[int], heads: int, kv_heads: int, dim: int, size: int, seed: int, dtype: Any = torch.float32
    ) -> Case:
        rng, draw = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
        counts = [-(-n // size) for n in lengths]
        blocks = rng.permutation(sum(counts) + 3).tolist()
        ends = np.cumsum(counts).tolist()
        tables = [blocks[end - count : end] for end, count in zip(ends, counts)]
        slots = (sum(counts) + 3) * size

        def some(*shape: int) -> torch.Tensor:
            return (torch.randn(*shape, generator=draw) * 2).to(dtype)

        return cls(
            some(len(lengths), heads, dim),
            some(slots, kv_heads, dim),
            some(slots, kv_heads, dim),
            lengths,
            tables,
            size,
        )

    def rows(self, only: list[int] | None = None) -> PagedRows:
        chosen = range(len(self.lengths)) if only is None else only
        ends = np.cumsum([len(self.tables[r]) for r in chosen]).tolist()
        begins = [end - len(self.tables[r]) for end, r in zip(ends, chosen)]
        blocks = [block for r in chosen for block in self.tables[r]]
        if self.skipped is None:
            return PagedRows(blocks, begins, ends, [self.lengths[r] for r in chosen], self.size)
        skipped = [self.skipped[r] for r in chosen]
        firsts = [begin + skip // self.size for begin, skip in zip(begins, skipped)]
        lengths = [self.lengths[r] - skip for r, skip in zip(chosen, skipped)]
        return PagedRows(blocks, firsts, ends, lengths, self.size, [skip % self.size for skip in skipped])

    def run(self, only: list[int] | None = None) -> torch.Tensor:
        q = self.q if only is None else self.q[only].contiguous()
        out = torch.full_like(q, math.nan)
        attend = on_tensors(self.rows(only).attend)
        attend(q, self.k, self.v, out, scale=1 / math.sqrt(q.shape[2]), cap=self.cap)
        return out

    def expected(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        q, k, v = (x.to(torch.float64).numpy() for x in (self.q, self.k, self.v))
        rows, heads, dim = q.shape
        group = heads // k.shape[1]
        out = np.empty((rows, heads, dim))
        for r, (length, table) in enumerate(zip(self.lengths, self.tables)):
            first = 0 if self.skipped is None else self.skipped[r]
            slots = [table[t // self.size] * self.size + t % self.size for t in range(first, length)]
            for h in range(heads):
                scores = (k[slots, h // group] * q[r, h]).sum(axis=1) / math.sqrt(dim)
                if self.cap:
                    scores = self.cap * np.tanh(scores / self.cap)
                weights = np.exp(scores - scores.max())
                out[r, h] = weights @ v[slots, h // group] / weights.sum()
        return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_threads_share_rows_and_change_no_bit(dtype: torch.dtype) -> None:
    case = Case.make([700, 3, 400, 512, 90, 650, 1], 6, 2, 64, 16, 5, dtype)
    alone = case.run()
    try:
        for threads in (2, 3, 8):
            cpu.give_threads(threads)
            assert torch.equal(case.run(), alone)
    finally:
        cpu.give_threads(0)


@pytest.mark.feature("D5")
@given(
    st.lists(st.integers(1, 150) | st.integers(500, 1100), min_size=1, max_size=5),
    st.sampled_from([(1, 1), (2, 1), (6, 2), (7, 1), (8, 8), (12, 2), (10, 2)]),
    st.sampled_from([4, 6, 8, 16, 32, 40, 80, 128]),
    st.sampled_from([1, 3, 16, 64]),
    st.integers(0, 1 << 30),
)
@settings(max_examples=120, deadline=None)
def test_scattered_blocks_give_the_result_of_the_formula(
    lengths: list[int], heads: tuple[int, int], dim: int, size: int, seed: int
) -> None:
    case = Case.make(lengths, *heads, dim, size, seed)
    assert np.abs(case.run().numpy() - case.expected()).max() < 2e-5


@pytest.mark.parametrize("dim", [8, 32, 128])
def test_bfloat16_is_float32_rounded_at_the_end(dim: int) -> None:
    case = Case.make([1, 64, 65, 300], 6, 2, dim, 16, 3, torch.bfloat16)
    got, wanted = case.run().to(torch.float64).numpy(), case.expected()
    assert np.abs(got - wanted).max() < np.abs(wanted).max() / 200  # half a unit in the last place


def test_a_row_has_the_same_bits_in_any_company() -> None:
    case = Case.make([5, 1100, 64, 513, 1], 6, 2, 32, 16, 7)
    together = case.run()
    for r in range(5):
        assert torch.equal(case.run([r])[0], together[r])
    assert torch.equal(case.run([3, 0, 4]), together[[3, 0, 4]])


@pytest.mark.parametrize("size", [1, 16, 64])
def test_rows_that_begin_inside_their_tables(size: int) -> None:
    case = Case.make([5, 1100, 64, 513, 1], 6, 2, 32, size, 7)
    case.skipped, case.cap = [0, 17, 63, 500, 0], 3.0
    assert np.abs(case.run().numpy() - case.expected()).max() < 2e-5
    assert torch.equal(case.run([3, 0, 4]), case.run()[[3, 0, 4]])


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_bad_key_reaches_its_rows_and_no_other(value: float) -> None:
    """Also not those that share its block and end before it."""
    case = Case.make([40, 20, 40], 4, 2, 16, 16, 1)
    case.tables[1] = case.tables[0][:2]
    case.k[case.tables[0][1] * 16 + 10] = value  # key 26 of rows 0 and 1; row 1 has 20
    got = case.run()
    assert not got[0].isfinite().any()
    assert np.abs(got[1:].numpy() - case.expected()[1:]).max() < 2e-5


def test_scores_far_apart_do_not_overflow() -> None:
    case = Case.make([130], 2, 1, 16, 16, 2)
    case.k *= 1e4
    assert np.abs(case.run().numpy() - case.expected()).max() < 2e-5
