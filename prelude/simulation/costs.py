"""The cost of a step: work counted from the batch that an executor would get, and seconds from the work.

The batch is the real one, so shared parts are counted once: a folded segment, a cached prefix.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

import numpy as np

from prelude._native.core import CostFit, prompt_keys
from prelude.readouts.batch import (
    DecodeBatch,
    DecodeRows,
    ForwardBatch,
    OneShotBatch,
    PromptSlices,
    Readout,
)
from prelude.records import dataclass
from prelude.scheduling.cost import Work

_MEMORY = 8  # steps that a fit remembers; these observe none


class StepCost(Protocol):
    def seconds(self, work: Work) -> float: ...

    @property
    def coefficients(self) -> dict[str, float]:
        """Return them as a ``CostModel`` has them after an engine has run there for a while."""


def work_of(batch: ForwardBatch) -> Work:
    if isinstance(batch, DecodeBatch):
        pairs = _decode_pairs(batch.rows)
        return Work(batch.num_tokens, pairs, batch.num_tokens, pairs)
    tokens, pairs, context = batch.slices.num_tokens, *_prompt_pairs(batch.slices)
    if isinstance(batch, OneShotBatch):
        return Work(tokens, pairs, _head_rows(batch.readout), context)
    decoded = _decode_pairs(batch.decode)
    rows = sum(map(_head_rows, batch.readouts)) + batch.decode.num_rows
    return Work(tokens + batch.decode.num_rows, pairs + decoded, rows, context + decoded)


def _prompt_pairs(slices: PromptSlices) -> tuple[int, int]:
    """Where a segment's first token stands is how many keys precede it, whether in the pool or in its ancestors."""
    lengths = np.diff(slices.starts).astype(np.int64)
    full = lengths > 0
    firsts = slices.positions[slices.starts[:-1][full]].astype(np.int64)
    n = lengths[full]
    return int(prompt_keys(n, firsts).sum()), int(slices.context_lens.sum())


def _decode_pairs(rows: DecodeRows) -> int:
    return int(rows.context_lens.sum()) + rows.num_rows


def _head_rows(readout: Readout) -> int:
    return readout.vocab_rows


@lru_cache(maxsize=64)
def _fit_from(step: float, token: float, pair: float, row: float) -> CostFit:
    fit = CostFit(_MEMORY)
    fit.start_from(step, token, pair, row, False)
    return fit


@dataclass(frozen=True, slots=True)
class LinearCost:
    """Seconds linear in a step's work, by the coefficients of a fit to measured ones; ``CostFit`` has the formula."""

    step: float
    token: float
    pair: float
    row: float = 0.0

    def seconds(self, work: Work) -> float:
        fit = _fit_from(self.step, self.token, self.pair, self.row)
        return fit.predict(work.tokens, work.keys, work.lm_rows)

    @property
    def coefficients(self) -> dict[str, float]:
        return {"constant": self.step, "token": self.token, "key": self.pair, "lm_row": self.row}


@dataclass(frozen=True, slots=True)
class Shape:
    """A decoder with grouped-query attention and a gated MLP, as its config.json has it."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    max_positions: int
    value_bytes: int = 2
    tied: bool = True

    @property
    def layer_weights(self) -> int:
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.intermediate)

    @property
    def weight_bytes(self) -> int:
        return (self.layer_weights + self.vocab * self.hidden * (1 if self.tied else 2)) * self.value_bytes

    @property
    def kv_bytes_per_token(self) -> int:
        return 2 * self.layers * self.kv_heads * self.head_dim * self.value_bytes


@dataclass(frozen=True, slots=True)
class RooflineCost:
    """Seconds from published numbers: each part takes the longer of its arithmetic and its memory traffic.

        layers      max(2 * W * tokens / F,  bytes(W) / B)              W: weights of the layers
        attention   max(4 * L * H * D * pairs / F,  kv * context / B)   L layers, H heads of D; kv: bytes a token
        LM head     max(2 * hidden * vocab * rows / F,  bytes(head) / B), if any row is read
        step        launches, host and copies

    F = ``flops * flops_share``, B = ``bandwidth * bandwidth_share``. The 2 and 4 are a multiply and an add for each
    weight, and for QK and PV each. The last layer is counted whole, elementwise work not at all: the shares stand for
    both, and are assumptions, not measurements.
    """

    shape: Shape
    flops: float
    bandwidth: float
    flops_share: float
    bandwidth_share: float
    step: float

    def parts(self, work: Work) -> tuple[tuple[float, float], ...]:
        """(seconds of arithmetic, seconds of memory traffic) of layers, attention and LM head."""
        shape, flops, bandwidth = self.shape, self.flops * self.flops_share, self.bandwidth * self.bandwidth_share
        layers = (2 * shape.layer_weights * work.tokens / flops, shape.layer_weights * shape.value_bytes / bandwidth)
        attention = (
            4 * shape.layers * shape.heads * shape.head_dim * work.keys / flops,
            shape.kv_bytes_per_token * work.context / bandwidth,
        )
        if not work.lm_rows:
            return layers, attention
        weights = shape.hidden * shape.vocab
        head = (2 * weights * work.lm_rows / flops, weights * shape.value_bytes / bandwidth)
        return layers, attention, head

    def seconds(self, work: Work) -> float:
        return self.step + sum(map(max, self.parts(work)))

    def bound(self, work: Work) -> str:
        """``"arithmetic"`` or ``"memory"``: the resource that most of its time waits for."""
        arithmetic = sum(a for a, m in self.parts(work) if a >= m)
        return "arithmetic" if arithmetic >= sum(m for a, m in self.parts(work) if m > a) else "memory"

    @property
    def ridge(self) -> float:
        """Tokens a step from which on the layers' arithmetic takes longer than reading their weights once."""
        return self.shape.value_bytes * self.flops * self.flops_share / (2 * self.bandwidth * self.bandwidth_share)

    def note(self, prompt: int = 512, rows: int = 4, keys: int = 1000) -> str:
        """Return the resource that bounds each of the two phases, as a sentence."""
        prefill, decode = Work.prompt(prompt), Work(rows, rows * (keys + 1), rows, rows * (keys + 1))
        return (
            f"a prompt of {prompt} tokens ({self.seconds(prefill) * 1e3:.3g} ms) waits for {self.bound(prefill)}, "
            f"{rows} decode rows behind {keys:,} keys ({self.seconds(decode) * 1e3:.3g} ms) for {self.bound(decode)};"
            f" layers turn at {self.ridge:.0f} tokens a step"
        )

    @property
    def coefficients(self) -> dict[str, float]:
        """Coefficients for prompts of some hundred tokens or more: arithmetic takes longer than memory."""
        shape, flops = self.shape, self.flops * self.flops_share
        return {
            "constant": self.step,
            "token": 2 * shape.layer_weights / flops,
            "key": 4 * shape.layers * shape.heads * shape.head_dim / flops,
            "lm_row": 2 * shape.hidden * shape.vocab / flops,
        }
