"""All readouts of a step: their arrays stand in one area for each direction, under names with the readout's index."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from prelude.cuda.read_logprobs import logprob_operation, recorded_logprobs
from prelude.cuda.read_samples import SampleOperation, recorded_samples
from prelude.cuda.read_vectors import HeadOperation, PooledOperation
from prelude.cuda.readout_operation import ReadoutContext, ReadoutOperation, RecordedReadout, Sizes
from prelude.cuda.shapes import power_bucket
from prelude.cuda.staging import Fields
from torch import Tensor

from prelude.batch import I32, HeadRows, LogprobRows, Output, PooledRows, Readout, SampleRows


@dataclass(frozen=True, slots=True)
class Served:
    """How a readout runs on the device. ``recorded(readout, rows)``: the part that is recorded in a graph of ``rows``
    rows; ``None`` for a readout that is enqueued after the graph (edits, best tokens, vectors)."""

    make: Callable[[Any, ReadoutContext, RecordedReadout | None, int], ReadoutOperation]
    recorded: Callable[[Any, int], RecordedReadout | None] = lambda readout, rows: None


# The readouts of ``prelude.readouts`` that run on the device. A new one is a file and a line here.
OPERATIONS: dict[type[Readout], Served] = {
    SampleRows: Served(SampleOperation, recorded_samples),
    LogprobRows: Served(logprob_operation, recorded_logprobs),
    PooledRows: Served(lambda readout, context, recorded, tokens_at: PooledOperation(readout, context)),
    HeadRows: Served(lambda readout, context, recorded, tokens_at: HeadOperation(readout, context)),
}


def served(readout: Readout) -> Served:
    found = OPERATIONS.get(type(readout))
    if found is None:
        raise TypeError(f"{type(readout).__name__} is not a readout that runs on this device")
    return found


def recorded_readout(readout: Readout, chunk_rows: int) -> RecordedReadout | None:
    """``None`` also where the rows are more than one chunk."""
    rows = power_bucket(len(readout.rows))
    return served(readout).recorded(readout, rows) if 0 < rows <= chunk_rows else None


def blank_readout(recorded: RecordedReadout) -> Readout:
    """A readout of the kind and sizes of a recorded one."""
    rows, pairs = np.zeros(recorded.rows, np.int32), np.zeros(recorded.pairs, np.int32)
    if recorded.kind in ("greedy", "sample"):
        ones = np.ones(recorded.rows, np.float32)
        temperature = ones if recorded.kind == "sample" else 0 * ones
        return SampleRows(rows, temperature, rows, ones, 0 * ones, np.zeros(recorded.rows, np.uint64), rows)
    return LogprobRows(rows, pairs, pairs, raw=recorded.kind == "labels")


def operation_of(
    readout: Readout, context: ReadoutContext, recorded: RecordedReadout | None, tokens_at: int = 0
) -> ReadoutOperation:
    """``tokens_at``: the index of a sample readout's first token among the sampled tokens of the step."""
    return served(readout).make(readout, context, recorded, tokens_at)


@dataclass(frozen=True, slots=True)
class StepReadouts:
    """The operations of a step. Its pending tokens are always the first output, so that the next step finds them in
    one place for every shape of this step."""

    operations: tuple[ReadoutOperation, ...]
    sampled_rows: int  # room for sampled tokens
    draws: int  # tokens that this step samples

    @classmethod
    def of(
        cls, readouts: list[Readout], context: ReadoutContext, recorded: RecordedReadout | None, sampled_rows: int
    ) -> StepReadouts:
        found: list[ReadoutOperation] = []
        tokens = draws = 0
        for readout in readouts:
            operation = operation_of(readout, context, recorded, tokens)
            if readout.draws:
                tokens += operation.rows  # type: ignore[attr-defined]
                draws += readout.draws
            found.append(operation)
        if tokens > sampled_rows:
            raise ValueError(f"{tokens} rows are sampled in one step; there is room for {sampled_rows}")
        return cls(tuple(found), sampled_rows, draws)

    def inputs(self) -> Sizes:
        return [(f"r{k}.{name}", *rest) for k, r in enumerate(self.operations) for name, *rest in r.inputs()]  # type: ignore[misc]

    def output_fields(self) -> Fields:
        sizes: Sizes = [("tokens", self.sampled_rows, "i32")]
        for k, operation in enumerate(self.operations):
            sizes += [(f"r{k}.{name}", count, kind) for name, count, kind in operation.outputs()]
        return Fields(sizes)

    def write(self, fields: Fields, area: Tensor, ats: list[I32]) -> None:
        for k, (operation, at) in enumerate(zip(self.operations, ats)):

            def put(name: str, values: np.ndarray, rest: float = 0, k: int = k) -> None:
                target = fields.array(area, f"r{k}.{name}")
                target[: len(values)] = values
                target[len(values) :] = rest

            operation.write(put, at)

    def enqueue(self, fields: Fields, area: Tensor, outputs: Fields, out_area: Tensor, hidden: Tensor) -> None:
        for k, operation in enumerate(self.operations):

            def get(name: str, k: int = k) -> Tensor:
                return fields.on(area, f"r{k}.{name}")

            def out(name: str, k: int = k) -> Tensor:
                return outputs.on(out_area, name if name == "tokens" else f"r{k}.{name}")

            operation.enqueue(get, out, hidden)

    def results(self, outputs: Fields, area: Tensor) -> tuple[tuple[Output, ...], tuple[I32, ...]]:
        found: list[tuple[Output, I32]] = []
        for k, operation in enumerate(self.operations):

            def take(name: str, k: int = k) -> np.ndarray:
                return outputs.array(area, name if name == "tokens" else f"r{k}.{name}")

            found.append(operation.result(take))
        return tuple(output for output, _ in found), tuple(bad for _, bad in found)

    @property
    def lm_head_rows(self) -> int:
        return sum(operation.lm_head_rows for operation in self.operations)
