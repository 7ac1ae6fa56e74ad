"""An executor's result is checked against its batch: a wrong shape fails its step, and no other step's rows."""

from __future__ import annotations

from prelude._native.core import check_outputs
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
    try:
        return check_outputs(readouts_of(packed), result)
    except ValueError as error:
        raise ExecutionError(str(error)) from None
