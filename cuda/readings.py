"""All readings of a step, with their arrays named apart in one area a direction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from prelude.cuda.read_logprobs import logprob_head, logprob_reading
from prelude.cuda.read_samples import SampleReading, sample_head
from prelude.cuda.read_vectors import HeadReading, PooledReading
from prelude.cuda.reading import Bench, Head, Reading, Sizes
from prelude.cuda.shapes import power_bucket
from prelude.cuda.staging import Fields
from torch import Tensor

from prelude.batch import I32, HeadRows, LogprobRows, Output, PooledRows, Readout, SampleRows


@dataclass(frozen=True, slots=True)
class Served:
    """How a readout runs on the device. ``head(readout, rows)`` is the part of it that is recorded in a graph with
    ``rows`` rows; ``None`` for a readout that runs behind the graph (edits, best tokens, vectors)."""

    make: Callable[[Any, Bench, Head | None, int], Reading]
    head: Callable[[Any, int], Head | None] = lambda readout, rows: None


# Every readout of ``prelude.readouts`` that runs on the device; a new one has its file and its line here.
READINGS: dict[type[Readout], Served] = {
    SampleRows: Served(SampleReading, sample_head),
    LogprobRows: Served(logprob_reading, logprob_head),
    PooledRows: Served(lambda readout, bench, head, tokens_at: PooledReading(readout, bench)),
    HeadRows: Served(lambda readout, bench, head, tokens_at: HeadReading(readout, bench)),
}


def served(readout: Readout) -> Served:
    found = READINGS.get(type(readout))
    if found is None:
        raise TypeError(f"{type(readout).__name__} is not a readout that runs on this device")
    return found


def head_of(readout: Readout, chunk_rows: int) -> Head | None:
    """``None`` also where the rows are more than one chunk."""
    rows = power_bucket(len(readout.rows))
    return served(readout).head(readout, rows) if 0 < rows <= chunk_rows else None


def reading_of(readout: Readout, bench: Bench, head: Head | None, tokens_at: int = 0) -> Reading:
    """``tokens_at``: where among the step's drawn tokens a sample readout's begin."""
    return served(readout).make(readout, bench, head, tokens_at)


@dataclass(frozen=True, slots=True)
class Readings:
    """A step's readings with their arrays named apart. Pending tokens have one place, the first of the outputs, so
    that the next step finds them whatever this one's shape was."""

    readings: tuple[Reading, ...]
    drawn_rows: int  # room for them
    draws: int  # tokens that this step draws

    @classmethod
    def of(cls, readouts: list[Readout], bench: Bench, head: Head | None, drawn_rows: int) -> Readings:
        found: list[Reading] = []
        tokens = draws = 0
        for readout in readouts:
            reading = reading_of(readout, bench, head, tokens)
            if readout.draws:
                tokens += reading.rows  # type: ignore[attr-defined]
                draws += readout.draws
            found.append(reading)
        if tokens > drawn_rows:
            raise ValueError(f"{tokens} rows are sampled in one step; there is room for {drawn_rows}")
        return cls(tuple(found), drawn_rows, draws)

    def inputs(self) -> Sizes:
        return [(f"r{k}.{name}", *rest) for k, r in enumerate(self.readings) for name, *rest in r.inputs()]  # type: ignore[misc]

    def output_fields(self) -> Fields:
        sizes: Sizes = [("tokens", self.drawn_rows, "i32")]
        for k, reading in enumerate(self.readings):
            sizes += [(f"r{k}.{name}", count, kind) for name, count, kind in reading.outputs()]
        return Fields(sizes)

    def write(self, fields: Fields, area: Tensor, ats: list[I32]) -> None:
        for k, (reading, at) in enumerate(zip(self.readings, ats)):

            def put(name: str, values: np.ndarray, rest: float = 0, k: int = k) -> None:
                target = fields.array(area, f"r{k}.{name}")
                target[: len(values)] = values
                target[len(values) :] = rest

            reading.write(put, at)

    def enqueue(self, fields: Fields, area: Tensor, outputs: Fields, out_area: Tensor, hidden: Tensor) -> None:
        for k, reading in enumerate(self.readings):

            def get(name: str, k: int = k) -> Tensor:
                return fields.on(area, f"r{k}.{name}")

            def out(name: str, k: int = k) -> Tensor:
                return outputs.on(out_area, name if name == "tokens" else f"r{k}.{name}")

            reading.enqueue(get, out, hidden)

    def results(self, outputs: Fields, area: Tensor) -> tuple[tuple[Output, ...], tuple[I32, ...]]:
        found: list[tuple[Output, I32]] = []
        for k, reading in enumerate(self.readings):

            def take(name: str, k: int = k) -> np.ndarray:
                return outputs.array(area, name if name == "tokens" else f"r{k}.{name}")

            found.append(reading.result(take))
        return tuple(output for output, _ in found), tuple(bad for _, bad in found)

    @property
    def lm_head_rows(self) -> int:
        return sum(reading.lm_head_rows for reading in self.readings)
