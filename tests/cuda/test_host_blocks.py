"""Evicted blocks in pinned host memory: copies on the stream of the steps, on the simulated device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from prelude.cuda.executor import CudaExecutor
from prelude.cuda.graphs import GraphPolicy
from prelude.cuda.host_blocks import CudaHostBlocks

from prelude import EngineConfig
from prelude.admission.prepared import Prepared, TokenTree
from prelude.readouts.batch import LogprobRows
from prelude.readouts.sampling import Sampling, SamplingState
from prelude.runtime.assembly import make_core
from prelude.runtime.core import EngineCore
from tests.cuda.conftest import on_device
from tests.cuda.test_ahead import LIMITS, Told
from tests.execution.helpers import BLOCK, VOCAB, Model, i32, random_ids
from tests.service import is_empty, run_steps

SMALL, LARGE = 10, 400


def load(seed: int) -> list[Prepared]:
    """Chats and decisions of six users, four of each in turns: 3 blocks of profile and up to one more."""
    found = []
    for i in range(24):
        tail = random_ids(100 + seed + i, 3 + i % 11)
        ids = np.concatenate([random_ids(seed + i % 6, 3 * BLOCK), tail])
        end = i32([len(ids) - 1])
        if i % 4 == 3:
            greedy = Sampling(0.0, 0, 1.0, 0.0, 0, frozenset(), logprobs=0)
            found.append(Prepared(TokenTree.single(ids), SamplingState(len(ids) - 1, greedy), 6, greedy))
        else:
            targets = i32(np.arange(VOCAB))
            found.append(Prepared(TokenTree.single(ids), LogprobRows(end, np.zeros_like(targets), targets)))
    return found


def answers(executor: CudaExecutor, prepared: list[Prepared], host_kv_bytes: int, overlap: bool) -> tuple[Any, Any]:
    """(core, numbers of each request); a new request comes after every step."""
    limits = {**LIMITS, "host_kv_bytes": host_kv_bytes, "host_kv_tokens": BLOCK}
    config = EngineConfig(overlap=overlap).changed(**limits)
    core = make_core(EngineCore, executor, config)
    sink, asked = Told(), []
    for item in prepared:
        asked.append(core.request(item, sink))
        core.lifecycle.post(asked[-1:])
        core.step()
        core.audit()
    run_steps(core)
    assert is_empty(core)
    numbers = []
    for request in asked:
        outcome, error = sink.ends[request.id]
        assert error is None
        numbers.append(sink.streamed.get(request.id) or outcome.output.logprobs.tolist())
    return core, numbers


@pytest.mark.long
@pytest.mark.feature("G10")
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "graphs"])
def test_answers_over_blocks_that_came_back_have_the_bits_of_a_large_pool(
    model: Model, graphs: bool, overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies are enqueued while steps are under way, and blocks are evicted, written and copied again before the
    device has made any of it."""
    prepared = load(7)
    policy = GraphPolicy(enabled=graphs, at_once=True)
    options: dict[str, Any] = {"levels": False, "deterministic": True, "policy": policy}
    large = on_device(model, num_blocks=LARGE, **options)
    _, expected = answers(large, prepared, 0, overlap)
    under_way = []

    def out(self: CudaHostBlocks, *places: Any) -> None:
        device: Any = self._device
        under_way.append(device.executed < len(device.queue))
        copy_out(self, *places)

    copy_out = CudaHostBlocks.copy_out
    monkeypatch.setattr(CudaHostBlocks, "copy_out", out)
    small = on_device(model, num_blocks=SMALL, **options)
    limits = small.limits()
    core, found = answers(small, prepared, 64 * limits.kv_bytes_per_token * BLOCK, overlap)
    assert found == expected
    stats = core.snapshot()
    assert stats["host_kv_hits"] > 3 and stats["host_kv_copied_out"] > 10
    assert any(under_way) == overlap


def test_copies_follow_each_other_on_the_stream(model: Model) -> None:
    """Nothing is copied when it is asked for; a block that is copied out and filled at once keeps both contents."""
    executor = on_device(model, num_blocks=8)
    device: Any = executor.device
    host = executor.host_blocks(4)
    kv = executor.pool[:, :, : 8 * BLOCK]
    with device.scope():
        kv.copy_(kv.new_tensor(np.arange(kv.numel())).view(kv.shape))
    before = kv.clone()
    host.copy_out(i32([2, 3, 6]), i32([0, 1, 2]))
    host.copy_in(i32([2, 0]), i32([2, 7]))
    assert (executor.pool[:, :, : 8 * BLOCK] == before).all(), "the stream has not run"
    device.run_to(len(device.queue))

    def block(of: Any, number: int) -> Any:
        return of[:, :, number * BLOCK : (number + 1) * BLOCK]

    assert (block(kv, 2) == block(before, 6)).all() and (block(kv, 7) == block(before, 2)).all()
    assert all((block(kv, n) == block(before, n)).all() for n in (0, 1, 3, 4, 5, 6))


def test_closing_gives_the_pinned_memory_back(model: Model) -> None:
    executor = on_device(model, num_blocks=8)
    device: Any = executor.device
    pinned = {one.number for one in device.live.values() if one.pinned}
    host = executor.host_blocks(16)
    assert host.nbytes == 16 * BLOCK * executor.limits().kv_bytes_per_token
    assert {one.number for one in device.live.values() if one.pinned} > pinned
    with pytest.raises(RuntimeError, match="kept on the host"):
        executor.set_blocks(16)
    executor.close()
    assert {one.number for one in device.live.values() if one.pinned} <= pinned
