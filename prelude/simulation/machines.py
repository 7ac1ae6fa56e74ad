"""Machines to simulate: the cost of a step, the room for KV, and the engine's limits there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prelude.errors import ConfigError
from prelude.execution.executor import ExecutorLimits
from prelude.records import dataclass, replace
from prelude.scheduling.cost import CostModel
from prelude.simulation.costs import LinearCost, RooflineCost, Shape, StepCost
from prelude.values.config import CPU_KV_BYTES, EngineConfig, ExpertConfig


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
    return Machine("cpu-default", cost, CPU_KV_BYTES, 4 * 2 * 2 * 32 * 4, 4096, 2048, config)


MACHINES = {"h200-qwen3-4b": h200_qwen3_4b, "cpu-default": cpu_default}


def machine(name: str, **changes: Any) -> Machine:
    """Return a machine by its name, with fields of its ``EngineConfig`` changed."""
    if name not in MACHINES:
        raise ConfigError(f"machine={name!r} is not one of {', '.join(MACHINES)}")
    made = MACHINES[name]()
    return made.configured(**changes) if changes else made
