"""The CPU executor: the reference that every other executor is held to.

One forward for all three variants: prompt segments and decode rows are one row of tokens, linear layers run over
all of them, attention follows a plan made once a step, and only rows that are read meet the last layer's MLP, the
final norm and the LM head.

``submit`` runs the step in the calling thread; ``wait`` hands out what it left.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from prelude.batch import (
    I32,
    DecodeBatch,
    ForwardBatch,
    MixedBatch,
    OneShotBatch,
    Output,
    Readout,
    StepResult,
)
from prelude.errors import EngineClosed
from prelude.execution.attention import AttentionPlan, CascadePlan
from prelude.execution.attention_runs import RunsPlan
from prelude.execution.backends import Wanted, choose
from prelude.execution.bits import rows_needed
from prelude.execution.executor import ExecutorLimits
from prelude.execution.hidden_rows import HiddenRows
from prelude.execution.layout import I64, StepTokens
from prelude.execution.pending import PendingTokens
from prelude.execution.threads import GOVERNOR
from prelude.models.config import ModelConfig
from prelude.models.kernels import wide, write_pool
from prelude.models.spec import Attention as Heads
from prelude.models.spec import ModelSpec, Projection
from prelude.models.transformer import Transformer
from prelude.models.weights import ModelWeights, WeightSource, load_weights

_LOGITS_BYTES = 64 << 20
"""What one chunk of logits may take where the caller does not say."""
_NO_PROJECTION = Projection((), (), 0)
_ALIGNMENT = 64  # bytes: a cache line, and the widest vector register
_TOKEN_CHUNK = 256
"""Tokens between two attentions at a time. What they need beside the weights stays in the second-level cache: longer
runs of the packaged model's products reach 65 Gflop/s on a core where these reach 97."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The handle of a step, which has run by the time the caller holds it."""

    result: StepResult | None
    error: Exception | None


@dataclass(frozen=True, slots=True)
class KvPool:
    """K and V of all blocks, [layers, 2, slots, kv_heads, head_dim]. A page of it takes memory from the first write
    to one of its blocks on."""

    tensor: Tensor

    @classmethod
    def empty(cls, spec: ModelSpec, slots: int, dtype: torch.dtype) -> KvPool:
        heads = spec.attention
        slots = 0 if spec.bidirectional else slots
        shape = (len(spec.layers), 2, slots, heads.kv_heads, heads.head_dim)
        nbytes = math.prod(shape) * dtype.itemsize
        # torch.zeros writes to every page. numpy takes pages that the system hands out as zeros when they are used.
        room = np.zeros(nbytes + _ALIGNMENT, np.uint8)
        first = -room.ctypes.data % _ALIGNMENT
        return cls(torch.from_numpy(room[first : first + nbytes]).view(dtype).view(shape))

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        return self.tensor[index, 0], self.tensor[index, 1]


def resolve_dtype(dtype: str | torch.dtype, config: ModelConfig) -> torch.dtype:
    """``auto`` is float32: exact to 1e-5, and weights that were saved in bfloat16 lose nothing in it."""
    if dtype == "auto":
        return torch.float32
    named = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    resolved = named.get(dtype) if isinstance(dtype, str) else dtype
    if resolved is None or resolved not in named.values():
        raise ValueError(f"dtype is {dtype!r}; on a CPU it may be auto, float32 or bfloat16")
    return resolved


class CpuExecutor:
    def __init__(
        self,
        config: ModelConfig,
        checkpoint: WeightSource,
        *,
        num_blocks: int,
        block_size: int = 16,
        dtype: str | torch.dtype = "auto",
        deterministic: bool = False,
        logits_chunk_rows: int | None = None,
        attention: str = "auto",
    ) -> None:
        """``attention``: see ``backends``; ``ConfigError`` where it cannot serve."""
        self.config = config
        self.block_size = block_size
        self.dtype = resolve_dtype(dtype, config)
        self.deterministic = deterministic
        element = str(self.dtype).removeprefix("torch.")
        self.attention = choose(attention, "cpu", _wanted(config.spec, element, deterministic))
        self.weights: ModelWeights = load_weights(checkpoint, config.spec, self.dtype)
        self.decoder = Transformer(config.spec, self.weights, _TOKEN_CHUNK)
        if deterministic:
            with torch.inference_mode():
                self.decoder.pad_products(rows_needed(self.decoder.linears()))
        self.pool = KvPool.empty(config.spec, num_blocks * block_size, self.dtype)
        default_rows = max(16, min(256, _LOGITS_BYTES // (4 * config.vocab_size)))
        self._windows = Counter(layer.mixer.window for layer in config.spec.layers)
        self._chunk_rows = default_rows if logits_chunk_rows is None else max(1, logits_chunk_rows)
        self._num_blocks = num_blocks
        self._pending = PendingTokens()
        self._closed = False

    def limits(self) -> ExecutorLimits:
        config, head = self.config, self.weights.classifier
        classifier = config.spec.classifier
        return ExecutorLimits(
            vocab_size=config.vocab_size,
            max_positions=config.max_positions,
            hidden_size=config.hidden_size,
            num_labels=0 if head is None else head.out.weight.shape[0],
            block_size=self.block_size,
            num_blocks=self._num_blocks,
            kv_bytes_per_token=config.spec.kv_bytes_per_token(self.dtype.itemsize),
            logits_chunk_rows=self._chunk_rows,
            weight_bytes=self.weights.nbytes,
            device="cpu",
            dtype=str(self.dtype).removeprefix("torch."),
            lm_head=self.weights.lm_head is not None,
            head_pooling="last" if classifier is None else classifier.pooling,
            bidirectional=config.spec.bidirectional,
        )

    def submit(self, batch: ForwardBatch) -> Finished:
        readouts = _readouts(batch)
        if self._closed:
            raise EngineClosed("the executor is closed")
        try:
            with torch.inference_mode(), GOVERNOR:
                return Finished(self._run(batch, readouts), None)
        except Exception as error:  # the step's own failure, whatever it is, belongs to whoever waits for it
            self._pending.lose(batch)
            return Finished(None, error)

    def wait(self, handle: Finished) -> StepResult:
        if handle.error is not None:
            raise handle.error
        if handle.result is None:
            raise TypeError("this handle did not come from submit")
        return handle.result

    def close(self) -> None:
        """Refuse further steps and let go of the pool."""
        self._closed = True
        self.pool = KvPool.empty(self.config.spec, 0, self.dtype)

    def _run(self, batch: ForwardBatch, readouts: list[tuple[Readout, int]]) -> StepResult:
        began = time.perf_counter()
        step = StepTokens.of(batch)
        rows = _read_rows(readouts, step.num_tokens)
        hidden = self._forward(step, rows)
        hidden_rows = HiddenRows(self.decoder, hidden, rows, self._chunk_rows)
        outputs: list[Output] = []
        bad_rows: list[I32] = []
        for readout, first in readouts:
            hidden_rows.first = first
            output, bad = readout.run(hidden_rows)
            outputs.append(output)
            bad_rows.append(bad)
        self._pending.keep(tuple(outputs))
        peak = self._peak_bytes(step, len(hidden), hidden_rows.lm_head_rows)
        return StepResult(
            tuple(outputs),
            tuple(bad_rows),
            seconds=time.perf_counter() - began,
            lm_head_rows=hidden_rows.lm_head_rows,
            attended_tokens=self._attended(step),
            peak_bytes=sum(peak.values()),
            extra={name: float(value) for name, value in peak.items()},
        )

    def _forward(self, step: StepTokens, rows: I64 | None) -> Tensor:
        layers = [layer.mixer for layer in self.config.spec.layers]
        highest = int(step.positions.max(initial=-1))
        reading = [_reading(heads, highest) for heads in layers]
        plans = {heads: self._plan(step, None, heads) for heads in dict.fromkeys(reading[:-1])}
        final = self._plan(step, rows, reading[-1])
        written = None if step.written is None else torch.from_numpy(step.written)
        slots = torch.from_numpy(step.slots)

        def attention(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            GOVERNOR.look()
            pool_k, pool_v = self.pool.layer(layer)
            if len(slots):
                write_pool(k, v, pool_k, pool_v, slots, written)
            plan = final if layer + 1 == len(layers) else plans[reading[layer]]
            return plan.run(q, k, v, pool_k, pool_v, self.weights.layers[layer].relative)

        token_ids = step.token_ids if step.decode is None else self._pending.resolve(step.token_ids)
        ids, positions = torch.from_numpy(token_ids), torch.from_numpy(step.positions)
        read = None if rows is None else torch.from_numpy(rows)
        return self.decoder.forward(ids, positions, highest, attention, read, self._types(step))

    def _types(self, step: StepTokens) -> Tensor | None:
        """[tokens], for models with token types."""
        count = self.config.spec.num_types
        if count < 2 or step.forest is None or step.forest.apart:
            return None
        return torch.from_numpy(np.repeat(np.minimum(step.forest.depths(), count - 1), np.diff(step.forest.starts)))

    def _plan(self, step: StepTokens, rows: I64 | None, heads: Heads) -> AttentionPlan:
        """The native kernel in deterministic mode, where attention is more than causal, and for prompts wherever the
        machine has vectors for it."""
        native = self.deterministic or not _is_plain(heads) or self._native(step)
        if self.attention == "runs" or (self.attention == "auto" and native):
            return RunsPlan(step, self.block_size, heads, rows, paged=not self.deterministic)
        return CascadePlan(step, self.block_size, heads, self.dtype, rows)

    def _native(self, step: StepTokens) -> bool:
        return wide() and step.forest is not None

    def _attended(self, step: StepTokens) -> int:
        """Key positions read in a layer, as an average over the layers."""
        causal = self.config.spec.attention.causal
        pairs = sum(step.attended(window, causal) * layers for window, layers in self._windows.items())
        return round(pairs / len(self.config.spec.layers))

    def _peak_bytes(self, step: StepTokens, read: int, lm_head_rows: int) -> dict[str, int]:
        """Bytes that lived at once, from the shapes: torch does not count them on a CPU."""
        spec, size = self.config.spec, self.dtype.itemsize
        tokens, chunk = step.num_tokens, min(step.num_tokens, _TOKEN_CHUNK)
        mixer, mlp = spec.layers[0].mixer, spec.layers[0].mlp
        per_token = spec.hidden * 4 + (mixer.qkv.outputs + mixer.query_width) * size
        wide = (mlp.up.outputs + spec.hidden) * size
        return {
            "activation_bytes": tokens * per_token + chunk * wide,
            "hidden_bytes": read * spec.hidden * 4,
            "logits_bytes": min(lm_head_rows, self._chunk_rows) * spec.embeddings.vocab * 8,
        }


def _wanted(spec: ModelSpec, element: str, deterministic: bool) -> Wanted:
    plain = all(_is_plain(layer.mixer) for layer in spec.layers)
    return Wanted(spec.attention.head_dim, element, deterministic, spec.attention.causal, plain)


def _reading(heads: Heads, highest: int) -> Heads:
    """Attention as a plan needs it, the same for layers that read alike. A window as long as the step's longest
    sequence is none."""
    window = None if heads.window is None or heads.window >= highest else heads.window
    return replace(heads, window=window, qkv=_NO_PROJECTION, out=_NO_PROJECTION, rope=None, q_norm=None, k_norm=None)


def _is_plain(heads: Heads) -> bool:
    return heads.causal and heads.window is None and heads.scale is None and not heads.cap


def _readouts(batch: ForwardBatch) -> list[tuple[Readout, int]]:
    """The batch's readouts, each with the token its rows count from."""
    if isinstance(batch, OneShotBatch):
        return [(batch.readout, 0)]
    if isinstance(batch, DecodeBatch):
        return [(batch.readout, 0)]
    if isinstance(batch, MixedBatch):
        readouts: list[tuple[Readout, int]] = [(readout, 0) for readout in batch.readouts]
        if batch.decode_readout is not None:
            readouts.append((batch.decode_readout, batch.slices.num_tokens))
        return readouts
    raise TypeError(f"an executor runs OneShotBatch, DecodeBatch and MixedBatch, not {type(batch).__name__}")


def _read_rows(readouts: list[tuple[Readout, int]], tokens: int) -> I64 | None:
    """The tokens that are read, sorted; None where that is all of them."""
    wanted = np.zeros(tokens, np.bool_)
    for readout, first in readouts:
        wanted.put(readout.rows + first, True)
    return None if wanted.all() else np.flatnonzero(wanted)
