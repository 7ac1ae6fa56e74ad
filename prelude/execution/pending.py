"""Pending tokens: a decode row may name a token before the host has seen it. Its id -1 - j is the j-th token that
the last sampling step draws, its sample readouts one after another.

A step that failed drew nothing, and the rows that name its tokens are read by no request. They read token 0, so that
the other rows of their step do not fail with them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from prelude.readouts.batch import DecodeBatch, DecodeRows, ForwardBatch, MixedBatch, Output


def num_sampled(batch: ForwardBatch) -> int:
    """Return how many tokens a step draws."""
    if isinstance(batch, MixedBatch):
        return sum(readout.draws for readout in (*batch.readouts, batch.decode_readout) if readout is not None)
    return batch.readout.draws


class PendingTokens:
    """The tokens that the last sampling step drew, on the host."""

    def __init__(self) -> None:
        self._tokens: npt.NDArray[np.int64] = np.zeros(0, dtype=np.int64)

    def resolve(self, token_ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """``token_ids`` with tokens for those below 0. ``ValueError`` if fewer were drawn."""
        named = token_ids < 0
        if not named.any():
            return token_ids
        places = -1 - token_ids[named]
        if places.max() >= len(self._tokens):
            raise ValueError(f"token id {token_ids.min()}: the step before drew {len(self._tokens)} tokens")
        found: npt.NDArray[np.int64] = token_ids.copy()
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
