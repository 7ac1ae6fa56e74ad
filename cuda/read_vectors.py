"""Rows as they are after the final norm: pooled, or through the model's classification head."""

from __future__ import annotations

import numpy as np
import torch
from prelude.cuda import kernels
from prelude.cuda.readout_operation import Get, Put, ReadoutContext, Sizes, Take, bad_rows
from prelude.cuda.workspace import whole_tiles
from torch import Tensor

from prelude.readouts.batch import I32, HeadOutput, HeadRows, Output, PooledOutput, PooledRows

_ONE_ROW = ("last", "cls")


class PooledOperation:
    """One pooling of one row an item takes those rows alone. Every other one pools all rows, and several poolings of
    an item stand one behind the other."""

    lm_head_rows = 0

    def __init__(self, readout: PooledRows, context: ReadoutContext) -> None:
        unknown = [mode for mode in readout.modes if mode not in kernels.POOLINGS]
        if unknown:
            raise ValueError(f"pooling is {unknown[0]!r}; supported: {', '.join(kernels.POOLINGS)}")
        lengths = np.diff(readout.indptr)
        if (lengths < 1).any():
            raise ValueError(f"item {int(np.argmin(lengths))} pools no token")
        self.context = context
        self.readout = readout
        self.modes = readout.modes
        self.items = len(lengths)
        self.pools = len(self.modes) > 1 or (self.modes[0] not in _ONE_ROW and bool((lengths > 1).any()))
        self.width = context.spec.hidden * len(self.modes)
        self.chosen: I32 = np.arange(len(readout.rows), dtype=np.int32)
        if not self.pools:
            self.chosen = readout.indptr[1:] - 1 if self.modes[0] == "last" else readout.indptr[:-1]

    def inputs(self) -> Sizes:
        found: Sizes = [("at", len(self.chosen), "i32"), ("indptr", self.items + 1, "i32")]
        return found if self.readout.before is None else [*found, ("before", self.items, "i32")]

    def write(self, put: Put, at: I32) -> None:
        put("at", at[self.chosen])
        put("indptr", self.readout.indptr)
        if self.readout.before is not None:
            put("before", self.readout.before)

    def outputs(self) -> Sizes:
        return [("vectors", self.items * self.width, "f32")]

    def enqueue(self, get: Get, out: Get, hidden: Tensor) -> None:
        vectors = out("vectors").view(self.items, self.width)
        if not self.pools:
            self.context.exact(get("at"), hidden, vectors)
            return
        device, width = self.context.device, self.context.spec.hidden
        exact = device.empty((len(self.chosen), width), torch.float32)
        self.context.exact(get("at"), hidden, exact)
        before = None if self.readout.before is None else get("before")
        for k, mode in enumerate(self.modes):
            kernels.pool_rows(device, mode, exact, get("indptr"), before, vectors[:, k * width : (k + 1) * width])

    def result(self, read: Take) -> tuple[Output, I32]:
        vectors = read("vectors").reshape(self.items, self.width).copy()
        return PooledOutput(vectors), bad_rows(np.isfinite(vectors).all(axis=1))


class HeadOperation:
    lm_head_rows = 0

    def __init__(self, readout: HeadRows, context: ReadoutContext) -> None:
        score = context.weights.score
        if score is None:
            raise ValueError("this model has no classification head")
        self.context = context
        self.score = score
        self.rows = len(readout.rows)
        self.labels = score.shape[0]

    def inputs(self) -> Sizes:
        return [("at", self.rows, "i32")]

    def write(self, put: Put, at: I32) -> None:
        put("at", at)

    def outputs(self) -> Sizes:
        return [("scores", self.rows * self.labels, "f32")]

    def enqueue(self, get: Get, out: Get, hidden: Tensor) -> None:
        # The rest of the last tile, if rows are multiplied in tiles of one size.
        device, rows = self.context.device, whole_tiles(self.rows)
        exact = device.zeros((rows, self.context.spec.hidden), torch.float32)
        scores = device.empty((rows, self.labels), torch.float32)
        self.context.exact(get("at"), hidden, exact[: self.rows])
        device.matmul(exact[: self.rows], self.score, scores[: self.rows])
        device.copy(scores[: self.rows].view(-1), out("scores"))

    def result(self, read: Take) -> tuple[Output, I32]:
        logits = read("scores").reshape(self.rows, self.labels).copy()
        return HeadOutput(logits), bad_rows(np.isfinite(logits).all(axis=1))
