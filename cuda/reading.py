"""Hidden rows -> the numbers a readout asks for, on the device; and back to the host in the step's one copy.

A ``Reading`` says which arrays it needs beside the step's own, which it leaves, what it enqueues, and what its
results are once they are on the host. Rows meet the vocabulary ``chunk_rows`` at a time. The same object is recorded
in a graph (``Head``: sizes rounded up) or run behind it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from prelude.cuda import kernels
from prelude.cuda.device import Device
from prelude.cuda.shapes import power_bucket
from prelude.cuda.staging import Fields
from prelude.cuda.weights import DeviceWeights
from prelude.cuda.workspace import SAMPLE_ROWS, Workspace, whole_tiles
from torch import Tensor

from prelude.batch import (
    I32,
    HeadOutput,
    HeadRows,
    LogprobOutput,
    LogprobRows,
    Output,
    PooledOutput,
    PooledRows,
    Readout,
    SampleOutput,
    SampleRows,
)
from prelude.execution.sampling import uniforms
from prelude.models.config import ModelConfig

Sizes = list[tuple[str, int, str]]


@dataclass(frozen=True, slots=True)
class Head:
    """What of a readout decides what is recorded: its kind and its sizes."""

    kind: str  # "greedy" | "sample" | "logprobs" | "labels"
    rows: int
    pairs: int

    @classmethod
    def of(cls, readout: Readout, chunk_rows: int) -> Head | None:
        """None for what runs behind the graph: several chunks, edits, best tokens, vectors."""
        rows = power_bucket(len(readout.rows))
        if not 0 < rows <= chunk_rows:
            return None
        if isinstance(readout, SampleRows):
            if readout.edits is not None or readout.top or readout.logprobs:
                return None
            return cls("sample" if (readout.temperature > 0).any() else "greedy", rows, 0)
        if isinstance(readout, LogprobRows) and not readout.top and not readout.ranks:
            return cls("labels" if readout.raw else "logprobs", rows, power_bucket(len(readout.targets)))
        return None


@dataclass(frozen=True, slots=True)
class Bench:
    """What readings work on."""

    device: Device
    config: ModelConfig
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
        kernels.gather_norm(self.device, at, hidden, self.weights.final_gain, self.config.rms_eps, normed=normed)
        return normed

    def logits(self, at: Tensor, hidden: Tensor) -> Tensor:
        """[rows, vocab] float32 of rows ``at`` of ``hidden``; valid until the next call."""
        head = self.lm_head
        logits = self.work.logits[: at.shape[0]]
        self.device.matmul(self.normed(at, hidden), head, logits)
        return logits

    def exact(self, at: Tensor, hidden: Tensor, out: Tensor) -> None:
        """Rows after the final norm, float32."""
        kernels.gather_norm(self.device, at, hidden, self.weights.final_gain, self.config.rms_eps, exact=out)


class Reading(Protocol):
    """``prefix`` keeps the arrays of several readouts of a step apart."""

    lm_head_rows: int

    def inputs(self) -> Sizes: ...

    def write(self, put: Put, at: I32) -> None:
        """``at``: for each row of the readout its index among the read rows."""
        ...

    def outputs(self) -> Sizes: ...

    def enqueue(self, get: Get, out: Get, hidden: Tensor) -> None: ...

    def result(self, read: Take) -> tuple[Output, I32]:
        """The output and its bad rows, out of host arrays that will be overwritten later."""
        ...


class Put(Protocol):
    def __call__(self, name: str, values: np.ndarray, rest: float = 0) -> None: ...


class Get(Protocol):
    def __call__(self, name: str) -> Tensor: ...


class Take(Protocol):
    def __call__(self, name: str) -> np.ndarray: ...


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


def _bad(finite: np.ndarray) -> I32:
    return np.flatnonzero(~finite.astype(np.bool_)).astype(np.int32)


def _stats_sizes(rows: int) -> Sizes:
    return [("largest", rows, "f32"), ("rest", rows, "f64"), ("best", rows, "i32"), ("finite", rows, "i32")]


def _stats(bench: Bench, logits: Tensor, out: Get, start: int, stop: int) -> tuple[Tensor, Tensor]:
    """Row statistics into the outputs; returns largest and rest of these rows."""
    places = [out(name)[start:stop] for name in ("largest", "rest", "best", "finite")]
    vocab = logits.shape[1]
    bench.device.launch(kernels.ROW_STATS, (stop - start,), (logits, vocab, *places))
    return places[0], places[1]


# ------------------------------------------------------------------ logprobs


class _Pairs:
    """(row, target) pairs on their way to the device and back: there they stand in order of rows, so of chunks."""

    def __init__(self, readout: LogprobRows, bench: Bench, head: Head | None) -> None:
        self.readout = readout
        self.bench = bench
        self.rows = len(readout.rows) if head is None else head.rows
        self.pairs = len(readout.targets) if head is None else head.pairs
        self.order = np.argsort(readout.target_rows, kind="stable")
        self.sorted_rows = readout.target_rows[self.order]

    def inputs(self) -> Sizes:
        return [("at", self.rows, "i32"), ("pair_rows", self.pairs, "i32"), ("targets", self.pairs, "i32")]

    def write(self, put: Put, at: I32) -> None:
        put("at", at)
        put("pair_rows", self.sorted_rows % self.bench.chunk_rows, rest=-1)
        put("targets", self.readout.targets[self.order])

    def of_chunk(self, start: int, stop: int) -> tuple[int, int]:
        """Where the pairs of rows ``[start, stop)`` begin and end; the last chunk's with the padding of a graph."""
        first, end = np.searchsorted(self.sorted_rows, [start, stop]).tolist()
        return first, self.pairs if stop == self.rows else end

    def as_asked(self, values: np.ndarray) -> np.ndarray:
        """A value a pair, without padding, in the readout's order."""
        found = np.empty(len(self.readout.targets), values.dtype)
        found[self.order] = values[: len(found)]
        return found


class LogprobReading(_Pairs):
    def __init__(self, readout: LogprobRows, bench: Bench, head: Head | None) -> None:
        super().__init__(readout, bench, head)
        self.top = min(readout.top, bench.config.vocab_size)
        self.lm_head_rows = len(readout.rows)

    def outputs(self) -> Sizes:
        found = [*_stats_sizes(self.rows), ("logprobs", self.pairs, "f64")]
        if self.readout.ranks:
            found.append(("ranks", self.pairs, "i32"))
        if self.top:
            found += [("top_ids", self.rows * self.top, "i32"), ("top_logprobs", self.rows * self.top, "f32")]
        return found

    def enqueue(self, get: Get, out: Get, hidden: Tensor) -> None:
        bench, launch = self.bench, self.bench.device.launch
        for start, stop in bench.chunks(self.rows):
            logits = bench.logits(get("at")[start:stop], hidden)
            vocab = logits.shape[1]
            largest, rest = _stats(bench, logits, out, start, stop)
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
        return LogprobOutput(logprobs, ranks, top_ids, top_logprobs), _bad(read("finite")[:rows])


class LabelReading(_Pairs):
    """Logits of given tokens: the head's rows of these alone."""

    lm_head_rows = 0

    def outputs(self) -> Sizes:
        return [("logits", self.pairs, "f64")]

    def enqueue(self, get: Get, out: Get, hidden: Tensor) -> None:
        bench = self.bench
        for start, stop in bench.chunks(self.rows):
            normed = bench.normed(get("at")[start:stop], hidden)
            first, end = self.of_chunk(start, stop)
            pairs = (get("pair_rows")[first:end], get("targets")[first:end])
            kernels.labels(bench.device, normed, bench.lm_head, *pairs, out("logits")[first:end])

    def result(self, read: Take) -> tuple[Output, I32]:
        logits = self.as_asked(read("logits"))
        finite = np.ones(len(self.readout.rows), np.bool_)
        finite[self.readout.target_rows[~np.isfinite(logits)]] = False
        return LogprobOutput(logits, None, None, None), _bad(finite)


# ------------------------------------------------------------------ samples

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


class SampleReading:
    """Logprobs are of the logits as they came; edits are made behind them."""

    def __init__(self, readout: SampleRows, bench: Bench, head: Head | None, tokens_at: int) -> None:
        self.readout = readout
        self.bench = bench
        self.rows = len(readout.rows) if head is None else head.rows
        self.tokens_at = tokens_at
        self.top = min(readout.top, bench.config.vocab_size)
        self.logprobs = readout.logprobs or self.top > 0
        drawn = head.kind == "sample" if head is not None else bool((readout.temperature > 0).any())
        self.worked = drawn or readout.edits is not None
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
            put("own_row", np.arange(self.rows, dtype=np.int32) % self.bench.chunk_rows)

    def outputs(self) -> Sizes:
        found = _stats_sizes(self.rows)
        if self.logprobs:
            found.append(("logprobs", self.rows, "f64"))
        if self.top:
            found += [("top_ids", self.rows * self.top, "i32"), ("top_logprobs", self.rows * self.top, "f32")]
        return found

    def enqueue(self, get: Get, out: Get, hidden: Tensor) -> None:
        bench, launch = self.bench, self.bench.device.launch
        tokens = out("tokens")[self.tokens_at : self.tokens_at + self.rows]
        for start, stop in bench.chunks(self.rows):
            logits = bench.logits(get("at")[start:stop], hidden)
            vocab = logits.shape[1]
            largest, rest = _stats(bench, logits, out, start, stop)
            own = tokens[start:stop]
            kept = logits
            if self.worked:
                if self.logprobs and self.readout.edits is not None:
                    kept = bench.device.empty(tuple(logits.shape), torch.float32)
                    bench.device.copy(logits, kept)
                self._draw(get, out, logits, start, stop, own)
            else:
                bench.device.copy(out("best")[start:stop], own)
            if self.logprobs:
                places = (get("own_row")[start:stop], own, largest, rest, out("logprobs")[start:stop], None)
                launch(kernels.PICK, (stop - start,), (kept, vocab, *places))
            if self.top:
                best = [out(name)[start * self.top : stop * self.top] for name in ("top_ids", "top_logprobs")]
                launch(kernels.TOP, (stop - start,), (kept, vocab, self.top, largest, rest, *best))

    def _draw(self, get: Get, out: Get, logits: Tensor, start: int, stop: int, tokens: Tensor) -> None:
        bench, vocab, edits = self.bench, logits.shape[1], self.readout.edits
        if edits is not None:
            scratch = bench.device.empty((max(1, len(edits.allowed_ids)),), torch.float32)
            lists = [get(name)[start:] if name in _BY_ROW else get(name) for name, _ in _EDITS]
            bench.device.launch(kernels.EDIT, (stop - start,), (logits, vocab, *lists, scratch))
        names = ("temperature", "top_k", "top_p", "min_p", "uniform")
        for first in range(start, stop, SAMPLE_ROWS):
            end = min(first + SAMPLE_ROWS, stop)
            settings = [get(name)[first:end] for name in names]
            finite = out("finite")[first:end]
            here = slice(first - start, end - start)
            bench.device.launch(
                kernels.SAMPLE,
                (end - first,),
                (logits[here], vocab, *settings, finite, bench.work.weights, tokens[here]),
            )

    def result(self, read: Take) -> tuple[Output, I32]:
        rows = len(self.readout.rows)
        finite = read("finite")[:rows].astype(np.bool_)
        tokens = read("tokens")[self.tokens_at : self.tokens_at + rows].copy()
        tokens[~finite] = 0
        logprobs = top_ids = top_logprobs = None
        if self.logprobs:
            logprobs = read("logprobs")[:rows].astype(np.float32)
        if self.top:
            top_ids = read("top_ids").reshape(-1, self.top)[:rows].copy()
            top_logprobs = read("top_logprobs").reshape(-1, self.top)[:rows].copy()
        return SampleOutput(tokens, logprobs, top_ids, top_logprobs), _bad(finite)


# ------------------------------------------------------------------ vectors


class PooledReading:
    lm_head_rows = 0

    def __init__(self, readout: PooledRows, bench: Bench) -> None:
        if readout.pooling not in ("last", "cls", "mean"):
            raise ValueError(f"pooling is {readout.pooling!r}; supported: last, cls, mean")
        lengths = np.diff(readout.indptr)
        if (lengths < 1).any():
            raise ValueError(f"item {int(np.argmin(lengths))} pools no token")
        self.bench = bench
        self.width = bench.config.hidden_size
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
            self.bench.exact(get("at"), hidden, vectors)
            return
        exact = self.bench.device.empty((len(self.chosen), self.width), torch.float32)
        self.bench.exact(get("at"), hidden, exact)
        kernels.mean_rows(self.bench.device, exact, get("indptr"), vectors)

    def result(self, read: Take) -> tuple[Output, I32]:
        vectors = read("vectors").reshape(self.items, self.width).copy()
        return PooledOutput(vectors), _bad(np.isfinite(vectors).all(axis=1))


class HeadReading:
    lm_head_rows = 0

    def __init__(self, readout: HeadRows, bench: Bench) -> None:
        score = bench.weights.score
        if score is None:
            raise ValueError("this model has no classification head")
        self.bench = bench
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
        device, rows = self.bench.device, whole_tiles(self.rows)
        exact = device.zeros((rows, self.bench.config.hidden_size), torch.float32)
        scores = device.empty((rows, self.labels), torch.float32)
        self.bench.exact(get("at"), hidden, exact[: self.rows])
        device.matmul(exact[: self.rows], self.score, scores[: self.rows])
        device.copy(scores[: self.rows].view(-1), out("scores"))

    def result(self, read: Take) -> tuple[Output, I32]:
        logits = read("scores").reshape(self.rows, self.labels).copy()
        return HeadOutput(logits), _bad(np.isfinite(logits).all(axis=1))


# ------------------------------------------------------------------ several of a step


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
