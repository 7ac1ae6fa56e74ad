"""A process that ends or stands still: requests in flight fail with ``RankLost``, and nothing hangs."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.checkpoints import make_checkpoint
from tests.parallel import uses
from tests.parallel.world import World

pytest.importorskip("torch.distributed")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("losses") / "model", scale=0.1)


@pytest.fixture
def world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    made = World(request.param, tmp_path / "meeting")
    yield made
    for process in made.processes:
        process.kill()  # one may be stopped
    made.close()


def pid(world: World, rank: int) -> int:
    found = world.processes[rank].pid
    assert found is not None
    return found


@pytest.mark.feature("H11")
@pytest.mark.parametrize("world", [4], indirect=True)
def test_a_rank_is_killed_in_the_middle_of_texts(model: Path, world: World) -> None:
    config = {"tensor_parallel": 4, "kv_blocks": 128, "max_running": 8}
    world.begin(model, partial(uses.killed, victim=pid(world, 3)), [config] * 4)
    found = world.end(0)
    assert found["errors"] == ["RankLost"] * 6 and not found["ok"]
    assert "a process of tensor_parallel=4 was lost" in found["reason"] and "start them again" in found["reason"]
    assert [world.end(rank).kind for rank in (1, 2)] == ["RankLost"] * 2  # they do not wait for ever


@pytest.mark.feature("H11")
@pytest.mark.parametrize("world", [2], indirect=True)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_the_loss_of_a_rank_is_noticed_while_nothing_runs(model: Path, world: World, how: signal.Signals) -> None:
    """One that stands still has the time limit."""
    limit = 600.0 if how == signal.SIGKILL else 3.0
    config = {"tensor_parallel": 2, "kv_blocks": 64, "max_running": 8, "hang_seconds": limit}
    world.begin(model, partial(uses.idle, victim=pid(world, 1), how=how), [config] * 2)
    found = world.end(0)
    assert found["error"] == "RankLost" and "was lost" in found["reason"]


@pytest.mark.feature("H12")
@pytest.mark.parametrize("world", [2], indirect=True)
def test_the_others_end_where_rank_0_is_killed(model: Path, world: World) -> None:
    config = {"tensor_parallel": 2, "kv_blocks": 64}
    world.begin(model, uses.dies, [config] * 2)
    lost = world.end(1)
    assert lost.kind == "RankLost"
