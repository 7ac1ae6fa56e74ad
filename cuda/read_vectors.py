"""Rows as they are after the final norm: pooled, or through the model's classification head."""

from __future__ import annotations

import numpy as np
import torch
from prelude.cuda import kernels
from prelude.cuda.readout_operation import Get, Put, ReadoutContext, Sizes, Take, bad_rows
from prelude.cuda.workspace import whole_tiles
from torch import Tensor

from prelude.batch import I32, HeadOutput, HeadRows, Output, PooledOutput, PooledRows


class PooledOperation:
    lm_head_rows = 0

    def __init__(self, readout: PooledRows, context: ReadoutContext) -> None:
        if readout.pooling not in ("last", "cls", "mean"):
            raise ValueError(f"pooling is {readout.pooling!r}; supported: last, cls, mean")
        lengths = np.diff(readout.indptr)
        if (lengths < 1).any():
            raise ValueError(f"item {int(np.argmin(lengths))} pools no token")
        self.context = context
        self.width = context.spec.hidden
        self.indptr = readout.indptr
        self.items = len(lengths)
        self.mean = readout.pooling == "mean" and bool((lengths > 1).any())
        self.chosen: I32 = np.arange(len(readout.rows), dtype=np.int32)
        if not self.mean:
            self.chosen = readout.indptr[1:] - 1 if readout.pooling == "last" else readout.indptr[:-1]

    def inputs(self) -> Sizes:
        return [("at", len(self.chosen), "i32"), ("indptr", self.items + 1, "i32")]

    def write(self, put: Put, at: I32) -> None:
        put("at", at[self.chosen])
        put("indptr", self.indptr)

    def outputs(self) -> Sizes:
        return [("vectors", self.items * self.width, "f32")]

    def enqueue(self, get: Get, out: Get, hidden: Tensor) -> None:
        vectors = out("vectors").view(self.items, self.width)
        if not self.mean:
            self.context.exact(get("at"), hidden, vectors)
            return
        exact = self.context.device.empty((len(self.chosen), self.width), torch.float32)
        self.context.exact(get("at"), hidden, exact)
        kernels.mean_rows(self.context.device, exact, get("indptr"), vectors)

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
        # The rest of the last tile, where rows are multiplied in tiles of one size.
        device, rows = self.context.device, whole_tiles(self.rows)
        exact = device.zeros((rows, self.context.spec.hidden), torch.float32)
        scores = device.empty((rows, self.labels), torch.float32)
        self.context.exact(get("at"), hidden, exact[: self.rows])
        device.matmul(exact[: self.rows], self.score, scores[: self.rows])
        device.copy(scores[: self.rows].view(-1), out("scores"))

    def result(self, read: Take) -> tuple[Output, I32]:
        logits = read("scores").reshape(self.rows, self.labels).copy()
        return HeadOutput(logits), bad_rows(np.isfinite(logits).all(axis=1))
