"""Attention as a layer calls it, and decode rows over a paged pool; ``attention_runs.py`` plans a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from prelude._native.cpu import PagedRows
from prelude.batch import DecodeRows
from prelude.execution.layout import I64
from prelude.models.relative import RelativeWeights
from prelude.models.spec import Attention as Heads


class AttentionPlan(Protocol):
    """``run`` maps queries [Q, heads, D] to outputs [Q, heads * D]; K and V are [tokens, kv_heads, D] of this
    step, ``pool_k`` and ``pool_v`` [slots, kv_heads, D] of this layer, ``relative`` its relative term. ``section``:
    of the plan's sections the one whose queries are given; None for a plan of one section."""

    def run(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        pool_k: Tensor,
        pool_v: Tensor,
        relative: RelativeWeights | None = None,
        section: int | None = None,
    ) -> Tensor: ...


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

    def run(self, q: Tensor, pool_k: Tensor, pool_v: Tensor, out: Tensor) -> None:
        """Queries and outputs [Q, heads, D]; the kernel gets addresses, so the tensors are checked here."""
        q, out = q[self.queries], out[self.queries]
        slots, kv_heads, width = pool_k.size(0), pool_k.size(1), pool_k.size(2)
        for tensor in (q, pool_k, pool_v, out):
            if tensor.dtype != out.dtype or tensor.stride()[1:] != (width, 1) or tensor.device.type != "cpu":
                raise TypeError(f"paged attention over {tensor.dtype} with strides {tensor.stride()}")
        if not (out.is_contiguous() and pool_k.is_contiguous() and pool_v.is_contiguous()):
            raise TypeError("paged attention over a pool or into an output with gaps")
        self.table.attend(
            q.data_ptr(),
            q.stride(0),
            pool_k.data_ptr(),
            pool_v.data_ptr(),
            out.data_ptr(),
            slots=slots,
            heads=q.size(1),
            kv_heads=kv_heads,
            head_dim=width,
            bfloat16=out.dtype == torch.bfloat16,
            scale=self.heads.score_scale,
            cap=self.heads.cap,
        )
