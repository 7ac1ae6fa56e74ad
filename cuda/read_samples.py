"""A token a row, drawn on the device: edits of the logits, the draw, and the logprobs asked for."""

from __future__ import annotations

import numpy as np
import torch
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

from prelude.readouts.batch import I32, Output, SampleOutput, SampleRows
from prelude.readouts.draw import uniforms

_EDITS = (
    ("repetition", "f32"),
    ("presence", "f32"),
    ("frequency", "f32"),
    ("seen_indptr", "i32"),
    ("seen_ids", "i32"),
    ("seen_counts", "i32"),
    ("bias_indptr", "i32"),
    ("bias_ids", "i32"),
    ("bias_values", "f32"),
    ("allowed_indptr", "i32"),
    ("allowed_ids", "i32"),
    ("banned_indptr", "i32"),
    ("banned_ids", "i32"),
)
_BY_ROW = frozenset(
    ("repetition", "presence", "frequency", "seen_indptr", "bias_indptr", "allowed_indptr", "banned_indptr")
)


class SampleOperation:
    """Logprobs are of the logits as they came; edits are made behind them."""

    def __init__(
        self, readout: SampleRows, context: ReadoutContext, recorded: RecordedReadout | None, tokens_at: int
    ) -> None:
        self.readout = readout
        self.context = context
        self.rows = len(readout.rows) if recorded is None else recorded.rows
        self.tokens_at = tokens_at
        self.top = min(readout.top, context.spec.embeddings.vocab)
        self.logprobs = readout.logprobs or self.top > 0
        sampled = recorded.kind == "sample" if recorded is not None else bool((readout.temperature > 0).any())
        self.worked = sampled or readout.edits is not None
        self.lm_head_rows = len(readout.rows)

    def inputs(self) -> Sizes:
        found: Sizes = [("at", self.rows, "i32")]
        if self.worked:
            found += [("temperature", self.rows, "f32"), ("top_k", self.rows, "i32"), ("top_p", self.rows, "f32")]
            found += [("min_p", self.rows, "f32"), ("uniform", self.rows, "f64")]
        if self.readout.edits is not None:
            found += [(name, len(getattr(self.readout.edits, name)), kind) for name, kind in _EDITS]
        if self.logprobs:
            found.append(("own_row", self.rows, "i32"))
        return found

    def write(self, put: Put, at: I32) -> None:
        readout = self.readout
        put("at", at)
        if self.worked:
            put("temperature", readout.temperature)
            put("top_k", readout.top_k)
            put("top_p", readout.top_p, rest=1)
            put("min_p", readout.min_p)
            put("uniform", uniforms(readout.seeds, readout.steps))
        if readout.edits is not None:
            for name, _ in _EDITS:
                put(name, getattr(readout.edits, name))
        if self.logprobs:
            put("own_row", np.arange(self.rows, dtype=np.int32) % self.context.chunk_rows)

    def outputs(self) -> Sizes:
        found = stats_sizes(self.rows)
        if self.logprobs:
            found.append(("logprobs", self.rows, "f64"))
        if self.top:
            found += [("top_ids", self.rows * self.top, "i32"), ("top_logprobs", self.rows * self.top, "f32")]
        return found

    def enqueue(self, get: Get, out: Get, hidden: Tensor) -> None:
        context, launch = self.context, self.context.device.launch
        tokens = out("tokens")[self.tokens_at : self.tokens_at + self.rows]
        for start, stop in context.chunks(self.rows):
            logits = context.logits(get("at")[start:stop], hidden)
            vocab = logits.shape[1]
            own = tokens[start:stop]
            # No copy behind the statistics: their kernel and ``publish`` overlap.
            largest, rest = row_stats(context, logits, out, start, stop, None if self.worked else own)
            kept = logits
            if self.worked:
                if self.logprobs and self.readout.edits is not None:
                    kept = context.device.empty(tuple(logits.shape), torch.float32)
                    context.device.copy(logits, kept)
                self._draw(get, out, logits, start, stop, own)
            if self.logprobs:
                places = (get("own_row")[start:stop], own, largest, rest, out("logprobs")[start:stop], None)
                launch(kernels.PICK, (stop - start,), (kept, vocab, *places))
            if self.top:
                best = [out(name)[start * self.top : stop * self.top] for name in ("top_ids", "top_logprobs")]
                launch(kernels.TOP, (stop - start,), (kept, vocab, self.top, largest, rest, *best))

    def _draw(self, get: Get, out: Get, logits: Tensor, start: int, stop: int, tokens: Tensor) -> None:
        context, vocab, edits = self.context, logits.shape[1], self.readout.edits
        if edits is not None:
            scratch = context.device.empty((max(1, len(edits.allowed_ids)),), torch.float32)
            lists = [get(name)[start:] if name in _BY_ROW else get(name) for name, _ in _EDITS]
            context.device.launch(kernels.EDIT, (stop - start,), (logits, vocab, *lists, scratch))
        names = ("temperature", "top_k", "top_p", "min_p", "uniform")
        settings = [get(name)[start:stop] for name in names]
        kernels.sample(context.device, logits, settings, out("finite")[start:stop], tokens)

    def result(self, read: Take) -> tuple[Output, I32]:
        rows = len(self.readout.rows)
        tokens = read("tokens")[self.tokens_at : self.tokens_at + rows].copy()
        logprobs = top_ids = top_logprobs = None
        if self.logprobs:
            logprobs = read("logprobs")[:rows].astype(np.float32)
        if self.top:
            top_ids = read("top_ids").reshape(-1, self.top)[:rows].copy()
            top_logprobs = read("top_logprobs").reshape(-1, self.top)[:rows].copy()
        return SampleOutput(tokens, logprobs, top_ids, top_logprobs), bad_rows(read("finite")[:rows])
