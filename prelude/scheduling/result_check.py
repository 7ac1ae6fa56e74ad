"""An executor's result is checked against its batch: a wrong shape fails its step, and no other step's rows."""

from __future__ import annotations

import numpy as np

from prelude.batch import MixedBatch, Readout, StepResult
from prelude.errors import ExecutionError
from prelude.scheduling.pack import Packed


def readouts_of(packed: Packed) -> tuple[Readout, ...]:
    batch = packed.batch
    if isinstance(batch, MixedBatch):
        tail = () if batch.decode_readout is None else (batch.decode_readout,)
        return (*batch.readouts, *tail)
    return (batch.readout,)


def check_result(packed: Packed, result: StepResult) -> list[frozenset[int]]:
    """Of each output its rows (items, for pooled ones) with a number that is not finite: those that the executor
    lists, and those that it missed."""
    if not isinstance(result, StepResult):
        raise ExecutionError(f"the executor returned a {type(result).__name__}, not a StepResult")
    readouts = readouts_of(packed)
    if len(result.outputs) != len(readouts) or len(result.bad_rows) != len(readouts):
        raise ExecutionError(f"the executor returned {len(result.outputs)} outputs, the batch has {len(readouts)}")
    found: list[frozenset[int]] = []
    for readout, output, bad in zip(readouts, result.outputs, result.bad_rows):
        if not readout.answers(output):
            raise ExecutionError(
                f"the executor answered {type(readout).__name__} of {len(readout.rows)} rows with a "
                f"{type(output).__name__} of another kind or shape"
            )
        listed = bad if isinstance(bad, np.ndarray) else np.asarray(bad)
        if listed.size and (listed.min() < 0 or listed.max() >= readout.items):
            raise ExecutionError("the executor names bad rows that the batch does not have")
        missed = readout.not_finite(output)
        found.append(frozenset([*missed.tolist(), *listed.tolist()]) if missed.size or listed.size else _NONE)
    return found


_NONE: frozenset[int] = frozenset()
