"""Calls that are made in one turn of an event loop are prepared together; an error of one goes to its caller."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from prelude import AsyncEngine, Decide, EngineConfig, Generate, SamplingParams, YesNo
from prelude.errors import InvalidRequest, RequestTooLarge

SMALL = EngineConfig(kv_bytes=1 << 22)
ONE = (YesNo("Is it?"),)
PARAMS = SamplingParams(max_tokens=1, temperature=0)


def watched(engine: AsyncEngine, broken: BaseException | None = None) -> list[int]:
    """How many tasks each call of the preparer had. ``broken``: the error of a call for several tasks."""
    preparer: Any = engine.engine._preparer
    inner, counts = preparer.prepare_all, list[int]()

    def prepare_all(tasks: Any) -> Any:
        counts.append(len(tasks))
        if broken is not None and len(tasks) > 1:
            raise broken
        return inner(tasks)

    preparer.prepare_all = prepare_all
    return counts


async def ends_of(engine: AsyncEngine, tasks: list[Any]) -> list[Any]:
    return await asyncio.gather(*(engine.run(task) for task in tasks), return_exceptions=True)


def test_calls_of_a_turn_are_one_call_of_the_preparer(checkpoint: Path) -> None:
    async def main() -> None:
        async with AsyncEngine.from_pretrained(checkpoint, dtype="float32", config=SMALL) as engine:
            counts = watched(engine)
            wrong: list[Any] = [Decide("x" * 10**6, ONE), Decide(3, ONE), Decide("a", ()), Generate([-1], PARAMS)]  # type: ignore[arg-type]
            tasks = [*(Decide(f"state {i}", ONE) for i in range(20)), *wrong[1:], Generate([1, 2], PARAMS)]
            ends = await ends_of(engine, tasks)
            assert counts == [len(tasks)]
            alone = [(await ends_of(engine, [task]))[0] for task in tasks]
            for end, other in zip(ends, alone):
                if isinstance(other, Exception):
                    assert type(end) is type(other) and str(end) == str(other) and isinstance(end, InvalidRequest)
                elif isinstance(other, tuple):
                    assert end[0].probability == pytest.approx(other[0].probability, abs=1e-5)
                else:
                    assert end.token_ids == other.token_ids
            assert isinstance((await ends_of(engine, wrong[:1]))[0], RequestTooLarge)

    asyncio.run(main())


@pytest.mark.parametrize("broken", [MemoryError(), asyncio.CancelledError()], ids=lambda error: type(error).__name__)
def test_where_that_call_fails_each_prepares_its_own(checkpoint: Path, broken: BaseException) -> None:
    async def main() -> None:
        async with AsyncEngine.from_pretrained(checkpoint, dtype="float32", config=SMALL) as engine:
            counts = watched(engine, broken)
            ends = await ends_of(engine, [Decide(f"state {i}", ONE) for i in range(5)])
            assert counts == [5, 1, 1, 1, 1, 1] and all(isinstance(end, tuple) for end in ends)

    asyncio.run(main())
