"""Sparrow's executor: means of token vectors and a network of three layers, in numpy.

    s, q, o    means of the state's, the question's (plus its kind's vector) and an option's tokens, of length 1
    features   o · s o · q o · s q o · o - mean(o) · (s - mean(o)) o, and four of pairs ─▶ gelu ─▶ gelu ─▶ logit

A question is computed by itself, so that its bits do not depend on the other questions.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from prelude.errors import EngineClosed
from prelude.execution.executor import ExecutorLimits
from prelude.models.sparrow import SparrowModel
from prelude.readouts.base import Logits
from prelude.readouts.batch import ForwardBatch, OneShotBatch, OptionRows, PromptSlices, StepResult
from prelude.readouts.head import OptionOutput
from prelude.records import dataclass
from prelude.values.arrays import F32, F64, I32

_BLOCK_SIZE = 16


class SparrowExecutor:
    def __init__(self, model: SparrowModel) -> None:
        self._model = model
        self._chars = {at: piece for piece, at in model.vocab.items()}
        self._closed = False

    def limits(self) -> ExecutorLimits:
        model = self._model
        return ExecutorLimits(
            vocab_size=len(model.tokens),
            max_positions=4 * model.max_len,
            hidden_size=model.tokens.shape[1],
            num_labels=1,
            block_size=_BLOCK_SIZE,
            num_blocks=1,
            kv_bytes_per_token=0,
            logits_chunk_rows=256,
            weight_bytes=model.nbytes,
            device="cpu",
            dtype="float32",
            lm_head=False,
            head_pooling="markers",
            bidirectional=True,
        )

    def submit(self, batch: ForwardBatch) -> Callable[[], StepResult]:
        if self._closed:
            raise EngineClosed("the executor is closed")
        if not isinstance(batch, OneShotBatch):
            raise TypeError(f"this model computes OneShotBatch, not {type(batch).__name__}")
        return partial(self._run, batch)

    def wait(self, handle: Callable[[], StepResult]) -> StepResult:
        return handle()

    def close(self) -> None:
        self._closed = True

    def _run(self, batch: OneShotBatch) -> StepResult:
        began, readout = time.perf_counter(), batch.readout
        if not isinstance(readout, OptionRows):
            output, bad = readout.run(_Vectors(self._model.tokens, batch.slices.token_ids))
            return StepResult((output,), (bad,), time.perf_counter() - began)
        tree = _Tree.of(batch.slices, readout)
        logits = np.zeros(len(readout.rows), np.float32)
        starts = readout.indptr.tolist()
        with np.errstate(all="ignore"):  # a number that is not finite fails its own request only
            for start, stop, kind in zip(starts, starts[1:], readout.kinds.tolist()):
                logits[start : stop - 1] = self._question(tree, tree.segments[start:stop], kind)
        output = OptionOutput(logits)
        return StepResult((output,), (readout.not_finite(output),), time.perf_counter() - began)

    def _question(self, tree: _Tree, segments: I32, kind: int) -> F32:
        """[options]; ``segments`` are those of the options, and last the question's."""
        model, slices = self._model, tree.slices
        question = int(segments[-1])
        parent = int(slices.parents[question])
        s = _unit(self._mean(slices, parent))
        q = _unit(self._mean(slices, question) + model.kinds[kind])
        o = _unit(np.stack([self._mean(slices, int(one)) for one in segments[:-1]]))
        middle = o.mean(0, keepdims=True)
        features = [o, s * o, q * o, s * q * o, o - middle, (s - middle) * o]
        if model.pairs is not None:
            whole, bound = self._pairs(slices, tree.pairs.get(parent, []), o)
            features += [whole * o, whole * q * o, bound, bound * q]
        x = np.concatenate([np.broadcast_to(part, o.shape) for part in features], -1)
        *inner, (weight, bias) = model.layers
        for by, shift in inner:
            x = _gelu(x @ by.T + shift)
        found: F32 = (x @ weight.T + bias)[:, 0]
        return found

    def _pairs(self, slices: PromptSlices, pairs: list[tuple[int, int, int]], o: F32) -> tuple[F32, F32]:
        """[dim], the mean of all pairs, and [options, dim], the mean that each option attends to."""
        if self._model.pairs is None or not pairs:
            return np.zeros(o.shape[1], np.float32), np.zeros_like(o)
        weight, bias, sharpness = self._model.pairs
        keys, lines = (_unit(np.stack([self._mean(slices, pair[at]) for pair in pairs])) for at in (0, 1))
        values = np.array([_features(self._number(slices, pair[2])) for pair in pairs], np.float32)
        bound = keys * np.tanh(values @ weight.T + bias)
        seen = sharpness * (o @ lines.T)
        shares = np.exp(seen - seen.max(-1, keepdims=True))
        return bound.mean(0), (shares / shares.sum(-1, keepdims=True)) @ bound

    def _mean(self, slices: PromptSlices, segment: int) -> F32:
        ids = slices.token_ids[slices.starts[segment] : slices.starts[segment + 1]]
        found: F32 = self._model.tokens[ids].mean(0)
        return found

    def _number(self, slices: PromptSlices, segment: int) -> float:
        ids = slices.token_ids[slices.starts[segment] : slices.starts[segment + 1]]
        return float("".join(self._chars[token] for token in ids.tolist()))


class _Vectors:
    """Vectors of tokens by themselves, as ``prelude.readouts.base.Rows``. The model has no other rows."""

    def __init__(self, table: F32, token_ids: I32) -> None:
        self._table = table
        self._ids = token_ids
        self.vocab_size, self.hidden_size = table.shape

    def vectors(self, tokens: I32) -> F32:
        found: F32 = self._table[self._ids[tokens]]
        return found

    def mean(self, tokens: I32) -> F32:
        found: F32 = self.vectors(tokens).mean(0, dtype=np.float64).astype(np.float32)
        return found

    def scores(self, tokens: I32) -> F32:
        raise TypeError("this model has no classification head")

    def scores_of(self, vectors: F32) -> F32:
        raise TypeError("this model has no classification head")

    def options_of(self, vectors: F32, kind: int) -> F32:
        raise TypeError("this model reads whole texts, not rows")

    def logits_of(self, tokens: I32, rows: I32, targets: I32) -> F64:
        raise TypeError("this model has no language-model head")

    def chunks(self, tokens: I32) -> Iterator[tuple[int, int, Logits]]:
        raise TypeError("this model has no language-model head")


@dataclass(frozen=True, slots=True)
class _Tree:
    """``segments``: of each row that is read. ``pairs``: by the segment of a state those of key, line and number."""

    slices: PromptSlices
    segments: I32
    pairs: dict[int, list[tuple[int, int, int]]]

    @classmethod
    def of(cls, slices: PromptSlices, readout: OptionRows) -> _Tree:
        segments = (np.searchsorted(slices.starts, readout.rows, side="right") - 1).astype(np.int32)
        questions = set(segments[readout.indptr[1:] - 1].tolist())
        pairs: dict[int, list[tuple[int, int, int]]] = {}
        parents = slices.parents.tolist()
        for segment, parent in enumerate(parents):
            if parent >= 0 and parents[parent] < 0 and segment not in questions:
                pairs.setdefault(parent, []).append((segment, segment + 1, segment + 2))  # a chain of three
        return cls(slices, segments, pairs)


def _unit(x: F32) -> F32:
    found: F32 = x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12)
    return found


def _features(value: float) -> list[float]:
    size = abs(value)
    return [
        max(-1.0, min(1.0, value / 100.0)),
        math.copysign(math.log1p(size), value) / 5.0,
        1.0 if 0 < size < 1 else 0.0,
        max(-1.0, min(1.0, value / 10.0)),
    ]


def _gelu(x: F32) -> F32:
    """Use the error function of Abramowitz and Stegun, 7.1.26, as the model's own program has it: 1.5e-7 off."""
    a = np.abs(x / math.sqrt(2.0))
    t = 1.0 / (1.0 + 0.3275911 * a)
    series = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t
    found: F32 = (0.5 * x * (1.0 + np.sign(x) * (1.0 - series * np.exp(-a * a)))).astype(np.float32)
    return found
