"""The cost of a step: work counted from the batch that an executor would get, and seconds from the work.

The batch is the real one, so shared parts are counted once: a folded segment, a cached prefix. A machine has a cost,
room for KV, and the engine's limits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import numpy as np

from prelude.errors import ConfigError
from prelude.execution.executor import ExecutorLimits
from prelude.execution.layout import prompt_keys
from prelude.readouts.batch import DecodeBatch, DecodeRows, ForwardBatch, OneShotBatch, PromptSlices
from prelude.records import dataclass, replace
from prelude.scheduling.cost import CostModel, Work
from prelude.values.config import CPU_KV_BYTES, EngineConfig, ExpertConfig


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
        return Work(tokens, pairs, batch.readout.vocab_rows, context)
    decoded = _decode_pairs(batch.decode)
    rows = sum(readout.vocab_rows for readout in batch.readouts) + batch.decode.num_rows
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


@dataclass(frozen=True, slots=True)
class LinearCost:
    """Seconds linear in a step's work, by the coefficients of a ``CostModel``."""

    step: float
    token: float
    pair: float
    row: float = 0.0

    def seconds(self, work: Work) -> float:
        return self.step + self.token * work.tokens + self.pair * work.keys + self.row * work.lm_rows

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


@dataclass(frozen=True, slots=True)
class Machine:
    """``config`` has the limits that fit it; ``kv_blocks`` there wins over ``kv_bytes`` here."""

    name: str
    cost: StepCost
    kv_bytes: int
    kv_bytes_per_token: int
    vocab: int
    max_positions: int
    config: EngineConfig
    # Mechanisms that an ablation turns off:
    reestimate: bool = True  # False: a request is matched once, when it is first ranked
    probation: bool = True  # False: all that is computed is kept, and the least recently used gives way to it

    def configured(self, **changes: Any) -> Machine:
        """Return a copy with fields of ``config`` or its ``expert``, ``reestimate`` or ``probation`` changed."""
        own = {name: changes.pop(name) for name in ("reestimate", "probation") if name in changes}
        return replace(self, config=self.config.changed(**changes), **own)

    def cost_model(self) -> CostModel:
        """Return a cost model fitted before, as if the engine had been given the file of an earlier run."""
        return CostModel(coefficients=self.cost.coefficients)

    def limits(self) -> ExecutorLimits:
        block_size = self.config.expert.block_size
        blocks = self.config.expert.kv_blocks
        if blocks is None:
            blocks = self.kv_bytes // (self.kv_bytes_per_token * block_size)
        return ExecutorLimits(
            self.vocab, self.max_positions, 8, 3, block_size, blocks, self.kv_bytes_per_token, 256, 0, self.name, "-"
        )


# Qwen/Qwen3-4B-Instruct-2507, config.json: 36 layers of 2,560, 32 heads and 8 KV heads of 128, an MLP of 9,728, tied
# embeddings for a vocabulary of 151,936, 262,144 positions. That is 3.63 G weights in the layers and 147,456 bytes of
# KV a token.
QWEN3_4B = Shape(36, 2560, 32, 8, 128, 9728, 151_936, 262_144)

# NVIDIA's data sheet of the H200 SXM: 141 GB of HBM3e at 4.8 TB/s; 1,979 TFLOPS of bfloat16 with sparsity, half of it
# without. FlashAttention-3 (arXiv 2407.08608) reaches 0.6 of the arithmetic on the same tensor cores with
# heads of 128 (620 to 650 TFLOPS at 8k to 16k tokens, causal); 0.8 of the bandwidth and 2 ms a step are assumed. A
# tenth of the memory is left to activations and the runtime.
_H200 = RooflineCost(QWEN3_4B, 989.5e12, 4.8e12, 0.6, 0.8, 2e-3)


def h200_qwen3_4b() -> Machine:
    return Machine(
        "h200-qwen3-4b",
        _H200,
        int(141e9 * 0.9) - QWEN3_4B.weight_bytes,
        QWEN3_4B.kv_bytes_per_token,
        QWEN3_4B.vocab,
        QWEN3_4B.max_positions,
        EngineConfig(
            max_length=65_536,
            max_running=256,
            chunk_tokens=2048,
            expert=ExpertConfig(group_tokens=2048, logits_bytes=1 << 30),
        ),
    )


def cpu_default() -> Machine:
    """Return the packaged model in float32 on the CPU executor: 4 layers, 2 KV heads of 32. Its cost was
    measured by ``python -m bench simulator --fit`` on two cores; fit your own with it."""
    fitted = CostModel.load(Path(__file__).with_name("cpu-default.json")).coefficients
    cost = LinearCost(fitted["constant"], fitted["token"], fitted["key"], fitted["lm_row"])
    config = EngineConfig()
    return Machine("cpu-default", cost, CPU_KV_BYTES, 4 * 2 * 2 * 32 * 4, 4096, 8192, config)


MACHINES = {"h200-qwen3-4b": h200_qwen3_4b, "cpu-default": cpu_default}


def machine(name: str, **changes: Any) -> Machine:
    """Return a machine by its name, with fields of its ``EngineConfig`` changed."""
    if name not in MACHINES:
        raise ConfigError(f"machine={name!r} is not one of {', '.join(MACHINES)}")
    made = MACHINES[name]()
    return made.configured(**changes) if changes else made
