"""``max_memory`` on a device: the driver's free bytes before loading are divided, and the longest prompt follows."""

from __future__ import annotations

import logging
import re

import pytest
import torch
from prelude.cuda import weights
from prelude.cuda.executor import CudaExecutor
from prelude.cuda.graphs import GraphPolicy
from prelude.cuda.memory import reserve, room

from prelude.errors import InsufficientMemory
from prelude.loading.cuda import _STAGING_BYTES, make_executor, probe_step
from prelude.models.checkpoint import Checkpoint
from prelude.readouts.batch import OneShotBatch
from prelude.values.config import EngineConfig, ExpertConfig
from tests.checkpoints import save_model
from tests.cuda.simulated import SimulatedCalls, SimulatedDevice
from tests.execution.helpers import Model, Segment, all_logprobs, ends, i32, run, slices

MB = 1 << 20
TOTAL = 4 << 30
KEPT = reserve(TOTAL)
"""Bytes that graphs and libraries may take later: they are within ``max_memory``."""


@pytest.fixture(scope="module")
def long_model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(save_model(tmp_path_factory.mktemp("long"), max_position_embeddings=1 << 16))


def made(model: Model, **settings: object) -> tuple[CudaExecutor, EngineConfig, SimulatedDevice]:
    config = EngineConfig(max_running=8, **settings, expert=ExpertConfig(max_step_requests=16))
    heads = model.config.spec.attention
    device = SimulatedDevice(torch.float32, memory=TOTAL)
    before, _ = device.memory()
    with device.scope(), Checkpoint.open(model.path, model.config) as checkpoint:
        loaded = weights.load(device, checkpoint, model.config.spec, config.resolved_length(1 << 16))
    calls = SimulatedCalls(device, heads.heads, heads.kv_heads, heads.head_dim)
    given = (model.config, loaded, device, config, before)
    executor, config = make_executor(*given, logits_rows=64, calls=calls, policy=GraphPolicy(enabled=False))
    return executor, config, device


@pytest.mark.feature("G1")
@pytest.mark.parametrize("share", [KEPT + 80 * MB, (KEPT + 80 * MB) / TOTAL])
def test_memory_that_a_measured_step_leaves_of_the_budget_becomes_blocks(long_model: Model, share: float) -> None:
    executor, config, device = made(long_model, max_memory=share, max_length=200, max_step_tokens=256)
    taken, limits = TOTAL - device.memory()[0], executor.limits()
    block = limits.kv_bytes_per_token * limits.block_size
    assert config.max_length == 200
    assert 80 * MB - 3 * block - 1 <= taken <= 80 * MB, "a full step ran beside a pool of two blocks"
    step = limits.step_memory
    assert step is not None and step.measured
    rest = taken - executor.pool.nbytes - limits.weight_bytes
    assert executor.work.nbytes <= step.step_bytes(executor.step_tokens) <= rest


@pytest.mark.long
@pytest.mark.feature("G1")
@pytest.mark.parametrize("tokens", [256, 3000, 9000])
def test_a_step_whose_workspace_just_fits_is_taken(long_model: Model, tokens: int) -> None:
    """The MLP's buffers are those of the step's own rows, and of ``MLP_ROWS`` at most."""
    settings: dict[str, int] = {"max_length": 200, "max_step_tokens": tokens}
    whole, _, _ = made(long_model, **settings)
    limits = whole.limits()
    block = limits.kv_bytes_per_token * limits.block_size
    budget = KEPT + _STAGING_BYTES + limits.weight_bytes + whole.work.nbytes + 4 * block
    executor, config, _ = made(long_model, max_memory=budget, **settings)
    assert config.resolved_step(1 << 16) == executor.step_tokens == tokens
    with pytest.raises(InsufficientMemory, match="the largest max_length that surely fits"):
        made(long_model, max_memory=budget - 5 * block, **settings)


@pytest.mark.feature("G1")
@pytest.mark.fault(53)
def test_a_length_that_does_not_fit_is_refused_with_the_longest_that_does(long_model: Model) -> None:
    with pytest.raises(InsufficientMemory, match=r"max_memory=") as refused:
        made(long_model, max_memory=KEPT + 55 * MB, max_length=60_000)
    longest = int(re.findall(r"the largest max_length that surely fits is (\d+)", str(refused.value))[0])
    assert 200 < longest < 60_000
    executor, config, _ = made(long_model, max_memory=KEPT + 55 * MB, max_length=longest)
    assert config.max_length == longest
    assert run(executor, probe_step(executor)).seconds > 0


@pytest.mark.feature("G1")
def test_without_a_length_the_longest_that_fits_is_taken_and_said(
    long_model: Model, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "prelude.engine"):
        executor, config, device = made(long_model, max_memory=KEPT + 55 * MB)
    assert config.max_length is not None and 200 < config.max_length < 1 << 16
    assert f"max_length is lowered from 65536 to {config.max_length}" in caplog.text
    assert TOTAL - device.memory()[0] <= 55 * MB
    s = slices([Segment(i32([7] * config.max_length))])
    assert len(run(executor, OneShotBatch(s, all_logprobs(ends(s)))).bad_rows[0]) == 0


def test_the_bytes_that_an_engine_may_still_take() -> None:
    assert room(None, 100, 70) == 70
    assert room(50, 100, 70) == 20 and room(0.5, 100, 70) == 20
    assert room(500, 100, 70) == 70, "never more than is free"
    assert room(20, 100, 70) == 0
