"""A readout as operations on the device: hidden rows -> numbers, which one copy a step brings to the host.

A ``ReadoutOperation`` names its input arrays and its output arrays, enqueues its kernels, and makes its result of the
output arrays on the host. Rows are multiplied by the vocabulary ``chunk_rows`` at a time. An operation is recorded in
a graph (``RecordedReadout``: sizes rounded up) or enqueued after the graph. Here are the interface and the shared
parts. ``read_*.py`` have the kinds. ``step_readouts.py`` has all readouts of a step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from prelude.cuda import kernels
from prelude.cuda.device import Device
from prelude.cuda.weights import DeviceWeights
from prelude.cuda.workspace import Workspace
from torch import Tensor

from prelude.models.spec import ModelSpec
from prelude.readouts.batch import I32, Output

Sizes = list[tuple[str, int, str]]


class RecordedReadout(NamedTuple):
    """The kind and the sizes of a readout in a recorded graph."""

    kind: str  # "greedy" | "sample" | "logprobs" | "labels"
    rows: int
    pairs: int


@dataclass(frozen=True, slots=True)
class ReadoutContext:
    """The device, the model and the buffers that readout operations use."""

    device: Device
    spec: ModelSpec
    weights: DeviceWeights
    work: Workspace
    chunk_rows: int

    def chunks(self, rows: int) -> Iterator[tuple[int, int]]:
        for start in range(0, rows, self.chunk_rows):
            yield start, min(start + self.chunk_rows, rows)

    @property
    def lm_head(self) -> Tensor:
        head = self.weights.lm_head
        if head is None:
            raise ValueError("this model has no language-model head, so it has no logits")
        return head

    def normed(self, at: Tensor, hidden: Tensor) -> Tensor:
        """[rows, hidden] of rows ``at`` after the final norm; valid until the next call."""
        normed = self.work.final[: at.shape[0]]
        kernels.gather_norm(
            self.device, at, hidden, self.weights.final_gain, self.spec.layers[0].mlp_norm.eps, normed=normed
        )
        return normed

    def logits(self, at: Tensor, hidden: Tensor) -> Tensor:
        """[rows, vocab] float32 of rows ``at`` of ``hidden``; valid until the next call."""
        head = self.lm_head
        logits = self.work.logits[: at.shape[0]]
        self.device.matmul(self.normed(at, hidden), head, logits)
        return logits

    def exact(self, at: Tensor, hidden: Tensor, out: Tensor) -> None:
        """Rows after the final norm, float32."""
        kernels.gather_norm(
            self.device, at, hidden, self.weights.final_gain, self.spec.layers[0].mlp_norm.eps, exact=out
        )


class ReadoutOperation(Protocol):
    """``prefix`` keeps the arrays of several readouts of a step apart."""

    lm_head_rows: int

    def inputs(self) -> Sizes: ...

    def write(self, put: Put, at: I32) -> None:
        """``at``: for each row of the readout its index among the read rows."""
        ...

    def outputs(self) -> Sizes: ...

    def enqueue(self, get: Get, out: Get, hidden: Tensor) -> None: ...

    def result(self, read: Take) -> tuple[Output, I32]:
        """Return the output and its bad rows, out of host arrays that will be overwritten later."""
        ...


class Put(Protocol):
    def __call__(self, name: str, values: np.ndarray, rest: float = 0) -> None: ...


class Get(Protocol):
    def __call__(self, name: str) -> Tensor: ...


class Take(Protocol):
    def __call__(self, name: str) -> np.ndarray: ...


def bad_rows(finite: np.ndarray) -> I32:
    return np.flatnonzero(~finite.astype(np.bool_)).astype(np.int32)


def stats_sizes(rows: int) -> Sizes:
    return [("largest", rows, "f32"), ("rest", rows, "f64"), ("finite", rows, "i32")]


def row_stats(
    context: ReadoutContext, logits: Tensor, out: Get, start: int, stop: int, best: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Row statistics into the outputs, and to ``best`` the first id of each row's largest logit; returns largest and
    rest of these rows."""
    largest, rest, finite = (out(name)[start:stop] for name in ("largest", "rest", "finite"))
    kernels.row_stats(context.device, logits, (largest, rest, best, finite))
    return largest, rest
