"""Attention by the native kernel: every row walks the keys of its own sequence, in order.

A segment's queries are one item, and its keys are runs that lie in a row: its context in the pool, block by block,
each ancestor, itself. A decode row is an item of one query. The bits of a row are those of its sequence alone:
in deterministic mode a decode row too, which else reads its block table by itself.

A shared state is walked by each of its branches: the products are the same as if they shared one walk, only the
keys are brought into the kernel's order once a branch, which is a few percent for branches of a dozen tokens.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from prelude._native.cpu import Attention, PagedRows, write_pool
from prelude.cpu.threads import GOVERNOR
from prelude.execution.layout import Forest, StepTokens
from prelude.models.arrays import Array, aligned
from prelude.models.relative import RelativeWeights, panels_of
from prelude.models.spec import Attention as Heads
from prelude.models.spec import Relative
from prelude.models.transformer import Run
from prelude.models.weights import LayerWeights
from prelude.readouts.batch import DecodeRows
from prelude.records import dataclass
from prelude.values.arrays import I32, I64


@dataclass(frozen=True, slots=True)
class Kind:
    """The fields of a layer's attention that the kernel reads: one plan of a step serves all layers of a kind."""

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    causal: bool
    window: int | None
    cap: float
    relative: Relative | None


class LayerKinds:
    """A window as long as the step's longest sequence is none, so layers with and without a window read alike in
    short steps. The answer depends on how many of the model's windows are shorter than the sequence, and is kept for
    each number of them."""

    def __init__(self, mixers: Sequence[Heads]) -> None:
        self._mixers = mixers
        self._windows = sorted({mixer.window for mixer in mixers if mixer.window is not None})
        self._kept: dict[int, tuple[list[Kind], list[int]]] = {}

    def within(self, highest: int) -> tuple[list[Kind], list[int]]:
        """(the distinct kinds of attention, of each layer the index of its kind) in a step whose largest position is
        ``highest``. The lists are not to be changed."""
        shorter = bisect_left(self._windows, highest)
        found = self._kept.get(shorter)
        if found is None:
            found = self._kept[shorter] = self._grouped(self._windows[:shorter])
        return found

    def _grouped(self, windows: Sequence[int]) -> tuple[list[Kind], list[int]]:
        """``windows``: those that leave out a key."""
        kinds: dict[Kind, int] = {}
        of_layer = []
        for mixer in self._mixers:
            sizes = mixer.heads, mixer.kv_heads, mixer.head_dim, mixer.score_scale, mixer.causal
            kind = Kind(*sizes, mixer.window if mixer.window in windows else None, mixer.cap, mixer.relative)
            of_layer.append(kinds.setdefault(kind, len(kinds)))
        return list(kinds), of_layer


@dataclass(frozen=True, slots=True)
class DecodePart:
    """Decode rows, each over its own block table, where it lies: their own tokens have just been written. A row's
    bits do not depend on the other rows."""

    queries: slice
    table: PagedRows
    heads: Kind

    @classmethod
    def of(cls, decode: DecodeRows, first: int, block_size: int, heads: Kind, rows: I64 | None) -> DecodePart | None:
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
        self.table.attend(q[rows], pool_k, pool_v, out[rows], scale=heads.scale, cap=heads.cap)


Runs = I64
"""[runs, 3]: first key, number of keys, whether they lie in the pool."""
Starts = I32
"""[n + 1]: where each of n things begins, and the last one's end."""


class RunsPlan:
    """The attention of a step in layers of one kind. ``rows`` are the sorted tokens whose outputs are wanted, None
    for all. ``paged``: decode rows read their block tables themselves, which needs no planning and is faster, with
    other bits than the rows of a prompt. ``sections``: where the sections of the queries begin, and the last
    one's end; ``run`` computes one of them at a time."""

    def __init__(
        self,
        step: StepTokens,
        block_size: int,
        heads: Kind,
        rows: I64 | None,
        paged: bool,
        sections: Sequence[int] | None,
    ) -> None:
        self.num_queries = step.num_tokens if rows is None else len(rows)
        self._paged: list[DecodePart | None] = [None] * (1 if sections is None else len(sections) - 1)
        self._attention: Attention | None = None
        starts = None if sections is None else np.asarray(sections, np.int32)
        if not heads.causal:
            if step.forest is None or step.decode is not None:
                raise ValueError("an encoder takes whole prompts and no decode rows")
            self._attention = _of_whole_prompts(step.forest, heads, rows, starts)
            return
        if step.decode is None and step.forest is not None and step.forest.apart:
            self._attention = _of_segments_apart(step.forest, heads, rows, starts)
            return
        items: list[I64] = []
        lengths: list[I64] = []
        runs: list[Runs] = []
        visible: list[I64] = []
        wanted = np.arange(step.num_tokens) if rows is None else rows
        if step.forest is not None:
            cut = int(np.searchsorted(wanted, step.prompt_tokens))
            forest_lengths, seen = _queries(step.forest, wanted[:cut])
            counts, found = _forest_runs(step.forest, block_size)
            lengths.append(forest_lengths)
            visible.append(seen)
            items.append(counts)
            runs.append(found)
        if step.decode is not None and paged:
            for section, (begin, end) in enumerate(pairwise(sections or (0, self.num_queries))):
                some = rows if sections is None else wanted[begin:end]
                self._paged[section] = DecodePart.of(step.decode, step.prompt_tokens, block_size, heads, some)
        elif step.decode is not None:
            at = wanted[np.searchsorted(wanted, step.prompt_tokens) :] - step.prompt_tokens
            counts, found = _decode_runs(step.decode, at, block_size)
            lengths.append(np.ones(len(at), np.int64))
            visible.append(step.decode.context_lens[at].astype(np.int64) + 1)
            items.append(counts)
            runs.append(found)
        if step.forest is None and paged:
            return
        all_runs = np.concatenate(runs) if runs else np.zeros((0, 3), np.int64)
        seen_by = np.concatenate(visible) if visible else np.zeros(0, np.int64)
        hidden = None if heads.window is None else seen_by - 1 - heads.window
        if starts is not None:
            starts = starts.clip(max=len(seen_by))  # decode rows that read their tables are not the kernel's
        self._attention = _planned(
            heads, _starts(lengths), seen_by, _starts(items), all_runs, hidden, sections=starts
        )

    def run(
        self,
        q: Array,
        k: Array,
        v: Array,
        pool_k: Array,
        pool_v: Array,
        relative: RelativeWeights | None = None,
        section: int | None = None,
    ) -> Array:
        """[queries, heads * width] of ``q`` [queries, heads, width], by keys and values [tokens, kv_heads, width] of
        the step and [slots, kv_heads, width] of the layer's pool, with the layer's ``relative`` term. The result has
        the memory of ``q``, whose values are gone, unless decode rows read pages.
        ``section``: the one whose queries ``q`` has; None if there is one alone."""
        queries, heads, width = q.shape
        paged = self._paged[section or 0]
        # In the same memory, since heads lie side by side: a tile of the kernel has read its queries when it writes.
        out = q.reshape(queries, heads * width) if paged is None else aligned((queries, heads * width), q.dtype)
        if self._attention is not None:
            term = None if relative is None else (relative.keys, relative.queries, relative.rows, relative.span)
            self._attention.run(q, k, v, pool_k, pool_v, out, term, -1 if section is None else section)
        if paged is not None:
            paged.run(q, pool_k, pool_v, out.reshape(queries, heads, width))
        return out


def _of_segments_apart(forest: Forest, heads: Kind, rows: I64 | None, sections: Starts | None) -> Attention:
    """Prompts that begin with themselves, which most steps of short requests are: one run each."""
    starts = forest.slices.starts
    own = np.zeros((len(starts) - 1, 3), np.int64)
    own[:, 0] = begins = starts[:-1]
    own[:, 1] = starts[1:] - begins
    wanted = np.arange(starts[-1]) if rows is None else rows
    items = starts if rows is None else rows.searchsorted(starts).astype(np.int32)
    visible = wanted + 1 if len(begins) == 1 else wanted + 1 - own[:, 0].repeat(items[1:] - items[:-1])
    hidden = None if heads.window is None else visible - 1 - heads.window
    runs = np.arange(len(starts), dtype=np.int32)
    return _planned(heads, items, visible, runs, own, hidden, sections=sections)


def _of_whole_prompts(forest: Forest, heads: Kind, rows: I64 | None, sections: Starts | None) -> Attention:
    """Every token sees its whole tree, or the part of it within the window: one item and one run a tree."""
    trees = forest.trees()
    if rows is None and len(trees) == 2 and heads.window is None:
        return _of_one_prompt(int(trees[1]), heads, sections)
    begins, lengths = trees[:-1], np.diff(trees)
    wanted = np.arange(trees[-1]) if rows is None else rows
    items = np.searchsorted(wanted, trees)
    counts = np.diff(items)
    visible, hidden = np.repeat(lengths, counts), None
    at = wanted - np.repeat(begins, counts)
    if heads.window is not None:
        hidden = at - heads.window
        visible = np.minimum(at + heads.window + 1, visible)
    own = np.stack([begins, lengths, np.zeros_like(begins)], axis=1)
    runs = np.arange(len(trees), dtype=np.int32)
    return _planned(heads, items.astype(np.int32), visible, runs, own, hidden, at, sections)


_FIRST = np.zeros(1, np.int64)
_ONE_RUN = np.array([0, 1], np.int32)
_OF_THE_STEP = np.zeros(1, np.uint8)


def _of_one_prompt(tokens: int, heads: Kind, sections: Starts | None) -> Attention:
    """A text by itself, which most steps of an encoder are: the plan of ``_of_whole_prompts`` without its arithmetic
    on arrays."""
    relative = heads.relative
    return Attention(
        heads.heads,
        heads.kv_heads,
        heads.head_dim,
        heads.scale,
        np.array([0, tokens], np.int32),
        np.full(tokens, tokens, np.int32),
        _ONE_RUN,
        _FIRST,
        np.array([tokens], np.int64),
        _OF_THE_STEP,
        None,
        heads.cap,
        None if relative is None else np.arange(tokens, dtype=np.int32),
        0 if relative is None else panels_of(relative),
        sections,
    )


def _planned(
    heads: Kind,
    items: Starts,
    visible: I64,
    run_starts: Starts,
    runs: Runs,
    hidden: I64 | None,
    places: I64 | None = None,
    sections: Starts | None = None,
) -> Attention:
    """``items`` and ``run_starts``: where each item's queries and runs begin. A query sees the first ``visible`` keys
    of its item, without the first ``hidden`` ones if that is above 0. ``places``: of the queries in their
    items. ``sections``: where those of the queries begin."""
    return Attention(
        heads.heads,
        heads.kv_heads,
        heads.head_dim,
        heads.scale,
        items,
        visible.astype(np.int32),
        run_starts,
        np.ascontiguousarray(runs[:, 0]),
        np.ascontiguousarray(runs[:, 1]),
        runs[:, 2].astype(np.uint8),
        None if hidden is None else np.maximum(hidden, 0).astype(np.int32),
        heads.cap,
        None if places is None or heads.relative is None else places.astype(np.int32),
        0 if heads.relative is None else panels_of(heads.relative),
        sections,
    )


def _starts(counts: list[I64]) -> Starts:
    ends = np.cumsum(np.concatenate([np.zeros(1, np.int64), *counts]))
    return ends.astype(np.int32)


def _queries(forest: Forest, wanted: I64) -> tuple[I64, I64]:
    """Wanted tokens of each segment, and how many keys of its sequence each of them sees."""
    starts = np.asarray(forest.starts, np.int64)
    counts = np.diff(np.searchsorted(wanted, starts))
    return counts, wanted + 1 + np.repeat(forest.base - starts[:-1], counts)


def _forest_runs(forest: Forest, block_size: int) -> tuple[I64, Runs]:
    """Return number of runs of each segment, and the runs one after the other."""
    count = len(forest.parents)
    starts = np.asarray(forest.starts, np.int64)
    own = np.stack([starts[:-1], np.diff(starts), np.zeros(count, np.int64)], axis=1)
    context = forest.slices.context_lens
    if not context.any() and not forest.below:
        return np.ones(count, np.int64), own
    paths: list[Runs] = []
    for s, parent in enumerate(forest.parents):
        before = paths[parent] if parent >= 0 else _blocks(forest.blocks(s), block_size, int(context[s]))
        elder = [np.array([[start, stop - start, 0]]) for start, stop in forest.joins.get(s, ())]
        paths.append(np.concatenate([before, *elder, own[s : s + 1]]))
    return np.array([len(path) for path in paths], np.int64), np.concatenate(paths)


def _blocks(blocks: I32, block_size: int, length: int) -> Runs:
    """Return the first ``length`` tokens of a block table as runs."""
    used = -(-length // block_size)
    if used > len(blocks):
        raise ValueError(f"{length} tokens do not lie in {len(blocks)} blocks of {block_size}")
    runs, _ = _joined(blocks[:used], np.zeros(min(used, 1), np.int64), block_size)
    if used:
        runs[-1, 1] -= used * block_size - length
    return runs


def _decode_runs(decode: DecodeRows, rows: I64, block_size: int) -> tuple[I64, Runs]:
    """Make runs of some decode rows, as ``_forest_runs``: whole blocks; the row reads its own tokens of them."""
    indptr = decode.block_indptr.astype(np.int64)
    held = np.diff(indptr)[rows]
    needed = decode.context_lens[rows].astype(np.int64) // block_size + 1
    if (needed > held).any():
        short = int(np.argmax(needed > held))
        tokens = int(decode.context_lens[rows[short]]) + 1
        raise ValueError(f"{tokens} tokens do not lie in {int(held[short])} blocks of {block_size}")
    ends = np.cumsum(needed)
    begins = ends - needed
    at = np.repeat(indptr[:-1][rows] - begins, needed) + np.arange(int(needed.sum()))
    runs, first = _joined(decode.block_ids[at], begins, block_size)
    return np.searchsorted(first, ends) - np.searchsorted(first, begins), runs


def _joined(blocks: I32, begins: I64, block_size: int) -> tuple[Runs, I64]:
    """Blocks that follow each other as one run, none across ``begins``; and the block that each run begins with."""
    new = np.ones(len(blocks), np.bool_)
    new[1:] = np.diff(blocks) != 1
    new.put(begins, True)
    first = np.flatnonzero(new)
    counts = np.diff(np.append(first, len(blocks)))
    starts = blocks[first].astype(np.int64) * block_size
    return np.stack([starts, counts * block_size, np.ones(len(first), np.int64)], axis=1), first


class PlannedAttention:
    """See ``StepAttention``. ``plans``: of each layer with attention, whose place among them ``places`` [layers] has.
    A plan has a section for each run, or there is one run. ``pool``: K and V of such a layer by its place."""

    def __init__(
        self,
        plans: Sequence[RunsPlan],
        places: Sequence[int],
        layers: Sequence[LayerWeights],
        pool: Sequence[tuple[Array, Array]],
        step: StepTokens,
        runs: list[Run],
        last_runs: list[Run],
    ) -> None:
        self.runs, self.last_runs = runs, last_runs
        self._plans, self._places, self._layers, self._pool = plans, places, layers, pool
        self._slots, self._written = step.slots, step.written

    def keep(self, layer: int, k: Array, v: Array) -> None:
        GOVERNOR.look()
        if len(self._slots):
            write_pool(k, v, *self._pool[self._places[layer]], self._slots, self._written)

    def run(self, layer: int, number: int, q: Array, k: Array, v: Array) -> Array:
        place = self._places[layer]
        runs = self.last_runs if layer == len(self._layers) - 1 else self.runs
        section = None if len(runs) == 1 else number
        return self._plans[place].run(q, k, v, *self._pool[place], self._layers[layer].relative, section)
