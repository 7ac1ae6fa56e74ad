"""An executor's result is checked against its batch: a wrong shape fails its step, and no other step's rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from prelude.errors import ExecutionError
from prelude.readouts.batch import MixedBatch, Readout, StepResult
from prelude.scheduling.pack import Packed

_NO_ROWS: frozenset[int] = frozenset()


def check_result(packed: Packed, result: Any) -> list[frozenset[int]]:
    """Return each output's rows (items, for pooled ones) with a number that is not finite: those that the executor
    lists, and those that it missed. ``ExecutionError`` for a result of another batch."""
    if not isinstance(result, StepResult):
        raise ExecutionError(f"the executor returned a {type(result).__name__}, not a StepResult")
    batch = packed.batch
    readouts: tuple[Readout, ...]
    if isinstance(batch, MixedBatch):
        readouts = batch.readouts if batch.decode_readout is None else (*batch.readouts, batch.decode_readout)
    else:
        readouts = (batch.readout,)
    if len(result.outputs) != len(readouts) or len(result.bad_rows) != len(readouts):
        raise ExecutionError(f"the executor returned {len(result.outputs)} outputs, the batch has {len(readouts)}")
    found = []
    for readout, output, listed in zip(readouts, result.outputs, result.bad_rows):
        if not readout.answers(output):
            raise ExecutionError(
                f"the executor answered {type(readout).__name__} of {len(readout.rows)} rows with a "
                f"{type(output).__name__} of another kind or shape"
            )
        rows = np.asarray(listed)
        if rows.size and (rows.min() < 0 or rows.max() >= readout.items):
            raise ExecutionError("the executor names bad rows that the batch does not have")
        missed = readout.not_finite(output)
        found.append(frozenset([*missed.tolist(), *rows.tolist()]) if len(missed) or rows.size else _NO_ROWS)
    return found
