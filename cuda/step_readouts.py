"""All readouts of a step: their arrays stand in one area for each direction, under names with the readout's index."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from prelude.cuda.read_logprobs import logprob_operation
from prelude.cuda.read_samples import SampleOperation
from prelude.cuda.read_vectors import HeadOperation, PooledOperation
from prelude.cuda.readout_operation import ReadoutContext, ReadoutOperation, RecordedReadout, Sizes
from prelude.cuda.staging import Fields
from torch import Tensor

from prelude.readouts.batch import I32, HeadRows, LogprobRows, Output, PooledRows, Readout, SampleOutput, SampleRows

Make: TypeAlias = "Callable[[Any, ReadoutContext, RecordedReadout | None, int], ReadoutOperation]"

# The readouts of ``prelude.readouts`` that run on the device. A new one is a file and a line here.
OPERATIONS: dict[type[Readout], Make] = {
    SampleRows: SampleOperation,
    LogprobRows: logprob_operation,
    PooledRows: lambda readout, context, recorded, tokens_at: PooledOperation(readout, context),
    HeadRows: lambda readout, context, recorded, tokens_at: HeadOperation(readout, context),
}


def groups_of(readouts: Sequence[Readout]) -> list[list[int]]:
    """Readouts that one operation serves, by index. Those that draw are one group, so that the tokens of a step stand
    one behind the other in any room of a recorded shape; they stay apart if one of them edits logits or lists
    logprobs."""
    drawing = [i for i, readout in enumerate(readouts) if readout.draws]
    if len(drawing) < 2 or not all(is_plain(readouts[i]) for i in drawing):
        return [[i] for i in range(len(readouts))]
    return [drawing if i == drawing[0] else [i] for i in range(len(readouts)) if i not in drawing[1:]]


def is_plain(readout: Readout) -> bool:
    """Return whether it draws from the logits as they are, and no more."""
    return type(readout) is SampleRows and readout.edits is None and not readout.top and not readout.logprobs


_SETTINGS = ("rows", "temperature", "top_k", "top_p", "min_p", "seeds", "steps")


def joined(readouts: Sequence[Readout]) -> Readout:
    """The readouts of a group as one. ``rows`` of several may count different things; nothing here reads them."""
    if len(readouts) == 1:
        return readouts[0]
    settings: dict[str, Any] = {
        name: np.concatenate([getattr(readout, name) for readout in readouts]) for name in _SETTINGS
    }
    return SampleRows(**settings)


def blank_readout(recorded: RecordedReadout) -> Readout:
    """Return a readout of the kind and sizes of a recorded one."""
    rows, pairs = np.zeros(recorded.rows, np.int32), np.zeros(recorded.pairs, np.int32)
    if recorded.kind in ("greedy", "sample"):
        ones = np.ones(recorded.rows, np.float32)
        temperature = ones if recorded.kind == "sample" else 0 * ones
        return SampleRows(rows, temperature, rows, ones, 0 * ones, np.zeros(recorded.rows, np.uint64), rows)
    return LogprobRows(rows, pairs, pairs, raw=recorded.kind == "labels")


def operation_of(
    readout: Readout, context: ReadoutContext, recorded: RecordedReadout | None, tokens_at: int
) -> ReadoutOperation:
    """``tokens_at``: the index of a sample readout's first token among the sampled tokens of the step."""
    make = OPERATIONS.get(type(readout))
    if make is None:
        raise TypeError(f"{type(readout).__name__} is not a readout that runs on this device")
    return make(readout, context, recorded, tokens_at)


def shares(output: Any, bad: I32, rows: Sequence[int]) -> list[tuple[Output, I32]]:
    """Return the tokens of joined draws, ``rows`` for each."""
    found: list[tuple[Output, I32]] = []
    start = 0
    for count in rows:
        stop = start + count
        own = bad[(bad >= start) & (bad < stop)] - start if len(bad) else bad
        found.append((SampleOutput(output.token_ids[start:stop]), own.astype(np.int32, copy=False)))
        start = stop
    return found


@dataclass(frozen=True, slots=True)
class StepReadouts:
    """The operations of a step. Its pending tokens are always the first output, so that the next step finds them in
    one place for every shape of this step."""

    operations: tuple[ReadoutOperation, ...]
    groups: list[list[int]]  # the readouts of each operation
    rows: list[int]  # of each readout
    sampled_rows: int  # room for sampled tokens
    draws: int  # tokens that this step samples

    @classmethod
    def of(
        cls,
        asked: Sequence[Readout],
        context: ReadoutContext,
        recorded: tuple[RecordedReadout, ...] | None,
        sampled_rows: int,
    ) -> StepReadouts:
        found: list[ReadoutOperation] = []
        tokens = draws = 0
        groups = groups_of(asked)
        for k, group in enumerate(groups):
            readout = joined([asked[i] for i in group])
            operation = operation_of(readout, context, None if recorded is None else recorded[k], tokens)
            if readout.draws:
                tokens += operation.rows  # type: ignore[attr-defined]
                draws += readout.draws
            found.append(operation)
        if tokens > sampled_rows:
            raise ValueError(f"{tokens} rows are sampled in one step; there is room for {sampled_rows}")
        return cls(tuple(found), groups, [len(readout.rows) for readout in asked], sampled_rows, draws)

    def inputs(self) -> Sizes:
        return [(f"r{k}.{name}", *rest) for k, r in enumerate(self.operations) for name, *rest in r.inputs()]  # type: ignore[misc]

    def output_fields(self) -> Fields:
        sizes: Sizes = [("tokens", self.sampled_rows, "i32")]
        for k, operation in enumerate(self.operations):
            sizes += [(f"r{k}.{name}", count, kind) for name, count, kind in operation.outputs()]
        return Fields(sizes)

    def write(self, fields: Fields, area: Tensor, ats: list[I32]) -> None:
        """``ats``: for each readout, of its rows the indices among the read rows."""
        for k, (operation, group) in enumerate(zip(self.operations, self.groups)):
            at = ats[group[0]] if len(group) == 1 else np.concatenate([ats[i] for i in group])

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
        return self.apart(found)

    def apart(self, found: Sequence[tuple[Output, I32]]) -> tuple[tuple[Output, ...], tuple[I32, ...]]:
        """Divide each operation's output and bad rows into those of each readout, in the readouts' order."""
        if len(self.groups) == len(self.rows):
            return tuple(output for output, _ in found), tuple(bad for _, bad in found)
        outputs: list[Any] = [None] * len(self.rows)
        bads: list[Any] = [None] * len(self.rows)
        for (output, bad), group in zip(found, self.groups):
            own = [(output, bad)] if len(group) == 1 else shares(output, bad, [self.rows[i] for i in group])
            for i, part in zip(group, own):
                outputs[i], bads[i] = part
        return tuple(outputs), tuple(bads)

    @property
    def lm_head_rows(self) -> int:
        return sum(operation.lm_head_rows for operation in self.operations)
