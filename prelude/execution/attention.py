"""Attention over a forest of segments and a paged pool: planned once a step, run in every layer.

A token's keys come in up to three kinds of *parts*, each one call for all tokens that share it:

    own        its segment up to itself          causal; segments of one length side by side in one call
    ancestor   a whole segment above it          one call for all descendants of that segment
    context    its root's tokens in the pool     one call for all roots that continue the same blocks

Parts are joined by their log-sum-exp. So a shared state is read by all its branches in one product, and its
cost does not multiply by branches. Decode rows read the pool alone, where it lies: their own token has just been
written.

The last layer asks for few queries. ``rows`` names them; everything else is as above.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor

from prelude._native.cpu import PagedRows
from prelude.batch import DecodeRows
from prelude.execution.layout import I64, Forest, StepTokens, pool_rows
from prelude.models.relative import RelativeWeights
from prelude.models.spec import Attention as Heads

Where: TypeAlias = "slice | Tensor"


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
class Part:
    queries: Where
    keys: Where  # tokens of the step, or pool rows
    pool: bool = False
    batch: int = 1  # segments of one length side by side
    causal: bool = False
    mask: Tensor | None = None


def attend(
    q: Tensor, k: Tensor, v: Tensor, causal: bool = False, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """``[batch, tokens, heads, D]`` each; the output in that shape and log-sum-exp ``[batch, heads, tokens]``."""
    out, lse = torch._scaled_dot_product_flash_attention_for_cpu(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), 0.0, causal, attn_mask=mask
    )
    return out.transpose(1, 2), lse


def in_place(rows: I64) -> Where:
    """Pool rows as a slice where they lie in a row, so that nothing is copied."""
    first, last = int(rows[0]), int(rows[-1])
    if last - first + 1 == len(rows) and (rows[1:] > rows[:-1]).all():
        return slice(first, last + 1)
    return torch.from_numpy(rows)


def negative_where(hidden: np.ndarray, dtype: torch.dtype) -> Tensor:
    """An additive mask: minus infinity where ``hidden``."""
    return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(torch.from_numpy(hidden), float("-inf"))


class CascadePlan:
    """Causal attention without windows, caps or scales of its own, in one section. ``rows`` are the sorted tokens
    whose outputs are wanted, None for all."""

    def __init__(
        self, step: StepTokens, block_size: int, heads: Heads, dtype: torch.dtype, rows: I64 | None = None
    ) -> None:
        self.num_queries = step.num_tokens if rows is None else len(rows)
        self.own: list[Part] = []
        self.more: list[Part] = []
        self.decode: DecodePart | None = None
        if step.forest is not None:
            builder = _Builder(step.forest, block_size, dtype, rows)
            self.own = builder.own_parts()
            self.more = [*builder.ancestor_parts(), *builder.context_parts()]
        if step.decode is not None:
            self.decode = DecodePart.of(step.decode, step.prompt_tokens, block_size, heads, rows)

    def run(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        pool_k: Tensor,
        pool_v: Tensor,
        relative: RelativeWeights | None = None,
        section: int | None = None,
    ) -> Tensor:
        queries, heads, width = q.size(0), q.size(1), q.size(2)
        if len(self.own) == 1 and not self.more and self.decode is None:
            return self._part(self.own[0], q, k, v)[0].reshape(queries, heads * width)
        out = torch.empty_like(q)
        lse = q.new_empty(queries, heads, dtype=torch.float32) if self.more else None
        for part in self.own:
            o, own_lse = self._part(part, q, k, v)
            out[part.queries] = o.reshape(-1, heads, width)
            if lse is not None:
                lse[part.queries] = own_lse.transpose(1, 2).reshape(-1, heads)
        if lse is not None:
            for part in self.more:
                o, part_lse = self._part(part, q, pool_k, pool_v) if part.pool else self._part(part, q, k, v)
                _join(out, lse, part.queries, o[0], part_lse[0].t())
        if self.decode is not None:
            self.decode.run(q, pool_k, pool_v, out)
        return out.view(queries, heads * width)

    def _part(self, part: Part, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        def take(x: Tensor, where: Where) -> Tensor:
            x = x[where] if isinstance(where, slice) else x.index_select(0, where)
            return x.view(part.batch, -1, x.size(1), x.size(2))

        return attend(take(q, part.queries), take(k, part.keys), take(v, part.keys), part.causal, part.mask)


def _join(out: Tensor, lse: Tensor, queries: Where, more: Tensor, more_lse: Tensor) -> None:
    """Add the keys of another part to outputs that are already normalised."""
    old = lse[queries]
    joined = torch.logaddexp(old, more_lse)
    kept = out[queries] * (old - joined).exp_().unsqueeze(-1)
    out[queries] = kept.addcmul_(more, (more_lse - joined).exp_().unsqueeze(-1)).to(out.dtype)
    lse[queries] = joined


class _Builder:
    """Turns a forest into parts. Query ranges are kept in token numbers until ``rows`` maps them."""

    def __init__(self, forest: Forest, block_size: int, dtype: torch.dtype, rows: I64 | None) -> None:
        self.forest = forest
        self.block_size = block_size
        self.dtype = dtype
        self.rows = rows
        starts = forest.starts
        self.at: list[int] = starts if rows is None else np.searchsorted(rows, starts).tolist()

    def own_parts(self) -> list[Part]:
        starts, at = self.forest.starts, self.at
        parts: list[Part] = []
        s, count = 0, len(starts) - 1
        while s < count:
            length, wanted = starts[s + 1] - starts[s], at[s + 1] - at[s]
            run = 1
            if wanted == 0:
                s += 1
                continue
            if wanted == length:
                while (
                    s + run < count
                    and starts[s + run + 1] - starts[s + run] == length == at[s + run + 1] - at[s + run]
                ):
                    run += 1
                keys = slice(starts[s], starts[s + run])
                parts.append(Part(slice(at[s], at[s + run]), keys, batch=run, causal=length > 1))
            elif self.rows is not None:
                parts.append(self._some_queries(s, self.rows))
            s += run
        return parts

    def _some_queries(self, s: int, rows: I64) -> Part:
        """The part of a segment of which only some tokens are asked."""
        offsets = rows[self.at[s] : self.at[s + 1]] - self.forest.starts[s]
        last = int(offsets[-1]) + 1
        mask = None
        if len(offsets) > 1:
            mask = negative_where(np.arange(last)[None, :] > offsets[:, None], self.dtype)
        start = self.forest.starts[s]
        return Part(slice(self.at[s], self.at[s + 1]), slice(start, start + last), mask=mask)

    def ancestor_parts(self) -> list[Part]:
        parts = []
        for s, ranges in sorted(self.forest.below.items()):
            keys = slice(self.forest.starts[s], self.forest.starts[s + 1])
            queries = self._queries(ranges)
            if queries is not None and keys.start < keys.stop:
                parts.append(Part(queries, keys))
        return parts

    def context_parts(self) -> list[Part]:
        """Roots that continue the same blocks to the same length read them together."""
        forest, shared = self.forest, dict[tuple[int, bytes], list[tuple[int, int]]]()
        for root in np.flatnonzero(forest.slices.context_lens > 0).tolist():
            if forest.parents[root] >= 0:
                raise ValueError(f"segment {root} has a parent and a context of its own")
            ranges = [(forest.starts[root], forest.starts[root + 1]), *forest.below.get(root, ())]
            key = (int(forest.slices.context_lens[root]), forest.blocks(root).tobytes())
            shared.setdefault(key, []).extend(ranges)
        parts = []
        for (length, blocks), ranges in shared.items():
            queries = self._queries(ranges)
            if queries is not None:
                rows = pool_rows(np.frombuffer(blocks, np.int32), length, self.block_size)
                parts.append(Part(queries, in_place(rows), pool=True))
        return parts

    def _queries(self, ranges: list[tuple[int, int]]) -> Where | None:
        """Token ranges as rows of this layer's queries."""
        if self.rows is not None:
            edges = np.searchsorted(self.rows, np.asarray(ranges)).tolist()
            ranges = [(a, b) for a, b in edges]
        ranges = sorted((a, b) for a, b in ranges if a < b)
        if not ranges:
            return None
        if all(left[1] == right[0] for left, right in pairwise(ranges)):
            return slice(ranges[0][0], ranges[-1][1])
        return torch.from_numpy(np.concatenate([np.arange(a, b, dtype=np.int64) for a, b in ranges]))


@dataclass(frozen=True, slots=True)
class DecodePart:
    """Decode rows, each over its own block table. A row's bits do not depend on the other rows."""

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
