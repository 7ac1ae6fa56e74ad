"""A model on two processes with a simulated GPU each. NCCL itself needs real ones."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from prelude import ConfigError
from prelude.execution.parallel.device import TimeLimit
from prelude.execution.parallel.group import RankGroup
from tests.checkpoints import make_checkpoint
from tests.parallel import simulated_gpus, uses
from tests.parallel.test_losses import pid
from tests.parallel.test_parallel import LIMITS, alone, close
from tests.parallel.world import World
from tests.patience import until

pytest.importorskip("torch.distributed")

ON_GPUS: dict[str, Any] = {"device": "cuda", "dtype": "float32"}
SHORT: dict[str, Any] = {**LIMITS, "max_length": 400}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model") / "qwen3", scale=0.1)


@pytest.fixture
def two(tmp_path: Path) -> Iterator[World]:
    world = World(2, tmp_path / "two", simulated_gpus.install)
    yield world
    for process in world.processes:
        process.kill()
    world.close()


@pytest.mark.feature("H11")
def test_numbers_of_two_gpus(two: World, model: Path) -> None:
    """Those of one process on a CPU; each rank has half of the heads and of the MLP, and the whole vocabulary."""
    found = two.answers(model, uses.numbers, ON_GPUS, **SHORT)
    close(found, alone(model, uses.numbers, **SHORT), 2e-4)


@pytest.mark.feature("Q15")
def test_bits_of_two_gpus(two: World, model: Path) -> None:
    found = two.answers(model, uses.bits, ON_GPUS, deterministic=True, **SHORT)
    assert found["alone"] == found["together"] == found["cached"]
    assert all(found["texts"]) and found["hits"] > 0


@pytest.mark.feature("H11")
def test_a_rank_with_a_gpu_is_killed(two: World, model: Path) -> None:
    config = {"tensor_parallel": 2, **SHORT}
    two.begin(model, partial(uses.killed, victim=pid(two, 1)), [config] * 2, **ON_GPUS)
    found = two.end(0)
    assert found["errors"] == ["RankLost"] * 6 and not found["ok"]


def test_the_time_limit_of_a_step() -> None:
    """It ends the group in the middle of a step, and not while nothing runs."""
    ranks = RankGroup(0, 2, False, 0.01)
    limit = TimeLimit(ranks)
    for _ in range(3):
        with limit.of_a_step():
            pass
    assert ranks.lost is None
    with limit.of_a_step():
        until(lambda: ranks.lost is not None)
    assert "waiting for the GPU: TimeoutError: a step did not end within 0.01 s" in str(ranks.lost)


def test_a_torch_without_nccl_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "1")):
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="tensor_parallel=2 on GPUs: this build of torch has no NCCL"):
        RankGroup.join(2, steady=False, limit=5.0, gpus=True)
