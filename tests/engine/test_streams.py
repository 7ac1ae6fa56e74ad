"""Streams of the real engine: their whole text, the memory that closing gives back, and the cost of a slow reader."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prelude import AsyncEngine, Decide, Embed, Engine, EngineConfig, Generate, SamplingParams, YesNo
from prelude.errors import EngineClosed, ExecutionError, InvalidRequest, UnknownParameter, WrongUse
from prelude.results import Chunk, Completion
from tests.patience import PATIENCE, Paced, comes, until

Make = Callable[..., Engine]
STATE = "The harbour was quiet that morning; two boats lay at the quay."
GREEDY = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True, repetition_penalty=1.3)
LONG = SamplingParams(max_tokens=400, temperature=0.0, ignore_eos=True)


def in_loop(path: Path, work: Callable[[AsyncEngine], Awaitable[None]], **config: Any) -> None:
    async def main() -> None:
        settings = EngineConfig().changed(kv_bytes=1 << 22, **config)
        async with AsyncEngine.from_pretrained(path, dtype="float32", config=settings) as engine:
            await work(engine)
            await all_back(engine)

    asyncio.run(main())


async def all_back(engine: AsyncEngine) -> None:
    """Within a step or two of the last request's end nothing is held any more."""
    core = engine.engine._core
    await comes(lambda: at_rest(core))
    core.audit()
    assert engine.stats()["decode_states_live"] == 0


def at_rest(core: Any) -> bool:
    empty = core.queues.empty and not core.live and not core.inbox.items and not core.steps
    return empty and core.pool.live_leases == core.pool.num_used == 0


def same(chunks: list[Chunk], whole: Completion) -> None:
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert tuple(i for chunk in chunks for i in chunk.token_ids) == whole.token_ids
    assert [chunk.finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + [whole.finish_reason]
    assert [chunk.stats is None for chunk in chunks] == [True] * (len(chunks) - 1) + [False]
    offset = 0
    for chunk in chunks:
        assert chunk.offset == offset, "offsets never retreat"
        offset += len(chunk.text)
        chunk.text.encode()  # no lone surrogate
    assert all(chunk.text for chunk in chunks[:-1])


def in_words(chunks: list[Chunk]) -> bool:
    return all(chunk.text[-1].isspace() or "\u2e80" <= chunk.text[-1] <= "\uffef" for chunk in chunks[:-1])


VARIANTS = [
    {}, {"stop": "qu"}, {"stop": ["e", "not there"], "include_stop": True, "min_tokens": 5}, {"max_tokens": 1},
    {"max_tokens": 0}, {"max_tokens": 2, "stop": "zz"}, {"logprobs": 3},
    {"stop": [*" abcdefghijklmnopqrstuvwxyz"], "min_tokens": 3, "include_stop": True},
    {"temperature": 1.0, "seed": 4, "ignore_eos": False},
]  # fmt: skip


def params_of(variant: dict[str, Any]) -> SamplingParams:
    return replace(GREEDY, **variant)


@pytest.mark.feature("I2")
@pytest.mark.feature("I6")
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_chunks_add_up_to_the_completion(make_engine: Make, variant: dict[str, Any]) -> None:
    engine = make_engine(deterministic=True)
    params = params_of(variant)
    whole = engine.complete(STATE, params)
    for hold_words in (False, True):
        chunks = list(engine.stream(STATE, params, hold_words=hold_words))
        same(chunks, whole)
        assert not hold_words or in_words(chunks)
        if params.logprobs is not None:
            assert tuple(p for chunk in chunks for p in chunk.logprobs or ()) == whole.logprobs
        else:
            assert all(chunk.logprobs is None for chunk in chunks)

    async def main() -> None:
        twin = AsyncEngine(engine)
        same([chunk async for chunk in twin.generate(STATE, params)], whole)
        held = [chunk async for chunk in twin.generate(STATE, params, hold_words=True)]
        same(held, whole)
        assert in_words(held)

    asyncio.run(main())


@pytest.mark.feature("I1")
def test_decode_states_live_only_while_texts_are_read_along(make_engine: Make) -> None:
    engine = make_engine()

    def counters() -> tuple[int, int]:
        stats = engine.stats()
        return stats["decode_states_live"], stats["streaming_objects_created"]

    one = SamplingParams(max_tokens=1, stop="x", logprobs=1)
    engine.run_many([Decide(STATE, [YesNo("?")]), Embed(STATE, pooling="last"), Generate(STATE, one)])
    list(engine.stream(STATE, one))
    engine.complete(STATE, GREEDY)
    assert counters() == (0, 0), "OneShot needs none, nor does a text without a stream"
    steps = Paced.of(engine._core, 100)  # all three are far from their end
    streams = [engine.stream(f"{i} {STATE}", LONG) for i in range(3)]
    for stream in streams:
        next(stream)
    assert counters() == (3, 3) and engine.stats()["streaming_objects"] == 4, "one of a single step among them"
    for stream in streams:
        stream.close()
    steps.open()
    until(lambda: at_rest(engine._core))
    assert counters() == (0, 3)
    engine.complete(STATE, SamplingParams(max_tokens=4, stop="zz"))
    assert counters() == (0, 4)


def test_wrong_arguments_say_so(make_engine: Make) -> None:
    engine = make_engine()
    for call in (engine.stream, AsyncEngine(engine).generate):
        with pytest.raises(UnknownParameter, match="has no parameter 'tempreature'"):
            call(STATE, tempreature=1)
        with pytest.raises(InvalidRequest, match=r"use complete\(\)"):
            call(STATE, SamplingParams(max_tokens=0, prompt_logprobs=1))
    with pytest.raises(InvalidRequest, match=r"params\.top_p"):
        engine.stream(STATE, SamplingParams(top_p=2))

    async def main() -> None:
        stream = AsyncEngine(engine).generate(STATE, SamplingParams(top_p=2))
        with pytest.raises(InvalidRequest, match=r"params\.top_p"):
            await stream.__anext__()
        with pytest.raises(StopAsyncIteration):
            await stream.__anext__()
        await stream.aclose()

    asyncio.run(main())


@pytest.mark.feature("H4")
@pytest.mark.fault(57)
def test_leaving_a_stream_gives_everything_back(checkpoint: Path) -> None:
    async def by_break(engine: AsyncEngine) -> None:
        async for chunk in engine.generate(STATE, LONG):
            if chunk.offset > 10:
                break

    async def by_aclose(engine: AsyncEngine) -> None:
        stream = engine.generate(STATE, LONG)
        await stream.__anext__()
        await stream.aclose()
        await stream.aclose()
        assert [chunk async for chunk in stream] == []

    async def by_letting_go(engine: AsyncEngine) -> None:
        held = [engine.generate(STATE, LONG)]
        await held[0].__anext__()
        held[0].cycle = held  # type: ignore[attr-defined]
        del held
        gc.collect()

    async def by_an_exception(engine: AsyncEngine) -> None:
        with pytest.raises(ValueError, match="mine"):
            async for _ in engine.generate(STATE, LONG):
                raise ValueError("mine")

    async def by_cancelling_the_reader(engine: AsyncEngine) -> None:
        stream = engine.generate(STATE, LONG)

        async def read() -> None:
            async for _ in stream:
                pass

        task = asyncio.create_task(read())
        await comes(lambda: engine.stats()["decode_states_live"])
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def before_it_began(engine: AsyncEngine) -> None:
        await engine.generate(STATE, LONG).aclose()
        stream = engine.generate(STATE, LONG)
        task = asyncio.ensure_future(stream.__anext__())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def work(engine: AsyncEngine) -> None:
        await engine.start()
        steps = Paced.of(engine.engine._core)
        ways = (by_break, by_aclose, by_letting_go, by_an_exception, by_cancelling_the_reader)
        for way in ways:
            before = engine.stats()
            steps.allow(100)  # not nearly all of it, were it not left
            await way(engine)
            steps.open()
            await all_back(engine)
            ended_early = engine.stats()["cancelled"] - before["cancelled"]
            # one that is let go between two steps may count as finished, with the tokens it had
            assert ended_early == 1 or engine.stats()["decode_tokens"] - before["decode_tokens"] < 200, way.__name__
        await before_it_began(engine)
        await all_back(engine)
        steps.allow(300)
        await asyncio.gather(*(way(engine) for way in ways for _ in range(3)))
        steps.open()

    in_loop(checkpoint, work)


@pytest.mark.fault(57)
def test_leaving_a_blocking_stream(make_engine: Make) -> None:
    engine = make_engine()
    core = engine._core
    steps = Paced.of(core)
    for leave in ("close", "with", "del", "raise"):
        steps.allow(100)
        stream = engine.stream(STATE, LONG)
        next(stream)
        if leave == "close":
            stream.close()
            assert list(stream) == []
        elif leave == "with":
            with stream:
                next(stream)
        elif leave == "raise":
            with pytest.raises(ValueError, match="mine"), stream:
                raise ValueError("mine")
        if leave == "del":
            del stream
        steps.open()
        until(lambda: at_rest(core), leave)
        assert engine.stats()["decode_states_live"] == 0
    assert core.stats.decode_tokens < 1500, "cancelled long before their end"


@pytest.mark.feature("H4")
@pytest.mark.fault(57)
@pytest.mark.parametrize("leave", ["close", "with", "let_go"])
def test_a_stream_that_is_left_while_it_waits_is_cancelled_and_never_runs(make_engine: Make, leave: str) -> None:
    engine = make_engine(max_running=1)
    core = engine._core
    steps = Paced.of(core, 3)
    first = engine.stream(STATE, LONG)
    next(first)
    second = engine.stream("Two boats", LONG)
    request = second._request
    until(lambda: steps.held)
    if leave == "close":
        second.close()
    elif leave == "with":
        with second:
            pass
    del second
    gc.collect()
    steps.allow(3)
    until(lambda: steps.held)
    ended = engine.stats()["cancelled"], request.id in core.live, request.stats.chunks
    first.close()
    steps.open()
    assert ended == (1, False, 0), "its prompt was never computed"
    until(lambda: at_rest(core))
    assert engine.stats()["cancelled"] + engine.stats()["finished"] == 2


@pytest.mark.fault(57)
def test_a_slow_reader_gets_merged_chunks_and_few_wake_ups(checkpoint: Path) -> None:
    async def work(engine: AsyncEngine) -> None:
        whole = await engine.complete(STATE, GREEDY)
        loop = asyncio.get_running_loop()
        wakes, real = 0, loop.call_soon_threadsafe

        def counted(*args: Any, **kwargs: Any) -> Any:
            nonlocal wakes
            wakes += 1
            return real(*args, **kwargs)

        loop.call_soon_threadsafe = counted  # type: ignore[method-assign]
        stream = engine.generate(STATE, GREEDY)
        chunks = [await stream.__anext__()]
        woken = wakes
        await comes(lambda: at_rest(engine.engine._core))
        assert wakes - woken <= 1, "told once, however many tokens have come"
        chunks += [chunk async for chunk in stream]
        same(chunks, whole)
        assert len(chunks) <= 3
        steps = sum(engine.stats()["steps"].values())
        before = wakes
        readers = [engine.generate(f"{i} {STATE}", GREEDY) for i in range(8)]

        async def read(stream: Any) -> list[Chunk]:
            return [chunk async for chunk in stream]

        results = await asyncio.gather(*(read(stream) for stream in readers))
        assert all(result[-1].finish_reason == "length" for result in results)
        assert wakes - before <= sum(engine.stats()["steps"].values()) - steps + 1, "one a step for all streams"

    in_loop(checkpoint, work)


def test_streams_among_decisions_in_two_loops_and_a_thread(checkpoint: Path) -> None:
    engine = Engine.from_pretrained(checkpoint, config=EngineConfig(kv_bytes=1 << 22, deterministic=True))
    whole = engine.complete(STATE, GREEDY)
    wrong: list[object] = []

    def loop() -> None:
        async def main() -> None:
            twin = AsyncEngine(engine)

            async def read() -> None:
                chunks = [chunk async for chunk in twin.generate(STATE, GREEDY)]
                same(chunks, whole)

            await asyncio.gather(*(read() for _ in range(4)), *(twin.embed(STATE, pooling="last") for _ in range(4)))

        try:
            asyncio.run(main())
        except BaseException as error:
            wrong.append(error)

    def plain() -> None:
        try:
            for _ in range(3):
                same(list(engine.stream(STATE, GREEDY)), whole)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for work in (loop, loop, plain)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not wrong and not any(thread.is_alive() for thread in threads)
    engine._core.audit()
    engine.close()


@pytest.mark.fault(60)
def test_a_stream_is_read_in_the_loop_where_it_began(checkpoint: Path) -> None:
    """Chunks are told to that loop; in another one its reader would never be woken."""

    async def work(engine: AsyncEngine) -> None:
        stream = engine.generate(STATE, GREEDY)
        chunks = [await anext(stream)]
        refused: list[BaseException] = []

        def elsewhere() -> None:
            try:
                asyncio.run(asyncio.wait_for(anext(stream), PATIENCE))
            except BaseException as error:
                refused.append(error)

        await asyncio.to_thread(elsewhere)
        assert [type(error) for error in refused] == [WrongUse] and "another event loop" in str(refused[0])
        chunks += [chunk async for chunk in stream]
        same(chunks, await engine.complete(STATE, GREEDY))

    in_loop(checkpoint, work)


@pytest.mark.fault(60)
def test_a_stream_closed_from_another_thread_lets_its_reader_go(checkpoint: Path) -> None:
    async def work(engine: AsyncEngine) -> None:
        steps = Paced.of(engine.engine._core, 3)
        stream = engine.generate(STATE, LONG)

        async def read() -> list[Chunk]:
            return [chunk async for chunk in stream]

        reader = asyncio.create_task(read())
        await comes(lambda: steps.held)
        await asyncio.to_thread(stream.close)
        await asyncio.wait_for(reader, PATIENCE)
        steps.open()

    in_loop(checkpoint, work)


@pytest.mark.fault(61)
def test_a_listener_cannot_read_a_stream_to_its_end(make_engine: Make) -> None:
    engine = make_engine()
    refused: list[BaseException] = []

    def reads(event: Any) -> None:
        if event.name == "finished" and not refused:
            try:
                list(engine.stream(STATE, GREEDY))
            except ExecutionError as error:
                refused.append(error)

    engine.on_event(reads)
    engine.complete(STATE, SamplingParams(max_tokens=2, temperature=0.0))
    assert len(refused) == 1 and "must not wait" in str(refused[0])


def test_a_failed_step_and_closing_reach_the_reader(checkpoint: Path) -> None:
    async def work(engine: AsyncEngine) -> None:
        executor = engine.engine._core.executor
        stream = engine.generate(STATE, LONG)
        await stream.__anext__()
        wait = executor.wait

        def failing(handle: Any) -> Any:  # as often as the step is tried again
            raise MemoryError("mine")

        executor.wait = failing  # type: ignore[method-assign]
        with pytest.raises(Exception, match="mine"):
            async for _ in stream:
                pass
        executor.wait = wait  # type: ignore[method-assign]
        with pytest.raises(StopAsyncIteration):
            await stream.__anext__()
        last = engine.generate(STATE, LONG)
        await last.__anext__()
        await engine.aclose(drain=False)
        with pytest.raises(EngineClosed):
            async for _ in last:
                pass

    in_loop(checkpoint, work)
