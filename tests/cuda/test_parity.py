"""The whole executor, on a device made of host memory, against the CPU one: same batches, same pools, same
numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from prelude.cuda import workspace
from prelude.cuda.device import FIXED_ROWS
from prelude.cuda.executor import CudaExecutor
from prelude.cuda.graphs import GraphPolicy

from prelude.loading.cuda import check_supported
from prelude.readouts.batch import LogprobOutput, OneShotBatch, PooledOutput, PooledRows, SampleOutput, StepResult
from tests.cuda.conftest import on_device
from tests.cuda.plans import BLOCKS, random_batch
from tests.cuda.simulated import SimulatedDevice
from tests.execution.helpers import BLOCK, VOCAB, Model, Segment, hidden, i32, prompts, random_ids, run, slices


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
    """Every slot of a step that ended. Heads are interleaved in the CPU's pool."""
    ours.device.close()
    pool, width = theirs.pool.tensor, theirs.config.spec.attention.head_dim
    split = pool.reshape(*pool.shape[:-1], width // 2, 2).swapaxes(-1, -2).reshape(pool.shape)
    k, v = (ours.pool[:, part, : BLOCKS * BLOCK].numpy() for part in (0, 1))
    assert np.abs(k - split[:, 0]).max() < tolerance
    assert np.abs(v - pool[:, 1]).max() < tolerance


@pytest.mark.feature("H8")
@pytest.mark.feature("D5")
@pytest.mark.parametrize(
    ("levels", "graphs"),
    [(True, True), (False, False), *(pytest.param(one, not one, marks=pytest.mark.long) for one in (True, False))],
    ids=["levels-graphs", "keys-eager", "levels-eager", "keys-graphs"],
)
def test_random_batches(variant: Model, levels: bool, graphs: bool) -> None:
    """Forests with hits, folds, chunks, published blocks and decode rows over scattered blocks; every readout."""
    policy = GraphPolicy(enabled=graphs, at_once=True)
    executor = on_device(variant, levels=levels, policy=policy, logits_chunk_rows=16)
    reference = variant.executor(num_blocks=BLOCKS)
    rng = np.random.default_rng(7)
    check_supported(variant.config.spec)
    for _ in range(16):
        batch = random_batch(rng, VOCAB)
        same(run(executor, batch), run(reference, batch), 2e-4)
    # The CPU pool interleaves the heads of rotating layers alone.
    if all(heads.rope is not None for heads in variant.config.spec.attentions):
        same_pools(executor, reference, 1e-4)
    assert (executor.graphs.replays > 5) == graphs


@pytest.mark.parametrize("variant", ["windows", "windows-in-some-layers"], indirect=True)
def test_only_steps_that_a_window_cuts_leave_flashinfer(variant: Model) -> None:
    device = SimulatedDevice()
    executor, reference = on_device(variant, device=device), variant.executor()
    for length, way in ((24, "ragged"), (25, "attend"), (90, "attend")):
        device.calls.clear()
        batch = OneShotBatch(prompts(random_ids(5, length)), PooledRows(i32(range(length)), i32([0, length]), "mean"))
        same(run(executor, batch), run(reference, batch), 2e-4)
        assert {"ragged", "attend"} & set(device.calls) == {way}


def bits_in_any_company(executor: CudaExecutor) -> None:
    """Deterministic mode: alone, among others, folded, in chunks and behind a cached prefix."""

    def states(s: Any, rows: Any) -> np.ndarray:
        return hidden(executor, s, rows)

    ids = [random_ids(i, n) for i, n in enumerate((1, 17, 300, 64, 90))]
    alone = [states(prompts(x), np.arange(len(x))) for x in ids]
    together = states(prompts(*ids), np.arange(sum(map(len, ids))))
    assert np.array_equal(together, np.concatenate(alone))
    whole = ids[2]
    folded = slices([Segment(whole[:100]), Segment(random_ids(9, 30), parent=0), Segment(whole[100:], parent=0)])
    rows = np.concatenate([np.arange(100), 130 + np.arange(200)])
    assert np.array_equal(states(folded, rows), alone[2])
    table = [7, 3, 11, 2, 9, 4, 20, 21]
    first = slices([Segment(whole[:112], write=table)])
    assert np.array_equal(states(first, np.arange(112)), alone[2][:112])
    rest = slices([Segment(whole[112:], context=112, blocks=table[:7]), Segment(ids[1])])
    assert np.array_equal(states(rest, np.arange(188)), alone[2][112:])


@pytest.mark.fault(74)
def test_bits_in_any_company(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operations of the device: products by tiles of one size, keys in an order of the row's own, an MLP that
    takes a tile of rows at a time."""
    monkeypatch.setattr(workspace, "MLP_ROWS", FIXED_ROWS)
    bits_in_any_company(on_device(model, levels=False, deterministic=True))
