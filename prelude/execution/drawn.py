"""Tokens that are named before anybody has seen them: id -1 - j of a decode row is the j-th token that the last
sampling step drew, its sample readouts one after another.

Where that step failed there is nothing to name, and nobody will read the rows that do; they read token 0, so that the
other rows of their step are not drawn into it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from prelude.batch import ForwardBatch, MixedBatch, Output, SampleOutput, SampleRows


def num_drawn(batch: ForwardBatch) -> int:
    """How many tokens a step draws."""
    if isinstance(batch, MixedBatch):
        readouts = (*batch.readouts, batch.decode_readout)
        return sum(len(readout.rows) for readout in readouts if isinstance(readout, SampleRows))
    return len(batch.readout.rows) if isinstance(batch.readout, SampleRows) else 0


class Drawn:
    """What the last sampling step drew, on the host."""

    def __init__(self) -> None:
        self._tokens: npt.NDArray[np.int64] = np.zeros(0, dtype=np.int64)

    def resolve(self, token_ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """``token_ids`` with tokens for those below 0. ``ValueError`` where fewer were drawn."""
        named = token_ids < 0
        if not named.any():
            return token_ids
        places = -1 - token_ids[named]
        if places.max() >= len(self._tokens):
            raise ValueError(f"token id {token_ids.min()}: the step before drew {len(self._tokens)} tokens")
        found: npt.NDArray[np.int64] = token_ids.copy()
        found[named] = self._tokens[places]
        return found

    def keep(self, outputs: tuple[Output, ...]) -> None:
        tokens = [output.token_ids for output in outputs if isinstance(output, SampleOutput)]
        if tokens:
            self._tokens = np.concatenate(tokens, dtype=np.int64)

    def lose(self, batch: ForwardBatch) -> None:
        """The step failed."""
        count = num_drawn(batch)
        if count:
            self._tokens = np.zeros(count, dtype=np.int64)
