"""How far an executor on a device is from transformers in float32 over the same weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from prelude.cuda.executor import CudaExecutor

from bench.gpu.batches import draw, forest, greedy, i32, labels
from bench.gpu.models import RandomSource, Reference
from prelude.models.config import ModelConfig
from prelude.readouts.batch import (
    DecodeBatch,
    DecodeRows,
    LogprobOutput,
    MixedBatch,
    OneShotBatch,
    PromptSlices,
    SampleOutput,
)

LIMIT_ULPS = 2.0
"""Units in the last place of a bfloat16 of the largest logit that any bfloat16 forward may be off."""


def ulps(ours: np.ndarray, theirs: np.ndarray, logits_scale: float) -> float:
    """Largest difference in units of the last place of a bfloat16 as large as the largest logit."""
    return float(np.abs(ours - theirs).max() / 2.0 ** (np.floor(np.log2(logits_scale)) - 7))


def worst_error(executor: CudaExecutor, reference: Reference, seed: int, *, exact: bool) -> float:
    """A fold, a chunked prompt, a hit on it and decode rows; logprobs of 50 tokens each against ``reference``."""
    vocab = executor.config.vocab_size
    rng = np.random.default_rng(seed)
    wanted = i32(rng.permutation(vocab)[:50])

    def ids(n: int) -> np.ndarray:
        return i32(rng.integers(0, vocab, n))

    def check(sequences: Sequence[np.ndarray], output: Any) -> float:
        worst = 0.0
        for at, sequence in enumerate(sequences):
            expected = reference.logprobs(sequence)
            theirs, scale = expected[wanted], float(np.abs(expected - expected.mean()).max())
            if isinstance(output, LogprobOutput):
                ours = output.logprobs[at * 50 : at * 50 + 50]
                worst = max(worst, float(np.abs(ours - theirs).max()) if exact else ulps(ours, theirs, scale))
            elif isinstance(output, SampleOutput):
                best = float(expected.max() - expected[int(output.token_ids[at])])
                worst = max(worst, best if exact else ulps(np.array([best]), np.zeros(1), scale))
        return worst

    state, tails = ids(int(rng.integers(20, 300))), [ids(int(rng.integers(1, 20))) for _ in range(5)]
    other = ids(int(rng.integers(1, 90)))
    segments = [(state, -1), *((tail, 0) for tail in tails), (other, -1)]
    s = forest(segments)
    rows = [int(end) - 1 for end in s.starts[2:]]
    whole = [*(np.concatenate([state, tail]) for tail in tails), other]
    fold = OneShotBatch(s, labels(rows, wanted.tolist()))
    worst = 0.0
    for _ in range(2):  # the second is a replay, where shapes are recorded
        worst = max(worst, check(whole, executor.wait(executor.submit(fold)).outputs[0]))
    return max(worst, paged_error(executor, ids, check))


def paged_error(executor: CudaExecutor, ids: Any, check: Any) -> float:
    """A prompt in two chunks over scattered blocks, and then token by token."""
    size = executor.block_size
    blocks = [int(b) for b in np.random.default_rng(1).permutation(60)]
    prompt = ids(3 * size + 5)
    slots = (np.asarray(blocks[:8])[:, None] * size + np.arange(size)).reshape(-1)
    worst, cut = 0.0, size + 3
    no_rows = DecodeRows(*(i32([]) for _ in range(4)), i32([0]), i32([]))
    for first, last in ((0, cut), (cut, len(prompt))):
        table = blocks[: -(-first // size)]
        positions, held, written = i32(np.arange(first, last)), i32([0, len(table)]), i32(slots[first:last])
        edges, root, before = i32([0, last - first]), i32([-1]), i32([first])
        part = PromptSlices(prompt[first:last], positions, edges, root, before, held, i32(table), written)
        readout = greedy([last - first - 1])
        output = executor.wait(executor.submit(MixedBatch(part, (readout,), no_rows, None))).outputs[0]
        worst = max(worst, check([prompt[:last]], output))
    text = prompt
    token = int(output.token_ids[0])
    for _ in range(20):
        length = len(text)
        table, at = blocks[: length // size + 1], i32([length])
        rows = DecodeRows(i32([token]), at, i32(slots[at]), at, i32([0, len(table)]), i32(table))
        text = np.concatenate([text, i32([token])])
        output = executor.wait(executor.submit(DecodeBatch(rows, greedy([0])))).outputs[0]
        worst = max(worst, check([text], output))
        token = int(output.token_ids[0])
    return worst


def allowed_ulps(config: ModelConfig) -> float:
    """Twice the error of transformers' bfloat16 forward: products of bfloat16 values are rounded in any program."""
    return 2 * max(transformers_error(config), LIMIT_ULPS)


def transformers_error(config: ModelConfig, device: str = "cuda") -> float:
    """The difference of transformers in bfloat16 from float32, in ulps."""
    source = RandomSource(config, device, torch.bfloat16)
    model, reference = Reference(source, torch.bfloat16), Reference(source)
    worst = 0.0
    for seed in range(3):
        ids = draw(seed, 200, min(4000, config.vocab_size))
        ours, theirs = model.logprobs(ids), reference.logprobs(ids)
        worst = max(worst, ulps(ours, theirs, float(np.abs(theirs - theirs.mean()).max())))
    return worst
