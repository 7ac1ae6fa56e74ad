"""Batches made by hand, and a small random checkpoint beside its oracle."""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from prelude.cpu.executor import CpuExecutor
from prelude.models.checkpoint import Checkpoint
from prelude.models.config import ModelConfig
from prelude.models.precision import choose
from prelude.models.read_weights import load_weights
from prelude.readouts.batch import (
    DecodeBatch,
    DecodeRows,
    LogprobRows,
    MixedBatch,
    OneShotBatch,
    PooledRows,
    PromptSlices,
    SampleRows,
    StepResult,
)
from tests.checkpoints import SMALL

VOCAB: int = SMALL["vocab_size"]
BLOCK = 16


def i32(values: Any) -> np.ndarray:
    return np.ascontiguousarray(values, dtype=np.int32)


@dataclass
class Noted:
    """One side of a mixer that notes how many rows it is called with."""

    side: Any
    rows: list[int]

    @property
    def inner(self) -> int:
        return int(self.side.inner)

    def __call__(self, x: torch.Tensor, *others: Any) -> None:
        self.rows.append(len(x))
        self.side(x, *others)


def cpu_executor(
    path: Any, config: ModelConfig, *, dtype: str = "auto", quantization: Any = None, **options: Any
) -> CpuExecutor:
    """``path``: of a checkpoint, which is read for this executor alone, or its directory."""
    with Checkpoint.open(path, config) as checkpoint:
        precision = choose(dtype, checkpoint, config.spec, quantization)
        weights = load_weights(checkpoint, config.spec, precision.dtype, precision.packing)
    options = {"precision": precision, "quantization": quantization, "running_states": 8, **options}
    return CpuExecutor(config, weights, **options)


@dataclass
class Model:
    path: Path
    config: ModelConfig = field(init=False)
    oracle: Any = field(init=False)

    def __post_init__(self) -> None:
        self.config = ModelConfig.from_dir(self.path)
        self.oracle = AutoModelForCausalLM.from_pretrained(self.path, dtype=torch.float32).eval()

    def executor(self, num_blocks: int = 128, **options: Any) -> CpuExecutor:
        return cpu_executor(self.path, self.config, num_blocks=num_blocks, block_size=BLOCK, **options)

    def logprobs(self, ids: Sequence[int]) -> np.ndarray:
        """[tokens, vocab] from transformers in float32."""
        with torch.no_grad():
            logits = self.oracle(torch.tensor(np.asarray(ids, np.int64))[None]).logits[0]
        return logits.double().log_softmax(-1).numpy()


def random_ids(seed: int, count: int, vocab: int = VOCAB) -> np.ndarray:
    return i32(np.random.default_rng(seed).integers(0, vocab, count))


@dataclass
class Segment:
    ids: np.ndarray
    parent: int = -1
    context: int = 0
    blocks: Sequence[int] = ()
    write: Sequence[int] = ()  # blocks that take this segment's tokens, at offset ``context``


def slices(segments: Sequence[Segment]) -> PromptSlices:
    starts = np.concatenate([[0], np.cumsum([len(s.ids) for s in segments])])
    ends: list[int] = []
    positions, write = [], []
    for s in segments:
        first = s.context if s.parent < 0 else ends[s.parent]
        ends.append(first + len(s.ids))
        positions.append(np.arange(first, ends[-1]))
        write.append(slots(s.write)[first : ends[-1]] if len(s.write) else np.full(len(s.ids), -1))
    written = i32(np.concatenate(write))
    return PromptSlices(
        i32(np.concatenate([s.ids for s in segments])),
        i32(np.concatenate(positions)),
        i32(starts),
        i32([s.parent for s in segments]),
        i32([s.context for s in segments]),
        i32(np.concatenate([[0], np.cumsum([len(s.blocks) for s in segments])])),
        i32(np.concatenate([np.asarray(s.blocks, np.int32) for s in segments])),
        written if (written >= 0).any() else None,
    )


def slots(blocks: Sequence[int]) -> np.ndarray:
    return (np.asarray(blocks)[:, None] * BLOCK + np.arange(BLOCK)).reshape(-1)


def prompts(*ids: np.ndarray) -> PromptSlices:
    return slices([Segment(x) for x in ids])


def ends(s: PromptSlices) -> np.ndarray:
    """The last token of each segment that has one."""
    keep = np.diff(s.starts) > 0
    return i32(s.starts[1:][keep] - 1)


def all_logprobs(rows: np.ndarray, vocab: int = VOCAB, **options: Any) -> LogprobRows:
    count = len(rows)
    return LogprobRows(
        i32(rows), i32(np.repeat(np.arange(count), vocab)), i32(np.tile(np.arange(vocab), count)), **options
    )


def sampling(rows: Any, temperature: float = 0.0, seeds: Any = 0, steps: Any = 0, **options: Any) -> SampleRows:
    n = len(rows)
    options.setdefault("logprobs", options.get("top", 0) > 0)

    def full(value: Any, dtype: Any) -> np.ndarray:
        return np.ascontiguousarray(np.broadcast_to(np.asarray(value, dtype), n))

    return SampleRows(
        i32(rows),
        full(temperature, np.float32),
        full(options.pop("top_k", 0), np.int32),
        full(options.pop("top_p", 1.0), np.float32),
        full(options.pop("min_p", 0.0), np.float32),
        full(seeds, np.uint64),
        full(steps, np.int32),
        **options,
    )


def decode_rows(tokens: Sequence[int], lengths: Sequence[int], tables: Sequence[Sequence[int]]) -> DecodeRows:
    """Rows of which ``lengths`` tokens are in the pool already."""
    return DecodeRows(
        i32(tokens),
        i32(lengths),
        i32([slots(t)[n] for n, t in zip(lengths, tables)]),
        i32(lengths),
        i32(np.concatenate([[0], np.cumsum([len(t) for t in tables])])),
        i32(np.concatenate([np.asarray(t) for t in tables])),
    )


def run(executor: CpuExecutor, batch: Any) -> StepResult:
    return executor.wait(executor.submit(batch))


def last_logprobs(executor: CpuExecutor, s: PromptSlices, rows: np.ndarray | None = None) -> np.ndarray:
    """[rows, vocab] logprobs at ``rows``, by default the last token of each segment."""
    rows = ends(s) if rows is None else i32(rows)
    vocab = executor.config.vocab_size
    result = run(executor, OneShotBatch(s, all_logprobs(rows, vocab)))
    assert all(len(bad) == 0 for bad in result.bad_rows)
    return result.outputs[0].logprobs.reshape(len(rows), vocab)


def hidden(executor: CpuExecutor, s: PromptSlices, rows: Any) -> np.ndarray:
    """[rows, hidden] after the final norm, for comparisons of bits."""
    rows = i32(rows)
    readout = PooledRows(rows, i32(np.arange(len(rows) + 1)))
    return run(executor, OneShotBatch(s, readout)).outputs[0].vectors


def owned(s: PromptSlices, slots: Any) -> PromptSlices:
    """Segments that hold state slots, -1 for one that has none: each goes on from its own, and leaves its state
    there."""
    if slots is None:
        return s
    held = i32(slots)
    return replace(s, state_from=np.where(s.context_lens > 0, held, -1).astype(np.int32), state_to=held)


def greedy(
    executor: CpuExecutor, prompts_: Sequence[np.ndarray], tables: Sequence[Sequence[int]], steps: int
) -> np.ndarray:
    """[prompts, steps] greedy tokens: the prompts in one mixed step, then decode steps. States of a recurrent model
    are in the first slots."""
    s = slices([Segment(ids, write=table) for ids, table in zip(prompts_, tables)])
    no_rows = decode_rows([], [], [[]])
    held = i32(range(len(prompts_))) if executor.limits().running_states else None
    batch: DecodeBatch | MixedBatch
    batch = MixedBatch(owned(s, held), (sampling(ends(s)),), no_rows, None, None if held is None else held[:0])
    tokens = [run(executor, batch).outputs[0].token_ids]
    for step in range(steps - 1):
        lengths = [len(ids) + step for ids in prompts_]
        rows = decode_rows(tokens[-1], lengths, tables)
        batch = DecodeBatch(rows, sampling(range(len(prompts_))), held)
        tokens.append(run(executor, batch).outputs[0].token_ids)
    return np.stack(tokens, axis=1)


def live_array_bytes() -> int:
    """Bytes of numpy's arrays that were made since ``tracemalloc`` began and are alive. Counted until two counts are
    equal, since engines of earlier tests may end on threads of their own."""
    before = -1
    only = tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)
    while True:
        gc.collect()
        now = sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces([only]).traces)
        if now == before:
            return now
        before = now
        time.sleep(0.05)
