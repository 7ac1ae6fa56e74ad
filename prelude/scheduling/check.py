"""An executor's answer, held against its question: the wrong shape fails its step, not somebody else's rows."""

from __future__ import annotations

import numpy as np

from prelude.batch import (
    HeadOutput,
    HeadRows,
    LogprobOutput,
    LogprobRows,
    MixedBatch,
    Output,
    PooledOutput,
    PooledRows,
    Readout,
    SampleOutput,
    SampleRows,
    StepResult,
)
from prelude.errors import ExecutionError
from prelude.scheduling.pack import Packed


def readouts_of(packed: Packed) -> tuple[Readout, ...]:
    batch = packed.batch
    if isinstance(batch, MixedBatch):
        tail = () if batch.decode_readout is None else (batch.decode_readout,)
        return (*batch.readouts, *tail)
    return (batch.readout,)


def check_result(packed: Packed, result: StepResult) -> None:
    if not isinstance(result, StepResult):
        raise ExecutionError(f"the executor returned a {type(result).__name__}, not a StepResult")
    readouts = readouts_of(packed)
    if len(result.outputs) != len(readouts) or len(result.bad_rows) != len(readouts):
        raise ExecutionError(f"the executor returned {len(result.outputs)} outputs, the batch has {len(readouts)}")
    for readout, output, bad in zip(readouts, result.outputs, result.bad_rows):
        if not _matches(readout, output):
            raise ExecutionError(
                f"the executor answered {type(readout).__name__} of {len(readout.rows)} rows with a "
                f"{type(output).__name__} of another kind or shape"
            )
        rows = np.asarray(bad)
        if len(rows) and (rows.min() < 0 or rows.max() >= _items(readout)):
            raise ExecutionError("the executor names bad rows that the batch does not have")


def _items(readout: Readout) -> int:
    return len(readout.indptr) - 1 if isinstance(readout, PooledRows) else len(readout.rows)


def _matches(readout: Readout, output: Output) -> bool:
    rows = len(readout.rows)
    match readout, output:
        case LogprobRows(), LogprobOutput():
            pairs = len(readout.targets)
            return (
                output.logprobs.shape == (pairs,)
                and (not readout.ranks or _shape(output.ranks) == (pairs,))
                and (
                    not readout.top
                    or (_shape(output.top_ids)[:1] == (rows,) and _shape(output.top_logprobs)[:1] == (rows,))
                )
            )
        case PooledRows(), PooledOutput():
            return output.vectors.ndim == 2 and len(output.vectors) == _items(readout)
        case HeadRows(), HeadOutput():
            return output.logits.ndim == 2 and len(output.logits) == rows
        case SampleRows(), SampleOutput():
            return output.token_ids.shape == (rows,)
    return False


def _shape(array: object) -> tuple[int, ...]:
    return getattr(array, "shape", ())


_NONE: frozenset[int] = frozenset()


def bad_rows(readout: Readout, output: Output, listed: object) -> frozenset[int]:
    """Rows (items, for pooled ones) whose numbers are not numbers: those the executor lists, and those it missed."""
    if type(output) is SampleOutput and type(listed) is np.ndarray and listed.size == 0:
        return _NONE
    bad = set(np.asarray(listed).tolist())
    match readout, output:
        case LogprobRows(), LogprobOutput() if np.isnan(output.logprobs).any():
            bad.update(readout.target_rows[np.isnan(output.logprobs)].tolist())
        case PooledRows(), PooledOutput() if not np.isfinite(output.vectors).all():
            bad.update(np.flatnonzero(~np.isfinite(output.vectors).all(axis=1)).tolist())
        case HeadRows(), HeadOutput() if not np.isfinite(output.logits).all():
            bad.update(np.flatnonzero(~np.isfinite(output.logits).all(axis=1)).tolist())
    return frozenset(bad)
