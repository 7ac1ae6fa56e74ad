"""Callers of an engine as the GPU bench has them: alone, saturating, chatting, and both at once."""

from __future__ import annotations

import asyncio
import statistics
import time

import numpy as np

from bench.gpu.batches import draw, one_token
from prelude import AsyncEngine, Generate, SamplingParams


async def lone_requests(engine: AsyncEngine, tokens: int, repeats: int, count: int) -> list[float]:
    """p50 of each repeat, text to answer, one at a time."""
    async with engine:
        tokenizer = engine.engine._preparer.tokenizer
        texts = [tokenizer.decode(draw(1000 + i, tokens).tolist()) for i in range(count)]
        found = []
        for repeat in range(repeats + 1):
            times = []
            for text in texts:
                began = time.perf_counter()
                await engine.run(Generate(text, SamplingParams(max_tokens=1, temperature=0.0), cache="never"))
                times.append(time.perf_counter() - began)
            if repeat:  # the first records
                found.append(statistics.median(times))
        return found


async def saturated(
    engine: AsyncEngine, tokens: int, flights: int, shared: float, repeats: int, seconds: float
) -> list[float]:
    """Requests a second with ``flights`` in flight."""
    common = draw(7, int(tokens * shared))
    seeds = iter(range(10_000, 10_000_000))
    await engine.start()

    async def worker(until: float) -> int:
        done = 0
        while time.perf_counter() < until:
            ids = np.concatenate([common, draw(next(seeds), tokens - len(common))])
            await engine.run(one_token(ids))
            done += 1
        return done

    found = []
    for repeat in range(repeats + 1):
        began = time.perf_counter()
        counts = await asyncio.gather(*(worker(began + seconds) for _ in range(flights)))
        if repeat:
            found.append(sum(counts) / (time.perf_counter() - began))
    return found


async def stream_times(engine: AsyncEngine, seed: int, tokens: int, output: int) -> list[float]:
    times = []
    params = SamplingParams(max_tokens=output, temperature=0.0, ignore_eos=True)
    async for _ in engine.generate(draw(seed, tokens).tolist(), params):
        times.append(time.perf_counter())
    return times


async def chats(
    engine: AsyncEngine, tokens: int, output: int, flights: int, repeats: int
) -> tuple[list[float], list[float]]:
    """Seconds per output token behind the first, and output tokens a second, of each repeat."""
    await engine.start()
    tpots, rates = [], []
    for repeat in range(repeats + 1):
        began = time.perf_counter()
        runs = 4
        found: list[list[float]] = []
        for _ in range(runs):
            streams = (stream_times(engine, 31 * repeat + i, tokens, output) for i in range(flights))
            found += await asyncio.gather(*streams)
        seconds = time.perf_counter() - began
        if repeat:
            tpots.append(statistics.median((t[-1] - t[0]) / (output - 1) for t in found))
            rates.append(runs * flights * output / seconds)
    return tpots, rates


async def chat_beside_decisions(engine: AsyncEngine, repeats: int) -> list[float]:
    await engine.start()
    found = []
    for repeat in range(repeats + 1):
        alone = await stream_times(engine, repeat, 128, 64)
        stop = asyncio.Event()

        async def decisions(worker: int, stop: asyncio.Event = stop) -> None:
            seed = worker * 100_000
            while not stop.is_set():
                seed += 1
                await engine.run(one_token(draw(seed, 512)))

        tasks = [asyncio.create_task(decisions(i)) for i in range(32)]
        await asyncio.sleep(0.3)
        beside = await stream_times(engine, repeat, 128, 64)
        stop.set()
        await asyncio.gather(*tasks)
        if repeat:
            found.append((beside[-1] - beside[0]) / (alone[-1] - alone[0]))
    return found
