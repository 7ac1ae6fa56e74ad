"""Which state of a recurrent model each prompt segment of a step goes on from, and which ones it leaves.

    packed      [ prompt ........................................ ]
    with cuts   [ to the branch )[ to the last full block )[ rest ]      each goes on from the one before it
                  state ─▶ entry   state ─▶ entry            ─▶ the sequence's own entry, of a Decode request

A state is that at a segment's end, so that a segment is cut where one is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from prelude.readouts.batch import PromptSlices
from prelude.scheduling.lease import Lease
from prelude.scheduling.plan import PrefillRow
from prelude.values.arrays import I32


def with_states(
    slices: PromptSlices,
    rows: Sequence[tuple[int, int, Lease]],
    chunks: Sequence[tuple[int, PrefillRow]],
    block_size: int,
) -> PromptSlices:
    """``rows``: of OneShot rows the segment that they begin with, the offset from a token of the prompt to the
    batch's token, and the lease. ``chunks``: where the first token of each is; they are the last segments, one
    each."""
    count = slices.num_segments
    begins, ends = np.full(count, -1, np.int32), np.full(count, -1, np.int32)
    cuts: list[tuple[int, int]] = []  # (token behind which a state is kept, entry)
    for segment, shift, lease in rows:
        begins[segment] = lease.state_from
        cuts += [(shift + blocks * block_size, entry) for entry, blocks in lease.kept]
    for segment, (token, row) in enumerate(chunks, count - len(chunks)):
        lease = row.request.held
        if row.start:
            begins[segment] = lease.state_from if row.start == lease.base * block_size else lease.state_index
        ends[segment] = lease.state_index
        cuts += [(token - row.start + blocks * block_size, entry) for entry, blocks in lease.kept]
    if not (cuts or chunks or (begins >= 0).any()):
        return slices
    return _cut(replace(slices, state_from=begins, state_to=ends), sorted(cuts))


def _cut(slices: PromptSlices, cuts: list[tuple[int, int]]) -> PromptSlices:
    """Keep the state behind token ``cuts[i][0] - 1`` in entry ``cuts[i][1]``. If a segment ends there and has
    an entry for its own state, an empty segment behind it takes that entry."""
    begins, ends = slices.state_from, slices.state_to
    if begins is None or ends is None or not cuts:
        return slices
    tokens = np.array([token for token, _ in cuts], np.int32)
    entries = np.array([entry for _, entry in cuts], np.int32)
    where = np.searchsorted(slices.starts, tokens - 1, side="right") - 1
    at_end = (tokens == slices.starts[where + 1]) & (ends[where] < 0)
    ends[where[at_end]] = entries[at_end]
    tokens, entries, where = tokens[~at_end], entries[~at_end], where[~at_end]
    if not len(tokens):
        return slices
    count = slices.num_segments
    parts = np.bincount(where, minlength=count)
    last: I32 = (np.arange(count) + np.cumsum(parts)).astype(np.int32)
    first = last - parts
    new = where + 1 + np.arange(len(where))  # the segments behind the cuts

    def spread(values: I32, at: I32, rest: int) -> I32:
        out = np.full(count + len(new), rest, np.int32)
        out[at] = values
        return out

    parents = spread(np.where(slices.parents >= 0, last[slices.parents], -1).astype(np.int32), first, -1)
    parents[new] = new - 1
    to = spread(ends, last, -1)
    to[new - 1] = entries
    return replace(
        slices,
        starts=np.insert(slices.starts, where + 1, tokens),
        parents=parents,
        context_lens=spread(slices.context_lens, first, 0),
        context_indptr=np.insert(slices.context_indptr, where + 1, slices.context_indptr[where + 1]),
        state_from=spread(begins, first, -1),
        state_to=to,
    )
