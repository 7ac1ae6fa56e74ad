"""The whole executor, on a device made of host memory, against the CPU one: same batches, same pools, same
numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from prelude.cuda.executor import CudaExecutor
from prelude.cuda.graphs import GraphPolicy

from prelude.batch import LogprobOutput, PooledOutput, SampleOutput, StepResult
from tests.cuda.plans import BLOCKS, random_batch
from tests.execution.helpers import BLOCK, VOCAB, Model, run


def same(ours: StepResult, theirs: StepResult, tolerance: float) -> None:
    assert len(ours.outputs) == len(theirs.outputs)
    for a, b, bad in zip(ours.outputs, theirs.outputs, ours.bad_rows):
        assert len(bad) == 0
        assert type(a) is type(b)
        if isinstance(a, LogprobOutput) and isinstance(b, LogprobOutput):
            assert np.abs(a.logprobs - b.logprobs).max(initial=0) < tolerance
            for name in ("ranks", "top_ids"):
                assert np.array_equal(getattr(a, name), getattr(b, name))
        elif isinstance(a, PooledOutput) and isinstance(b, PooledOutput):
            assert np.abs(a.vectors - b.vectors).max() < tolerance
        elif isinstance(a, SampleOutput) and isinstance(b, SampleOutput):
            assert np.array_equal(a.token_ids, b.token_ids)
            if a.logprobs is not None or b.logprobs is not None:
                assert np.abs(a.logprobs - b.logprobs).max() < tolerance
            assert np.array_equal(a.top_ids, b.top_ids)
    assert ours.lm_head_rows == theirs.lm_head_rows
    assert ours.attended_tokens == theirs.attended_tokens


def same_pools(ours: CudaExecutor, theirs: Any, tolerance: float) -> None:
    """Every slot that anybody is told of. Heads are interleaved in the CPU's pool."""
    ours.device.close()
    width = theirs.config.head_dim
    split = theirs.pool.tensor.view(*theirs.pool.tensor.shape[:-1], width // 2, 2).transpose(-1, -2).flatten(-2)
    k, v = ours.pool[:, 0, : BLOCKS * BLOCK], ours.pool[:, 1, : BLOCKS * BLOCK]
    assert (k - split[:, 0]).abs().max() < tolerance
    assert (v - theirs.pool.tensor[:, 1]).abs().max() < tolerance


@pytest.mark.feature("H8")
@pytest.mark.feature("D5")
@pytest.mark.parametrize("levels", [True, False], ids=["levels", "keys"])
@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "graphs"])
def test_random_batches(variant: Model, on_device: Callable[..., CudaExecutor], levels: bool, graphs: bool) -> None:
    """Forests with hits, folds, chunks, published blocks and decode rows over scattered blocks; every readout."""
    policy = GraphPolicy(enabled=graphs, after=1)
    executor = on_device(variant, levels=levels, policy=policy, logits_chunk_rows=16)
    reference = variant.executor(num_blocks=BLOCKS)
    rng = np.random.default_rng(7)
    for _ in range(40):
        batch = random_batch(rng, VOCAB)
        same(run(executor, batch), run(reference, batch), 2e-4)  # type: ignore[arg-type]
    same_pools(executor, reference, 1e-4)
    assert (executor.graphs.replays > 5) == graphs
