"""Attention of decode rows over a paged pool; ``attention_runs.py`` plans a step."""

from __future__ import annotations

import numpy as np

from prelude._native.cpu import PagedRows
from prelude.execution.layout import I64
from prelude.models.arrays import Array
from prelude.models.spec import Attention as Heads
from prelude.readouts.batch import DecodeRows
from prelude.records import dataclass


@dataclass(frozen=True, slots=True)
class DecodePart:
    """Decode rows, each over its own block table, where it lies: their own tokens have just been written. A row's
    bits do not depend on the other rows."""

    queries: slice
    table: PagedRows
    heads: Heads

    @classmethod
    def of(cls, decode: DecodeRows, first: int, block_size: int, heads: Heads, rows: I64 | None) -> DecodePart | None:
        """``first`` is the token of the first decode row."""
        begins, ends, lengths = decode.block_indptr[:-1], decode.block_indptr[1:], decode.context_lens + 1
        before = first
        if rows is not None:
            before = int(np.searchsorted(rows, first))
            wanted = rows[before:] - first
            begins, ends, lengths = begins[wanted], ends[wanted], lengths[wanted]
        if not len(lengths):
            return None
        offsets = None
        if heads.window is not None:
            hidden = np.maximum(lengths - 1 - heads.window, 0)
            begins, lengths, offsets = begins + hidden // block_size, lengths - hidden, hidden % block_size
        table = PagedRows(decode.block_ids, begins, ends, lengths, block_size, offsets)
        return cls(slice(before, before + len(lengths)), table, heads)

    def run(self, q: Array, pool_k: Array, pool_v: Array, out: Array) -> None:
        """Queries and outputs [Q, heads, D]."""
        rows, heads = self.queries, self.heads
        self.table.attend(q[rows], pool_k, pool_v, out[rows], scale=heads.score_scale, cap=heads.cap)
