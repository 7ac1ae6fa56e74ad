"""Logprobs of given tokens over the vocabulary, and the logits of labels alone."""

from __future__ import annotations

import numpy as np
from prelude.cuda import kernels
from prelude.cuda.readout_operation import (
    Get,
    Put,
    ReadoutContext,
    RecordedReadout,
    Sizes,
    Take,
    bad_rows,
    row_stats,
    stats_sizes,
)
from torch import Tensor

from prelude.readouts.batch import I32, LogprobOutput, LogprobRows, Output


class Pairs:
    """(row, target) pairs on their way to the device and back: there they stand in order of rows, so of chunks."""

    def __init__(self, readout: LogprobRows, context: ReadoutContext, recorded: RecordedReadout | None) -> None:
        self.readout = readout
        self.context = context
        self.rows = len(readout.rows) if recorded is None else recorded.rows
        self.pairs = len(readout.targets) if recorded is None else recorded.pairs
        self.order = np.argsort(readout.target_rows, kind="stable")
        self.sorted_rows = readout.target_rows[self.order]

    def inputs(self) -> Sizes:
        return [("at", self.rows, "i32"), ("pair_rows", self.pairs, "i32"), ("targets", self.pairs, "i32")]

    def write(self, put: Put, at: I32) -> None:
        put("at", at)
        put("pair_rows", self.sorted_rows % self.context.chunk_rows, rest=-1)
        put("targets", self.readout.targets[self.order])

    def of_chunk(self, start: int, stop: int) -> tuple[int, int]:
        """Where the pairs of rows ``[start, stop)`` begin and end; the last chunk's with the padding of a graph."""
        first, end = np.searchsorted(self.sorted_rows, [start, stop]).tolist()
        return first, self.pairs if stop == self.rows else end

    def as_asked(self, values: np.ndarray) -> np.ndarray:
        """Return a value a pair, without padding, in the readout's order."""
        found = np.empty(len(self.readout.targets), values.dtype)
        found[self.order] = values[: len(found)]
        return found


class LogprobOperation(Pairs):
    def __init__(self, readout: LogprobRows, context: ReadoutContext, recorded: RecordedReadout | None) -> None:
        super().__init__(readout, context, recorded)
        self.top = min(readout.top, context.spec.embeddings.vocab)
        self.lm_head_rows = len(readout.rows)

    def outputs(self) -> Sizes:
        found = [*stats_sizes(self.rows), ("logprobs", self.pairs, "f64")]
        if self.readout.ranks:
            found.append(("ranks", self.pairs, "i32"))
        if self.top:
            found += [("top_ids", self.rows * self.top, "i32"), ("top_logprobs", self.rows * self.top, "f32")]
        return found

    def enqueue(self, get: Get, out: Get, hidden: Tensor) -> None:
        context, launch = self.context, self.context.device.launch
        for start, stop in context.chunks(self.rows):
            logits = context.logits(get("at")[start:stop], hidden)
            vocab = logits.shape[1]
            largest, rest = row_stats(context, logits, out, start, stop)
            first, end = self.of_chunk(start, stop)
            if end > first:
                ranks = out("ranks")[first:end] if self.readout.ranks else None
                pairs = (get("pair_rows")[first:end], get("targets")[first:end])
                launch(
                    kernels.PICK,
                    (end - first,),
                    (logits, vocab, *pairs, largest, rest, out("logprobs")[first:end], ranks),
                )
            if self.top:
                best = [out(name)[start * self.top : stop * self.top] for name in ("top_ids", "top_logprobs")]
                launch(kernels.TOP, (stop - start,), (logits, vocab, self.top, largest, rest, *best))

    def result(self, read: Take) -> tuple[Output, I32]:
        rows = len(self.readout.rows)
        logprobs = self.as_asked(read("logprobs"))
        ranks = self.as_asked(read("ranks")) if self.readout.ranks else None
        top_ids = top_logprobs = None
        if self.top:
            top_ids = read("top_ids").reshape(-1, self.top)[:rows].copy()
            top_logprobs = read("top_logprobs").reshape(-1, self.top)[:rows].copy()
        return LogprobOutput(logprobs, ranks, top_ids, top_logprobs), bad_rows(read("finite")[:rows])


class LabelOperation(Pairs):
    """Logits of given tokens: the head's rows of these alone."""

    lm_head_rows = 0

    def outputs(self) -> Sizes:
        return [("logits", self.pairs, "f64")]

    def enqueue(self, get: Get, out: Get, hidden: Tensor) -> None:
        context = self.context
        for start, stop in context.chunks(self.rows):
            normed = context.normed(get("at")[start:stop], hidden)
            first, end = self.of_chunk(start, stop)
            pairs = (get("pair_rows")[first:end], get("targets")[first:end])
            kernels.labels(context.device, normed, context.lm_head, *pairs, out("logits")[first:end])

    def result(self, read: Take) -> tuple[Output, I32]:
        logits = self.as_asked(read("logits"))
        finite = np.ones(len(self.readout.rows), np.bool_)
        finite[self.readout.target_rows[~np.isfinite(logits)]] = False
        return LogprobOutput(logits, None, None, None), bad_rows(finite)


def logprob_operation(
    readout: LogprobRows, context: ReadoutContext, recorded: RecordedReadout | None, tokens_at: int
) -> LogprobOperation | LabelOperation:
    return (LabelOperation if readout.raw else LogprobOperation)(readout, context, recorded)
