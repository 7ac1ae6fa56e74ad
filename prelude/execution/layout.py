"""The tokens of a batch: the keys that each of them may read, and those that the step before draws. Plain numpy."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from prelude.execution.executor import num_sampled
from prelude.readouts.base import Output
from prelude.readouts.batch import DecodeBatch, DecodeRows, ForwardBatch, MixedBatch, OneShotBatch, PromptSlices
from prelude.records import dataclass, replace
from prelude.values.arrays import I32, I64


@dataclass(frozen=True, slots=True)
class Forest:
    """The segments of a batch's prompt slices, as trees.

    ``base[s]`` tokens of s's own sequence precede it: the context in the pool and its ancestors.
    ``below[s]``, for segments with children, are the token ranges of all its descendants, joined if they touch.
    """

    slices: PromptSlices
    starts: list[int]
    parents: list[int]
    base: I64
    roots: I64
    below: dict[int, list[tuple[int, int]]]
    joins: dict[int, list[tuple[int, int]]]
    """Segments that see the tokens below their elder siblings, and the ranges of those; ``base`` counts them."""
    apart: bool
    """Whether every segment reads itself alone: no context, no branches."""

    @classmethod
    def of(cls, slices: PromptSlices) -> Forest:
        count = slices.num_segments
        starts, parents = slices.starts.tolist(), slices.parents.tolist()
        base, roots = slices.context_lens.astype(np.int64), np.arange(count, dtype=np.int64)
        below: dict[int, list[tuple[int, int]]] = {}
        joins: dict[int, list[tuple[int, int]]] = {}
        if count and max(parents) >= 0:
            for s, parent in enumerate(parents):
                if parent >= s:
                    raise ValueError(f"segment {s} has parent {parent}; parents come before children")
                if parent >= 0:
                    base[s] = base[parent] + starts[parent + 1] - starts[parent]
                    roots[s] = roots[parent]
            lengths = np.diff(slices.starts)
            begun = np.flatnonzero(lengths)
            if (slices.positions[slices.starts[begun]] != base[begun]).any():
                joins = _joins(slices, starts, parents, base)
            for s in range(count - 1, -1, -1):
                if parents[s] >= 0:
                    own = [(starts[s], starts[s + 1]), *below.get(s, ())]
                    below.setdefault(parents[s], []).extend(own)
            below = {s: _joined(ranges) for s, ranges in below.items()}
        return cls(slices, starts, parents, base, roots, below, joins, not below and not np.count_nonzero(base))

    def depths(self) -> I64:
        """[S]: how many segments are above each."""
        depths = np.zeros(len(self.parents), np.int64)
        for s, parent in enumerate(self.parents):
            if parent >= 0:
                depths[s] = depths[parent] + 1
        return depths

    def trees(self) -> I64:
        """[roots + 1]: where the tokens of each tree begin, and the end. ``ValueError`` if a tree's segments do
        not lie side by side, or continue a context, which an encoder cannot."""
        if self.apart:
            return np.asarray(self.starts, np.int64)  # each segment is a tree
        if (np.diff(self.roots) < 0).any() or self.slices.context_lens.any():
            raise ValueError("a prompt of an encoder has a context, or another prompt lies inside it")
        return np.append(np.asarray(self.starts, np.int64)[np.unique(self.roots)], self.starts[-1])

    def blocks(self, root: int) -> I32:
        """Pool blocks of a root's context."""
        indptr = self.slices.context_indptr
        return self.slices.context_blocks[indptr[root] : indptr[root + 1]]

    def pairs(self, window: int | None = None) -> int:
        """(query, key) pairs of one head; see ``causal_pairs``."""
        return causal_pairs(self.base, (self.slices.starts[1:] - self.slices.starts[:-1]).astype(np.int64), window)

    def pairs_of_whole_prompts(self, window: int | None) -> int:
        """The same for a token that sees its whole tree, of it the tokens at most ``window`` positions away."""
        lengths = [stop - start for start, stop in pairwise(self.trees().tolist())]
        reach = [n - 1 if window is None else min(n - 1, window) for n in lengths]
        return sum([n + 2 * far * n - far * (far + 1) for n, far in zip(lengths, reach)])


def _joins(
    slices: PromptSlices, starts: list[int], parents: list[int], base: I64
) -> dict[int, list[tuple[int, int]]]:
    """Segments whose positions do not continue their parent's, with the token ranges below their elder siblings;
    ``base`` is corrected for them and for the segments below them."""
    found: dict[int, list[tuple[int, int]]] = {}
    ends: list[int] = []  # the position behind each segment
    tokens: list[list[tuple[int, int]]] = []  # of each segment and all that has come below it
    positions = slices.positions
    for s, parent in enumerate(parents):
        begins = int(slices.context_lens[s]) if parent < 0 else ends[parent]
        if parent >= 0:
            base[s] = base[parent] + starts[parent + 1] - starts[parent]
        own, length = (starts[s], starts[s + 1]), starts[s + 1] - starts[s]
        if length and positions[own[0]] != begins:
            if parent < 0:
                raise ValueError(f"segment {s} begins at position {positions[own[0]]} behind {begins} tokens")
            found[s] = _joined([piece for elder in range(s) if parents[elder] == parent for piece in tokens[elder]])
            base[s] += sum(stop - start for start, stop in found[s])
        ends.append(int(positions[own[1] - 1]) + 1 if length else begins)
        tokens.append([own])
        while parent >= 0:
            tokens[parent].append(own)
            parent = parents[parent]
    return found


def prompt_keys(uncached: Any, cached: Any) -> Any:
    """Return how many keys ``uncached`` tokens behind ``cached`` ones read: each all before it, and itself."""
    return uncached * (cached + (uncached + 1) / 2)


def causal_pairs(before: I64, lengths: I64, window: int | None) -> int:
    """(query, key) pairs of one head for rows of ``lengths`` tokens behind ``before`` others: a token sees itself and
    those before it, of them the ones at most ``window`` positions away."""
    if window is None:
        return int(prompt_keys(lengths, before).sum())
    short = np.clip(window - before, 0, lengths)  # tokens that see all before them
    return int((prompt_keys(short, before) + (lengths - short) * (window + 1)).sum())


def _joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return joined


_NO_TOKENS: I64 = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class StepTokens:
    """Holds all tokens of a batch in one row: prompt slices first, decode rows behind them."""

    token_ids: I64
    positions: I64
    forest: Forest | None
    decode: DecodeRows | None
    written: I64 | None  # tokens whose K and V go to the pool; None for all of them
    slots: I64  # where, one per written token

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def prompt_tokens(self) -> int:
        return 0 if self.forest is None else self.forest.slices.num_tokens

    @classmethod
    def of(cls, batch: ForwardBatch) -> StepTokens:
        slices = None if not isinstance(batch, (OneShotBatch, MixedBatch)) else batch.slices
        decode: DecodeRows | None = None
        if not isinstance(batch, OneShotBatch):
            decode = batch.decode if isinstance(batch, MixedBatch) else batch.rows
        parts = [part for part in (slices, decode) if part is not None]
        return cls(
            _concatenated([part.token_ids for part in parts]),
            _concatenated([part.positions for part in parts]),
            None if slices is None or not slices.num_segments else Forest.of(slices),
            None if decode is None or not decode.num_rows else decode,
            *_written(parts),
        )

    def attended(self, window: int | None, causal: bool) -> int:
        """Key positions read by all tokens, each counted for every token that reads it. For ``window`` and ``causal``
        see ``prelude.models.spec.Attention``."""
        if self.forest is not None and not causal:
            return self.forest.pairs_of_whole_prompts(window)
        pairs = 0 if self.forest is None else self.forest.pairs(window)
        if self.decode is not None:
            before = self.decode.context_lens.astype(np.int64)
            pairs += causal_pairs(before, np.ones_like(before), window)
        return pairs


def _concatenated(arrays: list[I32]) -> I64:
    return arrays[0].astype(np.int64) if len(arrays) == 1 else np.concatenate(arrays, dtype=np.int64)


def _written(parts: Sequence[PromptSlices | DecodeRows]) -> tuple[I64 | None, I64]:
    """Return ``StepTokens.written`` and ``slots``."""
    given = [part.write_slots for part in parts]
    if not any([own is not None for own in given]):
        return _NO_TOKENS, _NO_TOKENS
    lengths = [len(part.token_ids) for part in parts]
    slots = _concatenated([np.full(n, -1, np.int32) if own is None else own for own, n in zip(given, lengths)])
    written = (slots >= 0).nonzero()[0]
    return None if len(written) == len(slots) else written, slots[written]


def blank_prompts(lengths: Sequence[int]) -> PromptSlices:
    """Prompts of token 0, of ``lengths`` each, without a context, and not kept: a step to be measured."""
    starts = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=starts[1:])
    return PromptSlices(
        np.zeros(starts[-1], np.int32),
        np.concatenate([np.arange(n, dtype=np.int32) for n in lengths]),
        starts,
        np.full(len(lengths), -1, np.int32),
        np.zeros(len(lengths), np.int32),
        np.zeros(len(lengths) + 1, np.int32),
        np.zeros(0, np.int32),
    )


class PendingTokens:
    """The tokens that the last sampling step drew, on the host."""

    def __init__(self) -> None:
        self._tokens: I64 = np.zeros(0, dtype=np.int64)

    def resolve(self, token_ids: I64) -> I64:
        """``token_ids`` with tokens for those below 0. ``ValueError`` if fewer were drawn."""
        named = token_ids < 0
        if not named.any():
            return token_ids
        places = -1 - token_ids[named]
        if places.max() >= len(self._tokens):
            raise ValueError(f"token id {token_ids.min()}: the step before drew {len(self._tokens)} tokens")
        found: I64 = token_ids.copy()
        found[named] = self._tokens[places]
        return found

    def resolved(self, batch: ForwardBatch) -> ForwardBatch:
        """``batch`` with tokens for those that its decode rows name. ``ValueError`` if fewer were drawn."""
        if isinstance(batch, DecodeBatch):
            return replace(batch, rows=self._known(batch.rows))
        return replace(batch, decode=self._known(batch.decode)) if isinstance(batch, MixedBatch) else batch

    def _known(self, rows: DecodeRows) -> DecodeRows:
        if not (rows.token_ids < 0).any():
            return rows
        return replace(rows, token_ids=self.resolve(rows.token_ids.astype("int64")).astype("int32"))

    def keep(self, outputs: tuple[Output, ...]) -> None:
        tokens = [output.sampled_ids for output in outputs if output.sampled_ids is not None]
        if tokens:
            self._tokens = np.concatenate(tokens, dtype=np.int64)

    def lose(self, batch: ForwardBatch) -> None:
        """Note that the step failed."""
        count = num_sampled(batch)
        if count:
            self._tokens = np.zeros(count, dtype=np.int64)
