"""The asyncio engine: loops, threads, cancellation, bad rows, closing, and the files and sockets that it must not
open."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prelude import AsyncEngine, Choice, Decide, Embed, Engine, EngineConfig, SamplingParams, YesNo
from prelude.errors import EngineClosed, InvalidRequest
from tests.patience import PATIENCE

SMALL = EngineConfig(kv_bytes=1 << 22)
STATE = "The harbour was quiet that morning; two boats lay at the quay."


def open_engine(path: Path, config: EngineConfig = SMALL) -> AsyncEngine:
    return AsyncEngine.from_pretrained(path, dtype="float32", config=config)


def test_every_verb_in_a_service(checkpoint: Path) -> None:
    async def main() -> None:
        async with open_engine(checkpoint) as engine:
            answers = await engine.decide(STATE, [Choice("Where?", ["harbour", "city"]), YesNo("Is it polite?")])
            assert answers[0].label in ("harbour", "city") and 0 <= answers[0].mass <= 1
            vector = await engine.embed(STATE, pooling="mean", dimensions=8)
            assert vector.dtype == np.float32 and vector.shape == (8,) and vector.stats.execution_class == "oneshot"
            assert (await engine.loglikelihood(STATE, " Then")).total < 0
            assert len(await engine.prompt_logprobs(STATE, top=2, last=3)) == 3
            done = await engine.complete(STATE, SamplingParams(max_tokens=5, temperature=0, ignore_eos=True))
            assert len(done.token_ids) == 5
            assert engine.explain(Decide(STATE, [YesNo("?")])).text.startswith(STATE)
            assert engine.stats()["requests"] == {"oneshot": 4, "decode": 1}
            assert engine.health().ok
        assert engine.health().closed
        with pytest.raises(EngineClosed):
            await engine.embed(STATE, pooling="last")

    asyncio.run(main())


@pytest.mark.fault(15)
def test_a_bad_row_fails_alone(checkpoint: Path) -> None:
    async def main() -> None:
        async with open_engine(checkpoint) as engine:
            tasks = [Embed(STATE, pooling="last"), Embed(None, pooling="last"), Embed(b"x", pooling="last")]  # type: ignore[arg-type]
            good, *bad = await engine.run_many(tasks, return_exceptions=True)
            assert good.shape == (64,)
            assert all(isinstance(error, InvalidRequest) for error in bad)
            with pytest.raises(InvalidRequest):
                await engine.run_many(tasks)
            assert engine.health().ok

    asyncio.run(main())


@pytest.mark.fault(5)
def test_giant_prompts_do_not_hold_up_the_loop(checkpoint: Path) -> None:
    async def main() -> None:
        async with open_engine(checkpoint) as engine:
            await engine.embed("warm", pooling="last")
            loop = asyncio.get_running_loop()

            async def longest_wait(size: int) -> float:
                text = "a" * size
                task = asyncio.create_task(engine.embed(text, pooling="last"))
                longest = 0.0
                while not task.done():
                    began = loop.time()
                    await asyncio.sleep(0.001)
                    longest = max(longest, loop.time() - began)
                with pytest.raises(InvalidRequest, match="characters"):
                    await task
                return longest

            for size in (10 << 20, 100 << 20):
                waits = [await longest_wait(size)]
                while waits[-1] >= 0.05 and len(waits) < 50:  # the machine itself may hold up a loop
                    waits.append(await longest_wait(size))
                assert waits[-1] < 0.05

    asyncio.run(main())


def test_closed_while_it_loads_it_does_not_come_alive(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loading, go = threading.Event(), threading.Event()
    made: list[Engine] = []
    load = Engine.from_pretrained

    def slow(*args: Any, **options: Any) -> Engine:
        loading.set()
        assert go.wait(PATIENCE)
        made.append(load(*args, **options))
        return made[-1]

    monkeypatch.setattr(Engine, "from_pretrained", slow)

    async def main() -> None:
        engine = open_engine(checkpoint)
        starting = asyncio.create_task(engine.start())
        await asyncio.to_thread(loading.wait, PATIENCE)
        await engine.aclose()
        go.set()
        with pytest.raises(EngineClosed, match="while it was loading"):
            await starting
        with pytest.raises(EngineClosed):
            await engine.embed(STATE, pooling="mean")
        assert made[0].health().closed

    asyncio.run(main())


def test_an_engine_without_arguments_is_the_packaged_model() -> None:
    async def main() -> int:
        async with AsyncEngine() as engine:
            return len(await engine.embed(STATE, pooling="mean"))

    assert asyncio.run(main()) == 192
