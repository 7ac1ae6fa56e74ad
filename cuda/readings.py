"""All readings of a step, with their arrays named apart in one area a direction."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from prelude.cuda.read_logprobs import LabelReading, LogprobReading
from prelude.cuda.read_samples import SampleReading
from prelude.cuda.read_vectors import HeadReading, PooledReading
from prelude.cuda.reading import Bench, Head, Reading, Sizes
from prelude.cuda.staging import Fields
from torch import Tensor

from prelude.batch import I32, HeadRows, LogprobRows, Output, PooledRows, Readout, SampleRows


def reading_of(readout: Readout, bench: Bench, head: Head | None, tokens_at: int = 0) -> Reading:
    """``tokens_at``: where among the step's drawn tokens a sample readout's begin."""
    if isinstance(readout, SampleRows):
        return SampleReading(readout, bench, head, tokens_at)
    if isinstance(readout, LogprobRows):
        return (LabelReading if readout.raw else LogprobReading)(readout, bench, head)
    if isinstance(readout, PooledRows):
        return PooledReading(readout, bench)
    if isinstance(readout, HeadRows):
        return HeadReading(readout, bench)
    raise TypeError(f"{type(readout).__name__} is not a readout")


@dataclass(frozen=True, slots=True)
class Readings:
    """A step's readings with their arrays named apart. Drawn tokens have one place, the first of the outputs, so that
    the next step finds them whatever this one's shape was."""

    readings: tuple[Reading, ...]
    drawn_rows: int

    @classmethod
    def of(cls, readouts: list[Readout], bench: Bench, head: Head | None, drawn_rows: int) -> Readings:
        found: list[Reading] = []
        tokens = 0
        for readout in readouts:
            reading = reading_of(readout, bench, head, tokens)
            if isinstance(reading, SampleReading):
                tokens += reading.rows
            found.append(reading)
        if tokens > drawn_rows:
            raise ValueError(f"{tokens} rows are sampled in one step; there is room for {drawn_rows}")
        return cls(tuple(found), drawn_rows)

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

    @property
    def drawn(self) -> int:
        """Tokens that this step draws."""
        return sum(len(r.readout.rows) for r in self.readings if isinstance(r, SampleReading))
