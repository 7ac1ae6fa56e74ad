"""Large calls and large results leave the caller's loop its turns."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import prelude.api.engine
from prelude import AsyncEngine, EngineConfig, Generate, RequestOptions, SamplingParams
from prelude.api.call_steps import parts
from prelude.errors import DeadlineExceeded, InvalidRequest
from prelude.tasks import Task
from tests.patience import Paced, comes

SMALL = EngineConfig(kv_bytes=1 << 22)
PART_TASKS, TURN_PAIRS = 512, 1 << 13
MANY = 2 * PART_TASKS + 100


def open_engine(path: Path) -> AsyncEngine:
    return AsyncEngine.from_pretrained(path, dtype="float32", config=SMALL)


def draws(count: int, params: SamplingParams | None = None) -> list[Task]:
    one = params or SamplingParams(max_tokens=1, temperature=0)
    return [Generate([i % 200 + 1, 2], one) for i in range(count)]


async def most_in_a_turn(engine: AsyncEngine, tasks: list[Any]) -> tuple[list[Any], int]:
    """The results, and how many tasks were looked at between two turns of the loop at most."""
    preparer: Any = engine.engine._preparer
    looked, most, going = 0, 0, True
    snapshot, prepare_all = preparer.snapshot, preparer.prepare_all

    def counted_prepare_all(tasks: list[Any]) -> Any:
        nonlocal looked
        if threading.current_thread() is threading.main_thread():
            looked += len(tasks)
        return prepare_all(tasks)

    def counted_snapshot(task: Any) -> Any:
        nonlocal looked
        looked += 1
        return snapshot(task)

    def turn() -> None:
        nonlocal looked, most
        most, looked = max(most, looked), 0
        if going:
            asyncio.get_running_loop().call_soon(turn)

    preparer.prepare_all, preparer.snapshot = counted_prepare_all, counted_snapshot
    turn()
    try:
        return await engine.run_many(tasks, return_exceptions=True), max(most, looked)
    finally:
        going = False
        del preparer.prepare_all, preparer.snapshot


@pytest.mark.fault(5)
def test_many_tasks_are_taken_some_in_a_turn_and_answered_in_order(checkpoint: Path) -> None:
    async def main() -> None:
        async with open_engine(checkpoint) as engine:
            few = [await engine.run(task) for task in draws(200)]
            same, most = await most_in_a_turn(engine, draws(MANY))
            assert most <= PART_TASKS
            assert [one.token_ids for one in same] == [few[i % 200].token_ids for i in range(MANY)]
            mixed = draws(MANY)
            mixed[7] = mixed[-1] = Generate("")
            results, most = await most_in_a_turn(engine, mixed)
            assert most <= PART_TASKS
            assert [i for i, one in enumerate(results) if isinstance(one, InvalidRequest)] == [7, MANY - 1]
            assert (
                results[8].token_ids == few[8].token_ids and results[-2].token_ids == few[(MANY - 2) % 200].token_ids
            )
            with pytest.raises(InvalidRequest):
                await engine.run_many(mixed)

    asyncio.run(main())


def test_many_tasks_have_their_own_options_and_deadlines(checkpoint: Path) -> None:
    async def main() -> None:
        async with open_engine(checkpoint) as engine:
            options = [
                RequestOptions(request_id=str(i), deadline=0.0 if i == MANY - 1 else None) for i in range(MANY)
            ]
            results = await engine.run_many(draws(MANY), options, return_exceptions=True)
            assert [one.stats.request_id for one in results[:-1]] == [str(i) for i in range(MANY - 1)]
            assert isinstance(results[-1], DeadlineExceeded)
            with pytest.raises(InvalidRequest, match=f"{MANY - 1} for {MANY} tasks"):
                await engine.run_many(draws(MANY), options[:-1])
            with pytest.raises(InvalidRequest, match=r"options\[5\]"):
                await engine.run_many(draws(MANY), [*options[:5], 5, *options[6:]])  # type: ignore[list-item]

    asyncio.run(main())


def test_a_deadline_counts_from_the_call_in_every_part(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 100.0, 101.5, 104.0])
    # The name in that module alone: watchdogs of other engines read the clock as well.
    monkeypatch.setattr("prelude.api.call_steps.time", SimpleNamespace(monotonic=lambda: next(clock)))
    said = [one for _, one in parts(draws(MANY), RequestOptions(deadline=2.0), {})]
    assert [one.deadline for one in said] == [2.0, 0.5, 0.0]  # type: ignore[union-attr]


def test_cancelling_a_large_call_gives_everything_back(checkpoint: Path) -> None:
    async def main() -> None:
        async with open_engine(checkpoint) as engine:
            core = engine.engine._core
            steps = Paced.of(core)
            call = asyncio.create_task(engine.run_many(draws(MANY)))
            await comes(lambda: steps.held and len(core.live) > PART_TASKS)
            call.cancel()
            steps.open()
            with pytest.raises(asyncio.CancelledError):
                await call
            await engine.run(draws(1)[0])
            await comes(lambda: core.queues.empty and not core.live)
            assert core.pool.live_leases == 0

    asyncio.run(main())


@pytest.mark.fault(5)
def test_a_large_result_is_made_beside_the_loop(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finish_all = prelude.api.engine.finish_all
    made: list[bool] = []

    def watched(*given: Any) -> Any:
        made.append(threading.current_thread() is threading.main_thread())
        return finish_all(*given)

    monkeypatch.setattr(prelude.api.engine, "finish_all", watched)

    async def main() -> None:
        async with open_engine(checkpoint) as engine:
            ids = [i % 200 for i in range(TURN_PAIRS // 128 + 2)]
            large = await engine.prompt_logprobs(ids, top=128)
            small = await engine.prompt_logprobs(ids[:5], top=128)
            assert made == [False, True]
            assert large[1].top == small[1].top and len(large) == len(ids)

    asyncio.run(main())
