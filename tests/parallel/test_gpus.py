"""A model on two processes with a simulated GPU each. NCCL itself needs real ones."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from prelude.cuda import executor as executors
from prelude.cuda.executor import CudaExecutor
from prelude.cuda.graphs import GraphPolicy

from prelude import ConfigError
from prelude.errors import EngineClosed, ExecutionError, ModelError, RankLost
from prelude.loading.cuda import own_gpu
from prelude.loading.ranks import Ranks
from prelude.parallel import group as groups
from prelude.parallel.device import TimeLimit
from prelude.parallel.group import RankGroup
from prelude.parallel.shards import shard
from prelude.readouts.batch import OneShotBatch
from tests.checkpoints import make_checkpoint, save_model
from tests.cuda.conftest import on_device
from tests.cuda.simulated import SimulatedDevice
from tests.execution.helpers import Model, ends, prompts, random_ids, sampling
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


@pytest.mark.long
@pytest.mark.feature("H11")
def test_numbers_of_two_gpus(two: World, model: Path) -> None:
    """Those of one process on a CPU; each rank has half of the heads and of the MLP, and the whole vocabulary."""
    found = two.answers(model, uses.numbers, ON_GPUS, **SHORT)
    close(found, alone(model, uses.numbers, **SHORT), 2e-4)


@pytest.mark.long
@pytest.mark.feature("Q15")
def test_bits_of_two_gpus(two: World, model: Path) -> None:
    found = two.answers(model, uses.bits, ON_GPUS, deterministic=True, **SHORT)
    assert found["alone"] == found["together"] == found["cached"]
    assert all(found["texts"]) and found["hits"] > 0


@pytest.mark.long
@pytest.mark.feature("H11")
def test_texts_go_on_from_the_tokens_of_rank_0(tmp_path: Path, model: Path) -> None:
    """Rank 1 draws other tokens here, and computes the keys and values of rank 0's."""
    with closing(World(2, tmp_path / "heads", simulated_gpus.install_with_another_head)) as world:
        found = world.answers(model, uses.texts, ON_GPUS, **SHORT)
    assert found == alone(model, uses.texts, **SHORT)


@pytest.mark.long
@pytest.mark.feature("H12")
@pytest.mark.parametrize("method", ["__init__", "set_blocks"])
def test_a_rank_that_fails_while_loading(tmp_path: Path, model: Path, method: str) -> None:
    """Before the first step, and behind it: the other rank begins no sum that this one lacks."""
    install = partial(simulated_gpus.install_with_a_failure, "CudaExecutor", method)
    with closing(World(2, tmp_path / "failing", install)) as world:
        config = {"tensor_parallel": 2, **SHORT}
        lead, other = world.run(model, uses.numbers, [config] * 2, **ON_GPUS)
    assert (other.kind, lead.kind) == ("InsufficientMemory", "RankLost")
    assert "rank 0, gathering" in lead.said


@pytest.mark.long
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
        with limit.of("a step", ranks.limit):
            pass
    assert ranks.lost is None
    with limit.of("a step", ranks.limit):
        until(lambda: ranks.lost is not None)
    assert "waiting for the GPU: TimeoutError: a step did not end within 0.01 s" in str(ranks.lost)
    assert "sending: ValueError: ValueError)" in str(RankGroup(0, 2, False, 0.01).lose(ValueError(), "sending"))


def test_a_torch_without_nccl_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "1")):
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="tensor_parallel=2 on GPUs: this build of torch has no NCCL"):
        RankGroup.join(2, steady=False, limit=5.0, gpus=True)


# ---------------------------------------------------------------------- one process, which is a group by itself
@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(save_model(tmp_path_factory.mktemp("small")))


@pytest.fixture
def ranks(tmp_path: Path, small: Model) -> Iterator[Ranks]:
    """The only rank of a real group."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'meeting'}", rank=0, world_size=1)
    try:
        group = RankGroup.join(1, steady=False, limit=1.0)
        yield Ranks(group, 1, shard(small.config.spec, 0, 1, whole_vocabulary=True))
        group.leave()
    finally:
        dist.destroy_process_group()


def executor_of(ranks: Ranks, model: Model, **options: Any) -> CudaExecutor:
    return on_device(model, device=SimulatedDevice(ranks=ranks.group), **options)


def a_prompt(tokens: int) -> OneShotBatch:
    s = prompts(random_ids(0, tokens))
    return OneShotBatch(s, sampling(ends(s)))


def watchers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "prelude-rank-limit"]


@pytest.mark.feature("H12")
def test_the_time_limit_of_loading(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of sums that were ended is the loss."""
    monkeypatch.setattr(groups, "_LOADING", 0.01)
    ranks.group.limit = 0.01
    said = r"TimeoutError: the first full step did not end within 0\.01 s"
    with pytest.raises(RankLost, match=said), ranks, ranks.together("the first full step"):
        until(lambda: ranks.group.lost is not None)
        raise RuntimeError("nonsense")


@pytest.mark.feature("H12")
def test_ranks_meet_before_they_record(ranks: Ranks, small: Model) -> None:
    executor = executor_of(ranks, small, step_tokens=64, policy=GraphPolicy(at_once=True))
    ranks.group.leave()
    with pytest.raises(RankLost, match="rank 0, gathering"), ranks:
        ranks.on_gpu(executor)


@pytest.mark.feature("H12")
def test_a_failed_load_ends_its_thread_and_its_executor(
    ranks: Ranks, small: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what runs on the GPU, before the executor waits for it."""
    executor = executor_of(ranks, small, step_tokens=64)
    ranks.group._device_group = on_gpus = object()
    ended: list[object] = []
    monkeypatch.setattr(dist.distributed_c10d, "_abort_process_group", ended.append)
    monkeypatch.setattr(executor.device, "close", lambda: ended.append("closed"))
    with pytest.raises(ModelError), ranks:
        ranks.on_gpu(executor)
        assert len(watchers()) == 1
        raise ModelError("the next thing failed")
    until(lambda: not watchers())
    assert ended == [on_gpus, "closed"]
    with pytest.raises(EngineClosed):
        executor.submit(a_prompt(3))


@pytest.mark.feature("A29")
def test_a_recording_that_fails_on_a_rank_is_an_error(ranks: Ranks, small: Model) -> None:
    """Eager steps of this rank would add up beside recordings of the others."""
    executor = executor_of(ranks, small, policy=GraphPolicy(at_once=True))

    def refuse(work: Callable[[], None], **options: Any) -> Any:
        raise torch.cuda.OutOfMemoryError("no memory")

    executor.device.capture = refuse  # type: ignore[method-assign]
    with pytest.raises(ExecutionError, match="could not be recorded: no memory"):
        executor.wait(executor.submit(a_prompt(20)))


@pytest.mark.feature("A29")
def test_a_shape_too_large_for_a_recording_is_so_on_all_ranks(
    ranks: Ranks, small: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors, "_STAGING", 2048)
    executor = executor_of(ranks, small, policy=GraphPolicy(at_once=True))
    assert executor.wait(executor.submit(a_prompt(600))).eager
    assert executor.eager_reasons == {"could not be recorded: DoesNotFit": 1}


@pytest.mark.parametrize(
    ("there", "said", "number"),
    [(1, "1", 0), (1, None, 0), (4, "2", 2), (4, None, 0), (2, "2", None), (2, "-1", None), (2, "x", None)],
)
def test_the_gpu_of_a_rank(monkeypatch: pytest.MonkeyPatch, there: int, said: str | None, number: int | None) -> None:
    chosen: list[int] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: there)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if said is not None:
        monkeypatch.setenv("LOCAL_RANK", said)
    if number is not None:
        assert own_gpu(0) == number and chosen == [number]
        return
    with pytest.raises(ConfigError, match=f"LOCAL_RANK='{said}' names none of the {there} GPUs"):
        own_gpu(0)
    assert not chosen
